"""Which field goes with which type of column, where the description does not say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from tailrace.config import documents as d
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind

Schemas = Mapping[str, TableSchema]

FIELDS: dict[Kind, type[d.NamedScalars]] = {
    Kind.BOOLEAN: d.Boolean,
    Kind.INT16: d.Short,
    Kind.INT32: d.Integer,
    Kind.INT64: d.Long,
    Kind.FLOAT32: d.Float,
    Kind.FLOAT64: d.Double,
    Kind.DECIMAL: d.Decimal,
    Kind.NUMERIC: d.Decimal,
    Kind.TEXT: d.Text,
    Kind.BYTES: d.Binary,
    Kind.UUID: d.Uuid,
    Kind.DATE: d.Date,
    Kind.TIME: d.Keyword,
    Kind.TIMETZ: d.Keyword,
    Kind.TIMESTAMP: d.Timestamp,
    Kind.TIMESTAMPTZ: d.Timestamp,
    Kind.INTERVAL: d.Keyword,
    Kind.JSON: d.Json,
    Kind.ENUM: d.Enum,
    Kind.OTHER: d.Keyword,
}

WHOLE = frozenset({Kind.INT16, Kind.INT32, Kind.INT64})
EXACT = frozenset({Kind.DECIMAL, Kind.NUMERIC})


def element_of(type_: ColumnType) -> ColumnType:
    """What OpenSearch maps: the elements of an array, as any field of its may have many values."""
    while type_.element is not None:
        type_ = type_.element
    return type_


def column_type(schema: TableSchema | None, column: str) -> ColumnType | None:
    """The type of a column, or of its elements; None where the table has no such column."""
    found = [each.type for each in schema.columns if each.name == column] if schema is not None else []
    return element_of(found[0]) if found else None


def value_type_of(aggregate: d.Aggregates, schema: TableSchema | None) -> d.ValueType:
    """What an aggregate over this table is in OpenSearch: what the description says, or what its column asks for."""
    match aggregate:
        case d.Count():
            return d.ValueType.LONG
        case d.Avg():
            return d.ValueType.DOUBLE
        case d.Sum():
            return aggregate.value_type or _sum_type(column_type(schema, aggregate.column))
        case d.Min() | d.Max():
            return aggregate.value_type or _scalar_type(column_type(schema, aggregate.column))
        case d.Ids():
            columns = (aggregate.column,) if aggregate.column is not None else schema.key if schema is not None else ()
            return aggregate.value_type or _id_type([column_type(schema, column) for column in columns])
        case _:
            assert_never(aggregate)


def _sum_type(type_: ColumnType | None) -> d.ValueType:
    if type_ is not None and type_.kind in WHOLE:
        return d.ValueType.LONG
    return d.ValueType.DECIMAL if type_ is not None and type_.kind in EXACT else d.ValueType.DOUBLE


def _scalar_type(type_: ColumnType | None) -> d.ValueType:
    if type_ is None or type_.kind in (Kind.TEXT, Kind.ENUM, Kind.JSON, Kind.BYTES):
        return d.ValueType.KEYWORD
    return d.ValueType(str(FIELDS[type_.kind].__struct_config__.tag))


def _id_type(types: list[ColumnType | None]) -> d.ValueType:
    is_whole = len(types) == 1 and types[0] is not None and types[0].kind in WHOLE
    return d.ValueType.LONG if is_whole else d.ValueType.KEYWORD
