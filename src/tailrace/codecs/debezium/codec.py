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
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from msgspec.json import encode

from tailrace.codecs.base import Encoded, Facts, Headers, Integers, Record
from tailrace.codecs.canonical import microseconds_of
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.logical import BINARY, Schema
from tailrace.codecs.debezium.origins import Moment, origin_of
from tailrace.codecs.debezium.records import NEW_KEY, OLD_KEY, OP_LETTERS, RecordPlan
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.codecs.fragments import join
from tailrace.codecs.rows import ChangedRows, chosen
from tailrace.columns.text import quoted
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema

UNCOUNTED = "nobody has counted the changes of a table in its transaction"
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

    # --- one event

    def encode(self, event: Event) -> list[Record]:
        if event.op is EventOp.SCHEMA:
            return []
        if event.op is EventOp.MESSAGE:
            return [self._message(event)]
        if event.schema is None:
            raise ValueRefused("an event without its schema can not be encoded", table=event.table)
        table = self.table_of(event.schema)
        if event.op is EventOp.TRUNCATE:
            return [self._record(event, table, None, "t")]
        key = table.write_key(event.key)
        old_key = table.write_key(event.before) if event.op is EventOp.UPDATE else None
        if old_key is not None and old_key != key:
            return self._move(event, table, old_key, key)
        record = self._record(event, table, key, LETTERS[event.op])
        return [record, *self._tombstones(key)] if event.op is EventOp.DELETE else [record]

    def _move(self, event: Event, table: Table, old_key: bytes, new_key: bytes | None) -> list[Record]:
        to_new, from_old = headers(NEW_KEY, new_key), headers(OLD_KEY, old_key)
        deleted = self._record(event, table, old_key, "d", to_new)
        return [deleted, *self._tombstones(old_key, to_new), self._record(event, table, new_key, "c", from_old)]

    def _tombstones(self, key: bytes | None, own: Headers = ()) -> list[Record]:
        return [Record(key, None, own)] if self.settings.tombstones else []

    def _record(self, event: Event, table: Table, key: bytes | None, letter: str, own: Headers = ()) -> Record:
        now = self.now_ns()
        moment = moment_of(event, now // 1000)
        payload = {
            "before": table.write_row(event.before) if letter in "ud" else None,
            "after": table.write_row(event.after, event.unchanged) if letter in "cur" else None,
            "source": Raw(self.origin.block(moment).encode()),
            "transaction": self._transaction(event, moment),
            "op": letter,
            "ts_ms": now // 1_000_000,
            "ts_us": now // 1000,
            "ts_ns": now,
        }
        head, tail = table.wrap_value
        return Record(key, head + encode(payload) + tail, own)

    def _transaction(self, event: Event, moment: Moment) -> dict[str, Any] | None:
        """Only where the user asked for it, as with Debezium; a row of a snapshot is of no transaction."""
        if not self.settings.transactions or event.transaction is None:
            return None
        number = event.transaction.number
        order = number if event.op is EventOp.MESSAGE else event.transaction.table_number
        if not order:
            raise ValueRefused(UNCOUNTED, table=event.table)
        return {"id": self.origin.transaction_id(moment), "total_order": number, "data_collection_order": order}

    def _message(self, event: Event) -> Record:
        """What an application wrote into the log; its key is the prefix."""
        assert event.message is not None
        now = self.now_ns()
        moment = moment_of(event, now // 1000)
        content = BINARY[Binary.BYTES](event.message.content)
        payload = {
            "op": "m",
            "ts_ms": now // 1_000_000,
            "source": Raw(self.origin.block(moment).encode()),
            "transaction": self._transaction(event, moment),
            "message": {"prefix": event.message.prefix, "content": content},
        }
        (head, tail), (key_head, key_tail) = self._wrap_message, self._wrap_prefix
        key = key_head + encode({"prefix": event.message.prefix}) + key_tail
        return Record(key, head + encode(payload) + tail)

    # --- all changes of a table at once

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        table = self.table_of(changes.schema)
        rows = ChangedRows(table, changes)
        plan = RecordPlan(changes, rows.is_moved, tombstones=self.settings.tombstones)
        head, tail = (part.decode() for part in table.wrap_value)
        now = self.now_ns()
        values = join(
            [
                f'{head}{{"before":',
                chosen(rows.before, plan.has_before, plan.change),
                ',"after":',
                chosen(rows.after, plan.has_after, plan.change),
                ',"source":',
                *self._origins(changes, facts, plan.change),
                ',"op":"',
                OP_LETTERS.take(pa.array(plan.letter)),
                f'","ts_ms":{now // 1_000_000},"ts_us":{now // 1000},"ts_ns":{now}}}{tail}',
            ]
        )
        return plan.encoded(rows, values)

    def _origins(self, changes: Changes, facts: Facts, change: Integers) -> list[str | pa.StringArray]:
        """The source and the transaction of each record."""
        used, place = np.unique(changes.transaction, return_inverse=True)
        times = pc.fill_null(changes.transactions.column("_commit_time").view(pa.int64()), 0).to_numpy()[used]
        schema, name = changes.schema.schema, changes.schema.name
        moments = [
            Moment(schema, name, "false", at_us, facts.positions[row], facts.ids[row])
            for row, at_us in zip(used.tolist(), times.tolist(), strict=True)
        ]
        of_record = pa.array(place[change])
        blocks = pa.array([self.origin.block(moment) for moment in moments], pa.string()).take(of_record)
        if not self.settings.transactions:
            return [blocks, ',"transaction":null']
        if facts.table_numbers is None:
            raise ValueRefused(UNCOUNTED, table=changes.schema.table)
        ids = pa.array([self.origin.transaction_id(moment) for moment in moments], pa.string()).take(of_record)
        total, own = (pa.array(each[change]).cast(pa.string()) for each in (facts.numbers, facts.table_numbers))
        order = [',"total_order":', total, ',"data_collection_order":', own, "}"]
        return [blocks, ',"transaction":{"id":', quoted(ids), *order]


def moment_of(event: Event, now_us: int) -> Moment:
    """A row that a snapshot read has the time when it is written."""
    schema, table = ("", "") if event.schema is None else (event.schema.schema, event.schema.name)
    at_us = now_us if event.commit_time is None else microseconds_of(event.commit_time)
    transaction = "" if event.transaction is None else event.transaction.id
    return Moment(schema, table, snapshot_of(event), at_us, event.position, transaction)


def snapshot_of(event: Event) -> str:
    """The first generation is the initial copy; later ones were asked for while the stream flowed."""
    if event.op is not EventOp.READ:
        return "false"
    generation, _, place = event.snapshot.rpartition(":")
    if generation not in ("", "1"):
        return "incremental"
    return f"{place}_in_data_collection" if place else "true"


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
