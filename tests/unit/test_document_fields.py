"""Fields as JSON: every kind of field, from every kind of column that fits it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from support.rows_in_memory import BIG, BOOLEAN, DOUBLE, INT, MOMENT, MONEY, NUMERIC, TEXT, batch, table
from tailrace.config import documents as d
from tailrace.documents.fields import objects
from tailrace.errors import ValueRefused
from tailrace.model import shapes
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind

DATE = ColumnType(Kind.DATE, "date")
STAMP = ColumnType(Kind.TIMESTAMP, "timestamp without time zone")
JSON = ColumnType(Kind.JSON, "json")
BYTES = ColumnType(Kind.BYTES, "bytea")
POINT = ColumnType(Kind.OTHER, "point")
INTS = ColumnType(Kind.ARRAY, "integer[]", element=INT)


def never(place: str, field: Any) -> pa.StringArray:
    raise AssertionError(f"{place} is of this row: {field}")


def written(schema: TableSchema, rows: pa.RecordBatch, field: Any) -> list[str]:
    prefix = '{"v":'
    found = objects({"v": field}, rows, schema, "documents.t", never).to_pylist()
    assert all(each.startswith(prefix) and each.endswith("}") for each in found)
    json.loads(f"[{','.join(found)}]")
    return [each[len(prefix) : -1] for each in found]


def of(type_: ColumnType, values: list[Any], field: Any) -> list[str]:
    schema = table("t", {"id": INT, "v": type_})
    return written(schema, batch(schema, list(enumerate(values))), field)


@pytest.mark.parametrize(
    ("type_", "values", "field", "expected"),
    [
        (TEXT, ['a"b\\\n\x01ü', None], d.Text(), ['"a\\"b\\\\\\n\\u0001ü"', "null"]),
        (
            TEXT,
            [" A Ü ", None],
            d.Keyword(transforms=(d.TextTransform.LOWERCASE, d.TextTransform.TRIM)),
            ['"a ü"', "null"],
        ),
        (TEXT, ["x", None], d.Identifier(default="none"), ['"x"', '"none"']),
        (INT, [1, None], d.Integer(), ["1", "null"]),
        (BIG, [2**63 - 1, None], d.Long(default="7"), [str(2**63 - 1), "7"]),
        (INT, [1], d.Keyword(), ['"1"']),
        (DOUBLE, [0.1, 1e300, -0.0], d.Double(), ["0.1", "1e+300", "-0.0"]),
        (MONEY, [Decimal("12.50"), None], d.Decimal(default=1.5), ["12.50", "1.5"]),
        (NUMERIC, ["123456789012345678901234567890", "-0.000001", "0.000000000000000000123"], d.Decimal(), None),
        (
            NUMERIC,
            ["123456789012345.6", "12345678901234.5", "-0.1234567890123456", None],
            d.Decimal(),
            ['"123456789012345.6"', "12345678901234.5", '"-0.1234567890123456"', "null"],
        ),
        (NUMERIC, ["12"], d.Double(), ["12"]),
        (MONEY, [Decimal("12.50")], d.Keyword(), ['"12.50"']),
        (BOOLEAN, [True, False, None], d.Boolean(default=False), ["true", "false", "false"]),
        (DATE, [date(2024, 2, 29), date(1, 1, 1)], d.Date(), ['"2024-02-29"', '"0001-01-01"']),
        (
            MOMENT,
            [datetime(2024, 1, 2, 3, 4, 5, 6, UTC), None],
            d.Timestamp(),
            ['"2024-01-02T03:04:05.000006Z"', "null"],
        ),
        (STAMP, [253_402_300_799_000_000], d.Timestamp(), ['"9999-12-31T23:59:59.000000"']),
        (DATE, [date(2024, 2, 29)], d.Timestamp(default="2024-01-01"), ['"2024-02-29"']),
        (BYTES, [b"\x00\xff\x01", b"", None], d.Binary(), ['"AP8B"', '""', "null"]),
        (JSON, ['{"a":\n[1,\r\n2]}', "null", None], d.Json(), ['{"a": [1,  2]}', "null", "null"]),
        (JSON, ['{"a": 1}'], d.Map(values=d.ValueType.LONG), ['{"a": 1}']),
        (JSON, ['{"lat": 1, "lon": 2}', None], d.Geo(column="v"), ['{"lat": 1, "lon": 2}', "null"]),
        (TEXT, ["1,2"], d.Geo(column="v"), ['"1,2"']),
        (POINT, ["(1.5,-2e+20)", None], d.Geo(column="v"), ['{"lat":-2e+20,"lon":1.5}', "null"]),
        (INTS, [[1, None], [], None], d.Integer(), ["[1,null]", "[]", "null"]),
        (TEXT, ["x"], d.Custom(opensearch="wildcard"), ['"x"']),
        (INT, [5], d.Custom(opensearch="token_count"), ["5"]),
        (TEXT, ["x", None], d.Constant(value=["a", "b"]), ['["a","b"]', '["a","b"]']),
    ],
)
def test_a_value_is_written_as_its_field_says(
    type_: ColumnType, values: list[Any], field: Any, expected: list[str] | None
) -> None:
    assert of(type_, values, field) == (values if expected is None else expected)


@pytest.mark.parametrize(
    ("type_", "values", "field"),
    [
        (DOUBLE, [1.0, float("nan")], d.Double()),
        (DOUBLE, [float("-inf")], d.Double()),
        (NUMERIC, ["1", "NaN"], d.Decimal()),
        (NUMERIC, ["Infinity"], d.Double()),
        (POINT, ["(NaN,1)"], d.Geo(column="v")),
    ],
)
def test_what_is_no_number_of_json_is_refused_with_its_column(type_: ColumnType, values: list[Any], field: Any) -> None:
    with pytest.raises(ValueRefused, match=r"public\.t\.v"):
        of(type_, values, field)


@pytest.mark.parametrize("days", [2**31 - 1, -(2**31), -719_163, 2_932_897])
def test_a_date_that_opensearch_has_not_is_refused(days: int) -> None:
    schema = table("t", {"v": DATE})
    rows = pa.RecordBatch.from_arrays([pa.array([days], pa.int32()).view(pa.date32())], schema=schema.arrow)
    with pytest.raises(ValueRefused, match=r"public\.t\.v \(date\): a year before 1"):
        written(schema, rows, d.Date())
    assert written(schema, rows, d.Keyword())  # as text it is what it is


def test_a_moment_that_opensearch_has_not_is_refused() -> None:
    schema = table("t", {"v": MOMENT})
    for value in (2**63 - 1, -(2**63), -62_135_596_800_000_001):
        rows = pa.RecordBatch.from_arrays([pa.array([value]).view(pa.timestamp("us", "UTC"))], schema=schema.arrow)
        with pytest.raises(ValueRefused, match=r"public\.t\.v"):
            written(schema, rows, d.Timestamp())


def test_an_array_of_several_dimensions_is_a_list_of_lists_wherever_it_starts() -> None:
    lists = pa.array([[1, 2, 3, 4], [5, 6], [7]], pa.list_(pa.int32()))
    column = shapes.shaped(lists, pa.array(["[1:2][0:1]", "[0:1]", None], pa.string()))
    schema = table("t", {"v": INTS})
    assert written(schema, schema.rows([column]), d.Integer()) == ["[[1,2],[3,4]]", "[5,6]", "[7]"]


def test_a_point_lacks_nothing_or_is_null() -> None:
    schema = table("t", {"a": DOUBLE, "b": MONEY})
    rows = batch(schema, [(1.5, Decimal("2.50")), (None, Decimal(1)), (1.0, None)])
    assert written(schema, rows, d.Geo(lat="a", lon="b")) == ['{"lat":1.5,"lon":2.50}', "null", "null"]


def test_objects_are_of_the_same_row() -> None:
    schema = table("t", {"a": INT, "b": TEXT})
    field = d.Object(fields={"x": d.Integer(column="a"), "y": d.Object(fields={"b": d.Keyword()})})
    assert written(schema, batch(schema, [(1, "q")]), field) == ['{"x":1,"y":{"b":"q"}}']


@pytest.mark.parametrize("field", [d.Keyword(required=True), d.Custom(opensearch="x", required=True)])
def test_a_null_where_a_value_is_required_is_refused(field: Any) -> None:
    assert of(TEXT, ["a", "null"], field) == ['"a"', '"null"']
    with pytest.raises(ValueRefused, match=r"documents\.t\.fields\.v is required"):
        of(TEXT, ["a", None], field)


def test_a_default_is_as_good_as_a_value_that_is_required() -> None:
    assert of(TEXT, [None], d.Keyword(required=True, default="x")) == ['"x"']
