"""Reading the change log: what there is, cut into slices for tasks.

On a store that can refuse a write, what there is goes up to the end that the writer has published under its lease. A
writer that lost it may still leave a segment behind; nobody reads that one, because it lies past the published end, or
another epoch wrote the same offsets.

A slice is a range of offsets inside one segment. Readers see committed transactions only: what lies past the last
transaction end is not there for them yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from tailrace.errors import LogCorrupt, OffsetGone, StateError
from tailrace.log import segment
from tailrace.log.segment import Header, SegmentName
from tailrace.model.frames import Definition, Frames
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.state import lease
from tailrace.state.layout import WRITER_LOCK
from tailrace.state.objects import Version
from tailrace.state.storage import Storage

IDENTITY = "log.json"
TABLES = "tables.json"


class LogIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Written once. `start_position` is the place of `source` before offset 1."""

    id: str
    source: SourceIdentity | None
    start_position: str
    version: int = 2


class Slice(msgspec.Struct, frozen=True):
    """Offsets `first … last` of the segment `name`."""

    name: str
    first: int
    last: int


def read_identity(storage: Storage) -> LogIdentity | None:
    try:
        data = storage.read(IDENTITY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage.trouble(error) from error
    try:
        return msgspec.json.decode(data, type=LogIdentity)
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"the file {IDENTITY} of the change log in {storage.path} is damaged") from error


def read_tables(storage: Storage) -> dict[str, Definition]:
    """The newest definition of every table that ever had a change, also if retention took its changes away."""
    return read_tables_version(storage)[0]


def read_tables_version(storage: Storage) -> tuple[dict[str, Definition], Version | None]:
    try:
        data, version = storage.read_version(TABLES)
        return msgspec.json.decode(data, type=dict[str, Definition]), version
    except FileNotFoundError:
        return {}, None
    except msgspec.MsgspecError as error:
        raise LogCorrupt(f"the file {TABLES} of the change log in {storage.path} is damaged") from error


def segment_names(storage: Storage) -> dict[SegmentName, int]:
    """The log's segments and their sizes in bytes."""
    end = published_end(storage)  # before the segments are listed: all up to there are among them
    parsed = ((SegmentName.parse(name), size) for name, size in storage.sizes(segment.SUFFIX).items())
    sizes = {name: size for name, size in parsed if name is not None}
    return {name: sizes[name] for name in valid(sizes, end)}


def published_end(storage: Storage) -> int | None:
    """Up to where the log goes, whatever else lies in its folder; None where that is all of it."""
    note = lease.read(storage, WRITER_LOCK) if storage.is_conditional else None
    return None if note is None else note.end


def valid(names: Iterable[SegmentName], end: int | None) -> list[SegmentName]:
    """Those that the log consists of if it goes up to `end`: each offset has its last writer's word."""
    found = sorted(name for name in names if end is None or name.first <= end)
    if len({name.epoch for name in found}) < 2:
        return found
    return [name for name in found if not any(_replaces(other, name) for other in found)]


def _replaces(other: SegmentName, name: SegmentName) -> bool:
    """A later writer wrote what `name` begins with. Nobody goes back before what was published."""
    return other.epoch > name.epoch and other.first <= name.first <= other.last


