"""Writing a segment while the next one is read.

Compressing and syncing a large segment takes as long as reading it from the source. So a thread does it, one segment at
a time. A small one is written at once, by whoever asks: a thread would only make it later.

Guarantee: `LogWriter.append`'s own, once `finish` has returned. Until then the log is the thread's, and nobody else may
look at it.
"""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor

from tailrace.log.writer import LogWriter
from tailrace.model.frames import Frames
from tailrace.model.watermark import SourceIdentity

LARGE_BYTES = 1 << 20


class Appender:
    """Of one log. Its descriptor can be read once a segment that was begun is written."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1, "tailrace append")
        self._told, self._telling = socket.socketpair()
        self._begun: Future[tuple[Frames, str]] | None = None

    def fileno(self) -> int:
        return self._told.fileno()

    @property
    def is_busy(self) -> bool:
        """Something was begun, and its end was not asked for."""
        return self._begun is not None

    @property
    def is_writing(self) -> bool:
        return self._begun is not None and not self._begun.done()

    def begin(self, frames: Frames, position: str, source: SourceIdentity | None) -> None:
        """Append `frames`, which were read from `source`. Nothing else may be on its way."""
        assert self._begun is None
        if int(frames.bounds[-1]) < LARGE_BYTES:
            written = self._append(frames, position, source)
            self._begun = Future()
            self._begun.set_result(written)
        else:
            self._begun = self._thread.submit(self._append, frames, position, source)
            self._begun.add_done_callback(lambda _: self._telling.send(b"\0"))

    def finish(self) -> tuple[Frames, str]:
        """Wait until what was begun is durable; what it was. Raises what `append` raised."""
        assert self._begun is not None
        begun, self._begun = self._begun, None
        found = begun.result()
        if int(found[0].bounds[-1]) >= LARGE_BYTES:
            self._told.recv(1)
        return found

    def _append(self, frames: Frames, position: str, source: SourceIdentity | None) -> tuple[Frames, str]:
        self._log.source = source
        self._log.append(frames, position)
        return frames, position
