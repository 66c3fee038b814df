"""pgoutput, protocol version 1: messages into an index (for the log) and into typed changes (for everybody else).

Protocol page: "Logical Replication Message Formats". Message kinds: Begin, Commit, Origin, Relation, tYpe, Insert,
Update, Delete, Truncate, Message; and `k`, our own mark for an idle stream's keepalive: the source has got this far and
nothing of ours lies before it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tailrace.errors import DecodeError, SourceError, ValueRefused
from tailrace.model import frames as model
from tailrace.model.changes import Changes, Flags, Op
from tailrace.model.event import SourceMessage
from tailrace.model.frames import PADDING, Definition, Frames
from tailrace.model.schema import Identity, TableSchema
from tailrace.sources.base import LoggedMessage
from tailrace.sources.postgres.values.decoders import decode_values
from tailrace.sources.postgres.values.lanes import HAS_VALUE, UNCHANGED, Bytes, Integers, Lane, big_endian, blank, walk

KIND = "postgresql"
TRANSACTIONS = pa.schema(  # in the order of all logs so far: segments are merged with older ones
    [
        *(model.TRANSACTIONS.field(name) for name in ("begin", "end")),
        pa.field("xid", pa.int64(), False),
        model.TRANSACTIONS.field("time_us"),
        pa.field("commit_position", pa.int64(), False),
        pa.field("end_position", pa.int64(), False),  # where the source resumes after it; 0 while unknown
    ]
)
TOLD = pa.schema(
    [
        pa.field("_commit_position", pa.int64()),
        pa.field("_commit_time", pa.timestamp("us", "UTC")),
        pa.field("_xid", pa.int64()),
    ]
)
EPOCH_US = 946_684_800_000_000  # 2000-01-01, PostgreSQL's epoch, in microseconds since 1970
LANES = 32_768  # rows decoded together: their cursors fit the caches
LANE_BYTES = 32 << 20  # and their messages in memory, twice; a larger message is decoded alone
LARGE = 16 << 20  # a message that is worth not being copied
_B, _C, _O, _R, _Y, _I, _U, _D, _T, _M, _K = (ord(kind) for kind in "BCORYIUDTMk")
_KNOWN = np.zeros(256, np.bool_)
_KNOWN[[_B, _C, _O, _R, _Y, _I, _U, _D, _T, _M, _K]] = True
_SHORTEST = np.ones(256, np.int64)
_SHORTEST[[_B, _C, _I, _U, _D, _T, _M, _K]] = [21, 26, 8, 8, 8, 10, 15, 17]
_LONGEST = np.full(256, 1 << 62, np.int64)
_LONGEST[[_B, _C, _K]] = _SHORTEST[[_B, _C, _K]]
_MUST_BE_INSIDE = np.zeros(256, np.bool_)
_MUST_BE_INSIDE[[_I, _U, _D, _T]] = True
_OPS = {_I: Op.INSERT, _U: Op.UPDATE, _D: Op.DELETE, _T: Op.TRUNCATE}
_OP_OF = np.full(256, -1, np.int8)
for _kind, _op in _OPS.items():
    _OP_OF[_kind] = _op


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose end has not come yet."""

    begin: int
    xid: int
    time_us: int
    commit_position: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message, as sent: columns are (is key, name, type oid, type modifier)."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[tuple[bool, str, int, int], ...]


def keepalive_mark(position: int, time_us: int) -> bytes:
    return b"k" + struct.pack(">qq", position, time_us - EPOCH_US)


def pack(messages: Sequence[bytes]) -> tuple[Bytes, Integers]:
    """One padded buffer and its bounds; a large message that comes alone is the buffer, without padding or a copy."""
    if len(messages) == 1 and len(messages[0]) >= LARGE:
        return np.frombuffer(messages[0], np.uint8), np.array([0, len(messages[0])])
    bounds = np.zeros(len(messages) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), out=bounds[1:])
    return np.frombuffer(b"".join([*messages, bytes(PADDING)]), np.uint8), bounds


