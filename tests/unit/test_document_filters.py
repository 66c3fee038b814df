"""Filters: what SQL would say, over columns."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from support.rows_in_memory import BOOLEAN, DOUBLE, INT, MOMENT, MONEY, NUMERIC, TEXT, batch, table
from tailrace.config.conditions import Filter, Op, SoftDelete
from tailrace.documents.filters import passing
from tailrace.model import extremes
from tailrace.model.types import ColumnType, Kind

MOOD = ColumnType(Kind.ENUM, "mood", labels=("1:700:sad", "2:700:ok", "3:700:happy"))
UUID = ColumnType(Kind.UUID, "uuid")
DATE = ColumnType(Kind.DATE, "date")
TIME = ColumnType(Kind.TIME, "time")
CHAR = ColumnType(Kind.TEXT, "character(4)")
FLOAT = ColumnType(Kind.FLOAT32, "real")
BYTES = ColumnType(Kind.BYTES, "bytea")


def kept(type_: ColumnType, values: list[Any], op: Op, operand: Any = None) -> list[int]:
    """The places of the values that pass."""
    schema = table("t", {"id": INT, "v": type_})
    rows = batch(schema, [(place, value) for place, value in enumerate(values)])
    found: list[int] = passing(rows, schema, [Filter("v", op, operand)]).column("id").to_pylist()
    return found


@pytest.mark.parametrize(
    ("op", "operand", "expected"),
    [
        (Op.IS_NULL, None, [3]),
        (Op.IS_NOT_NULL, None, [0, 1, 2]),
        (Op.EQ, 2, [1]),
        (Op.NEQ, 2, [0, 2]),
        (Op.LT, 2, [0]),
        (Op.LTE, 2, [0, 1]),
        (Op.GT, 2, [2]),
        (Op.GTE, 2, [1, 2]),
        (Op.IN, [1, 3], [0, 2]),
        (Op.NOT_IN, [1, 3], [1]),
        (Op.BETWEEN, [2, 3], [1, 2]),
        (Op.BETWEEN, [3, 2], []),
        (Op.EQ, "2", [1]),
        (Op.LT, 10**30, [0, 1, 2]),
        (Op.GT, -(10**30), [0, 1, 2]),
    ],
)
def test_a_null_passes_nothing_but_is_null(op: Op, operand: Any, expected: list[int]) -> None:
    assert kept(INT, [1, 2, 3, None], op, operand) == expected
    assert kept(MONEY, [Decimal(1), Decimal(2), Decimal(3), None], op, operand) == expected
    assert kept(NUMERIC, ["1", "2.00", "3.0", None], op, operand) == expected


def test_exact_numbers_are_compared_as_numbers_whatever_their_digits() -> None:
    values = ["10", "9.5", "-0.000001", "123456789012345678901234567890.5", "9.50"]
    assert kept(NUMERIC, values, Op.EQ, "9.500") == [1, 4]
    assert kept(NUMERIC, values, Op.GT, 9.5) == [0, 3]
    assert kept(NUMERIC, values, Op.LT, 0) == [2]
    assert kept(MONEY, [Decimal("1.24"), Decimal("1.25")], Op.LT, "1.245") == [0]
    assert kept(MONEY, [Decimal("1.24"), Decimal("1.25")], Op.EQ, "1.245") == []


def test_nan_is_above_all_numbers() -> None:
    assert kept(NUMERIC, ["1", "NaN", "Infinity", "-Infinity", None], Op.GT, 5) == [1, 2]
    assert kept(NUMERIC, ["1", "9" * 100], Op.GTE, 2) == [1]
    assert kept(DOUBLE, [1.0, float("nan"), float("inf"), -0.0, None], Op.GT, 5) == [1, 2]
    assert kept(DOUBLE, [-0.0, 0.0], Op.EQ, 0) == [0, 1]
    money = pa.concat_arrays([pa.array([Decimal(1)], pa.decimal128(12, 2)), extremes.nans(1, pa.decimal128(12, 2))])
    schema = table("t", {"id": INT, "v": MONEY})
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1], pa.int32()), money], schema=schema.arrow)
    assert passing(rows, schema, [Filter("v", Op.GT, 5)]).column("id").to_pylist() == [1]


def test_a_float_of_less_digits_is_equal_to_what_is_written_for_it() -> None:
    assert kept(FLOAT, [0.1, 0.2], Op.EQ, 0.1) == [0]


def test_text_is_compared_by_its_code_points() -> None:
    values = ["a", "B", "é", "", None, "ab"]
    assert kept(TEXT, values, Op.LT, "a") == [1, 3]
    assert kept(TEXT, values, Op.GTE, "ab") == [2, 5]
    assert kept(TEXT, values, Op.IN, ["", "B"]) == [1, 3]
    assert kept(CHAR, ["ab  ", "a   ", None], Op.EQ, "ab") == [0]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a%", [0, 1, 3]),
        ("a_c", [0, 3]),
        ("%.c", [3]),
        (r"\%\_", [4]),
        ("%", [0, 1, 2, 3, 4, 5, 7]),
        ("", [5]),
        ("a\n%", [1]),
        ("(x)", []),
        ("tail\\", []),
        ("_", []),
    ],
)
def test_like_knows_its_signs_and_no_others(pattern: str, expected: list[int]) -> None:
    values = ["abc", "a\nb", "ABC", "a.c", "%_", "", None, "日本"]
    assert kept(TEXT, values, Op.LIKE, pattern) == expected


def test_ilike_leaves_case_out() -> None:
    assert kept(TEXT, ["ÄB", "äb", "ab", None], Op.ILIKE, "Ä_") == [0, 1]


def test_moments_are_compared_by_their_instant() -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert kept(MOMENT, [noon, None], Op.EQ, "2024-01-01T14:00:00+02:00") == [0]
    assert kept(MOMENT, [noon], Op.EQ, "2024-01-01 12:00:00") == [0]
    assert kept(ColumnType(Kind.TIMESTAMP, "timestamp"), [1_704_067_200_000_000], Op.LTE, "2024-01-01") == [0]
    assert kept(DATE, [date(2024, 1, 1), date(2024, 1, 2), None], Op.GT, "2024-01-01 12:00:00") == [1]
    assert kept(TIME, [time(12), time(13)], Op.LT, "12:30") == [0]


def test_infinite_and_late_moments_are_beyond_all_others() -> None:
    late = extremes.held(9_223_400_000_000_000_000)
    schema = table("t", {"id": INT, "v": MOMENT, "d": DATE})
    moments = pa.array([2**63 - 1, -(2**63), late, 0]).view(pa.timestamp("us", "UTC"))
    days = pa.array([2**31 - 1, -(2**31), 2_000_000_000, 0], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([pa.array([0, 1, 2, 3], pa.int32()), moments, days], schema=schema.arrow)
    for column in ("v", "d"):
        assert passing(rows, schema, [Filter(column, Op.GT, "9999-12-31")]).column("id").to_pylist() == [0, 2]
        assert passing(rows, schema, [Filter(column, Op.LT, "0001-01-01")]).column("id").to_pylist() == [1]


def test_an_enum_is_in_the_order_of_its_source() -> None:
    values = ["happy", "sad", "ok", None]
    assert kept(MOOD, values, Op.GT, "sad") == [0, 2]
    assert kept(MOOD, values, Op.EQ, "ok") == [2]


def test_other_kinds() -> None:
    assert kept(BOOLEAN, [True, False, None], Op.EQ, True) == [0]
    assert kept(BOOLEAN, [True, False, None], Op.NEQ, "true") == [1]
    uuid = "8d1d5d2f-6f0b-4c57-9d3a-0d0b9ff3f5c1"
    assert kept(UUID, [uuid, None], Op.EQ, uuid.upper()) == [0]
    assert kept(BYTES, [b"\x00\xff", b"a"], Op.EQ, "\\x00ff") == [0]


def test_soft_deletion_by_a_flag_a_time_or_conditions() -> None:
    schema = table("t", {"id": INT, "gone": BOOLEAN, "at": MOMENT, "n": INT})
    now = datetime(2024, 1, 1, tzinfo=UTC)
    rows = batch(schema, [(0, None, None, 1), (1, False, now, None), (2, True, None, 2)])
    deletions = {
        SoftDelete("gone"): [0, 1],
        SoftDelete("at"): [0, 2],
        SoftDelete(None, (Filter("n", Op.GT, 1),)): [0, 1],
        SoftDelete(None, (Filter("n", Op.GT, 0), Filter("gone", Op.IS_NULL))): [1, 2],
    }
    for soft_delete, expected in deletions.items():
        assert passing(rows, schema, (), soft_delete).column("id").to_pylist() == expected
