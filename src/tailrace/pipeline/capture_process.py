"""The capture process: copies the source's change stream into the log. One a source, an OS process of its own.

It talks to its parent in JSON lines. Down its standard input come the order to start and what the sinks have; up its
standard output go progress and, at the end, why it stopped. When its input closes, its parent is gone, and it stops.
"""

from __future__ import annotations

import os
import select
import sys
import time

import msgspec

from tailrace import config, failpoints, registry
from tailrace.errors import SourceUnavailable, StateError, TailraceError
from tailrace.log.appending import Appender
from tailrace.log.retention import Retention
from tailrace.log.writer import LogWriter
from tailrace.model.stored import from_json
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Source
from tailrace.state import lease
from tailrace.state.layout import LOG, READERS
from tailrace.state.readers import Readers
from tailrace.state.storage import Storage

LOCK_SECONDS = 15.0
POLL_SECONDS = 0.05
REPORT_SECONDS = 0.2
ALIVE_SECONDS = 2.0  # then it says so, though there is nothing new
STORE_SECONDS = 1.0  # between segments on a store: a request costs money, and an object is replaced once a second
ENOUGH_BYTES = 8 << 20  # for a segment, if none is being written
SOME_BYTES = 2 << 20  # for a segment, if nothing follows at the moment
PAUSE_SECONDS = 0.004
CROWDED = 200  # segments; beyond, each one more makes the next a millisecond later


class Order(msgspec.Struct, frozen=True):
    """How to start: a new log begins at `start_position` of `source`."""

    pipeline: config.Pipeline
    start_position: str
    source: SourceIdentity


class Acknowledge(msgspec.Struct, frozen=True):
    """Every sink has what lies up to here, in the log `log`: offsets of another one mean nothing."""

    log: str
    offset: int
    position: str
    version: int = 1


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """`received` is how far the source was read; all of it that was for us lies in the log `log` up to offset `end`."""

    received: str
    end: int
    log_bytes: int
    changes: int
    is_full: bool
    full_seconds: int = 0  # how long it has been full without a break
    held_by: str | None = None  # the reader that the log waits for, if it is not a sink
    log: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    kind: str
    message: str
    hint: str | None
    retry: bool


class Remark(msgspec.Struct, frozen=True, tag="remark"):
    """Something about the stream that an operator should know."""

    message: str


Word = Progress | Failed | Remark


