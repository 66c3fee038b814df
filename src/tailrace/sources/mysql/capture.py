"""Capture from MySQL and MariaDB: the stream's events, gathered and indexed for the log.

Of a transaction the log gets its row events, as the server sent them, the truncates, and once a segment the map of each
table in it: a segment can be decoded by itself. It never looks at a value; rows are counted, for each has an offset.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.columns.characters import spans
from tailrace.errors import SourceRefused
from tailrace.model.frames import PADDING, Definition, Frames
from tailrace.model.positions import Binlog
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Capture
from tailrace.sources.mysql import decode, decode_images, gtid, unpacking
from tailrace.sources.mysql import events as kinds
from tailrace.sources.mysql.connection import source_errors, variable
from tailrace.sources.mysql.decode import ENDED, MARKED, TRANSACTIONS, own, truncated
from tailrace.sources.mysql.describing import Descriptions, Maps, Wanted
from tailrace.sources.mysql.events import BODY, Events, Integers
from tailrace.sources.mysql.grouping import Grouping, Groups, now_us
from tailrace.sources.mysql.identity import check_same_past, identity_of
from tailrace.sources.mysql.open_since import OpenSince
from tailrace.sources.mysql.positions import parse, reached, require_available
from tailrace.sources.mysql.prepared import Prepared
from tailrace.sources.mysql.replication import BinlogStream

FEW_BYTES = 2048
"""Events that lie apart and are smaller are gathered by Arrow, before they are copied."""


@dataclass(slots=True)
class Kept:
    """The messages of a segment, in order: each a row event (its row) or one of our own (its bytes)."""

    rows: Integers  # of the events that it stands at
    widths: Integers
    codes: Integers  # of the map of a row event, else -1
    own: dict[int, bytes]  # by the number of the message


class MysqlCapture(Capture):
    def __init__(
        self,
        url: str,
        server_id: int,
        wanted: Wanted,
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        known: SourceIdentity | None = None,
        *,
        name: str = "tailrace",
        mark_seconds: float = 10.0,
        zero_dates: str = "stop",
    ) -> None:
        self._wanted, self._url = wanted, url
        self._stream = BinlogStream(url, server_id, name)
        try:
            self.identity = self._begin(after, known)
        except BaseException:
            self._stream.close()
            raise
        self._kind = decode.MARIADB if self._stream.server.is_mariadb else "mysql"
        place = parse(after)
        self._in_files = isinstance(place, Binlog)
        plain = str(msgspec.structs.replace(place, since=""))
        self._progress = gtid.progress_from(plain)
        self._position = self._told = after
        begin = place.since or plain
        self._grouping = Grouping(begin.rpartition(":")[0] if self._in_files else "", in_files=self._in_files)
        self._prepared, self._open_since = Prepared(), OpenSince(plain, place.since)
        self._maps = Maps(is_mariadb=self._stream.server.is_mariadb)
        self._is_wanted: dict[int, bool] = {}
        self._next, self._begun = first_offset, 0  # the offset at which the open transaction begins
        self._mark_seconds, self._marked_at = mark_seconds, time.monotonic()
        self._tables = Descriptions(url, described, zero_dates, is_mariadb=self._stream.server.is_mariadb)

    def _begin(self, after: str, known: SourceIdentity | None) -> SourceIdentity:
        stream = self._stream
        with source_errors(self._url, "beginning the stream"):
            if known is None:
                identity = identity_of(stream.connection, stream.server, self._url)
            else:
                identity = check_same_past(stream.connection, stream.server, self._url, known, after)
            begin = parse(after).since or after
            require_available(stream.connection, begin)
            self._is_lower_case = variable(stream.connection, "lower_case_table_names") == "1"
        stream.start(begin)
        return identity

    def poll(self, seconds: float, *wake: object) -> None:
        if self._stream.wait(seconds, *wake):
            self._stream.read()
        else:
            self._stream.check_alive()

    def idle(self, seconds: float, *wake: object) -> None:
        """Take nothing in: the server waits with what it has for us."""
        self._stream.wait_only(seconds, *wake)

    @property
    def pending_bytes(self) -> int:
        return self._stream.pending_bytes

    @property
    def received(self) -> str:
        return self._position

    def acknowledge(self, position: str) -> None:
        """The server keeps its log by its own rules."""

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        self._stream.close()
        self._tables.close()

    def take(self) -> tuple[Frames, str] | None:
        while (events := self._stream.take()) is not None:
            if (frames := self._indexed(self._whole(events))) is not None:
                return frames, self._told
        return self._mark()

    def _whole(self, events: Events) -> Events:
        """Events whose checksums were verified, with none that is packed."""
        self._stream.has_checksums = unpacking.note_checksums(events, has_checksums=self._stream.has_checksums)
        kinds.check_whole(events)
        return unpacking.unpacked(events)

    def _indexed(self, events: Events) -> Frames | None:
        was_open = self._begun if self._grouping.is_open else 0
        events, turns = self._prepared.settled(events)
        groups = self._open_since.unread(self._grouping.read(events), turns)
        places = self._open_since.placed(self._places(events, groups), groups, turns)
        kept = self._kept(events, groups, was_open)
        ended = groups.group[groups.ends]
        if not len(kept.rows):
            self._advance(places, events, groups)
            return None
        head = [self._map_message(code) for code in dict.fromkeys(kept.codes[kept.codes >= 0].tolist())]
        offsets = self._next + len(head) + np.cumsum(kept.widths) - kept.widths
        transactions = self._transactions(groups, ended, places, kept, offsets, was_open)
        definitions, tables = self._defined(kept, offsets)
        buffer, bounds = self._packed(events, kept, head)
        frames = Frames(
            kind=self._kind,
            first=self._next,
            buffer=buffer,
            bounds=bounds,
            transactions=transactions,
            definitions=definitions,
            tables=tables,
            widths=np.concatenate([np.ones(len(head), np.uint32), kept.widths.astype(np.uint32)]),
        )
        self._next = frames.last + 1
        self._advance(places, events, groups)
        is_over = transactions.column("end").to_numpy() > 0
        if is_over.any():
            self._told = transactions.column("position")[int(np.flatnonzero(is_over)[-1])].as_py()
        return frames

    def _advance(self, places: pa.Array, events: Events, groups: Groups) -> None:
        """Behind the last transaction, or behind what came after it and was of none: the file before may go."""
        if len(places):
            self._position = places[-1].as_py()
        row = len(events.starts) - 1
        is_behind = not len(groups.ends) or row > groups.ends[-1]
        if self._in_files and is_behind and not self._grouping.is_open:
            is_rotation = bool(groups.files) and groups.files[-1][0] == row
            at = int(events.number(np.array([row]), *((kinds.HEADER, 8) if is_rotation else (13, 4)))[0])
            place = f"{self._grouping.file}:{at}"
            if at >= Binlog.FIRST and reached(place, self._position):  # a server makes some events up
                self._position = self._open_since.open_at(place)

    def _places(self, events: Events, groups: Groups) -> pa.Array:
        """Where each transaction that ends here ends."""
        ended = groups.group[groups.ends]
        if not self._in_files:
            servers = [groups.servers[number] for number in ended.tolist()]
            return gtid.after(self._progress, servers, groups.numbers[ended])
        ends = events.number(groups.ends, 13, 4)
        cuts = np.array([row for row, _ in groups.files], np.int64)
        names = [self._file_before, *(name for _, name in groups.files)]
        servers = [names[number] for number in np.searchsorted(cuts, groups.ends).tolist()]
        ends = np.where(ends < groups.numbers[ended], ends + (1 << 32), ends)  # events have 4 bytes for it
        self._file_before = names[-1]
        return gtid.after(self._progress, servers, ends)

    _file_before = ""

    def _kept(self, events: Events, groups: Groups, was_open: int) -> Kept:
        types = events.types
        changed = np.flatnonzero(decode.OPS[types] >= 0)
        codes = self._maps.codes_of(events, np.flatnonzero(types == kinds.TABLE_MAP), changed)
        is_ours = np.array([self._wants(code) for code in np.unique(codes).tolist()], np.bool_)
        mask = is_ours[np.searchsorted(np.unique(codes), codes)] if len(codes) else np.zeros(0, np.bool_)
        mask &= ~groups.is_read[groups.group[changed]]
        rows, codes = changed[mask], codes[mask]
        widths = self._counted(events, rows, codes, types)
        notes = self._notes(groups)
        if was_open and len(groups.ends) and not groups.group[groups.ends[0]]:
            notes.append((int(groups.ends[0]), own(ENDED)))
        if not notes:
            return Kept(rows, widths, codes, {})
        at = np.array([row for row, _ in notes], np.int64)
        order = np.argsort(np.concatenate([rows, at]), kind="stable")
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return Kept(
            rows=np.concatenate([rows, at])[order],
            widths=np.concatenate([widths, np.ones(len(at), np.int64)])[order],
            codes=np.concatenate([codes, np.full(len(at), -1)])[order],
            own={int(places[len(rows) + number]): data for number, (_, data) in enumerate(notes)},
        )

    def _wants(self, code: int) -> bool:
        if code < 0:
            return False
        if code not in self._is_wanted:
            table = self._maps.tables[code]
            self._is_wanted[code] = self._wanted.matches(table.schema, table.name)
        return self._is_wanted[code]

    def _counted(self, events: Events, rows: Integers, codes: Integers, types: Any) -> Integers:
        widths = np.zeros(len(rows), np.int64)
        for code in np.unique(codes).tolist():
            chosen = np.flatnonzero(codes == code)
            at = rows[chosen]
            ends = events.ends[at] - events.trailers[at]
            of = (decode.OPS[types[at]], types[at] >= 30)
            table = self._maps.tables[code]
            widths[chosen] = decode_images.count(events.buffer, events.starts[at] + BODY, ends, *of, table)
        return widths

    def _notes(self, groups: Groups) -> list[tuple[int, bytes]]:
        """What statements do to our tables."""
        found = []
        for row, query in groups.statements:
            query = query.in_lower_case if self._is_lower_case else query
            self._tables.forget(query.altered)
            for gone in query.replaced:
                if self._wanted.matches(*gone) and not self._tables.sees_numbers():
                    raise _replaced(*gone)
            if (name := query.truncated) and self._wanted.matches(*name) and self._tables.latest(*name) is not None:
                found.append((row, truncated(*name)))
        return found

    def _transactions(
        self, groups: Groups, ended: Integers, places: pa.Array, kept: Kept, offsets: Integers, was_open: int
    ) -> pa.RecordBatch:
        group = groups.group[kept.rows]
        found, firsts = np.unique(group, return_index=True)
        lasts = np.append(firsts[1:], len(group)) - 1
        begin = offsets[firsts].copy()
        if was_open and found[0] == 0:
            begin[0] = was_open
        place = np.searchsorted(ended, found)
        is_over = place < len(ended)
        is_over[is_over] = ended[place[is_over]] == found[is_over]
        end = np.where(is_over, offsets[lasts] + kept.widths[lasts] - 1, 0)
        positions = (
            places.take(pa.array(place, mask=~is_over)).fill_null("") if len(places) else pa.array([""] * len(found))
        )
        self._begun = 0 if is_over[-1] else int(begin[-1])
        last = int(groups.group[-1])
        if self._grouping.is_open and found[-1] != last:
            self._begun = 0
        servers = pa.array([groups.servers[number] for number in found.tolist()], pa.string())
        columns = [pa.array(begin), pa.array(end), pa.array(groups.times[found])]
        columns += [servers, pa.array(groups.numbers[found]), positions]
        return pa.RecordBatch.from_arrays(columns, schema=TRANSACTIONS)

    def _defined(self, kept: Kept, offsets: Integers) -> tuple[tuple[Definition, ...], dict[str, int]]:
        """The definitions that these messages need, and how many changes each table has."""
        found: list[Definition] = []
        tables: dict[str, int] = {}
        for first, last, code in _runs(kept.codes):
            if code >= 0:
                schema = self._tables.schema_of(self._maps.tables[code])
                found.append(self._tables.define(schema, int(offsets[first])))
                tables[schema.table] = tables.get(schema.table, 0) + int(kept.widths[first:last].sum())
        for number, data in kept.own.items():
            if data[4] == decode.TRUNCATED:
                name = decode.truncated_table(data)
                schema_then = self._tables.latest(*name)
                assert schema_then is not None
                found.append(self._tables.define(schema_then, int(offsets[number])))
                tables[schema_then.table] = tables.get(schema_then.table, 0) + 1
        return tuple(dict.fromkeys(found)), tables

    def _map_message(self, code: int) -> bytes:
        body = self._maps.messages[code]
        return _message(own(kinds.TABLE_MAP, body), code)

    def _packed(self, events: Events, kept: Kept, head: list[bytes]) -> tuple[Any, Integers]:
        """One padded buffer, and its bounds."""
        buffer, starts = events.buffer, events.starts[kept.rows]
        ours = kept.codes >= 0
        np.ndarray((len(buffer) - 3,), "<u4", buffer, 0, (1,))[starts[ours] + 1] = kept.codes[ours]
        buffer[starts[ours]] = events.trailers[kept.rows[ours]]
        made = dict(enumerate(head)) | {len(head) + number: _message(data, 0) for number, data in kept.own.items()}
        sizes = np.concatenate([np.zeros(len(head), np.int64), events.ends[kept.rows] - starts])
        sizes[list(made)] = [len(data) for data in made.values()]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        packed = np.empty(int(bounds[-1]) + PADDING, np.uint8)
        packed[-PADDING:] = 0
        for number, data in made.items():
            packed[bounds[number] : bounds[number + 1]] = np.frombuffer(data, np.uint8)
        lengths, places = sizes[len(head) :], bounds[len(head) : -1]
        _gather(buffer, starts[ours], lengths[ours], packed, places[ours])
        return packed, bounds

    def _mark(self) -> tuple[Frames, str] | None:
        """Let the progress of a stream without changes for us flow through the log to the sinks."""
        is_idle = not self._grouping.is_open and self._position != self._told
        if not is_idle or time.monotonic() - self._marked_at < self._mark_seconds:
            return None
        self._marked_at = time.monotonic()
        data = _message(own(MARKED), 0)
        columns = [[self._next], [self._next], [now_us()], [""], [0], [self._position]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, TRANSACTIONS, strict=True)]
        frames = Frames(
            kind=self._kind,
            first=self._next,
            buffer=np.frombuffer(data + bytes(PADDING), np.uint8),
            bounds=np.array([0, len(data)]),
            transactions=pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS),
            widths=np.ones(1, np.uint32),
        )
        self._next += 1
        self._told = self._position
        return frames, self._told


def _replaced(schema: str, name: str) -> SourceRefused:
    return SourceRefused(
        f"a statement has replaced or emptied a partition or the file of {schema}.{name}: no event tells of its rows",
        hint="GRANT PROCESS ON *.* to the role: then it is seen; and copy the table again with `tailrace snapshot`",
    )


def _message(event: bytes, code: int) -> bytes:
    """An event of our own making, which has no checksum, as a message."""
    return bytes(1) + code.to_bytes(4, "little") + event


def _gather(buffer: Any, starts: Integers, lengths: Integers, packed: Any, places: Integers) -> None:
    """Copy the events that begin at `starts` to `places` of `packed`: what lies together in both, together."""
    cuts = _cuts(starts, lengths, places)
    if int(lengths.sum()) < len(cuts) * FEW_BYTES:
        found = spans(buffer, starts, lengths)
        ends = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1).astype(np.int64)
        buffer, starts = np.frombuffer(found.buffers()[2], np.uint8), ends[:-1]
        cuts = _cuts(starts, lengths, places)
    sizes = np.add.reduceat(lengths, cuts) if len(cuts) else cuts
    for first, place, size in zip(starts[cuts].tolist(), places[cuts].tolist(), sizes.tolist(), strict=True):
        packed[place : place + size] = buffer[first : first + size]


def _cuts(starts: Integers, lengths: Integers, places: Integers) -> Integers:
    """Which events do not lie right behind the one before, here or there."""
    is_cut = (starts[1:] != starts[:-1] + lengths[:-1]) | (places[1:] != places[:-1] + lengths[:-1])
    return np.concatenate([[True], is_cut]).nonzero()[0] if len(starts) else np.zeros(0, np.int64)


def _runs(codes: Integers) -> list[tuple[int, int, int]]:
    """Runs of equal codes: where each begins and ends."""
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]]).tolist()
    return [(first, last, int(codes[first])) for first, last in itertools.pairwise(cuts) if last > first]
