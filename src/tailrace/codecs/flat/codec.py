"""Flat records: the row after the change, and `_op`, `_offset`, `_commit_time` and others beside its columns.

    {"id":1,"note":"x","_op":"update","_offset":17,"_commit_time":"2024-02-29 23:59:59.500000+00:00",
     "_position":"0/16B3748","_transaction":"731","_number":1,"_unchanged":["body"]}

A delete is a record with what was sent of the old row, so that consumers of a log see when it happened, followed by a
tombstone, so that compaction forgets the key. An update that changes the key is a delete, a tombstone and an insert. A
truncate has no key and no columns. `_offset` is the change log's own number, null where there is no log; `_position`
and `_number` stay the same whatever became of the log.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.codecs.base import Encoded, Facts, Integers, Record
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.records import RecordPlan
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.flat.rows import CanonicalRows, FlatRows, TypedRows
from tailrace.codecs.rows import ChangedRows, RowWriter
from tailrace.columns.fragments import NULL, join, strings, written
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp, Row
from tailrace.model.schema import TableSchema

OPS = pa.array(["insert", "update", "delete", "truncate", "read"])
"""In the order of `RecordPlan.letter`."""


class FlatCodec:
    """`typed`: with Debezium's types, as a schema beside the record describes them; else in canonical JSON."""

    content_type = "application/json"

    def __init__(self, settings: DebeziumSettings, *, typed: bool = False) -> None:
        self.settings, self.typed = settings, typed or settings.schemas
        self._tables: dict[TableSchema, FlatRows] = {}

    def rows_of(self, schema: TableSchema) -> FlatRows:
        if schema not in self._tables:
            self._tables[schema] = TypedRows(schema, self.settings) if self.typed else CanonicalRows(schema)
        return self._tables[schema]

    def schemas_of(self, schema: TableSchema) -> tuple[Schema | None, Schema]:
        """Those of Connect: of keys, where the table has one, and of values."""
        rows = TypedRows(schema, self.settings)
        return rows.table.key_schema if rows.has_key else None, rows.value_schema

    # --- one event at a time

    def encode(self, event: Event) -> list[Record]:
        """Nothing for a schema change, and for a message of an application: neither has a row."""
        if event.op in (EventOp.SCHEMA, EventOp.MESSAGE):
            return []
        if event.schema is None:
            raise ValueRefused("an event without its schema can not be encoded", table=event.table)
        rows = self.rows_of(event.schema)
        if event.op is EventOp.TRUNCATE:
            return [Record(None, self._value(rows, event, event.op, {}))]
        key, old = rows.key(event.key), event.before
        old_key = rows.key(old) if event.op is EventOp.UPDATE else None
        if old_key is not None and old_key != key:
            deleted = Record(old_key, self._value(rows, event, EventOp.DELETE, old or {}))
            created = Record(key, self._value(rows, event, EventOp.INSERT, event.after or {}))
            return [deleted, *self._tombstones(old_key), created]
        if event.op is EventOp.DELETE:
            return [Record(key, self._value(rows, event, event.op, old or event.key or {})), *self._tombstones(key)]
        return [Record(key, self._value(rows, event, event.op, event.after or {}))]

    def _tombstones(self, key: bytes | None) -> list[Record]:
        return [Record(key, None)] if self.settings.tombstones else []

    def _value(self, rows: FlatRows, event: Event, op: EventOp, row: Row) -> bytes:
        transaction, lacks = event.transaction, event.unchanged if op is not EventOp.DELETE else ()
        facts: dict[str, Any] = {
            "_op": str(op),
            "_offset": None,
            "_commit_time": None if event.commit_time is None else rows.moment(event.commit_time),
            "_position": event.position,
            "_transaction": transaction and transaction.id,
            "_number": transaction and transaction.number,
        }
        if self.typed or lacks:
            facts["_unchanged"] = list(lacks) or None
        head, tail = rows.wrap
        return head + encode(rows.row(row) | facts) + tail

    # --- all changes of a table at once

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        table = self.rows_of(changes.schema)
        rows = ChangedRows(table, changes)
        plan = RecordPlan(
            changes, rows.is_moved, tombstones=self.settings.tombstones, are_reads=facts.reads is not None
        )
        head, tail = (part.decode() for part in table.wrap)
        values = join(
            [
                head,
                _opened(self._rows(table, rows, changes, plan)),
                '"_op":"',
                OPS.take(pa.array(plan.letter)),
                *self._facts(table, changes, facts, plan.change),
                self._unchanged(changes, plan),
                f"}}{tail}",
            ]
        )
        return plan.encoded(rows, values, has_headers=False)

    def _rows(self, table: FlatRows, rows: ChangedRows, changes: Changes, plan: RecordPlan) -> pa.StringArray:
        """The row that each record has."""
        of_record = pa.array(plan.change)
        after = rows.after.take(of_record)
        if plan.has_after.all():
            return after
        old = rows.before.take(of_record)
        found = pc.coalesce(
            pc.if_else(pa.array(plan.has_after), after, old), bare_keys(table, changes, plan, pa.string())
        )
        return pc.fill_null(found, encode(table.row({})).decode())

    def _facts(self, table: FlatRows, changes: Changes, facts: Facts, change: Integers) -> list[str | pa.StringArray]:
        if facts.reads is not None:
            position = encode(facts.positions[0]).decode()
            none = f'"_position":{position},"_transaction":null,"_number":null'
            return [f'","_offset":null,"_commit_time":null,{none}']
        used, place = np.unique(changes.transaction, return_inverse=True)
        of_record = pa.array(place[change])
        times = written(changes.transactions.column("_commit_time").take(pa.array(used)), table.moments)
        positions, ids = (
            strings(pa.array([each[row] for row in used.tolist()], pa.string()))
            for each in (facts.positions, facts.ids)
        )
        told = join([',"_commit_time":', times, ',"_position":', positions, ',"_transaction":', ids])
        offsets = pa.array(changes.offset[change]).cast(pa.string())
        numbers = pa.array(facts.numbers[change]).cast(pa.string())
        return ['","_offset":', offsets, told.take(of_record), ',"_number":', numbers]

    def _unchanged(self, changes: Changes, plan: RecordPlan) -> str | pa.StringArray:
        nothing = f',"_unchanged":{NULL}' if self.typed else ""
        if changes.unchanged is None or not changes.unchanged.any():
            return nothing
        names = [column.name for column in changes.schema.columns]
        patterns, of_row = np.unique(changes.unchanged, axis=0, return_inverse=True)
        lacking = [[n for n, lacks in zip(names, pattern, strict=True) if lacks] for pattern in patterns]
        texts = [f',"_unchanged":{encode(each).decode()}' if each else nothing for each in lacking]
        found = pa.array(texts, pa.string()).take(pa.array(of_row.reshape(-1)[plan.change]))
        return pc.if_else(pa.array(plan.is_deleted), nothing, found) if plan.is_deleted.any() else found


def bare_keys(table: RowWriter, changes: Changes, plan: RecordPlan, type_: pa.DataType) -> pa.Array:
    """What there is of a deleted row where nothing was sent of it: its key. Null for all other records."""
    lacks = plan.is_deleted & ~np.isin(plan.change, changes.before_rows)
    if not lacks.any():
        return pa.nulls(len(plan.change), type_)
    rows = changes.after.take(pa.array(plan.change))
    blank = [
        column if name in changes.schema.key else pa.nulls(len(column), column.type)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    written = table.write_old_rows(pa.RecordBatch.from_arrays(blank, schema=rows.schema))
    return pc.if_else(pa.array(lacks), written, pa.scalar(None, type_))


def _opened(objects: pa.StringArray) -> pa.StringArray:
    """JSON objects that more is to be written into: without their last brace, with a comma if they have something."""
    body = pc.binary_slice(objects.view(pa.binary()), 0, -1).view(pa.string())
    is_empty = pc.equal(pc.binary_length(objects), 2)
    comma = pc.if_else(is_empty, "", ",") if pc.any(is_empty).as_py() else ","
    return join([body, comma])
