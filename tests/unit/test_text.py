"""The canonical text of every kind, and that it can be read back."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.columns.text import to_text
from tailrace.model.types import ColumnType, Kind, arrow_type

DAY_US = 86_400_000_000
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def texts(values: list[object], kind: Kind, **more: object) -> list[str | None]:
    type_ = ColumnType(kind, **more)
    target = arrow_type(type_)
    if pa.types.is_temporal(target):
        storage = pa.int32() if target == pa.date32() else pa.int64()
        array = (
            pa.array(values, storage).cast(target) if kind is not Kind.TIME else pa.array(values, storage).view(target)
        )
    else:
        array = pa.array(values, target)
    result = to_text(array, type_)
    result.validate(full=True)
    assert result.type == pa.string()
    padded = pa.concat_arrays([array.slice(0, 1), array, array.slice(0, 1)]).slice(1, len(array))
    assert to_text(padded, type_).equals(result)  # a slice is read from its own beginning
    return result.to_pylist()


def test_booleans_and_integers() -> None:
    assert texts([True, None, False], Kind.BOOLEAN) == ["true", None, "false"]
    assert texts([-32768, None], Kind.INT16) == ["-32768", None]
    assert texts([-(2**63), 2**63 - 1, 0], Kind.INT64) == ["-9223372036854775808", "9223372036854775807", "0"]


def test_floats_are_the_shortest_that_read_back() -> None:
    values = [0.0, -0.0, 0.1, 1.0, 1e20, 1e-7, math.inf, -math.inf, math.nan, None]
    assert texts(values, Kind.FLOAT64) == ["0", "-0", "0.1", "1", "1e+20", "1e-7", "Infinity", "-Infinity", "NaN", None]
    assert texts([0.1, -math.nan, 16777216.0], Kind.FLOAT32) == ["0.1", "NaN", "16777216"]


@given(st.lists(st.floats(allow_nan=False)))
def test_every_float_reads_back(values: list[float]) -> None:
    read = [float(text) for text in texts(values, Kind.FLOAT64)]
    assert [struct.pack("d", value) for value in read] == [struct.pack("d", value) for value in values]


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (4, 4), (12, 2), (18, 0), (19, 3), (38, 0), (38, 10), (38, 38)]
)
def test_decimals_show_every_digit_of_their_scale(precision: int, scale: int) -> None:
    top = 10**precision - 1
    integers = [0, 1, -1, 9, top, -top, top // 7, 10 ** (precision - 1), -(10 ** (precision - 1)), 2**64 % (top + 1)]
    values = [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in integers]
    expected = [f"{value:f}" for value in values]
    assert texts([*values, None], Kind.DECIMAL, precision=precision, scale=scale) == [*expected, None]
    assert texts(values[:2], Kind.DECIMAL, precision=precision, scale=scale) == expected[:2]


def test_bytes_are_hexadecimal() -> None:
    assert texts([b"", b"\x00\xff", None, b"a"], Kind.BYTES) == ["\\x", "\\x00ff", None, "\\x61"]


def test_kinds_that_are_text_stay_as_they_are() -> None:
    for kind in (Kind.TEXT, Kind.NUMERIC, Kind.UUID, Kind.JSON, Kind.ENUM, Kind.OTHER):
        assert texts(["a", None, ""], kind) == ["a", None, ""]


def test_dates() -> None:
    days = [
        0,
        -1,
        19782,
        -719162,
        -719163,
        2932896,
        2932897,
        -735160,
        INT32_MAX,
        -(2**31),
        None,
        2145042905,
    ]
    assert texts(days, Kind.DATE) == [
        "1970-01-01",
        "1969-12-31",
        "2024-02-29",
        "0001-01-01",
        "0001-12-31 BC",
        "9999-12-31",
        "10000-01-01",
        "0044-03-15 BC",
        "infinity",
        "-infinity",
        None,
        "5874897-12-31",
    ]


def test_times() -> None:
    assert texts([0, DAY_US, 1, None, DAY_US - 1, 3_600_000_000], Kind.TIME) == [
        "00:00:00",
        "24:00:00",
        "00:00:00.000001",
        None,
        "23:59:59.999999",
        "01:00:00",
    ]


def test_times_with_an_offset() -> None:
    values = [(0, 0), (DAY_US, -57_599), (43_200_500_000, 19_800), (1, -3600)]
    rows = [{"microseconds": microseconds, "offset_seconds": offset} for microseconds, offset in values]
    assert texts([*rows, None], Kind.TIMETZ) == [
        "00:00:00+00:00",
        "24:00:00-15:59:59",
        "12:00:00.500000+05:30",
        "00:00:00.000001-01:00",
        None,
    ]


def test_timestamps() -> None:
    values = [
        0,
        -1,
        500_000,
        None,
        INT64_MAX,
        -(2**63),
        253_402_300_800_000_000,
        -62_135_596_800_000_001,
        INT64_MAX - 1,
    ]
    expected = [
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "1970-01-01 00:00:00.500000",
        None,
        "infinity",
        "-infinity",
        "10000-01-01 00:00:00",
        "0001-12-31 23:59:59.999999 BC",
        "294247-01-10 04:00:54.775806",
    ]
    assert texts(values, Kind.TIMESTAMP) == expected
    zoned = [re.sub(r"(\d)(?=$| BC)", r"\1+00:00", text) if text else None for text in expected]
    assert texts(values, Kind.TIMESTAMPTZ) == zoned


@given(st.lists(st.datetimes(), max_size=20))
def test_timestamps_are_what_python_prints_and_reads(values: list[datetime]) -> None:
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001
    microseconds = [(value - epoch) // (datetime.resolution) for value in values]
    assert texts(microseconds, Kind.TIMESTAMP) == [str(value) for value in values]
    zoned = texts(microseconds, Kind.TIMESTAMPTZ)
    assert [datetime.fromisoformat(text) for text in zoned] == [value.replace(tzinfo=UTC) for value in values]


@given(st.lists(st.dates(), max_size=20))
def test_dates_are_what_python_prints(values: list[date]) -> None:
    assert texts([(value - date(1970, 1, 1)).days for value in values], Kind.DATE) == [str(value) for value in values]


def test_sqlite_reads_timestamps() -> None:
    read = sqlite3.connect(":memory:").execute
    values = [1_709_251_199_500_000, 1_709_251_199_000_000]
    for kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        for text, microseconds in zip(texts(values, kind), values, strict=True):
            ((seconds,),) = read("SELECT (julianday(?) - 2440587.5) * 86400", (text,))
            assert seconds == pytest.approx(microseconds / 1e6, abs=2e-3)


def test_timestamps_of_a_column_sort_by_time() -> None:
    values = sorted([0, 1, 500_000, 999_999, 1_000_000, 1_000_001, 86_399_000_000, 86_400_000_000])
    for kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.TIME):
        written = texts(values, kind)
        assert written == sorted(written)


@pytest.mark.parametrize(
    ("months", "days", "microseconds", "expected"),
    [
        (0, 0, 0, "PT0S"),
        (14, 3, 14_706_789_000, "P1Y2M3DT4H5M6.789S"),
        (-14, 3, -14_706_789_000, "P-1Y-2M3DT-4H-5M-6.789S"),
        (1, 0, 0, "P1M"),
        (0, 0, -1, "PT-0.000001S"),
        (0, 0, 60_000_000, "PT1M"),
        (-12, 0, 0, "P-1Y"),
        (INT32_MAX, INT32_MAX, INT64_MAX, "infinity"),
        (-(2**31), -(2**31), -(2**63), "-infinity"),
        (INT32_MAX, 0, 0, "P178956970Y7M"),
    ],
)
def test_intervals(months: int, days: int, microseconds: int, expected: str) -> None:
    row = {"months": months, "days": days, "microseconds": microseconds}
    assert texts([row, None], Kind.INTERVAL) == [expected, None]


def test_arrays_are_json() -> None:
    integer, real, text = ColumnType(Kind.INT32), ColumnType(Kind.FLOAT64), ColumnType(Kind.TEXT)
    assert texts([[1, None, -2], [], None, [None]], Kind.ARRAY, element=integer) == [
        "[1,null,-2]",
        "[]",
        None,
        "[null]",
    ]
    assert texts([[0.5, math.nan, None, -math.inf]], Kind.ARRAY, element=real) == ['[0.5,"NaN",null,"-Infinity"]']
    assert texts([[True, None]], Kind.ARRAY, element=ColumnType(Kind.BOOLEAN)) == ["[true,null]"]
    assert texts([["", None, "null"]], Kind.ARRAY, element=text) == ['["",null,"null"]']
    decimal = ColumnType(Kind.DECIMAL, precision=5, scale=2)
    assert texts([[Decimal("1.50")]], Kind.ARRAY, element=decimal) == ['["1.50"]']
    nested = ColumnType(Kind.ARRAY, element=integer)
    assert texts([[[1], None, []]], Kind.ARRAY, element=nested) == ["[[1],null,[]]"]


def test_arrays_of_timestamps_and_bytes_are_json_strings() -> None:
    stamps = pa.array([[0, None]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us", "UTC")))
    type_ = ColumnType(Kind.ARRAY, element=ColumnType(Kind.TIMESTAMPTZ))
    assert to_text(stamps, type_).to_pylist() == ['["1970-01-01 00:00:00+00:00",null]']
    assert texts([[b"\x01"]], Kind.ARRAY, element=ColumnType(Kind.BYTES)) == ['["\\\\x01"]']


@given(st.lists(st.none() | st.lists(st.none() | st.text())))
def test_every_array_of_text_reads_back_as_json(values: list[list[str | None] | None]) -> None:
    written = texts(values, Kind.ARRAY, element=ColumnType(Kind.TEXT))
    assert [text if text is None else json.loads(text) for text in written] == values


def test_empty_columns() -> None:
    for kind in Kind:
        element = ColumnType(Kind.INT32) if kind is Kind.ARRAY else None
        assert texts([], kind, element=element) == []
        assert texts([None], kind, element=element) == [None]


def test_a_slice_of_a_null_holding_column_keeps_its_rows() -> None:
    values = pa.array(np.arange(10), pa.timestamp("us"), mask=np.arange(10) % 3 == 0).slice(2, 5)
    written = to_text(values, ColumnType(Kind.TIMESTAMP)).to_pylist()
    assert [text and text[-1] for text in written] == ["2", None, "4", "5", None]
