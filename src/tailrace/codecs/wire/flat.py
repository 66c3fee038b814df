"""Flat records in a binary format, by columns."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.base import Facts, Record
from tailrace.codecs.debezium.records import RecordPlan
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.debezium.tables import Table, prefix_of
from tailrace.codecs.debezium.values import converted, zoned_texts
from tailrace.codecs.flat.codec import OPS, FlatCodec, bare_keys
from tailrace.codecs.flat.rows import facts_schema, refuse_clash, row_schema, value_schema
from tailrace.codecs.rows import ChangedRows
from tailrace.codecs.wire.parts import Constant, Field, Parts, Wire, fields, join
from tailrace.codecs.wire.rows import WireRows
from tailrace.model.changes import Changes
from tailrace.model.event import Event
from tailrace.model.schema import TableSchema

_NAMES = pa.list_(pa.string())


class FlatShape:
    has_headers = False

    def __init__(self, settings: DebeziumSettings) -> None:
        self._settings = msgspec.structs.replace(settings, schemas=False)
        self._codec = FlatCodec(self._settings, typed=True)
        self.tombstones = settings.tombstones

    def encode(self, event: Event) -> list[Record]:
        return self._codec.encode(event)

    def prefix_of(self, schema: TableSchema) -> str:
        return prefix_of(schema, self._settings)

    def rows_of(self, schema: TableSchema, wire: Wire) -> WireRows:
        refuse_clash(schema)
        table = Table(schema, {"type": "string"}, self._settings)
        return WireRows(table, row_schema(table), value_schema(table), wire, placeholders=False)

    def value_parts(
        self, changes: Changes, facts: Facts, rows: ChangedRows, plan: RecordPlan, table: WireRows
    ) -> Parts:
        values = self._places(changes, facts, plan)
        values["_op"] = OPS.take(pa.array(plan.letter))
        values["_unchanged"] = _unchanged(changes, plan)
        return [self._rows(rows, changes, plan, table), *fields(table.wire, facts_schema(table.table), values)]

    def _rows(self, rows: ChangedRows, changes: Changes, plan: RecordPlan, table: WireRows) -> pa.BinaryArray:
        """The row that each record has; its fields come first in a record."""
        of_record = pa.array(plan.change)
        if plan.has_after.all():
            return rows.after.take(of_record)
        found = pc.if_else(pa.array(plan.has_after), rows.after.take(of_record), rows.before.take(of_record))
        found = pc.coalesce(found, bare_keys(table, changes, plan, pa.binary()))
        nothing = {name: Constant(pa.nulls(1, type_)) for name, type_ in table.types.items()}
        return pc.fill_null(found, join(fields(table.wire, table.row_schema, nothing), 1)[0])

    def _places(self, changes: Changes, facts: Facts, plan: RecordPlan) -> dict[str, Field]:
        names = ("_offset", "_commit_time", "_position", "_transaction", "_number")
        if facts.reads is not None:
            types = (pa.int64(), pa.string(), pa.string(), pa.string(), pa.int64())
            nothing: dict[str, Field] = {n: Constant(pa.nulls(1, t)) for n, t in zip(names, types, strict=True)}
            return nothing | {"_position": Constant(pa.array([facts.positions[0]]))}
        used, place = np.unique(changes.transaction, return_inverse=True)
        of_record = pa.array(place[plan.change])
        moments = changes.transactions.column("_commit_time").take(pa.array(used))
        times = converted(moments, lambda array: zoned_texts(array, 6), pa.string())
        positions, ids = (
            pa.array([each[row] for row in used.tolist()], pa.string()) for each in (facts.positions, facts.ids)
        )
        offsets, numbers = pa.array(changes.offset[plan.change]), pa.array(facts.numbers[plan.change])
        told = (each.take(of_record) for each in (times, positions, ids))
        return dict(zip(names, (offsets, *told, numbers), strict=True))


def _unchanged(changes: Changes, plan: RecordPlan) -> Field:
    if changes.unchanged is None or not changes.unchanged.any():
        return Constant(pa.nulls(1, _NAMES))
    names = [column.name for column in changes.schema.columns]
    patterns, of_row = np.unique(changes.unchanged, axis=0, return_inverse=True)
    lacking = [[n for n, lacks in zip(names, pattern, strict=True) if lacks] or None for pattern in patterns]
    places = pa.array(of_row.reshape(-1)[plan.change], mask=plan.is_deleted)
    return pa.array(lacking, _NAMES).take(places)
