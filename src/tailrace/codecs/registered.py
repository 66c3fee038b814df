"""Records whose schemas are in a registry: a zero, the schema's number, and the value in its format.

A version of a table registers its schemas when it is first met, in the driver or in a task: registering is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from tailrace.codecs.base import Encoded, Facts, Headers, Record
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.records import RecordPlan
from tailrace.codecs.debezium.values import array_of
from tailrace.codecs.formats import RegisteredFormat
from tailrace.codecs.registry.client import Registry
from tailrace.codecs.registry.subjects import header_of, subject_of
from tailrace.codecs.rows import ChangedRows
from tailrace.codecs.wire.parts import Parts, Wire, join
from tailrace.codecs.wire.rows import WireRows
from tailrace.errors import ValueRefused, about
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema


class WireShape(Protocol):
    """A shape that can be written by columns in a binary format; `encode` gives JSON without schemas."""

    tombstones: bool
    has_headers: bool

    def encode(self, event: Event) -> list[Record]: ...
    def prefix_of(self, schema: TableSchema) -> str:
        """What the names of a table's structs begin with."""

    def rows_of(self, schema: TableSchema, wire: Wire) -> WireRows: ...
    def value_parts(
        self, changes: Changes, facts: Facts, rows: ChangedRows, plan: RecordPlan, table: WireRows
    ) -> Parts: ...


class RegisteredTable:
    """A version of a table with the numbers of its schemas."""

    def __init__(self, rows: WireRows, key_head: bytes, value_head: bytes) -> None:
        self.rows, self.key_head, self.value_head = rows, key_head, value_head
        rows.key_head = key_head


class RegisteredCodec:
    """In Avro or Protobuf."""

    def __init__(
        self, shape: WireShape, format_: RegisteredFormat, registry: Callable[[], Registry], topic: str
    ) -> None:
        self._shape, self._format, self._registry, self._topic = shape, format_, registry, topic
        self.content_type = format_.content_type
        self._tables: dict[TableSchema, RegisteredTable] = {}

    def table_of(self, schema: TableSchema) -> RegisteredTable:
        found = self._tables.get(schema)
        if found is None:
            with about(schema.table):
                rows = self._shape.rows_of(schema, self._format.wire(schema, self._shape.prefix_of(schema)))
                key = self._head(rows.key_schema, schema, "key") if rows.has_key else b""
                found = RegisteredTable(rows, key, self._head(rows.value_schema, schema, "value"))
            self._tables[schema] = found
        return found

    def _head(self, own: Schema, schema: TableSchema, part: str) -> bytes:
        record, text = self._format.describe(own, schema)
        registry = self._registry()
        subject = subject_of(registry.settings.subjects, self._topic, record, part)
        return header_of(registry.id_of(subject, text)) + self._format.behind_id

    def encode(self, event: Event) -> list[Record]:
        """Without haste: through JSON."""
        if event.op is EventOp.MESSAGE:
            raise ValueRefused(f"messages of applications can not be written as {self._format.name}")
        records = self._shape.encode(event)
        if not records or event.schema is None:
            return []
        return [self._record(self.table_of(event.schema), record) for record in records]

    def _record(self, table: RegisteredTable, record: Record) -> Record:
        value = record.value and self._bytes(table.rows, table.rows.value_schema, table.value_head, record.value)
        headers: Headers = tuple((name, self._key(table, key)) for name, key in record.headers)
        return Record(record.key and self._key(table, record.key), value, headers)

    def _key(self, table: RegisteredTable, key: bytes) -> bytes:
        return self._bytes(table.rows, table.rows.key_schema, table.key_head, key)

    def _bytes(self, rows: WireRows, schema: Schema, head: bytes, payload: bytes) -> bytes:
        values = array_of([msgspec.json.decode(payload)], schema)
        found: Any = join([head, *rows.wire.contents(schema, values)], 1)[0].as_py()
        return bytes(found)

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        table = self.table_of(changes.schema)
        rows = ChangedRows(table.rows, changes, pa.binary())
        plan = RecordPlan(changes, rows.is_moved, tombstones=self._shape.tombstones, are_reads=facts.reads is not None)
        parts = self._shape.value_parts(changes, facts, rows, plan, table.rows)
        values = join([table.value_head, *parts], len(plan.change))
        return plan.encoded(rows, values, has_headers=self._shape.has_headers)
