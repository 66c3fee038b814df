"""The sink contract: values of every type come back exactly, by the mapping that the sink documents."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import DatabaseSink
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import (
    INT,
    ReadRows,
    apply,
    chunk,
    net,
    same,
    status,
)

KEY_SAMPLES = (
    *("boolean", "int16", "int32", "decimal", "uuid", "date", "timestamptz", "time", "enum"),
    *("undefined", "late", "integers", "matrices"),
)


class ValuesContract:
    """Values are read back through a connection of the test's own."""

    # --- values ------------------------------------------------------------------------------------------------------

    def test_values_come_back_exactly(
        self, sink: DatabaseSink, rows: ReadRows, expected_values: dict[str, list[Any]]
    ) -> None:
        typed = {name: _typed(number, name) for number, name in enumerate(expected_values)}
        apply(sink, [net(schema, batch) for schema, batch in typed.values()], 10)
        for name, (schema, batch) in typed.items():
            found = [value for _, value in sorted(rows(schema))]
            assert (name, list(map(repr, found))) == (name, list(map(repr, expected_values[name])))
            read = [row for part in sink.read_table(schema) for row in part]
            assert same(read, sink.expected_rows(schema, batch)), name

    def test_values_of_a_chunk_come_back_as_those_of_a_batch(
        self, sink: DatabaseSink, rows: ReadRows, expected_values: dict[str, list[Any]]
    ) -> None:
        for number, name in enumerate(expected_values):
            schema, batch = _typed(number, name)
            sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)
            sink.load_chunk(schema, chunk(schema), iter([batch]))
            found = [value for _, value in sorted(rows(schema))]
            assert (name, list(map(repr, found))) == (name, list(map(repr, expected_values[name])))

    def test_a_row_of_any_type_can_be_found_by_its_value(
        self, sink: DatabaseSink, rows: ReadRows, expected_values: dict[str, list[Any]]
    ) -> None:
        for number, name in enumerate(expected_values):
            schema = TableSchema("public", f"one_{number}", (Column("v", SAMPLES[name].type),), (), Identity.FULL)
            batch = schema.rows([SAMPLES[name].values])
            apply(sink, [net(schema, batch), net(schema, batch)], 20 * number + 10)
            before = rows(schema)
            assert (name, len(before)) == (name, 2 * batch.num_rows)
            apply(sink, [net(schema, deletes=batch, copies=[1] * batch.num_rows)], 20 * number + 20)
            assert same(rows(schema) * 2, before), name

    def test_values_can_be_keys(
        self, sink: DatabaseSink, rows: ReadRows, expected_values: dict[str, list[Any]]
    ) -> None:
        for number, name in enumerate(name for name in KEY_SAMPLES if name in expected_values):
            columns = (Column("n", INT), Column("k", SAMPLES[name].type))
            schema = TableSchema("public", f"by_value_{number}", columns, ("k",))
            keys = SAMPLES[name].values.drop_null()
            ones, twos = (schema.rows([pa.array([n] * len(keys), pa.int64()), keys]) for n in (1, 2))
            apply(sink, [net(schema, ones)], 30 * number + 10)
            apply(sink, [net(schema, twos)], 30 * number + 20)
            assert (name, [row[0] for row in rows(schema)]) == (name, [2] * len(keys))
            apply(sink, [net(schema, deletes=ones.select(["k"]))], 30 * number + 30)
            assert (name, rows(schema)) == (name, [])

    def test_negative_zero_keeps_its_sign(self, sink: DatabaseSink, rows: ReadRows) -> None:
        schema = TableSchema("public", "zero", (Column("x", ColumnType(Kind.FLOAT64, "double precision")),))
        apply(sink, [net(schema, [(-0.0,)])], 10)
        ((zero,),) = rows(schema)
        assert (zero, math.copysign(1, zero)) == (0.0, -1.0)

    def test_either_zero_of_a_table_without_a_key_is_deleted(self, sink: DatabaseSink, rows: ReadRows) -> None:
        schema = TableSchema("public", "zeros", (Column("x", ColumnType(Kind.FLOAT64, "double precision")),))
        apply(sink, [net(schema, [(0.0,), (-0.0,), (0.0,)])], 10)
        apply(sink, [net(schema, deletes=[(0.0,), (-0.0,)], copies=[1, 1])], 20)
        assert rows(schema) == [(0.0,)]


def _typed(number: int, name: str) -> tuple[TableSchema, pa.RecordBatch]:
    """A table of its own for the sample of a type."""
    sample = SAMPLES[name]
    schema = TableSchema("public", f"typed_{number}", (Column("id", INT), Column("v", sample.type)), ("id",))
    arrays = [pa.array(range(len(sample.values)), pa.int64()), sample.values]
    return schema, schema.rows(arrays)
