"""The thread that reads from the source: it takes in what the buffer has room for, and passes on what was acknowledged.

It alone touches the open stream. It decodes nothing. While the buffer is full it keeps the connection alive. A source
that goes away is tried again, for as long as it takes.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from tailrace import failpoints
from tailrace.embedded.buffer import Buffer
from tailrace.embedded.options import Options
from tailrace.errors import SourceUnavailable, StateError, TailraceError
from tailrace.model.backoff import Backoff
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Capture, Source

POLL_SECONDS = 0.2
SOUND_SECONDS = 10.0
"""A stream that was lost is well again once something came of it, or when it has lasted so long."""
TAKE_BYTES = 2 << 20
TAKE_SECONDS = 0.02
"""A piece of the stream is taken when it has so much, or, where the consumer waits for it, after so long: many small
ones cost more."""
FLOOD_BYTES, FLOOD_SECONDS = 32 << 10, 0.1
"""Where so much comes meanwhile, it is a backlog, of which larger pieces are worth a longer wait."""


class Wake:
    """What makes the pump look up from what it waits for. May be closed twice."""

    def __init__(self) -> None:
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._is_called = False

    def fileno(self) -> int:
        return self._ear.fileno()

    def call(self) -> None:
        with suppress(OSError):  # it has been called often enough, or nobody hears it any more
            self._mouth.send(b"!")
        self._is_called = True  # not before: whoever hears it would find nothing, and then be called for ever

    def hear(self) -> None:
        if self._is_called:
            self._is_called = False
            with suppress(BlockingIOError):
                self._ear.recv(4096)

    def close(self) -> None:
        self._ear.close()
        self._mouth.close()


class Pump:
    """Started with a capture that is open. `identity` is whom it reads from."""

    def __init__(
        self, source: Source, buffer: Buffer, capture: Capture, described: dict[int, TableSchema], options: Options
    ) -> None:
        self._source, self._buffer, self._capture = source, buffer, capture
        self._described, self._messages = described, options.messages
        self.identity: SourceIdentity = capture.identity
        self._wake = Wake()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._wanted: str | None = None  # what the source is to be told
        self._wanted_at = 0.0
        self.told = ""  # what it was told
        self.is_resting = False  # it takes nothing more in
        self.reconnects = 0
        self.trouble: TailraceError | None = None  # why the source can not be read at the moment
        self.trouble_since = 0.0
        self.remarks: list[str] = []
        self._taken_at = self._opened_at = time.monotonic()
        self._lost_at = ""  # where the stream was when it was lost
        self._thread = threading.Thread(target=self._run, name=f"tailrace {options.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """What was acknowledged is passed on first."""
        self._stopping.set()
        self.wake()
        if self._thread.ident is None:  # it was never started
            self._close_capture()
        else:
            self._thread.join(seconds)
        if not self._thread.is_alive():
            self._wake.close()

    def wake(self) -> None:
        if self._thread.is_alive():
            self._wake.call()

    def acknowledge(self, position: str) -> None:
        """The source may forget what lies before `position`: to be told as soon as it can be."""
        with self._lock:
            self._wanted_at = self._wanted_at if self._wanted is not None else time.monotonic()
            self._wanted = position
        self.wake()

    @property
    def untold_seconds(self) -> float | None:
        """For how long there has been something that the source was not told."""
        return None if self._wanted is None else time.monotonic() - self._wanted_at

    def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._stopping.is_set():
                try:
                    self._pump(backoff)
                except OSError as error:
                    self._recover(SourceUnavailable(f"the stream was lost: {error}"), backoff)
                except StateError:  # the spool's: nothing that the source could mend
                    raise
                except TailraceError as error:
                    self._recover(error, backoff)
            self._tell_source()
        except TailraceError as error:
            self._buffer.fail(error)
        except BaseException as error:
            self._buffer.fail(SourceUnavailable(f"the pump of the stream died: {error!r}"))
            raise
        finally:
            self._close()

    def _pump(self, backoff: Backoff) -> None:
        capture, buffer = self._capture, self._buffer
        while not self._stopping.is_set():
            if buffer.is_full or self.is_resting:
                capture.idle(POLL_SECONDS, self._wake)
            else:
                before = capture.pending_bytes
                capture.poll(TAKE_SECONDS if before else POLL_SECONDS, self._wake)
                self._take_if_due(is_quiet=capture.pending_bytes == before)
            self._wake.hear()
            self._tell_source()
            self.remarks += capture.remarks()
            if self.trouble is not None and self._is_well():
                self.trouble = None
                backoff.reset()

    def _is_well(self) -> bool:
        """One that is lost again and again at the same place is not: it would be tried for ever in silence."""
        return self._buffer.position != self._lost_at or time.monotonic() - self._opened_at >= SOUND_SECONDS

    def _take_if_due(self, *, is_quiet: bool) -> None:
        now, pending = time.monotonic(), self._capture.pending_bytes
        patience = FLOOD_SECONDS if pending >= FLOOD_BYTES else TAKE_SECONDS
        is_awaited = self._buffer.is_hungry and now - self._taken_at >= patience
        if pending < TAKE_BYTES and not is_quiet and not is_awaited:
            return
        self._taken_at = now
        taken = self._capture.take()
        while taken is not None:
            frames, position = taken
            self._described |= {each.relation: each.schema for each in frames.definitions}
            self.identity = self._capture.identity
            self._buffer.add(frames, position, self.identity, self._capture.received)
            taken = self._capture.take() if self._capture.pending_bytes else None
        self._buffer.heard(self._capture.received)

    def _tell_source(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None or wanted == self.told:
            return
        try:
            failpoints.reached("embedded-before-source-told")
            self._capture.acknowledge(wanted)
            failpoints.reached("embedded-source-told")
        except BaseException:
            self._want_again(wanted)
            raise
        self.told = wanted

    def _want_again(self, position: str) -> None:
        """Unless there is something newer."""
        with self._lock:
            self._wanted = position if self._wanted is None else self._wanted

    def _recover(self, error: TailraceError, backoff: Backoff) -> None:
        """Open the stream again behind the last whole transaction; raises what can not be got over."""
        if not error.retry:
            raise error
        while not self._stopping.is_set():
            if self.trouble is None:
                self.trouble_since, self._lost_at = time.monotonic(), self._buffer.position
            self.trouble = error
            self._close_capture()
            if self._stopping.wait(backoff.wait()):
                return
            try:
                self._reopen()
            except TailraceError as another:
                if not another.retry:
                    raise
                error = another
            else:
                self.reconnects += 1
                return

    def _reopen(self) -> None:
        first = self._buffer.begin_again()
        position = self._buffer.position
        self._capture = self._source.capture(position, first, self._described, self.identity, messages=self._messages)
        self.told = ""
        self._opened_at = time.monotonic()

    def _close_capture(self) -> None:
        with suppress(OSError, TailraceError):  # it is gone already
            self._capture.close()

    def _close(self) -> None:
        self._close_capture()
        self._buffer.tell()