def kinds_of(buffer: Bytes, bounds: Integers, first: int) -> Bytes:
    """Each message's kind, all known, none too short or too long. `first` is the offset of the first message."""
    lengths = np.diff(bounds)
    kinds = buffer[bounds[:-1]]
    bad = ~_KNOWN[kinds] | (lengths < _SHORTEST[kinds]) | (lengths > _LONGEST[kinds])
    truncates = np.flatnonzero(kinds == _T)
    bad[truncates] |= lengths[truncates] != 6 + 4 * big_endian(buffer, bounds[truncates] + 1, 4)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        kind = chr(kinds[at]) if lengths[at] else "nothing"
        raise DecodeError(f"message {kind!r} of {int(lengths[at])} bytes at offset {first + at} is not pgoutput")
    return kinds


def parse_relation(message: bytes, offset: int) -> Relation:
    try:
        (relation,) = struct.unpack_from(">I", message, 1)
        schema, name, rest = message[5:].split(b"\0", 2)
        identity, count = struct.unpack_from(">cH", rest)
        columns, rest = [], rest[3:]
        for _ in range(count):
            label, tail = rest[1:].split(b"\0", 1)
            oid, modifier = struct.unpack_from(">Ii", tail)
            columns.append((bool(rest[0] & 1), label.decode(), oid, modifier))
            rest = tail[8:]
        if rest or identity not in (b"d", b"i", b"f", b"n"):
            raise ValueError
        return Relation(relation, schema.decode() or "pg_catalog", name.decode(), identity.decode(), tuple(columns))
    except (struct.error, ValueError, IndexError) as error:
        raise DecodeError(f"the Relation message at offset {offset} is cut short or malformed") from error


def parse_type(message: bytes, offset: int) -> tuple[int, str, str]:
    """A Type message: the type's oid, and the schema and name of what it is at bottom if it is a domain."""
    try:
        (oid,) = struct.unpack_from(">I", message, 1)
        schema, name, rest = message[5:].split(b"\0", 2)
        if rest:
            raise ValueError
        return oid, schema.decode() or "pg_catalog", name.decode()
    except (struct.error, ValueError) as error:
        raise DecodeError(f"the Type message at offset {offset} is cut short or malformed") from error


def index_transactions(
    buffer: Bytes, bounds: Integers, kinds: Bytes, first: int, carried: OpenTransaction | None
) -> tuple[pa.RecordBatch, OpenTransaction | None]:
    """The transactions that touch these messages (TRANSACTIONS), and the one that is still open behind them."""
    _check_nesting(kinds, first, carried is not None)
    starts = bounds[:-1]
    begins = np.flatnonzero(kinds == _B)
    ends = np.flatnonzero(kinds == _C)
    marks = np.flatnonzero(kinds == _K)
    lone = _lone_messages(buffer, starts, kinds)
    head = [] if carried is None else [carried]
    begin = _joined([t.begin for t in head], begins + first)
    xid = _joined([t.xid for t in head], big_endian(buffer, starts[begins] + 17, 4) & 0xFFFFFFFF)
    time = _joined([t.time_us for t in head], big_endian(buffer, starts[begins] + 9, 8) + EPOCH_US)
    commit = _joined([t.commit_position for t in head], big_endian(buffer, starts[begins] + 1, 8))
    still_open = None
    end = np.zeros(len(begin), np.int64)
    end_position = np.zeros(len(begin), np.int64)
    end[: len(ends)] = ends + first
    end_position[: len(ends)] = big_endian(buffer, starts[ends] + 10, 8)
    if len(ends) < len(begin):
        still_open = OpenTransaction(int(begin[-1]), int(xid[-1]), int(time[-1]), int(commit[-1]))
    mark_position = big_endian(buffer, starts[marks] + 1, 8)
    mark_time = big_endian(buffer, starts[marks] + 9, 8) + EPOCH_US
    lone_position = big_endian(buffer, starts[lone] + 2, 8)
    nothing = np.zeros(len(lone), np.int64)
    columns = [
        np.concatenate([begin, marks + first, lone + first]),
        np.concatenate([end, marks + first, lone + first]),
        np.concatenate([xid, np.zeros(len(marks), np.int64), nothing]),
        np.concatenate([time, mark_time, nothing]),
        np.concatenate([commit, mark_position, lone_position]),
        np.concatenate([end_position, mark_position, lone_position]),  # a message tells where its record ends
    ]
    order = np.argsort(columns[0], kind="stable")
    arrays = [pa.array(column[order]) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=TRANSACTIONS), still_open


