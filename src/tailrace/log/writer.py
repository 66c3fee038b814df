"""Appending to the change log.

Guarantee: when `append` returns, the frames are durable and visible whole; when it does not, nothing of them is.
Offsets are dense. What a crash left behind of an unfinished transaction is void: the source sends it again.
"""

from __future__ import annotations

import uuid
from typing import IO

import msgspec

from tailrace import failpoints
from tailrace.errors import StateError
from tailrace.log import segment
from tailrace.log.reader import IDENTITY, LogIdentity, read_identity, segment_names
from tailrace.log.segment import SegmentName
from tailrace.log.storage import Storage
from tailrace.model.frames import Frames
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity

LOOK_BACK = 200  # segments


class LogWriter:
    """The only writer of a log; it also deletes what no sink needs any more."""

    def __init__(self, storage: Storage, identity: LogIdentity, lock: IO[str] | None) -> None:
        self.storage = storage
        self.identity = identity
        self._lock = lock
        self._sizes = _drop_unfinished(storage)
        names = sorted(self._sizes)
        newest = segment.read_header(storage, names[-1]) if names else None
        self.end = names[-1].committed if names else 0
        self.position = identity.start_position if newest is None else newest.position
        self.source = identity.source if newest is None else newest.source  # whom the next segment is read from
        self._next = self.end + 1

    @classmethod
    def open(cls, storage: Storage) -> LogWriter | None:
        """The log in this folder, or None if there is none yet."""
        lock = storage.lock("writer.lock") if read_identity(storage) else None
        identity = read_identity(storage)
        return cls(storage, identity, lock) if identity else None

    @classmethod
    def create(cls, storage: Storage, source: SourceIdentity | None, start_position: str) -> LogWriter:
        """A new, empty log whose first message follows `start_position` of the source."""
        storage.create()
        lock = storage.lock("writer.lock")
        if read_identity(storage):
            raise StateError(f"there is a change log in {storage.path} already")
        identity = LogIdentity(id=uuid.uuid4().hex[:16], source=source, start_position=start_position)
        storage.publish(IDENTITY, msgspec.json.encode(identity))
        return cls(storage, identity, lock)

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    @property
    def count(self) -> int:
        return len(self._sizes)

    def append(self, frames: Frames, position: str) -> None:
        """Make `frames` durable. `position` is the source's place at the last transaction end so far.

        Frames that begin right after that end replace what is there of an unfinished transaction.
        """
        if frames.first == self.end + 1 < self._next:
            self._sizes, self._next = _drop_unfinished(self.storage), frames.first
        assert frames.first == self._next
        name, parts = segment.encode(frames, self.identity.id, position, self.position, self.source)
        size = self.storage.publish_parts(str(name), parts)
        failpoints.reached("log-segment-published")
        self._sizes[name] = size
        self._next = frames.last + 1
        self.position = position
        if name.holds_end:
            self.end = name.committed

    def definitions(self) -> dict[int, TableSchema]:
        """The newest version of each relation that the log still describes, as far as a look at its end can tell."""
        headers = [segment.read_header(self.storage, name) for name in sorted(self._sizes)[-LOOK_BACK:]]
        return {each.relation: each.schema for header in headers for each in header.definitions}

    def forget(self, offset: int) -> None:
        """Delete the segments that end at or before `offset`. The newest with a transaction end stays: our place."""
        place = max((name for name in self._sizes if name.holds_end), default=None)
        for name in sorted(self._sizes):
            if name.last > offset or name == place:
                break
            self.storage.delete(str(name))
            del self._sizes[name]

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _drop_unfinished(storage: Storage) -> dict[SegmentName, int]:
    """Delete the segments that hold nothing but the beginning of an unfinished transaction."""
    sizes = segment_names(storage)
    end = max((name.committed for name in sizes if name.holds_end), default=0)
    for name in [name for name in sizes if name.first > end]:
        storage.delete(str(name))
        del sizes[name]
    for part in storage.sizes(".part"):
        storage.delete(part)
    return sizes
