"""Columns as Python values: what Arrow gives where Python's types hold it, and its text where they do not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.columns.plain import rows_of, values_of
from tailrace.model import extremes, shapes
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind, arrow_type

NOON = dt.datetime.fromisoformat("2024-02-29T12:00:00.250")
USUAL: dict[Kind, list[Any]] = {
    Kind.BOOLEAN: [True, None, False],
    Kind.INT64: [1, None, -(2**63)],
    Kind.FLOAT64: [0.1, None, float("inf")],
    Kind.TEXT: ["", None, "ü 日本"],
    Kind.BYTES: [b"", None, b"\x00\xff"],
    Kind.DATE: [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)],
    Kind.TIME: [dt.time(0), None, dt.time(23, 59, 59, 999_999)],
    Kind.TIMESTAMP: [NOON, None, *map(dt.datetime.fromisoformat, ("0001-01-01", "9999-12-31T23:59:59.999999"))],
    Kind.TIMESTAMPTZ: [NOON.replace(tzinfo=dt.UTC), None, dt.datetime(1969, 1, 1, tzinfo=dt.UTC)],
    Kind.INTERVAL: [{"months": 1, "days": -2, "microseconds": 3}, None],
}


@pytest.mark.parametrize("kind", USUAL)
def test_usual_values_are_what_arrow_gives(kind: Kind) -> None:
    type_ = ColumnType(kind)
    array = pa.array(USUAL[kind], arrow_type(type_))
    assert values_of(array, type_) == USUAL[kind] == array.to_pylist()
    assert values_of(array.slice(1), type_) == USUAL[kind][1:]


def test_decimals_are_exact_and_a_nan_is_one() -> None:
    type_ = ColumnType(Kind.DECIMAL, precision=12, scale=2)
    array = pa.array([Decimal("1.50"), None, Decimal("-9999999999.99")], arrow_type(type_))
    assert values_of(array, type_) == array.to_pylist()
    assert str(values_of(extremes.nans(1, arrow_type(type_)), type_)) == "[Decimal('NaN')]"


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (Kind.DATE, 2**31 - 1, "infinity"),
        (Kind.DATE, -(2**31), "-infinity"),
        (Kind.DATE, -719_163, "0001-12-31 BC"),
        (Kind.TIMESTAMP, 2**63 - 1, "infinity"),
        (Kind.TIMESTAMP, -(2**63), "-infinity"),
        (Kind.TIMESTAMPTZ, 253_402_300_800_000_000, "10000-01-01 00:00:00+00:00"),
        (Kind.TIME, 86_400_000_000, "24:00:00"),
    ],
)
def test_what_python_can_not_hold_is_its_text(kind: Kind, number: int, text: str) -> None:
    type_ = ColumnType(kind)
    integers = pa.int32() if kind is Kind.DATE else pa.int64()
    array = pa.array([0, number, None], integers).view(arrow_type(type_))
    plain = values_of(array, type_)
    assert plain[1:] == [text, None]
    assert not isinstance(plain[0], str)


def test_arrays_are_lists_whatever_is_in_them() -> None:
    type_ = ColumnType(Kind.ARRAY, element=ColumnType(Kind.TIMESTAMPTZ))
    at = NOON.replace(tzinfo=dt.UTC)
    assert values_of(pa.array([[at, None], None, [], [at]], arrow_type(type_)), type_) == [[at, None], None, [], [at]]


def test_arrays_of_several_dimensions_are_lists_of_lists() -> None:
    type_ = ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT64))
    lists = pa.array([[1, 2, 3, 4], [5], [6, 7]], arrow_type(type_))
    array = shapes.shaped(lists, pa.array(["[1:2][1:2]", None, "[0:1]"]))
    assert values_of(array, type_) == [[[1, 2], [3, 4]], [5], '{"[0:1]":[6,7]}']


def test_rows_have_the_columns_that_are_asked_for() -> None:
    schema = TableSchema("public", "t", (Column("id", ColumnType(Kind.INT64)), Column("n", ColumnType(Kind.TEXT))))
    batch = schema.rows([pa.array([1, 2]), pa.array(["a", None])])
    assert rows_of(batch, schema) == [{"id": 1, "n": "a"}, {"id": 2, "n": None}]
    assert rows_of(batch, schema, ("id",)) == [{"id": 1}, {"id": 2}]
    assert rows_of(batch, schema, ()) == [{}, {}]