def _lone_messages(buffer: Bytes, starts: Integers, kinds: Bytes) -> Integers:
    """Message messages that belong to no transaction: each ends by itself, as a mark does."""
    rows = np.flatnonzero(kinds == _M)
    lone: Integers = rows[buffer[starts[rows] + 1] == 0]
    return lone


def _joined(head: list[int], rest: Integers) -> Integers:
    return np.concatenate([np.array(head, np.int64), rest])


def _check_nesting(kinds: Bytes, first: int, is_open: bool) -> None:
    """Transactions begin and end in turn; changes are inside of one, keepalive marks outside."""
    is_begin, is_end = kinds == _B, kinds == _C
    depth = is_open + np.cumsum(is_begin, dtype=np.int64) - np.cumsum(is_end, dtype=np.int64)
    inside = _MUST_BE_INSIDE[kinds]
    bad = (depth < 0) | (depth > 1) | (inside & (depth != 1)) | ((kinds == _K) & (depth != 0))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise DecodeError(f"message {chr(kinds[at])!r} at offset {first + at} stands outside of its transaction")


def count_changes(buffer: Bytes, bounds: Integers, kinds: Bytes) -> dict[int, int]:
    """How many changes each relation has, truncates included."""
    rows = np.flatnonzero((kinds == _I) | (kinds == _U) | (kinds == _D))
    relations, counts = np.unique(big_endian(buffer, bounds[rows] + 1, 4) & 0xFFFFFFFF, return_counts=True)
    found = dict(zip(relations.tolist(), counts.tolist(), strict=True))
    for row in np.flatnonzero(kinds == _T).tolist():
        for relation in _truncated(buffer, bounds, row):
            found[relation] = found.get(relation, 0) + 1
    return found


def _truncated(buffer: Bytes, bounds: Integers, row: int) -> list[int]:
    message = buffer[bounds[row] : bounds[row + 1]].tobytes()
    (count,) = struct.unpack_from(">i", message, 1)  # the length was checked against it in kinds_of
    return list(struct.unpack_from(f">{count}I", message, 6))


def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
    """The changes at offsets first … last, table by table, version by version; each table's own in log order."""
    kinds = kinds_of(frames.buffer, frames.bounds, frames.first)
    low, high = first - frames.first, last - frames.first + 1
    rows_of = _rows_by_relation(frames, kinds, low, high)
    for relation, rows in sorted(rows_of.items(), key=lambda item: int(item[1][0])):
        versions = sorted((d for d in frames.definitions if d.relation == relation), key=lambda d: d.since)
        if not versions or int(rows[0]) + frames.first < versions[0].since:
            raise DecodeError(f"offset {int(rows[0]) + frames.first} is of a relation that was never described")
        for schema, part in _by_version(versions, rows, frames.first):
            if tables is not None and schema.table not in tables:
                continue
            for rows in _lanes(frames, part):
                yield _decode_rows(frames, kinds, rows, schema)


def _lanes(frames: Frames, rows: Integers) -> Iterator[Integers]:
    """Rows that are decoded together: neither too many nor too large."""
    ends = np.cumsum(frames.bounds[rows + 1] - frames.bounds[rows])
    begin = 0
    while begin < len(rows):
        before = ends[begin - 1] if begin else 0
        fitting = int(np.searchsorted(ends, before + LANE_BYTES, side="right"))
        end = min(begin + LANES, max(fitting, begin + 1))
        yield rows[begin:end]
        begin = end


