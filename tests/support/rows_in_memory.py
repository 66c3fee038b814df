"""Tables in memory, read as a source's reader reads them; it counts its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.documents.keys import joined, key_texts
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind

INT = ColumnType(Kind.INT32, "integer")
BIG = ColumnType(Kind.INT64, "bigint")
TEXT = ColumnType(Kind.TEXT, "text")
MONEY = ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)
NUMERIC = ColumnType(Kind.NUMERIC, "numeric")
BOOLEAN = ColumnType(Kind.BOOLEAN, "boolean")
DOUBLE = ColumnType(Kind.FLOAT64, "double precision")
MOMENT = ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone")


def table(
    name: str, columns: Mapping[str, ColumnType], key: Sequence[str] = ("id",), identity: Identity = Identity.DEFAULT
) -> TableSchema:
    described = tuple(Column(each, type_, place) for place, (each, type_) in enumerate(columns.items(), 1))
    return TableSchema("public", name, described, tuple(key), identity)


class Tables:
    """A `ReadRows`. Rows are lists of values in the order of their columns."""

    def __init__(self, rows: Mapping[TableSchema, Sequence[Sequence[Any]]]) -> None:
        self.schemas = {schema.table: schema for schema in rows}
        self.rows = {schema.table: batch(schema, each) for schema, each in rows.items()}
        self.queries: list[tuple[str, tuple[str, ...], int]] = []

    def __call__(
        self, schema: TableSchema, by: tuple[str, ...], values: pa.RecordBatch, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        self.queries.append((schema.table, by, values.num_rows))
        rows = self.rows[schema.table]
        types = {column.name: column.type for column in schema.columns}
        texts = joined([key_texts(rows.column(name), types[name]) for name in by])
        found = rows.filter(pc.is_in(texts, joined(values.columns).drop_null()))
        return found.select(list(dict.fromkeys((*columns, *by))))


def batch(schema: TableSchema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema.columns)
    arrays = [pa.array(list(each), field.type) for each, field in zip(columns, schema.arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def keys_of(*rows: tuple[str, ...] | str, names: Sequence[str] = ("id",)) -> pa.RecordBatch:
    parts = [(row,) if isinstance(row, str) else row for row in rows]
    columns = list(zip(*parts, strict=True)) or [()] * len(names)
    return pa.RecordBatch.from_arrays([pa.array(list(each), pa.string()) for each in columns], names=list(names))
