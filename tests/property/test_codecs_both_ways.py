"""Whatever the values of a column: JSON reads back as they were, and both ways of every codec say the same."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.codecs.base import Codec, Record
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.json_events import JsonCodec
from tailrace.errors import ValueRefused
from tailrace.model import extremes, shapes
from tailrace.model.changes import Changes, Op
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.testing.codec_contract import ID, changes_of, records_of
from tailrace.testing.codec_events import events_of, facts_of, values_of

MAX32, MAX64, DAY_US = 2**31 - 1, 2**63 - 1, 86_400_000_000
DATES = st.integers(-2_440_588, 2_145_031_948) | st.integers(-800_000, 3_000_000) | st.sampled_from([MAX32, ~MAX32])
LATE = st.integers(MAX64, 9_224_318_015_999_999_999).map(extremes.held)
MOMENTS = st.integers(-210_866_803_200_000_000, MAX64 - 1) | st.sampled_from([MAX64, ~MAX64]) | LATE
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
CLOCKS = st.integers(0, DAY_US)
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, places=None).map(lambda d: format(d, "f")).filter(
    lambda text: len(text) < 200
) | st.sampled_from(["NaN", "Infinity", "-Infinity", "0.000", "-0.50", "12300"])


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(f"{n}e-{scale}"))


VALUES: dict[str, tuple[ColumnType, st.SearchStrategy[Any]]] = {
    "boolean": (ColumnType(Kind.BOOLEAN, "boolean"), st.booleans()),
    "smallint": (ColumnType(Kind.INT16, "smallint"), st.integers(-(2**15), 2**15 - 1)),
    "integer": (ColumnType(Kind.INT32, "integer"), st.integers(~MAX32, MAX32)),
    "bigint": (ColumnType(Kind.INT64, "bigint"), st.integers(~MAX64, MAX64)),
    "real": (ColumnType(Kind.FLOAT32, "real"), st.floats(width=32)),
    "double": (ColumnType(Kind.FLOAT64, "double precision"), st.floats()),
    "numeric(12,2)": (ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2), decimals(12, 2)),
    "numeric(38,10)": (ColumnType(Kind.DECIMAL, "numeric(38,10)", 38, 10), decimals(38, 10)),
    "numeric": (ColumnType(Kind.NUMERIC, "numeric"), NUMERICS),
    "text": (ColumnType(Kind.TEXT, "text"), TEXTS),
    "bytea": (ColumnType(Kind.BYTES, "bytea"), st.binary()),
    "uuid": (ColumnType(Kind.UUID, "uuid"), st.uuids().map(str)),
    "date": (ColumnType(Kind.DATE, "date"), DATES),
    "time": (ColumnType(Kind.TIME, "time without time zone"), CLOCKS),
    "time(3)": (ColumnType(Kind.TIME, "time(3) without time zone"), CLOCKS.map(lambda us: us // 1000 * 1000)),
    "timestamp": (ColumnType(Kind.TIMESTAMP, "timestamp without time zone"), MOMENTS),
    "timestamptz": (ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone"), MOMENTS),
    "timestamptz(2)": (ColumnType(Kind.TIMESTAMPTZ, "timestamp(2) with time zone"), MOMENTS),
    "timetz": (
        ColumnType(Kind.TIMETZ, "time with time zone"),
        st.builds(lambda us, zone: {"microseconds": us, "offset_seconds": zone}, CLOCKS, st.integers(-57_599, 57_599)),
    ),
    "interval": (
        ColumnType(Kind.INTERVAL, "interval"),
        st.builds(
            lambda months, days, us: {"months": months, "days": days, "microseconds": us},
            st.integers(-2_000_000, 2_000_000),
            st.integers(~MAX32, MAX32),
            st.integers(~MAX64 + 1, MAX64 - 1),
        ),
    ),
    "jsonb": (ColumnType(Kind.JSON, "jsonb"), TEXTS.map(json.dumps)),
    "bit varying": (ColumnType(Kind.OTHER, "bit varying(40)"), st.text("01", max_size=40)),
    "inet": (ColumnType(Kind.OTHER, "inet"), TEXTS),
}
ELEMENTS = ["bigint", "double", "numeric(12,2)", "numeric", "text", "bytea", "date", "timestamptz", "interval"]


def column(name: str, values: list[Any]) -> pa.Array:
    type_ = VALUES[name][0]
    target = arrow_type(type_)
    if pa.types.is_temporal(target):
        return pa.array(values, pa.int32() if type_.kind is Kind.DATE else pa.int64()).view(target)
    return pa.array(values, target)


def changes_with(type_: ColumnType, values: pa.Array) -> Changes:
    schema = TableSchema("public", "t", (ID, Column("v", type_, 2)), ("id", "v"))
    ids = pa.array(range(len(values)), pa.int64())
    return changes_of(schema, [Op.INSERT] * len(ids), [ids, values])


def told(records: list[Record]) -> list[Any]:
    """Keys by their bytes: those of one row are to land in one partition."""
    return [(record.key, record.value and json.loads(record.value)) for record in records]


def one_by_one(codec: Codec, changes: Changes) -> list[Any] | str:
    """What is told, or why it is refused."""
    try:
        return told([record for event in events_of(changes, facts_of(changes)) for record in codec.encode(event)])
    except ValueRefused as error:
        return str(error)


def together(codec: Codec, changes: Changes) -> list[Any] | str:
    try:
        return told(records_of(codec.encode_changes(changes, facts_of(changes))))
    except ValueRefused as error:
        return str(error)


def check(type_: ColumnType, values: pa.Array) -> None:
    changes = changes_with(type_, values)
    for codec in CODECS:
        assert together(codec, changes) == one_by_one(codec, changes)
    encoded = JsonCodec().encode_changes(changes, facts_of(changes)).values.to_pylist()
    found = [JsonCodec.decode(value, changes.schema).after for value in encoded]
    for row, expected in zip(found, values_of(values, type_), strict=True):
        assert row is not None
        assert same(row["v"], expected), (row["v"], expected)


def same(found: Any, expected: Any) -> bool:
    """NaN is NaN, and -0.0 is not 0.0."""
    if isinstance(expected, float):
        return math.isnan(found) if math.isnan(expected) else repr(found) == repr(expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(same(f, e) for f, e in zip(found, expected, strict=True))
    return str(found) == str(expected) if str(expected) == "NaN" else bool(found == expected)


NOW = 1_709_251_200_123_456_789
CODECS: list[Codec] = [
    JsonCodec(),
    DebeziumCodec(DebeziumSettings("s", "d", schemas=False), lambda: NOW),
    DebeziumCodec(
        DebeziumSettings(
            "s", "d", schemas=False, decimals=Decimals.STRING, intervals=Intervals.STRING, binary=Binary.HEX
        ),
        lambda: NOW,
    ),
    DebeziumCodec(DebeziumSettings("s", "d", schemas=False, decimals=Decimals.DOUBLE), lambda: NOW),
]


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40)
@given(data=st.data())
def test_values_of_a_type(name: str, data: st.DataObject) -> None:
    type_, values = VALUES[name]
    check(type_, column(name, data.draw(st.lists(st.none() | values, min_size=1, max_size=12))))


@pytest.mark.parametrize("name", ELEMENTS)
@settings(max_examples=20)
@given(data=st.data())
def test_arrays_of_a_type(name: str, data: st.DataObject) -> None:
    element, values = VALUES[name]
    drawn = data.draw(st.lists(st.none() | st.lists(st.none() | values, max_size=4), min_size=1, max_size=6))
    flat = column(name, [value for each in drawn if each is not None for value in each])
    lengths = [0 if each is None else len(each) for each in drawn]
    offsets = [None if each is None else sum(lengths[:row]) for row, each in enumerate(drawn)]
    lists = pa.ListArray.from_arrays(pa.array([*offsets, sum(lengths)], pa.int32()), flat)
    type_ = ColumnType(Kind.ARRAY, f"{element.name}[]", element=element)
    check(type_, lists)
    shaped = [f"[0:{length - 1}]" if length and row % 2 else None for row, length in enumerate(lengths)]
    changes = changes_with(type_, shapes.shaped(lists, pa.array(shaped, pa.string())))
    for codec in CODECS:
        assert parsed(together(codec, changes)) == parsed(one_by_one(codec, changes))


def parsed(told: list[Any] | str) -> list[Any] | str:
    """An event has an array that does not start at 1 as text, where a float may lack its point.

    Of several values that are refused, either may be the one that is named.
    """
    return "refused" if isinstance(told, str) else [(json.loads(key), value) for key, value in told]
