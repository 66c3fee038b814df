"""Which records a change becomes, whatever their values look like.

A delete is followed by a tombstone. An update that changes the key is a delete and its tombstone for the old key, with
the new one in the header `__debezium.newkey`, and a create for the new one, with the old one in `__debezium.oldkey`. A
schema change has no record.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.codecs.base import Encoded, Facts, Headers, Integers, Record
from tailrace.codecs.canonical import microseconds_of
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.origins import Moment, origin_of
from tailrace.codecs.debezium.records import NEW_KEY, OLD_KEY, RecordPlan
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.codecs.rows import ChangedRows
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema

LETTERS = {
    EventOp.READ: "r",
    EventOp.INSERT: "c",
    EventOp.UPDATE: "u",
    EventOp.DELETE: "d",
    EventOp.TRUNCATE: "t",
    EventOp.MESSAGE: "m",
}


class KeyedCodec(ABC):
    """Keys, tombstones and moves. What a value looks like is its children's."""

    content_type = "application/json"

    def __init__(self, settings: DebeziumSettings, now_ns: Callable[[], int] = time.time_ns) -> None:
        if not settings.version:
            settings = msgspec.structs.replace(settings, version=metadata.version("tailrace"))
        self.settings, self.now_ns = settings, now_ns
        self.origin = origin_of(settings)
        self._tables: dict[TableSchema, Table] = {}
        self._last: Table | None = None
        self._wrap_prefix = wrapping(_prefix_schema(settings.connector), settings)

    @abstractmethod
    def value_of(self, event: Event, table: Table, letter: str) -> bytes: ...
    @abstractmethod
    def values_of(
        self, changes: Changes, facts: Facts, table: Table, rows: ChangedRows, plan: RecordPlan
    ) -> pa.StringArray: ...
    @abstractmethod
    def message_value(self, event: Event) -> bytes: ...

    def table_of(self, schema: TableSchema) -> Table:
        if self._last is None or self._last.schema is not schema:
            found = self._tables.get(schema)
            if found is None:
                found = self._tables[schema] = Table(schema, self.origin.schema, self.settings)
            self._last = found
        return self._last

    def schemas_of(self, schema: TableSchema) -> tuple[Schema | None, Schema]:
        """Those of Connect: of keys, where the table has one, and of values."""
        table = self.table_of(schema)
        return table.key_schema if table.has_key else None, table.value_schema

    def encode(self, event: Event) -> list[Record]:
        if event.op is EventOp.SCHEMA:
            return []
        if event.op is EventOp.MESSAGE:
            return [Record(self._message_key(event), self.message_value(event))]
        if event.schema is None:
            raise ValueRefused("an event without its schema can not be encoded", table=event.table)
        table = self.table_of(event.schema)
        if event.op is EventOp.TRUNCATE:
            return [Record(None, self.value_of(event, table, "t"))]
        key = table.write_key(event.key)
        old_key = table.write_key(event.before) if event.op is EventOp.UPDATE else None
        if old_key is not None and old_key != key:
            return self._move(event, table, old_key, key)
        record = Record(key, self.value_of(event, table, LETTERS[event.op]))
        return [record, *self._tombstones(key)] if event.op is EventOp.DELETE else [record]

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        table = self.table_of(changes.schema)
        rows = ChangedRows(table, changes)
        plan = RecordPlan(
            changes, rows.is_moved, tombstones=self.settings.tombstones, are_reads=facts.reads is not None
        )
        return plan.encoded(rows, self.values_of(changes, facts, table, rows, plan))

    def _move(self, event: Event, table: Table, old_key: bytes, new_key: bytes | None) -> list[Record]:
        to_new, from_old = headers(NEW_KEY, new_key), headers(OLD_KEY, old_key)
        deleted = Record(old_key, self.value_of(event, table, "d"), to_new)
        created = Record(new_key, self.value_of(event, table, "c"), from_old)
        return [deleted, *self._tombstones(old_key, to_new), created]

    def _tombstones(self, key: bytes | None, own: Headers = ()) -> list[Record]:
        return [Record(key, None, own)] if self.settings.tombstones else []

    def _message_key(self, event: Event) -> bytes:
        assert event.message is not None
        head, tail = self._wrap_prefix
        return head + encode({"prefix": event.message.prefix}) + tail


def moments_of(changes: Changes, facts: Facts, now_us: int) -> tuple[list[Moment], Integers]:
    """One for each transaction that these changes are of, and which of them each change has; of reads, one a mark."""
    if facts.reads is not None:
        table, position = changes.schema, facts.positions[0]
        marks = map(snapshot_marker, facts.reads.marks)
        found = [Moment(table.schema, table.name, marker, now_us, position) for marker in marks]
        return found, facts.reads.places(len(changes))
    used, place = np.unique(changes.transaction, return_inverse=True)
    times = pc.fill_null(changes.transactions.column("_commit_time").view(pa.int64()), now_us).to_numpy()[used]
    schema, name = changes.schema.schema, changes.schema.name
    moments = [
        Moment(schema, name, "false", at_us, facts.positions[row], facts.ids[row])
        for row, at_us in zip(used.tolist(), times.tolist(), strict=True)
    ]
    return moments, place


def moment_of(event: Event, now_us: int) -> Moment:
    """A row that a snapshot read has the time when it is written."""
    schema, table = ("", "") if event.schema is None else (event.schema.schema, event.schema.name)
    at_us = now_us if event.commit_time is None else microseconds_of(event.commit_time)
    transaction = "" if event.transaction is None else event.transaction.id
    return Moment(schema, table, snapshot_of(event), at_us, event.position, transaction)


def snapshot_of(event: Event) -> str:
    return snapshot_marker(event.snapshot) if event.op is EventOp.READ else "false"


def snapshot_marker(mark: str) -> str:
    """The first generation is the initial copy; later ones were asked for while the stream flowed."""
    generation, _, place = mark.rpartition(":")
    if generation not in ("", "1"):
        return "incremental"
    return f"{place}_in_data_collection" if place else "true"


def headers(name: str, key: bytes | None) -> Headers:
    return () if key is None else ((name, key),)


def _prefix_schema(connector: str) -> Schema:
    own = schemas.fields_of({"prefix": ("string", True)})
    return schemas.whole(schemas.struct(own, f"io.debezium.connector.{connector}.MessageKey", 1))