class Control:
    """The parent's lines, read without waiting."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""
        self.is_closed = False

    def fileno(self) -> int:
        return self.descriptor

    def first_line(self) -> bytes:
        while b"\n" not in self._rest and not self.is_closed:
            self._read()
        line, end, self._rest = self._rest.partition(b"\n")
        return line if end else b""

    def acknowledgement(self) -> Acknowledge | None:
        """The newest one that has come, or None. It may have come together with the first line."""
        if select.select([self], [], [], 0)[0]:
            self._read()
        *lines, self._rest = self._rest.split(b"\n")
        return from_json(lines[-1], Acknowledge) if lines else None

    def _read(self) -> None:
        data = os.read(self.descriptor, 1 << 16)
        self.is_closed |= not data
        self._rest += data


class Pump:
    """Copies frames from the source into the log, until the parent goes away.

    Order is the whole point: a segment is durable before the source hears of it, and the source hears of it when the
    sinks have it. While a segment is written the next one is read, and the log is left alone.
    """

    def __init__(self, source: Source, log: LogWriter, pipeline: config.Pipeline, control: Control) -> None:
        self.capture = source.capture(log.position, log.next_offset, log.definitions(), log.source)
        log.source = self.capture.identity
        self.log = log
        self._appender = Appender(log)
        self.settings = pipeline.log
        readers = Readers(Storage(pipeline.state).folder(READERS))
        self.retention = Retention(log, readers, pipeline.log)
        self.acknowledges_log = pipeline.source.acknowledge is config.Acknowledge.LOG
        self.control = control
        self.changes = 0
        is_local = log.storage.is_local  # then a segment costs next to nothing
        self._flush_seconds = max(pipeline.log.flush_interval_ms / 1000, 0 if is_local else STORE_SECONDS)
        self._enough_bytes = min(pipeline.log.segment_bytes, ENOUGH_BYTES if is_local else pipeline.log.segment_bytes)
        self._some_bytes = min(SOME_BYTES, self._enough_bytes) if is_local else self._enough_bytes
        self._flushed_at = self._free_at = time.monotonic()
        self._incomplete = 0  # bytes that are pending, and not whole
        self._reported_at = 0.0
        self._reported: Progress | None = None

    def run(self) -> None:
        while not self.control.is_closed:
            if self.is_full:
                self.capture.idle(POLL_SECONDS, self.control)
                self._finish()
            else:
                self._flush_if_due(is_paused=self._read())
            if not self._appender.is_busy:
                self._tend()
            for remark in self.capture.remarks():
                say(Remark(remark))

    @property
    def is_full(self) -> bool:
        return self.retention.is_full

    def _read(self) -> bool:
        """Take in what has come; whether nothing came for a moment, though there is something to write."""
        before = self.capture.pending_bytes
        is_worth_it = before >= self._some_bytes and before != self._incomplete and not self._appender.is_writing
        self.capture.poll(PAUSE_SECONDS if is_worth_it else POLL_SECONDS, self.control, self._appender)
        return is_worth_it and self.capture.pending_bytes == before

    def _tend(self) -> None:
        """What is done with a log that nobody writes to at the moment."""
        self._hear()
        self.retention.apply()
        self._report()

    def _flush_if_due(self, *, is_paused: bool) -> None:
        pending = self.capture.pending_bytes
        if self._appender.is_writing and pending < self.settings.segment_bytes:
            return
        if self._appender.is_busy:
            self._finish()
            self._tend()
        age = time.monotonic() - self._flushed_at
        crowd = max(self.retention.crowd - CROWDED, 0) / 1000
        is_worth_it = pending >= self._enough_bytes or (is_paused and not crowd)
        if not is_worth_it and age < self._flush_seconds + crowd:
            return
        has_flushed = self._flush()
        if has_flushed or self.log.storage.is_local:  # a store: at once after a pause, and then once a second
            self._flushed_at = time.monotonic()
        while has_flushed and self.capture.pending_bytes and not self._appender.is_writing:
            self._finish()
            has_flushed = self._flush()
        if not self._appender.is_writing:
            self._finish()

    def _flush(self) -> bool:
        """Begin to append one segment; false if nothing was pending."""
        taken = self.capture.take()
        self._incomplete = self.capture.pending_bytes if taken is None else 0
        if taken is None:
            return False
        frames, position = taken
        self._appender.begin(frames, position, self.capture.identity)
        return True

    def _finish(self) -> None:
        """The segment that is being written is durable."""
        if self._appender.is_busy:
            frames, position = self._appender.finish()
            self.changes += sum(frames.tables.values())
            if self.acknowledges_log:
                self._acknowledge(position)

    def _hear(self) -> None:
        heard = self.control.acknowledgement()
        if heard is None or heard.log != self.log.identity.id:
            return
        self.retention.sinks_have(heard.offset)
        if not self.acknowledges_log:
            self._acknowledge(heard.position)

    def _acknowledge(self, position: str) -> None:
        failpoints.reached("capture-before-acknowledge")
        self.capture.acknowledge(position)
        failpoints.reached("capture-after-acknowledge")

    def _report(self) -> None:
        now = time.monotonic()
        self._free_at = self._free_at if self.is_full else now
        full = (self.is_full, int(now - self._free_at), self.retention.held_by)
        progress = Progress(
            self.capture.received, self.log.end, self.log.size, self.changes, *full, log=self.log.identity.id
        )
        is_news = self._reported is None or progress.end != self._reported.end
        age = now - self._reported_at
        if age >= ALIVE_SECONDS or (progress != self._reported and (is_news or age >= REPORT_SECONDS)):
            self._reported, self._reported_at = progress, now
            say(progress)
            self.log.touch()


def say(word: Word) -> None:
    """Tell the parent. One that is gone hears nothing, and then there is nothing left to do here."""
    try:
        os.write(sys.stdout.fileno(), msgspec.json.encode(word) + b"\n")
    except BrokenPipeError:
        sys.exit(0)


def open_log(order: Order) -> LogWriter:
    """The pipeline's log, waiting a little for a predecessor that is about to die."""
    storage = Storage(order.pipeline.state).folder(LOG)
    deadline = time.monotonic() + LOCK_SECONDS + (0 if storage.is_local else lease.DEAD_SECONDS)
    while True:
        try:
            return LogWriter.open(storage) or LogWriter.create(storage, order.source, order.start_position)
        except StateError as error:
            if "another tailrace process" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> int:
    control = Control(sys.stdin.fileno())
    line = control.first_line()
    if not line:
        return 0  # the parent died before it could say what to do
    order = from_json(line, Order)
    try:
        source = registry.make_source(order.pipeline)
        log = open_log(order)
        Pump(source, log, order.pipeline, control).run()
    except TailraceError as error:
        say(Failed(type(error).__name__, str(error), error.hint, error.retry))
        return 1
    except OSError as error:
        say(Failed(SourceUnavailable.__name__, f"capture stopped: {error}", None, True))
        return 1
    return 0


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes our input
    sys.exit(main())
