"""pgoutput messages made by hand, and logs made of them: a change stream for tests that need no server.

A value is written by its Python type: `bytes` travel in the binary form, `str` in the text form, `None` is NULL, and
`...` is unchanged TOAST, which the server does not send. Protocol page: "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from types import EllipsisType

import msgspec

from tailrace.log.writer import LogWriter
from tailrace.model.frames import Definition, Frames
from tailrace.model.schema import TableSchema
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.pgoutput import EPOCH_US, OpenTransaction
from tailrace.sources.postgres.positions import format_lsn

Value = bytes | str | EllipsisType | None
NOON_US = 1_717_243_200_000_000  # 2024-06-01 12:00:00 UTC


def begin(xid: int = 700, at: int = 0x1000, time_us: int = NOON_US) -> bytes:
    return b"B" + struct.pack(">QqI", at, time_us - EPOCH_US, xid)


def commit(at: int = 0x1000, end: int | None = None, time_us: int = NOON_US) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, at, at + 8 if end is None else end, time_us - EPOCH_US)


def relation(
    number: int, schema: str, name: str, identity: str, columns: Sequence[tuple[bool, str, int, int]]
) -> bytes:
    """Columns are (is key, name, type oid, type modifier)."""
    head = struct.pack(">I", number) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    parts = [
        struct.pack(">B", is_key) + label.encode() + b"\0" + struct.pack(">Ii", oid, modifier)
        for is_key, label, oid, modifier in columns
    ]
    return b"R" + head + struct.pack(">H", len(columns)) + b"".join(parts)


def insert(number: int, *new: Value) -> bytes:
    return b"I" + struct.pack(">I", number) + b"N" + row(new)


def update(number: int, *new: Value, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None) -> bytes:
    """With `key` the old key is sent, NULL in all other columns; with `old` the whole old row."""
    before = b"K" + row(key) if key is not None else b"O" + row(old) if old is not None else b""
    return b"U" + struct.pack(">I", number) + before + b"N" + row(new)


def delete(number: int, *, key: Sequence[Value] | None = None, old: Sequence[Value] | None = None) -> bytes:
    before = b"K" + row(key) if key is not None else b"O" + row(old or ())
    return b"D" + struct.pack(">I", number) + before


def truncate(*numbers: int, options: int = 0) -> bytes:
    return b"T" + struct.pack(f">IB{len(numbers)}I", len(numbers), options, *numbers)


def origin(name: str = "elsewhere", at: int = 0x900) -> bytes:
    return b"O" + struct.pack(">Q", at) + name.encode() + b"\0"


def type_(oid: int = 16_500, schema: str = "public", name: str = "mood") -> bytes:
    return b"Y" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"


def logical_message(content: bytes = b"hello", prefix: str = "app", *, in_transaction: bool = True) -> bytes:
    return b"M" + struct.pack(">BQ", in_transaction, 0x1000) + prefix.encode() + b"\0" + _counted(content)


def transaction(*changes: bytes, xid: int = 700, at: int = 0x1000, time_us: int = NOON_US) -> list[bytes]:
    return [begin(xid, at, time_us), *changes, commit(at, time_us=time_us)]


def row(values: Sequence[Value]) -> bytes:
    """TupleData."""
    return struct.pack(">H", len(values)) + b"".join(map(_cell, values))


def _cell(value: Value) -> bytes:
    match value:
        case None:
            return b"n"
        case str():
            return b"t" + _counted(value.encode())
        case bytes():
            return b"b" + _counted(value)
        case _:
            return b"u"


def _counted(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frames_of(
    messages: Sequence[bytes],
    definitions: Iterable[Definition] = (),
    *,
    first: int = 1,
    carried: OpenTransaction | None = None,
) -> tuple[Frames, OpenTransaction | None]:
    """The messages as capture hands them to the log, and the transaction that is still open behind them."""
    buffer, bounds = pgoutput.pack(messages)
    kinds = pgoutput.kinds_of(buffer, bounds, first)
    transactions, still_open = pgoutput.index_transactions(buffer, bounds, kinds, first, carried)
    known = tuple(definitions)
    tables: dict[str, int] = {}
    for number, count in pgoutput.count_changes(buffer, bounds, kinds).items():
        for table in {d.schema.table for d in known if d.relation == number}:
            tables[table] = tables.get(table, 0) + count
    return Frames(pgoutput.KIND, first, buffer, bounds, transactions, known, tables), still_open


class Feed:
    """Appends handmade messages to a log, a segment a call, as capture would."""

    def __init__(self, writer: LogWriter, tables: dict[int, TableSchema]) -> None:
        self.writer = writer
        self._definitions = {number: Definition(number, 0, schema) for number, schema in tables.items()}
        self._open: OpenTransaction | None = None
        self._position = writer.position

    def append(self, *messages: bytes) -> Frames:
        frames, self._open = frames_of(
            messages, self._definitions.values(), first=self.writer.next_offset, carried=self._open
        )
        end = int(frames.transactions.column("end_position").to_numpy().max(initial=0))
        self._position = format_lsn(end) if end else self._position
        self.writer.append(frames, self._position)
        return frames

    def redefine(self, number: int, schema: TableSchema) -> None:
        """From the next segment on, messages of the relation have this schema."""
        known = self._definitions.get(number, Definition(number, 0, schema))
        self._definitions[number] = msgspec.structs.replace(known, since=self.writer.next_offset, schema=schema)