def _rows_by_relation(frames: Frames, kinds: Bytes, low: int, high: int) -> dict[int, Integers]:
    part = kinds[low:high]
    rows = np.flatnonzero((part == _I) | (part == _U) | (part == _D)) + low
    relations = big_endian(frames.buffer, frames.bounds[rows] + 1, 4) & 0xFFFFFFFF
    if len(relations) and (relations == relations[0]).all():
        found = {int(relations[0]): rows}
    else:
        order = np.argsort(relations, kind="stable")
        distinct, starts = np.unique(relations[order], return_index=True)
        found = dict(zip(distinct.tolist(), np.split(rows[order], starts[1:]), strict=True)) if len(distinct) else {}
    for row in (np.flatnonzero(part == _T) + low).tolist():
        for relation in _truncated(frames.buffer, frames.bounds, row):
            found[relation] = np.sort(np.append(found.get(relation, np.zeros(0, np.int64)), row))
    return found


def _by_version(versions: list[Definition], rows: Integers, first: int) -> Iterator[tuple[TableSchema, Integers]]:
    cuts = np.searchsorted(rows + first, [d.since for d in versions[1:]])
    for definition, part in zip(versions, np.split(rows, cuts), strict=True):
        if len(part):
            yield definition.schema, part


def _decode_rows(frames: Frames, kinds: Bytes, rows: Integers, schema: TableSchema) -> Changes:
    try:
        return _decode_together(frames, kinds, rows, schema)
    except (DecodeError, ValueRefused) as error:
        raise _located(frames, kinds, rows, schema, error) from error


def _located(frames: Frames, kinds: Bytes, rows: Integers, schema: TableSchema, error: SourceError) -> SourceError:
    """The error of the first row that has one, with its offset: a search by halves."""
    low, high = 0, len(rows)
    while low < high:
        end = (low + high + 1) // 2
        try:
            _decode_together(frames, kinds, rows[low:end], schema)
            low = end
        except (DecodeError, ValueRefused) as found:
            error, high = found, end
            if end - low == 1:
                break
    offset = int(rows[min(low, len(rows) - 1)]) + frames.first
    return type(error)(f"{error}; {schema.table} at offset {offset}", hint=error.hint, table=schema.table)


def _decode_together(frames: Frames, kinds: Bytes, rows: Integers, schema: TableSchema) -> Changes:
    buffer, width = frames.buffer, len(schema.columns)
    starts, ends = frames.bounds[rows], frames.bounds[rows + 1]
    op = _OP_OF[kinds[rows]]
    if not schema.key and schema.identity is Identity.FULL:
        _check_whole(buffer[starts + 5], op)
    new, old, old_rows = _tuples(buffer, starts, ends, op, width)
    unchanged = _unchanged(new, op)
    begin = frames.transactions.column("begin").to_numpy()
    transaction = np.searchsorted(begin, rows + frames.first, side="right") - 1
    return Changes(
        schema=schema,
        op=op,
        offset=rows + frames.first,
        transaction=transaction,
        transactions=told_of(frames.transactions),
        after=_typed(buffer, new, schema, len(rows)),
        unchanged=unchanged,
        before_rows=old_rows,
        before=_typed(buffer, old, schema, len(old_rows)),
    )


def messages(frames: Frames, first: int, last: int) -> Iterator[LoggedMessage]:
    """The Message messages: what `pg_logical_emit_message` wrote."""
    low, high = first - frames.first, last - frames.first + 1
    rows = np.flatnonzero(frames.buffer[frames.bounds[:-1]][low:high] == _M) + low
    begins = frames.transactions.column("begin").to_numpy()
    for row in rows.tolist():
        data = frames.buffer[frames.bounds[row] : frames.bounds[row + 1]].tobytes()
        transaction = int(np.searchsorted(begins, row + frames.first, side="right")) - 1
        yield LoggedMessage(row + frames.first, transaction, parse_message(data, row + frames.first))


def parse_message(data: bytes, offset: int) -> SourceMessage:
    try:
        is_transactional, _ = struct.unpack_from(">?q", data, 1)
        prefix, rest = data[10:].split(b"\0", 1)
        (length,) = struct.unpack_from(">I", rest)
        if len(rest) != 4 + length:
            raise ValueError
        return SourceMessage(prefix.decode(), rest[4:], is_transactional)
    except (struct.error, ValueError) as error:
        raise DecodeError(f"the Message message at offset {offset} is cut short or malformed") from error


