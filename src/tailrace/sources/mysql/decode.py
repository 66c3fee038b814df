"""Messages of a MySQL or MariaDB source into typed changes. Asks nobody: all that it needs is in the frames.

A message is an event as `events` describes it. Besides events of the server there are three of our own making, told by
their type: a truncate, the end of a transaction that has nothing else to end with, and a mark of progress.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.errors import DecodeError, ValueRefused
from tailrace.model import frames as model
from tailrace.model.changes import Changes, Op
from tailrace.model.frames import Definition, Frames
from tailrace.model.schema import TableSchema
from tailrace.sources.base import LoggedMessage
from tailrace.sources.mysql import decode_maps, events
from tailrace.sources.mysql.decode_images import decode_rows
from tailrace.sources.mysql.decode_maps import TableMap
from tailrace.sources.mysql.events import Bytes, Integers, little_endian
from tailrace.sources.mysql.identity import relation_of

TRANSACTIONS = pa.schema(
    [
        *model.TRANSACTIONS,
        pa.field("server", pa.string(), False),  # whose GTID, or the binlog file; empty for a mark of progress
        pa.field("number", pa.int64(), False),  # of the GTID, or the byte in the file behind its first event
        pa.field("position", pa.string(), False),  # where the source resumes after it; empty while unknown
    ]
)
TOLD = pa.schema(
    [
        pa.field("_commit_position", pa.string()),
        pa.field("_commit_time", pa.timestamp("us", "UTC")),
        pa.field("_server", pa.string()),
        pa.field("_number", pa.int64()),
    ]
)
MARIADB = "mariadb"
"""The kind of its frames; all others are MySQL's."""
TRUNCATED, ENDED, MARKED = 250, 251, 252
"""Types of our own."""
LANES = 32_768
LANE_BYTES = 16 << 20
OPS = np.full(256, -1, np.int8)
"""What a row event of each type does; -1 for all others."""
for _type, _op in events.ROWS.items():
    OPS[_type] = _op
_KNOWN = {TRUNCATED, ENDED, MARKED, events.TABLE_MAP, *events.ROWS}


def own(type_: int, body: bytes = b"") -> bytes:
    """An event of our own."""
    return struct.pack("<IBIIIH", 0, type_, 0, events.HEADER + len(body), 0, 0) + body


def truncated(schema: str, name: str) -> bytes:
    return own(TRUNCATED, msgspec.msgpack.encode((schema, name)))


@dataclass(frozen=True, slots=True)
class _Messages:
    """The messages of frames: the type of each, its first offset, and the number of its table map."""

    frames: Frames
    types: Bytes
    offsets: Integers
    widths: Integers
    codes: Integers


def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
    """The changes at offsets first … last, table by table, version by version; each table's own in log order."""
    messages = _read(frames)
    maps = _maps(messages)
    for (schema, name), rows in _by_table(messages, maps, first, last).items():
        versions = sorted((d for d in frames.definitions if d.relation == relation_of(schema, name)), key=_since)
        if not versions or int(messages.offsets[rows[0]]) < versions[0].since:
            raise DecodeError(f"changes of {schema}.{name} came before its description")
        for version, run in _runs(messages, rows, versions):
            if tables is None or version.table in tables:
                yield from _decode_run(messages, maps, run, version, first, last)


def messages(frames: Frames, first: int, last: int) -> Iterator[LoggedMessage]:  # noqa: ARG001 - there are none
    return iter(())


def _since(definition: Definition) -> int:
    return definition.since


def _read(frames: Frames) -> _Messages:
    starts = frames.bounds[:-1]
    if len(starts) and int(np.diff(frames.bounds).min()) < events.BODY:
        raise DecodeError("a message is shorter than the header of an event")
    types = frames.buffer[starts + events.GAP + 4]
    unknown = set(np.unique(types).tolist()) - _KNOWN
    if unknown:
        raise DecodeError(f"messages of the unknown type {min(unknown)}")
    widths = np.ones(len(starts), np.int64) if frames.widths is None else frames.widths.astype(np.int64)
    offsets = frames.first + np.cumsum(widths) - widths
    return _Messages(frames, types, offsets, widths, little_endian(frames.buffer, starts + 1, 4))


def _message(frames: Frames, row: int) -> bytes:
    """The event in a message, without its checksum."""
    start, end = int(frames.bounds[row]), int(frames.bounds[row + 1])
    return frames.buffer[start + events.GAP : end - int(frames.buffer[start])].tobytes()


def _maps(messages: _Messages) -> dict[int, TableMap]:
    found: dict[int, TableMap] = {}
    for row in np.flatnonzero(messages.types == events.TABLE_MAP).tolist():
        code = int(messages.codes[row])
        if code not in found:
            found[code] = decode_maps.parse(
                _message(messages.frames, row)[events.HEADER :], is_mariadb=messages.frames.kind == MARIADB
            )
    return found


