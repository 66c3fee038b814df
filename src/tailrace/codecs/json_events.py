"""Events as lines of JSON, the same that `model.event` has, and back.

    {"op":"update","table":"public.orders","key":{"id":1},"before":null,"after":{"id":1,"total":"12.50"},
     "unchanged":["note"],"position":"0/16B3748","transaction":{"id":"731","number":1},
     "commit_time":"2024-02-29 23:59:59.500000+00:00"}

Guarantee: a value can be had back exactly. Integers, finite floats, booleans and arrays are JSON's own; all else is a
string, in the canonical form of `columns.text`. `unchanged`, `snapshot`, `message` and `schema` (of a schema change)
are there only where they say something. A line has no line break in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.json import encode

from tailrace.codecs import canonical
from tailrace.codecs.base import Record
from tailrace.errors import DecodeError
from tailrace.model.event import Event, EventOp, Row, SourceMessage, Transaction
from tailrace.model.schema import TableSchema
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
            _written(event.key, event.schema),
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
