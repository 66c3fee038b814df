"""The sink contract: values of every type come back exactly, by the mapping that the sink documents."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Sink
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

KEY_SAMPLES = ("boolean", "int16", "int32", "decimal", "uuid", "date", "timestamptz", "time", "enum")


class ValuesContract:
    """Values are read back through a connection of the test's own."""

    # --- values ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", SAMPLES)
    def test_values_come_back_exactly(
        self, sink: Sink, rows: ReadRows, expected_values: dict[str, list[Any]], name: str
    ) -> None:
        schema = TableSchema("public", "typed", (Column("id", INT), Column("v", SAMPLES[name].type)), ("id",))
        values = SAMPLES[name].values
        batch = pa.RecordBatch.from_arrays([pa.array(range(len(values)), pa.int64()), values], schema=schema.arrow)
        apply(sink, [net(schema, batch)], 10)
        found = [value for _, value in sorted(rows(schema))]
        assert list(map(repr, found)) == list(map(repr, expected_values[name]))
        read = [row for part in sink.read_table(schema) for row in part]
        assert same(read, sink.expected_rows(schema, batch))

    @pytest.mark.parametrize("name", SAMPLES)
    def test_values_of_a_chunk_come_back_as_those_of_a_batch(self, sink: Sink, rows: ReadRows, name: str) -> None:
        one, two = (
            TableSchema("public", table, (Column("id", INT), Column("v", SAMPLES[name].type)), ("id",))
            for table in ("one", "two")
        )
        values = SAMPLES[name].values
        arrays = [pa.array(range(len(values)), pa.int64()), values]
        apply(sink, [net(one, pa.RecordBatch.from_arrays(arrays, schema=one.arrow))], 10)
        sink.begin_snapshot(status(two, TableState.SNAPSHOT), [chunk(two)], clear=True)
        sink.load_chunk(two, chunk(two), iter([pa.RecordBatch.from_arrays(arrays, schema=two.arrow)]))
        assert same(rows(two), rows(one))

    @pytest.mark.parametrize("name", KEY_SAMPLES)
    def test_values_can_be_keys(self, sink: Sink, rows: ReadRows, name: str) -> None:
        schema = TableSchema("public", "by_value", (Column("n", INT), Column("k", SAMPLES[name].type)), ("k",))
        keys = SAMPLES[name].values.drop_null()
        ones, twos = (
            pa.RecordBatch.from_arrays([pa.array([n] * len(keys), pa.int64()), keys], schema=schema.arrow)
            for n in (1, 2)
        )
        apply(sink, [net(schema, ones)], 10)
        apply(sink, [net(schema, twos)], 20)
        assert [row[0] for row in rows(schema)] == [2] * len(keys)
        apply(sink, [net(schema, deletes=ones.select(["k"]))], 30)
        assert rows(schema) == []

    def test_negative_zero_keeps_its_sign(self, sink: Sink, rows: ReadRows) -> None:
        schema = TableSchema("public", "zero", (Column("x", ColumnType(Kind.FLOAT64, "double precision")),))
        apply(sink, [net(schema, [(-0.0,)])], 10)
        ((zero,),) = rows(schema)
        assert (zero, math.copysign(1, zero)) == (0.0, -1.0)
