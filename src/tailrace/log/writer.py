"""Appending to the change log.

Guarantee: when `append` returns, the frames are durable and visible whole; when it does not, nothing of them is.
Offsets are dense. What a crash left behind of an unfinished transaction is void: the source sends it again.

On a store that can refuse a write, a segment is there once its end is published under the writer's lease, which nobody
can do who has lost it: of two writers, however late one of them wakes, one has written each offset.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence

import msgspec

from tailrace import failpoints
from tailrace.errors import LogCorrupt, StateError
from tailrace.log import segment
from tailrace.log.merging import merged
from tailrace.log.reader import IDENTITY, TABLES, LogIdentity, read_identity, read_tables_version, valid
from tailrace.log.segment import Header, SegmentName
from tailrace.model.frames import Definition, Frames
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.state.layout import WRITER_LOCK
from tailrace.state.storage import Lock, Storage


class SegmentFacts(msgspec.Struct, frozen=True):
    size: int
    written_at: float  # seconds since 1970


class LogWriter:
    """The only writer of a log; it also deletes what no sink needs any more. `segments` are in the order of offsets."""

    def __init__(self, storage: Storage, identity: LogIdentity, lock: Lock | None) -> None:
        self.storage = storage
        self.identity = identity
        self._lock = lock
        self._epoch = lock.epoch if lock is not None else 0
        self.segments = _drop_unfinished(storage, lock.end if lock is not None else None, self._epoch)
        self.size = sum(facts.size for facts in self.segments.values())
        names = list(self.segments)
        newest = segment.read_header(storage, names[-1]) if names else None
        self.place = names[-1] if names else None  # the newest that holds a transaction end
        self.end = names[-1].committed if names else 0
        self.position = identity.start_position if newest is None else newest.position
        self.source = identity.source if newest is None else newest.source  # whom the next segment is read from
        self._next = self.end + 1
        self._refuse_loss()
        self._tables, self._tables_version = read_tables_version(storage)
        self._publish_end()

    @classmethod
    def open(cls, storage: Storage) -> LogWriter | None:
        """The log in this folder, or None if there is none yet."""
        lock = storage.lock(WRITER_LOCK) if read_identity(storage) else None
        identity = read_identity(storage)
        return cls(storage, identity, lock) if identity else None

    @classmethod
    def create(cls, storage: Storage, source: SourceIdentity | None, start_position: str) -> LogWriter:
        """A new, empty log whose first message follows `start_position` of the source."""
        storage.create()
        lock = storage.lock(WRITER_LOCK)
        if read_identity(storage):
            raise StateError(f"there is a change log in {storage.path} already")
        identity = LogIdentity(id=uuid.uuid4().hex[:16], source=source, start_position=start_position)
        for name in [*storage.sizes(segment.SUFFIX), *storage.sizes(TABLES)]:  # of another log, whose identity is gone
            storage.delete(name)
        if lock is not None:
            lock.publish(0)
        if storage.swap(IDENTITY, msgspec.json.encode(identity), None) is None:
            raise taken_over(storage)
        return cls(storage, identity, lock)

    @property
    def next_offset(self) -> int:
        return self._next

    @property
    def count(self) -> int:
        return len(self.segments)

    def count_after(self, offset: int) -> int:
        """How many segments hold something behind `offset`."""
        return sum(1 for _ in itertools.takewhile(lambda name: name.last > offset, reversed(self.segments)))

    def append(self, frames: Frames, position: str) -> None:
        """Make `frames` durable. `position` is the source's place at the last transaction end so far.

        Frames that begin right after that end replace what is there of an unfinished transaction.
        """
        if frames.first == self.end + 1 < self._next:
            self._drop_unfinished(frames.first)
        assert frames.first == self._next
        name, parts = segment.encode(frames, self.identity.id, position, self.position, self.source, self._epoch)
        self._check_lock()
        self._note_tables(frames.definitions)
        size = self.storage.publish_segment(str(name), parts)
        self.segments[name] = SegmentFacts(size, time.time())
        self.size += size
        self._next = frames.last + 1
        self.position = position
        if name.holds_end:
            self.place, self.end = name, name.committed
            self._publish_end()
        failpoints.reached("log-segment-published")

    def definitions(self) -> dict[int, TableSchema]:
        """The newest version of each relation that was ever described here."""
        return {each.relation: each.schema for each in sorted(self._tables.values(), key=lambda each: each.since)}

    def _drop_unfinished(self, first: int) -> None:
        """Give up what is there of an unfinished transaction, which begins at offset `first`."""
        self._make_sure()
        published = self.end if self.storage.is_conditional else None
        self.segments = _drop_unfinished(self.storage, published, self._epoch)
        self.size = sum(facts.size for facts in self.segments.values())
        self._next = first

    def forget(self, offset: int) -> None:
        """Delete the segments that end at or before `offset`. The newest with a transaction end stays: our place."""
        self._check_lock()
        for name in list(self.segments):
            if name.last > offset or name == self.place:
                break
            self.storage.delete(str(name))
            self.size -= self.segments.pop(name).size

    def merge(self, names: Sequence[SegmentName], most_bytes: int) -> bool:
        """Put neighbours into one segment, as many as have `most_bytes` in memory; False if that is not even two.

        A crash in between leaves both, which say the same; `open` mends it.
        """
        found = self._read_first(names, most_bytes)
        if len(found) < 2:
            return False
        (first, _), (last, _) = found[0], found[-1]
        frames = merged([frames for _, frames in found])
        name, data = segment.encode(frames, self.identity.id, last.position, first.begins_at, last.source, self._epoch)
        self._make_sure()
        size = self.storage.publish_segment(str(name), data)
        failpoints.reached("log-segments-merged")
        self._make_sure()  # an upload may take long
        parts = names[: len(found)]
        written_at = self.segments[parts[-1]].written_at
        for part in parts:
            self.storage.delete(str(part))
            self.size -= self.segments.pop(part).size
        self.size += size
        self.segments = dict(sorted([*self.segments.items(), (name, SegmentFacts(size, written_at))]))
        return True

    def _read_first(self, names: Sequence[SegmentName], most_bytes: int) -> list[tuple[Header, Frames]]:
        found: list[tuple[Header, Frames]] = []
        for name in names:
            header, frames = segment.read(self.storage, name)
            most_bytes -= int(frames.bounds[-1])
            if most_bytes < 0:
                break
            found.append((header, frames))
        return found

    def _note_tables(self, definitions: Sequence[Definition]) -> None:
        """Keep what a table looks like beyond the segments that hold its changes."""
        news = {each.schema.table: each for each in definitions if self._is_news(each)}
        if news:
            self._tables |= news
            self._write_tables(msgspec.json.encode(self._tables))

    def _write_tables(self, data: bytes) -> None:
        if not self.storage.is_conditional:
            self.storage.publish(TABLES, data)
            return
        written = self.storage.swap(TABLES, data, self._tables_version)
        if written is None:  # an answer was lost, or somebody wrote who had been replaced: what we know counts
            self._make_sure()
            written = self.storage.swap(TABLES, data, self.storage.read_version(TABLES)[1])
        if written is None:
            raise taken_over(self.storage)
        self._tables_version = written

    def _is_news(self, definition: Definition) -> bool:
        """A source repeats itself after a restart: that is no news, unless the table had another name meanwhile."""
        known = self._tables.get(definition.schema.table)
        if known is None or msgspec.structs.replace(definition, since=known.since) != known:
            return True
        return any(known.since < each.since for each in self._tables.values() if each.relation == known.relation)

    def _refuse_loss(self) -> None:
        """What was published, sinks may have: its offsets are not given out anew."""
        published = self._lock.end if self._lock is not None else None
        if published is not None and published > self.end:
            raise LogCorrupt(
                f"the change log in {self.storage.path} ends at {self.end}, and was published up to {published}: a"
                " segment is gone",
                hint="delete the state directory and run again: the sinks know where they are",
            )

    def _publish_end(self) -> None:
        if self._lock is not None and self._lock.end != self.end:
            self._lock.publish(self.end)

    def _check_lock(self) -> None:
        """Fencing: a writer that was stopped for long, and wakes after another took over, writes nothing.

        Where the end is published under the lock, that is the check; and what all have may be deleted by anybody.
        """
        if not self.storage.is_conditional:
            self._make_sure()

    def _make_sure(self) -> None:
        """Before anything is deleted that another writer may count on."""
        if self._lock is not None:
            self._lock.check()

    def touch(self) -> None:
        """Show that the log has all there is, though nothing may be written for long."""
        if self._lock is not None:
            self._lock.touch()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def taken_over(storage: Storage) -> StateError:
    return StateError(f"another tailrace process took over the state directory {storage.path}")


def _drop_unfinished(storage: Storage, published: int | None, epoch: int) -> dict[SegmentName, SegmentFacts]:
    """Delete the segments that hold nothing but the beginning of an unfinished transaction. Returns the others.

    Also those that were never published. Who finds the segments of a later epoch was replaced, and deletes nothing.
    """
    files = storage.files(segment.SUFFIX)
    named = {SegmentName.parse(name): SegmentFacts(*facts) for name, facts in files.items()}
    found = {name: facts for name, facts in named.items() if name is not None}
    if any(name.epoch > epoch for name in found):
        raise taken_over(storage)
    counting = set(valid(found, published))
    end = max((name.committed for name in counting if name.holds_end), default=0)
    for name in [name for name in found if name.first > end or name not in counting]:
        storage.delete(str(name))
        del found[name]
    for name in _covered(sorted(found)):
        storage.delete(str(name))
        del found[name]
    for part in storage.sizes(".part"):
        storage.delete(part)
    return dict(sorted(found.items()))


def _covered(names: Sequence[SegmentName]) -> list[SegmentName]:
    """What was merged into another segment, and not deleted yet."""
    reach, covered = 0, []
    for name in sorted(names, key=lambda name: (name.first, -name.last)):
        if name.committed != name.last:
            continue
        if name.last <= reach:
            covered.append(name)
        reach = max(reach, name.last)
    return covered