def _by_table(messages: _Messages, maps: dict[int, TableMap], first: int, last: int) -> dict[tuple[str, str], Integers]:
    """The messages in the range that change each table."""
    is_inside = (messages.offsets <= last) & (messages.offsets + messages.widths > first)
    rows = np.flatnonzero(is_inside & (OPS[messages.types] >= 0))
    found: dict[tuple[str, str], Integers] = {}
    for code in np.unique(messages.codes[rows]).tolist():
        if code not in maps:
            raise DecodeError("rows of a table came without its Table_map event")
        table = maps[code].schema, maps[code].name
        own_rows = rows[messages.codes[rows] == code]
        found[table] = np.sort(np.concatenate([found[table], own_rows])) if table in found else own_rows
    for row in np.flatnonzero(is_inside & (messages.types == TRUNCATED)).tolist():
        table = truncated_table(_message(messages.frames, row))
        found[table] = np.sort(np.append(found.get(table, np.zeros(0, np.int64)), row))
    return dict(sorted(found.items(), key=lambda item: int(item[1][0])))


def truncated_table(event: bytes) -> tuple[str, str]:
    return msgspec.msgpack.decode(event[events.HEADER :], type=tuple[str, str])


def _runs(messages: _Messages, rows: Integers, versions: list[Definition]) -> Iterator[tuple[TableSchema, Integers]]:
    """Messages that are decoded together: of one version of the table, one map, neither too many nor too large."""
    since = [version.since for version in versions]
    version = np.searchsorted(since, messages.offsets[rows], side="right") - 1
    is_truncate = messages.types[rows] == TRUNCATED
    codes = np.where(is_truncate, -1, messages.codes[rows])
    bounds = messages.frames.bounds
    taken = np.cumsum(bounds[rows + 1] - bounds[rows]) // LANE_BYTES
    step = np.arange(len(rows)) // LANES
    keys = np.stack([version, codes, taken, step])
    cuts = np.flatnonzero((np.diff(keys, axis=1) != 0).any(axis=0)) + 1
    for part, number in zip(np.split(rows, cuts), version[np.concatenate([[0], cuts])].tolist(), strict=True):
        yield versions[number].schema, part


def _decode_run(
    messages: _Messages, maps: dict[int, TableMap], rows: Integers, schema: TableSchema, first: int, last: int
) -> Iterator[Changes]:
    frames = messages.frames
    if messages.types[rows[0]] == TRUNCATED:
        yield _truncates(messages, rows, schema)
        return
    starts, ends = frames.bounds[rows], frames.bounds[rows + 1]
    ends = ends - frames.buffer[starts]
    table = maps[int(messages.codes[rows[0]])]
    ops = OPS[messages.types[rows]]
    is_v2 = messages.types[rows] >= 30
    try:
        found = decode_rows(frames.buffer, starts + events.BODY, ends, ops, is_v2, table, schema)
    except (DecodeError, ValueRefused) as error:
        raise type(error)(str(error), hint=error.hint, table=schema.table) from error
    if (np.bincount(found.event, minlength=len(rows)) != messages.widths[rows]).any():
        raise DecodeError(f"an event of {schema.table} has not as many rows as it has offsets", table=schema.table)
    nth = np.arange(len(found.event)) - np.searchsorted(found.event, found.event)
    offset = messages.offsets[rows][found.event] + nth
    changes = Changes(
        schema=schema,
        op=found.op,
        offset=offset,
        transaction=_transactions_of(frames, offset),
        transactions=told_of(frames.transactions),
        after=found.after,
        unchanged=found.unchanged,
        before_rows=found.before_rows,
        before=found.before,
    )
    kept = changes.keep((offset >= first) & (offset <= last))
    if len(kept):
        yield kept


def _truncates(messages: _Messages, rows: Integers, schema: TableSchema) -> Changes:
    nulls = schema.rows([pa.nulls(len(rows), field.type) for field in schema.arrow])
    offset = messages.offsets[rows]
    return Changes(
        schema=schema,
        op=np.full(len(rows), Op.TRUNCATE, np.int8),
        offset=offset,
        transaction=_transactions_of(messages.frames, offset),
        transactions=told_of(messages.frames.transactions),
        after=nulls,
        unchanged=None,
        before_rows=np.zeros(0, np.int64),
        before=schema.no_rows(),
    )


def _transactions_of(frames: Frames, offset: Integers) -> Integers:
    begin = frames.transactions.column("begin").to_numpy()
    found: Integers = np.searchsorted(begin, offset, side="right") - 1
    return found


def told_of(transactions: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        transactions.column("position"),
        transactions.column("time_us").cast(pa.timestamp("us", "UTC")),
        transactions.column("server"),
        transactions.column("number"),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TOLD)


def end_positions(transactions: pa.RecordBatch) -> list[str]:
    found: list[str] = transactions.column("position").to_pylist()
    return found


def transaction_ids(transactions: pa.RecordBatch) -> list[str]:
    """GTIDs as the server writes them, or where a transaction begins in its file."""
    pairs = zip(transactions.column("server").to_pylist(), transactions.column("number").to_pylist(), strict=True)
    return [f"{server}-{number}" if _is_domain(server) else f"{server}:{number}" for server, number in pairs]


def _is_domain(server: str) -> bool:
    """MariaDB's `0-1`: a uuid has more of these, and a file has a point."""
    return server.count("-") == 1 and "." not in server
