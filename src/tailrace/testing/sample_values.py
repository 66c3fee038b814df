"""Values of every neutral type, the awkward ones among them: what a sink must give back exactly, or refuse.

Arrow can hold some of them only by their bits (24:00:00, the infinities of dates), so they are built from integers.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.model import extremes, shapes
from tailrace.model.types import INTERVAL, TIMETZ, ColumnType, Kind, arrow_type

DIGITS = "7" * 600 + "." + "3" * 400
UUIDS = ["00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"]
TEXTS = ["", " ", "t", "NULL", "a'b\"c\\d", "line\nbreak\ttab\r", "grüße 日本語", "🚀", "x" * 5000, "%s ? :a $1 {}"]
_MAX32, _MIN32, _MAX64, _MIN64 = 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)
_DAY_US = 86_400_000_000
_LATE = [extremes.held(2**63 - 1), extremes.held(2**63), extremes.held(9_224_318_015_999_999_999), None]
_MOMENTS = [0, 1, -1, 1_709_251_199_500_000, -63_517_780_800_000_000, 253_402_300_800_000_000, _MAX64, _MIN64, None]


class Sample(msgspec.Struct, frozen=True):
    """A type, and values of it; the last one is NULL."""

    type: ColumnType
    values: Any


def _sample(kind: Kind, name: str, values: list[Any], **fields: Any) -> Sample:
    type_ = ColumnType(kind, name, **fields)
    return Sample(type_, pa.array(values, arrow_type(type_)))


def _list(element: ColumnType, values: list[Any]) -> Sample:
    return _sample(Kind.ARRAY, f"{element.name}[]", values, element=element)


def _shaped(element: ColumnType, values: list[Any], written: list[str | None]) -> Sample:
    """Arrays as one list each, and the shapes that they have."""
    type_ = ColumnType(Kind.ARRAY, f"{element.name}[]", element=element)
    return Sample(type_, shapes.shaped(pa.array(values, arrow_type(type_)), pa.array(written, pa.string())))


def _not_a_number(type_: ColumnType) -> Sample:
    arrow = arrow_type(type_)
    plain = pa.array([Decimal("0.00"), None], arrow)
    return Sample(type_, pa.concat_arrays([extremes.nans(1, arrow), plain]))


def _time_and_zone(microseconds: int, offset_seconds: int) -> dict[str, int]:
    return dict(zip(TIMETZ.names, (microseconds, offset_seconds), strict=True))


def _interval(*parts: int) -> dict[str, int]:
    return dict(zip(INTERVAL.names, parts, strict=True))


NUMERIC_12_2 = ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)

SAMPLES: dict[str, Sample] = {
    "boolean": _sample(Kind.BOOLEAN, "boolean", [True, False, None]),
    "int16": _sample(Kind.INT16, "smallint", [0, 32_767, -32_768, None]),
    "int32": _sample(Kind.INT32, "integer", [0, _MAX32, _MIN32, None]),
    "int64": _sample(Kind.INT64, "bigint", [0, _MAX64, _MIN64, None]),
    "float32": _sample(
        Kind.FLOAT32,
        "real",
        [0.0, 0.5, 16_777_216.0, 1.401298464324817e-45, float("nan"), float("inf"), -float("inf"), None],
    ),
    "float64": _sample(
        Kind.FLOAT64,
        "double precision",
        [0.0, 0.1, 1e15, 5e-324, 1.7976931348623157e308, float("nan"), float("inf"), -float("inf"), None],
    ),
    "decimal": _sample(
        Kind.DECIMAL,
        "numeric(12,2)",
        [Decimal("0.00"), Decimal("12.50"), Decimal("-0.01"), Decimal("9999999999.99"), None],
        precision=12,
        scale=2,
    ),
    "wide decimal": _sample(
        Kind.DECIMAL,
        "numeric(38,10)",
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + ".0000000001"), None],
        precision=38,
        scale=10,
    ),
    "numeric": _sample(Kind.NUMERIC, "numeric", ["0", "0.000", "-1.50", DIGITS, "NaN", "Infinity", "-Infinity", None]),
    "text": _sample(Kind.TEXT, "text", [*TEXTS, None]),
    "bytes": _sample(Kind.BYTES, "bytea", [b"", b"\0", b"\xde\xad\xbe\xef", b"text", b"\0\xff" * 3000, None]),
    "uuid": _sample(Kind.UUID, "uuid", [*UUIDS, None]),
    "date": _sample(Kind.DATE, "date", [0, 19_782, -735_160, 2_932_896, 2_932_897, _MAX32, _MIN32, None]),
    "time": _sample(Kind.TIME, "time", [0, 43_200_500_000, _DAY_US - 1, _DAY_US, None]),
    "timetz": _sample(
        Kind.TIMETZ, "timetz", [_time_and_zone(0, 0), _time_and_zone(_DAY_US, -57_599), _time_and_zone(1, 19_800), None]
    ),
    "timestamp": _sample(Kind.TIMESTAMP, "timestamp", _MOMENTS),
    "timestamptz": _sample(Kind.TIMESTAMPTZ, "timestamptz", _MOMENTS),
    "interval": _sample(
        Kind.INTERVAL,
        "interval",
        [
            _interval(0, 0, 0),
            _interval(14, -3, 14_706_789_000),
            _interval(0, 30, 0),
            _interval(1, 0, 0),
            _interval(_MAX32, _MAX32, _MAX64),
            None,
        ],
    ),
    "json": _sample(Kind.JSON, "jsonb", ['{"a": [1, null, "ü"]}', "null", '"t"', None]),
    "enum": _sample(Kind.ENUM, "public.mood", ["sad", "it's ok", None], labels=("sad", "it's ok")),
    "other": _sample(Kind.OTHER, "inet", ["10.0.0.0/8", "::1", None]),
    "integers": _list(ColumnType(Kind.INT32, "integer"), [[], [1, None, -2], [None], None]),
    "texts": _list(ColumnType(Kind.TEXT, "text"), [["a,b", '"', "\\", "", None, "NULL"], [], None]),
    "floats": _list(
        ColumnType(Kind.FLOAT64, "double precision"), [[0.1, float("nan"), -float("inf"), None], [1.0], None]
    ),
    "decimals": _list(NUMERIC_12_2, [[Decimal("1.50"), None], None]),
    "booleans": _list(ColumnType(Kind.BOOLEAN, "boolean"), [[True, False, None], None]),
    "blobs": _list(ColumnType(Kind.BYTES, "bytea"), [[b"\0\xff", b""], None]),
    "moments": _list(ColumnType(Kind.TIMESTAMPTZ, "timestamptz"), [[0, _MAX64, None], None]),
    "undefined": _not_a_number(NUMERIC_12_2),
    "late": _sample(Kind.TIMESTAMP, "timestamp", _LATE),
    "late_utc": _sample(Kind.TIMESTAMPTZ, "timestamptz", _LATE),
    "matrices": _shaped(
        ColumnType(Kind.INT32, "integer"),
        [[1, 2, 3, None], [1, 2], [1], [], [1, 2], None],
        ["[1:2][1:2]", "[0:1]", None, None, "[-1:0][7:7]", None],
    ),
    "word tables": _shaped(ColumnType(Kind.TEXT, "text"), [['a"b', "", None, "{,}"], None], ["[1:2][1:2]", None]),
    "boxes": _list(ColumnType(Kind.OTHER, "box"), [["(2,2),(1,1)", None, "(4,4),(3,3)"], [], None]),
    "days": _list(ColumnType(Kind.DATE, "date"), [[19_782, -735_160, _MIN32], None]),
}
