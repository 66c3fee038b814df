"""Debezium's envelope in a binary format, by columns."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from tailrace.codecs.base import Facts, Record
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.base import moments_of
from tailrace.codecs.debezium.codec import UNCOUNTED, DebeziumCodec
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.records import OP_LETTERS, RecordPlan
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.debezium.tables import prefix_of
from tailrace.codecs.debezium.values import array_of, arrow_of
from tailrace.codecs.rows import ChangedRows
from tailrace.codecs.wire.parts import Constant, Content, Field, Parts, Wire, fields, join
from tailrace.codecs.wire.rows import WireRows
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes, Flags
from tailrace.model.event import Event
from tailrace.model.schema import TableSchema

_NO_TRANSACTION = Constant(pa.nulls(1, arrow_of(schemas.TRANSACTION)))
_FEW = 64


class EnvelopeShape:
    has_headers = True

    def __init__(self, settings: DebeziumSettings) -> None:
        self._codec = DebeziumCodec(msgspec.structs.replace(settings, schemas=False))
        self.tombstones = settings.tombstones

    def encode(self, event: Event) -> list[Record]:
        return self._codec.encode(event)

    def prefix_of(self, schema: TableSchema) -> str:
        return prefix_of(schema, self._codec.settings)

    def rows_of(self, schema: TableSchema, wire: Wire) -> WireRows:
        table = self._codec.table_of(schema)
        return WireRows(table, table.row_schema, table.value_schema, wire, placeholders=True)

    def value_parts(
        self, changes: Changes, facts: Facts, rows: ChangedRows, plan: RecordPlan, table: WireRows
    ) -> Parts:
        now = self._codec.now_ns()
        moments, place = moments_of(changes, facts, now // 1000)
        of_record = pa.array(place[plan.change])
        origin = self._codec.origin
        sources = blocks_of(origin.blocks(moments), origin.schema)
        source = join(table.wire.contents(origin.schema, sources), len(moments)).take(of_record)
        ids = pa.array([origin.transaction_id(moment) for moment in moments], pa.string()).take(of_record)
        values: dict[str, Field] = {
            "before": Content(_wanted(rows.before, plan.has_before, plan)),
            "after": Content(_wanted(rows.after, plan.has_after, plan)),
            "source": Content(source),
            "transaction": self._transactions(changes, facts, plan, ids),
            "op": OP_LETTERS.take(pa.array(plan.letter)),
        }
        for name, unit in (("ts_ms", 1_000_000), ("ts_us", 1000), ("ts_ns", 1)):
            values[name] = Constant(pa.array([now // unit]))
        return fields(table.wire, table.value_schema, values)

    def _transactions(self, changes: Changes, facts: Facts, plan: RecordPlan, ids: pa.StringArray) -> Field:
        if not self._codec.settings.transactions or facts.reads is not None or facts.late:
            return _NO_TRANSACTION
        if facts.table_numbers is None:
            raise ValueRefused(UNCOUNTED, table=changes.schema.table)
        numbers = [pa.array(each[plan.change]) for each in (facts.numbers, facts.table_numbers)]
        names = [field["field"] for field in schemas.TRANSACTION["fields"]]
        return pa.StructArray.from_arrays([ids, *numbers], names=names)


def _wanted(content: pa.BinaryArray, wanted: Flags, plan: RecordPlan) -> pa.BinaryArray:
    """What each record has of its change; null where it is not wanted."""
    if not wanted.any():
        return pa.nulls(len(wanted), pa.binary())
    if len(plan.change) == len(content) and wanted.all():
        return content
    return content.take(pa.array(np.where(wanted, plan.change, -1), mask=~wanted))


def blocks_of(texts: pa.StringArray, schema: Schema) -> pa.StructArray:
    """JSON objects as what their schema says."""
    if len(texts) < _FEW:
        return array_of([msgspec.json.decode(text) for text in texts.to_pylist()], schema)
    type_ = arrow_of(schema)
    together = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_py().encode()
    options = arrow_json.ParseOptions(explicit_schema=pa.schema(list(type_)), unexpected_field_behavior="error")
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(together) + 1)
    found = arrow_json.read_json(io.BytesIO(together), reading, options).combine_chunks()
    return pa.StructArray.from_arrays([column.combine_chunks() for column in found.columns], fields=list(type_))
