"""Debezium's envelope in JSON: what its PostgreSQL connector and Connect's JSON converter write for the same change.

A delete is followed by a tombstone. An update that changes the key is a delete and its tombstone for the old key, with
the new one in the header `__debezium.newkey`, and a create for the new one, with the old one in `__debezium.oldkey`. A
schema change has no record: with `schemas` it is in those of the rows that follow. docs/codecs.md lists what differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import msgspec
from msgspec.json import encode

from tailrace.codecs.base import Headers, Record
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.logical import BINARY, Schema
from tailrace.codecs.debezium.origins import origin_of
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.errors import ValueRefused
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema

OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
LETTERS = {
    EventOp.READ: "r",
    EventOp.INSERT: "c",
    EventOp.UPDATE: "u",
    EventOp.DELETE: "d",
    EventOp.TRUNCATE: "t",
    EventOp.MESSAGE: "m",
}


class DebeziumCodec:
    content_type = "application/json"

    def __init__(self, settings: DebeziumSettings, now_ns: Callable[[], int] = time.time_ns) -> None:
        if not settings.version:
            settings = msgspec.structs.replace(settings, version=metadata.version("tailrace"))
        self.settings, self.now_ns = settings, now_ns
        self.origin = origin_of(settings)
        self._tables: dict[TableSchema, Table] = {}
        self._last: Table | None = None
        self._wrap_message = wrapping(_message_schema(self.origin.schema), settings)
        self._wrap_prefix = wrapping(_PREFIX, settings)

    def table_of(self, schema: TableSchema) -> Table:
        if self._last is None or self._last.schema is not schema:
            found = self._tables.get(schema)
            if found is None:
                found = self._tables[schema] = Table(schema, self.origin.schema, self.settings)
            self._last = found
        return self._last

    def encode(self, event: Event) -> list[Record]:
        if event.op is EventOp.SCHEMA:
            return []
        if event.op is EventOp.MESSAGE:
            return [self._message(event)]
        if event.schema is None:
            raise ValueRefused("an event without its schema can not be encoded", table=event.table)
        table = self.table_of(event.schema)
        if (old := moved_from(event)) is not None:
            return self._move(event, table, old)
        key = None if event.op is EventOp.TRUNCATE else table.write_key(event.key)
        record = self._record(event, table, key, LETTERS[event.op])
        return [record, *self._tombstones(key)] if event.op is EventOp.DELETE else [record]

    def _move(self, event: Event, table: Table, old: Any) -> list[Record]:
        old_key, new_key = table.write_key(old), table.write_key(event.key)
        to_new, from_old = headers(NEW_KEY, new_key), headers(OLD_KEY, old_key)
        deleted = self._record(event, table, old_key, "d", to_new)
        return [deleted, *self._tombstones(old_key, to_new), self._record(event, table, new_key, "c", from_old)]

    def _tombstones(self, key: bytes | None, own: Headers = ()) -> list[Record]:
        return [Record(key, None, own)] if self.settings.tombstones else []

    def _record(self, event: Event, table: Table, key: bytes | None, letter: str, own: Headers = ()) -> Record:
        now = self.now_ns()
        payload = {
            "before": table.write_row(event.before) if letter in "ud" else None,
            "after": table.write_row(event.after, event.unchanged) if letter in "cur" else None,
            "source": self.origin.block(event, now // 1000),
            "transaction": self._transaction(event),
            "op": letter,
            "ts_ms": now // 1_000_000,
            "ts_us": now // 1000,
            "ts_ns": now,
        }
        head, tail = table.wrap_value
        return Record(key, head + encode(payload) + tail, own)

    def _transaction(self, event: Event) -> dict[str, Any] | None:
        """Only where the user asked for it, as with Debezium; a row of a snapshot is of no transaction."""
        if not self.settings.transactions or event.transaction is None:
            return None
        number = event.transaction.number
        order = number if event.op is EventOp.MESSAGE else event.transaction.table_number
        if not order:
            raise ValueRefused("nobody has counted the changes of a table in its transaction", table=event.table)
        return {"id": self.origin.transaction_id(event), "total_order": number, "data_collection_order": order}

    def _message(self, event: Event) -> Record:
        """What an application wrote into the log; its key is the prefix."""
        assert event.message is not None
        now = self.now_ns()
        content = BINARY[Binary.BYTES](event.message.content)
        payload = {
            "op": "m",
            "ts_ms": now // 1_000_000,
            "source": self.origin.block(event, now // 1000),
            "transaction": self._transaction(event),
            "message": {"prefix": event.message.prefix, "content": content},
        }
        (head, tail), (key_head, key_tail) = self._wrap_message, self._wrap_prefix
        key = key_head + encode({"prefix": event.message.prefix}) + key_tail
        return Record(key, head + encode(payload) + tail)


def moved_from(event: Event) -> Any:
    """The old row of an update that changes the key; None for everything else."""
    if event.op is not EventOp.UPDATE or event.before is None or event.key is None:
        return None
    before = event.before
    return before if any(before[name] != value for name, value in event.key.items()) else None


def headers(name: str, key: bytes | None) -> Headers:
    return () if key is None else ((name, key),)


_PREFIX = schemas.whole(
    schemas.struct(schemas.fields_of({"prefix": ("string", True)}), "io.debezium.connector.postgresql.MessageKey", 1)
)


def _message_schema(source: Schema) -> Schema:
    content = schemas.fields_of({"prefix": ("string", True), "content": ("bytes", True)})
    message = schemas.struct(content, "io.debezium.connector.postgresql.Message", 1)
    fields = [
        *schemas.fields_of({"op": ("string", False), "ts_ms": ("int64", True)}),
        schemas.field("source", source, optional=False),
        schemas.field("transaction", schemas.TRANSACTION, optional=True),
        schemas.field("message", message, optional=False),
    ]
    return schemas.whole(schemas.struct(fields, "io.debezium.connector.postgresql.MessageValue", 1))