def told_of(transactions: pa.RecordBatch) -> pa.RecordBatch:
    """What users see of transactions: TOLD."""
    position, time_us, xid = (transactions.column(name) for name in ("commit_position", "time_us", "xid"))
    return pa.RecordBatch.from_arrays([position, time_us.cast(pa.timestamp("us", "UTC")), xid], schema=TOLD)


def _check_whole(marker: Bytes, op: np.ndarray) -> None:
    """Without a key the old row is all that tells which one is meant. A partition has an identity of its own."""
    if (((op == Op.UPDATE) | (op == Op.DELETE)) & (marker != ord("O"))).any():
        raise DecodeError(
            "an old row of a table without a key was not sent whole",
            hint="ALTER TABLE … REPLICA IDENTITY FULL for each of its partitions, then copy the table again",
        )


def _tuples(
    buffer: Bytes, starts: Integers, ends: Integers, op: np.ndarray, width: int
) -> tuple[list[Lane], list[Lane], Integers]:
    """The new tuple of every row (a delete's: the old one), the old tuples, and the rows that have one."""
    marker = buffer[starts + 5]
    is_change = op != Op.TRUNCATE
    has_old = is_change & ((marker == ord("K")) | (marker == ord("O")))
    has_new = is_change & (op != Op.DELETE)
    if (is_change & ~has_old & (marker != ord("N"))).any() or ((op == Op.DELETE) & ~has_old).any():
        raise DecodeError("a row has neither an old nor a new tuple")
    if ((op == Op.INSERT) & has_old).any():
        raise DecodeError("an insert has an old tuple")
    if has_new.all() and not has_old.any():
        cells, end = walk(buffer, starts + 6, ends, width)
        _complete(end, ends)
        return cells, [blank(0)] * width, np.zeros(0, np.int64)
    old_rows = np.flatnonzero(has_old)
    old, old_end = walk(buffer, starts[old_rows] + 6, ends[old_rows], width)
    cursor = starts + 5
    cursor[old_rows] = old_end
    new_rows = np.flatnonzero(has_new)
    if (cursor[new_rows] >= ends[new_rows]).any() or (buffer[cursor[new_rows]] != ord("N")).any():
        raise DecodeError("an update has no new tuple")
    new, new_end = walk(buffer, cursor[new_rows] + 1, ends[new_rows], width)
    _complete(new_end, ends[new_rows])
    deletes = np.flatnonzero(op[old_rows] == Op.DELETE)
    _complete(old_end[deletes], ends[old_rows][deletes])
    merged = [_merge(n, o, new_rows, old_rows, deletes, len(starts)) for n, o in zip(new, old, strict=True)]
    return merged, old, old_rows


def _complete(cursor: Integers, end: Integers) -> None:
    if (cursor != end).any():
        raise DecodeError("a message is longer than its contents")


def _merge(new: Lane, old: Lane, new_rows: Integers, old_rows: Integers, deletes: Integers, count: int) -> Lane:
    """One column of all rows. An unchanged value is the old one, if sent: in a full old row, or as a TOASTed key."""
    cells = blank(count)
    for name in ("kind", "place", "length"):
        whole, from_new, from_old = getattr(cells, name), getattr(new, name), getattr(old, name)
        whole[new_rows] = from_new
        whole[old_rows[deletes]] = from_old[deletes]
    take_old = np.flatnonzero((cells.kind[old_rows] == UNCHANGED) & HAS_VALUE[old.kind])
    for name in ("place", "length", "kind"):
        getattr(cells, name)[old_rows[take_old]] = getattr(old, name)[take_old]
    return cells


def _unchanged(cells: list[Lane], op: np.ndarray) -> Flags | None:
    marks = [c.kind == UNCHANGED for c in cells]
    if not any(mark.any() for mark in marks):
        return None
    flags: Flags = np.stack(marks, axis=1) & (op != Op.DELETE)[:, None]
    return flags


def _typed(buffer: Bytes, cells: list[Lane], schema: TableSchema, count: int) -> pa.RecordBatch:
    columns = [
        decode_values(buffer, c.place, c.length, c.kind, column.type, where=f"{schema.table}.{column.name}")
        for c, column in zip(cells, schema.columns, strict=True)
    ]
    return schema.rows(columns) if columns else _no_columns(count)


def _no_columns(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
