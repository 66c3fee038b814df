"""What does not fit into memory of a transaction that has to stay whole: a private file without a name.

It is for this process alone: nobody can open it, and it goes with the process however that ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref

import msgspec

from tailrace.errors import StateUnavailable
from tailrace.log import segment
from tailrace.log.segment import SegmentName
from tailrace.model.frames import Frames


class Spooled(msgspec.Struct, frozen=True, eq=False):
    """Frames in the spool, in the format of a segment of the log."""

    spool: Spool
    name: SegmentName
    start: int
    bytes: int
    number: int

    def frames(self) -> Frames:
        return segment.read_from(_Window(self.spool, self.start, self.bytes), self.name)[1]

    def free(self) -> None:
        self.spool.free(self.number)


class Spool:
    """One file, made when it is first needed. It is emptied once nobody needs anything of it, and closed with us."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._end = 0
        self._users: set[int] = set()  # their numbers
        self._written = 0

    @property
    def size(self) -> int:
        return self._end

    def write(self, frames: Frames) -> Spooled:
        name, parts = segment.encode(frames, "spool", "")
        with self._lock:
            start = self._end
            try:
                for part in parts:
                    self._end += _write_whole(self._file(), memoryview(part).cast("B"), self._end)
            except OSError as error:
                self._end = start
                raise StateUnavailable(
                    f"a large transaction can not be spooled: {error}",
                    hint="make room in the folder for temporary files (TMPDIR), or allow transactions='split'",
                ) from error
            self._written += 1
            self._users.add(self._written)
            return Spooled(self, name, start, self._end - start, self._written)

    def read(self, size: int, at: int) -> bytes:
        assert self._descriptor is not None
        return os.pread(self._descriptor, size, at)

    def free(self, number: int) -> None:
        """May be said twice."""
        with self._lock:
            self._users.discard(number)
            if not self._users and self._descriptor is not None:
                os.ftruncate(self._descriptor, 0)
                self._end = 0

    def _file(self) -> int:
        if self._descriptor is None:
            descriptor, path = tempfile.mkstemp(prefix="tailrace-spool-", dir=self._folder)
            os.unlink(path)
            self._descriptor = descriptor
            weakref.finalize(self, os.close, descriptor)
        return self._descriptor


def _write_whole(descriptor: int, data: memoryview, at: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], at + done)
    return done


class _Window:
    """A part of the file that reads like one."""

    def __init__(self, spool: Spool, start: int, length: int) -> None:
        self._spool, self._at, self._end = spool, start, start + length

    def read(self, size: int, /) -> bytes:
        found = b""
        size = min(size, self._end - self._at)
        while len(found) < size:
            more = self._spool.read(size - len(found), self._at)
            if not more:
                break
            found += more
            self._at += len(more)
        return found