class LogReader:
    """A view of a log that a writer may be extending.

    With `log_id` it is of that log only: one that was made anew in the same folder has other offsets, and is refused.
    """

    def __init__(self, storage: Storage, log_id: str | None = None) -> None:
        self.storage, self._log_id = storage, log_id

    def identity(self) -> LogIdentity | None:
        identity = read_identity(self.storage)
        self._refuse_another(None if identity is None else identity.id)
        return identity

    def names(self) -> list[SegmentName]:
        return sorted(segment_names(self.storage))

    def end(self) -> int:
        """The offset of the last transaction end; 0 for an empty log."""
        published = published_end(self.storage)
        return _end(self.names()) if published is None else published

    def begin(self) -> int:
        """The offset before the oldest one that is still kept."""
        return _begin(self.names())

    def tables(self) -> dict[str, Definition]:
        return read_tables(self.storage)

    def slices(self, after: int | None, last: int | None) -> list[Slice]:
        """What lies in (after, last], in order; None stands for the oldest and the newest that there is."""
        names = self.names()
        after = _begin(names) if after is None else after
        last = _end(names) if last is None else last
        found = []
        for name, until in zip(names, _usable(names), strict=True):
            low, high = max(name.first, after + 1), min(until, last)
            if low <= high:
                found.append(Slice(str(name), low, high))
        _check_dense(found, after, last, (_begin(names), _end(names)), self.storage.path)
        return found

    def limit(self, after: int, max_messages: int, max_bytes: int = 1 << 62) -> int:
        """The end of a micro-batch after `after`: whole transactions, about so many messages and bytes of segments.

        It is at least one segment, and a transaction larger than that is taken whole.
        """
        end, size = after, 0
        for name, bytes_ in sorted(segment_names(self.storage).items()):
            size += bytes_ if name.last > after else 0
            if name.committed <= after or not name.holds_end:
                continue
            if end > after and (name.committed - after > max_messages or size > max_bytes):
                break
            end = name.committed
        return end

    def place(self) -> Watermark | None:
        """The log's end, as a watermark; None where there is no log."""
        identity = self.identity()
        if identity is None:
            return None
        newest = max((name for name in self.names() if name.holds_end), default=None)
        if newest is None:
            return Watermark(identity.id, 0, identity.start_position, identity.source)
        header = self.header(newest)
        return Watermark(identity.id, header.committed, header.position, header.source)

    def transactions(self, after: int, last: int) -> Iterator[pa.RecordBatch]:
        """The transactions that touch (after, last], in the source's own words."""
        for name in [name for name in self.names() if name.last > after and name.first <= last]:
            yield self.read(name)[1].transactions

    def header(self, name: SegmentName) -> Header:
        """Of the segment that holds what `name` held, if that was merged with its neighbours meanwhile."""
        try:
            header = segment.read_header(self.storage, name)
        except OffsetGone:
            header = segment.read_header(self.storage, self._successor(name))
        self._refuse_another(header.log_id)
        return header

    def read(self, name: SegmentName) -> tuple[Header, Frames]:
        """As `header`: there may be more in it than was asked for, at the same offsets."""
        try:
            header, frames = segment.read(self.storage, name)
        except OffsetGone:
            header, frames = segment.read(self.storage, self._successor(name))
        self._refuse_another(header.log_id)
        return header, frames

    def _refuse_another(self, log_id: str | None) -> None:
        if self._log_id is not None and log_id is not None and log_id != self._log_id:
            raise made_anew(self.storage)

    def _successor(self, lost: SegmentName) -> SegmentName:
        names = self.names()
        for name in names:
            if name.first <= lost.first and lost.last <= name.committed:
                return name
        raise gone(lost.first, (_begin(names), _end(names)), self.storage.path)


def made_anew(storage: Storage) -> StateError:
    """The error of somebody who follows a log, and finds another one in its place."""
    return StateError(
        f"the change log in {storage.path} was made anew while the pipeline ran",
        hint="run the same command again: the sinks know where they are",
    )


def _usable(names: Sequence[SegmentName]) -> list[int]:
    """The last offset of each segment that counts: a later segment's first offset voids what lies behind it."""
    following = [name.first - 1 for name in names[1:]] + [name.last for name in names[-1:]]
    return [min(name.last, until) for name, until in zip(names, following, strict=True)]


def _check_dense(found: Sequence[Slice], after: int, last: int, kept: tuple[int, int], path: str) -> None:
    expected = after + 1
    for piece in found:
        if piece.first != expected:
            break
        expected = piece.last + 1
    if expected != last + 1:
        raise gone(expected, kept, path)


def gone(offset: int, kept: tuple[int, int], path: str) -> OffsetGone:
    """The error of somebody who asks for `offset` of a log that has what lies in (begin, end]."""
    begin, end = kept
    if offset > end:
        return OffsetGone(f"the change log in {path} does not hold offset {offset} yet: it ends at {end}")
    return OffsetGone(f"the change log in {path} no longer holds offset {offset}: it keeps {begin + 1} to {end}")


def _begin(names: Sequence[SegmentName]) -> int:
    return min((name.first for name in names), default=1) - 1


def _end(names: Sequence[SegmentName]) -> int:
    return max((name.committed for name in names if name.holds_end), default=0)
