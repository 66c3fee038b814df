"""Events as lines of JSON, the same that `model.event` has, and back.

    {"op":"update","table":"public.orders","key":{"id":1},"before":null,"after":{"id":1,"total":"12.50"},
     "unchanged":["note"],"position":"0/16B3748","transaction":{"id":"731","number":1},
     "commit_time":"2024-02-29 23:59:59.500000+00:00"}

Guarantee: a value can be had back exactly. Integers, finite floats, booleans and arrays are JSON's own; all else is a
string, in the canonical form of `columns.text`. `unchanged`, `snapshot`, `message` and `schema` (of a schema change)
are there only where they say something. A line has no line break in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.json import encode

from tailrace.codecs import canonical
from tailrace.codecs.base import Encoded, Facts, Record
from tailrace.codecs.rows import ChangedRows, chosen
from tailrace.columns import fragments
from tailrace.columns.characters import in_rows
from tailrace.columns.fragments import Fragment, join, objects, written
from tailrace.columns.text import to_text
from tailrace.errors import DecodeError
from tailrace.model.changes import OP_NAMES, Changes, Flags
from tailrace.model.event import Event, EventOp, Row, SourceMessage, Transaction
from tailrace.model.schema import Identity, TableSchema
from tailrace.model.stored import from_json
from tailrace.model.types import ColumnType, Kind

_MOMENT = ColumnType(Kind.TIMESTAMPTZ)


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: str
    content: str  # as all bytes: `\x` and hexadecimal digits
    is_transactional: bool


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event as it is written."""

    op: EventOp
    table: str
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    position: str
    transaction: Transaction | None
    commit_time: str | None
    unchanged: tuple[str, ...] = ()
    snapshot: str = ""
    message: Message | None = None
    schema: TableSchema | None = None


class JsonCodec:
    content_type = "application/json"

    def encode(self, event: Event) -> list[Record]:
        line = Line(
            event.op,
            event.table,
            _written(in_order(event.key, event.schema), event.schema),
            _written(event.before, event.schema),
            _written(event.after, event.schema),
            event.position,
            event.transaction,
            None if event.commit_time is None else canonical.moment_text(event.commit_time),
            event.unchanged,
            event.snapshot,
            None if event.message is None else _written_message(event.message),
            event.schema if event.op is EventOp.SCHEMA else None,
        )
        return [Record(None if line.key is None else encode(line.key), encode(line))]

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        rows = ChangedRows(JsonRows(changes.schema), changes)
        every = np.arange(len(changes))
        values = join(
            [
                '{"op":"',
                "read" if facts.reads is not None else OP_NAMES.take(pa.array(changes.op)),
                f'","table":{encode(changes.schema.table).decode()},"key":',
                chosen(rows.keys, every >= 0, every),
                ',"before":',
                chosen(rows.before, every >= 0, every),
                ',"after":',
                chosen(rows.after, every >= 0, every),
                *_places(changes, facts),
                _unchanged(changes),
                "}",
            ]
        )
        return Encoded(rows.keys.cast(pa.binary()), values.cast(pa.binary()), every)

    @staticmethod
    def decode(value: bytes, schema: TableSchema | None) -> Event:
        """The event of a line; `schema` is the version of its table that it was of, None where it has no table."""
        try:
            line = from_json(value, Line)
            return Event(
                line.op,
                line.table,
                _read(line.key, schema),
                _read(line.before, schema),
                _read(line.after, schema),
                line.position,
                line.transaction,
                canonical.from_json(line.commit_time, _MOMENT),
                line.unchanged,
                line.schema or schema,
                None if line.message is None else _read_message(line.message),
                line.snapshot,
            )
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"a line of {len(value)} bytes is no event: {type(error).__name__}") from None


def in_order(key: Row | None, schema: TableSchema | None) -> Row | None:
    """The key as its table has it, so that equal keys are equal bytes."""
    return key if key is None or schema is None else {name: key[name] for name in schema.key}


def _types(schema: TableSchema | None) -> dict[str, ColumnType]:
    return {} if schema is None else {column.name: column.type for column in schema.columns}


def _written(row: Row | None, schema: TableSchema | None) -> dict[str, Any] | None:
    if row is None:
        return None
    types = _types(schema)
    return {name: canonical.to_json(value, types[name]) for name, value in row.items()}


def _read(row: Mapping[str, Any] | None, schema: TableSchema | None) -> Row | None:
    if row is None:
        return None
    types = _types(schema)
    return {name: canonical.from_json(value, types[name]) for name, value in row.items()}


def _written_message(message: SourceMessage) -> Message:
    return Message(message.prefix, "\\x" + message.content.hex(), message.is_transactional)


def _read_message(message: Message) -> SourceMessage:
    return SourceMessage(message.prefix, bytes.fromhex(message.content[2:]), message.is_transactional)


# --- all changes of a table at once


class JsonRows:
    """How a table's rows are written."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._fragments = {column.name: fragment_of(column.type) for column in schema.columns}

    @property
    def has_key(self) -> bool:
        return bool(self.schema.key)

    def write_rows(self, rows: pa.RecordBatch, unchanged: Flags | None) -> pa.StringArray:
        """A row lacks what is unchanged; rows that lack the same are written together."""
        names = rows.schema.names
        if unchanged is None or not unchanged.any():
            return self._objects(rows, names)
        patterns, of_row = np.unique(unchanged, axis=0, return_inverse=True)
        places = [np.flatnonzero(of_row.reshape(-1) == number) for number in range(len(patterns))]
        parts = [
            self._objects(rows.take(pa.array(place)), [n for n, lacks in zip(names, pattern, strict=True) if not lacks])
            for place, pattern in zip(places, patterns, strict=True)
        ]
        return in_rows(parts, places, rows.num_rows, pa.string())

    def write_old_rows(self, rows: pa.RecordBatch) -> pa.StringArray:
        is_whole = self.schema.identity is Identity.FULL or not self.schema.key
        return self._objects(rows, rows.schema.names if is_whole else self.schema.key)

    def write_keys(self, rows: pa.RecordBatch) -> pa.StringArray:
        return self._objects(rows, self.schema.key)

    def _objects(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.StringArray:
        return objects({name: written(rows.column(name), self._fragments[name]) for name in names}, rows.num_rows)


def fragment_of(type_: ColumnType) -> Fragment:
    """What writes a column of this type in canonical form."""
    if type_.element is not None:
        element = fragment_of(type_.element)
        return lambda array: fragments.arrays(array, element)
    if type_.kind in (Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64):
        return fragments.numbers
    if type_.kind in (Kind.FLOAT32, Kind.FLOAT64):
        return fragments.floats
    if type_.kind is Kind.BYTES:
        return lambda array: fragments.join(['"\\\\x', fragments.hexadecimal(array), '"'])
    write = fragments.strings if type_.kind in _FREE else fragments.literal
    return lambda array: write(to_text(array, type_))


_FREE = {Kind.TEXT, Kind.JSON, Kind.ENUM, Kind.OTHER}
"""Kinds whose text may be anything."""


def _places(changes: Changes, facts: Facts) -> list[str | pa.StringArray]:
    """Position, transaction and time of each change; the first two are written once a transaction."""
    if facts.reads is not None:
        marks = pa.array(facts.reads.marks).take(pa.array(facts.reads.places(len(changes))))
        position = encode(facts.positions[0]).decode()
        return [f',"position":{position},"transaction":null,"commit_time":null,"snapshot":"', marks, '"']
    used, place = np.unique(changes.transaction, return_inverse=True)
    heads = [
        f',"position":{encode(facts.positions[row]).decode()},"transaction":{{"id":{encode(facts.ids[row]).decode()}'
        for row in used.tolist()
    ]
    of_change = pa.array(place)
    times = written(changes.transactions.column("_commit_time").take(pa.array(used)), fragment_of(_MOMENT))
    numbers = pa.array(facts.numbers).cast(pa.string())
    parts = [pa.array(heads, pa.string()).take(of_change), ',"number":', numbers]
    if facts.table_numbers is not None:
        parts += [',"table_number":', pa.array(facts.table_numbers).cast(pa.string())]
    return [*parts, '},"commit_time":', times.take(of_change)]


def _unchanged(changes: Changes) -> str | pa.StringArray:
    if changes.unchanged is None or not changes.unchanged.any():
        return ""
    names = [column.name for column in changes.schema.columns]
    patterns, of_row = np.unique(changes.unchanged, axis=0, return_inverse=True)
    lacking = [[n for n, lacks in zip(names, pattern, strict=True) if lacks] for pattern in patterns]
    texts = [f',"unchanged":{encode(each).decode()}' if each else "" for each in lacking]
    return pa.array(texts, pa.string()).take(pa.array(of_row.reshape(-1)))
