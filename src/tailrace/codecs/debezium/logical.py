"""The type that Debezium gives a column: its Kafka Connect schema, and how its values are written.

"How Debezium PostgreSQL connectors map data types", with `time.precision.mode` adaptive. What Debezium leaves out
(composites, `pg_lsn`, regclass and others that it does not know) is a string here, as the source prints it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal
from typing import Any

from tailrace.codecs import canonical
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.columns.calendar import civil_from_days
from tailrace.columns.times import clock
from tailrace.errors import ValueRefused
from tailrace.model.types import ColumnType, Kind

Schema = dict[str, Any]
Write = Callable[[Any], Any]

DECIMAL = "org.apache.kafka.connect.data.Decimal"
DAYS_PER_MONTH = 365.25 / 12.0
INFINITE_US = {1: 9_223_372_036_825_200_000, -1: -9_223_372_036_832_400_000}
"""What Debezium, and PostgreSQL's JDBC driver before it, have for an infinite timestamp."""
MAX64 = 2**63 - 1
NO_NUMBER, USE_STRINGS = "NaN and the infinities have no place in a Connect Decimal", "use decimals: string"
SHAPED = "an array has several dimensions or does not start at 1, which its schema can not express"
_PRECISION = re.compile(r"\((\d+)\)")
_LENGTH = re.compile(r"bit(?: varying)?\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Logical:
    """`write` takes a value that is not None. `placeholder` stands for one that was not sent; None: nothing can."""

    schema: Schema
    write: Write
    placeholder: Any = None


def logical_of(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    match type_.kind:
        case Kind.ARRAY:
            return _array(type_, settings)
        case Kind.OTHER:
            return _other(type_, settings)
        case Kind.DECIMAL | Kind.NUMERIC:
            return _number(type_, settings)
        case Kind.ENUM:
            return _enum(type_, settings)
        case Kind.BYTES:
            return _bytes(settings)
        case Kind.INTERVAL:
            return _INTERVALS[settings.intervals]
        case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _TIMES[type_.kind](precision_of(type_))
        case Kind.TEXT | Kind.UUID | Kind.JSON:
            return _string(_STRINGS[type_.kind], settings)
        case _:
            return _FIXED[type_.kind]


def named(type_: str, name: str, **parameters: str) -> Schema:
    """A schema of Kafka Connect with a name that says what it means."""
    schema: Schema = {"type": type_, "name": name, "version": 1}
    return schema | ({"parameters": parameters} if parameters else {})


def precision_of(type_: ColumnType) -> int:
    """Digits of a second's fraction."""
    match = _PRECISION.search(type_.name)
    return 6 if match is None else int(match[1])


def _string(schema: Schema, settings: DebeziumSettings) -> Logical:
    return Logical(schema, str, settings.placeholder)


# --- numbers


def number_of(type_: ColumnType) -> tuple[int, int] | None:
    """Precision and scale; None where each value has its own."""
    if type_.kind is Kind.DECIMAL:
        return type_.precision or 38, type_.scale or 0
    match = _NUMERIC.fullmatch(type_.name)
    return None if match is None else (int(match[1]), int(match[2]))


def _number(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    if settings.decimals is Decimals.STRING:
        return Logical({"type": "string"}, lambda value: _digits(_decimal(value)), settings.placeholder)
    if settings.decimals is Decimals.DOUBLE:
        return Logical({"type": "double"}, lambda value: canonical.float_json(float(_decimal(value))))
    limits = number_of(type_)
    if limits is None:
        return Logical(_VARIABLE, _variable)
    scale = limits[1]
    schema = named("bytes", DECIMAL, scale=str(scale), **{"connect.decimal.precision": str(limits[0])})
    return Logical(schema, lambda value: _base64(unscaled(_finite(value), scale)))


_EXACT = Context(prec=200_000, Emax=999_999, Emin=-999_999)
_VARIABLE: Schema = {
    "type": "struct",
    "fields": [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ],
    "name": "io.debezium.data.VariableScaleDecimal",
    "version": 1,
    "doc": "Variable scaled decimal",
}
SPECIAL = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}


def _decimal(value: Decimal | str) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value)


def _digits(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else SPECIAL[str(value)]


def _finite(value: Decimal | str) -> Decimal:
    number = _decimal(value)
    if not number.is_finite():
        raise ValueRefused(NO_NUMBER, hint=USE_STRINGS)
    return number


def unscaled(value: Decimal, scale: int) -> bytes:
    """Java's `BigDecimal.unscaledValue().toByteArray()`: two's complement, as few bytes as it takes."""
    return integer_bytes(int(value.scaleb(scale, _EXACT)))


def integer_bytes(number: int) -> bytes:
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() // 8) + 1, "big", signed=True)


def _variable(value: Decimal | str) -> dict[str, Any]:
    """Without the zeros that end its fraction, as Debezium has it."""
    number = _finite(value)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    scale = max(-exponent - zeros, 0) if any(digits) else 0
    return {"scale": scale, "value": _base64(unscaled(number, scale))}


# --- bytes


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


BINARY: dict[Binary, Callable[[bytes], str]] = {
    Binary.BYTES: _base64,
    Binary.BASE64: _base64,
    Binary.BASE64_URL_SAFE: lambda data: base64.urlsafe_b64encode(data).decode(),
    Binary.HEX: bytes.hex,
}


def _bytes(settings: DebeziumSettings) -> Logical:
    write = BINARY[settings.binary]
    schema = {"type": "bytes" if settings.binary is Binary.BYTES else "string"}
    return Logical(schema, write, write(settings.placeholder.encode()))


# --- times


def _timestamp(digits: int) -> Logical:
    if digits <= 3:
        return Logical(named("int64", "io.debezium.time.Timestamp"), lambda value: _microseconds(value) // 1000)
    return Logical(named("int64", "io.debezium.time.MicroTimestamp"), _microseconds)


def _microseconds(value: datetime | str) -> int:
    if sign := canonical.infinite(value):
        return INFINITE_US[sign]
    found = canonical.microseconds_of(value)
    if found >= MAX64:  # the last integer is Arrow's infinity
        raise ValueRefused("a timestamp is past the year 294247, the end of 64 bits of microseconds since 1970")
    return found


def _time(digits: int) -> Logical:
    if digits <= 3:
        return Logical(named("int32", "io.debezium.time.Time"), lambda value: canonical.time_of(value) // 1000)
    return Logical(named("int64", "io.debezium.time.MicroTime"), canonical.time_of)


def _zoned(digits: int) -> Logical:
    return Logical(named("string", "io.debezium.time.ZonedTimestamp"), lambda value: zoned_text(value, digits))


def zoned_text(value: datetime | str, digits: int) -> str:
    """ISO 8601 in UTC with that many digits of a fraction; years are astronomical, those past 9999 have a sign."""
    return str(value) if canonical.infinite(value) else iso_text(canonical.microseconds_of(value), digits)


def iso_text(microseconds: int, digits: int) -> str:
    days, rest = divmod(microseconds, canonical.DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    year, month, day = civil_from_days(days)
    written = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    tail = "." + f"{fraction:06d}"[:digits] if digits else ""
    return f"{written}-{month:02d}-{day:02d}T{clock(seconds, 0)}{tail}Z"


def zoned_time_text(value: Mapping[str, int]) -> str:
    """In UTC, as Java writes an OffsetTime."""
    microseconds = (value["microseconds"] - value["offset_seconds"] * 1_000_000) % canonical.DAY_US
    seconds, fraction = divmod(microseconds, 1_000_000)
    return clock(seconds, 0) + (f".{fraction:06d}".rstrip("0") if fraction else "") + "Z"


def _parts(value: Mapping[str, int]) -> tuple[int, int, int, int, int, int]:
    """Years, months, days, hours, minutes, microseconds: each with the sign of what it is a part of."""
    months, microseconds = value["months"], value["microseconds"]
    minutes = abs(microseconds) // 60_000_000
    clock_sign = -1 if microseconds < 0 else 1
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    rest = microseconds - clock_sign * minutes * 60_000_000
    return years, months - 12 * years, value["days"], clock_sign * (minutes // 60), clock_sign * (minutes % 60), rest


def duration(value: Mapping[str, int]) -> int:
    """In the order of Java's floating point, so that the same digits come out."""
    years, months, days, hours, minutes, microseconds = _parts(value)
    count = (years * 12 + months) * DAYS_PER_MONTH + days
    seconds = ((count * 24 + hours) * 60 + minutes) * 60 + microseconds / 1e6
    return max(min(int(seconds * 1e6), MAX64), ~MAX64)


def interval_text(value: Mapping[str, int]) -> str:
    years, months, days, hours, minutes, microseconds = _parts(value)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    written = f"{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "")
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{'-' if microseconds < 0 else ''}{written}S"


# --- others


def _enum(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    allowed = ",".join(label_of(label) for label in type_.labels)
    return _string(named("string", "io.debezium.data.Enum", allowed=allowed), settings)


def label_of(label: str) -> str:
    """A label without the number and the transaction that a source may have put before it."""
    match = re.fullmatch(r"\d+:\d+:(.*)", label, re.DOTALL)
    return label if match is None else match[1]


def _other(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    if type_.name == "point":
        return Logical(_POINT, point)
    if type_.name.strip('"').startswith("bit"):
        return _bits(type_)
    bare = type_.name.rpartition(".")[2]
    name = _NAMED_TEXTS.get(bare)
    return _string({"type": "string"} if name is None else named("string", name), settings)


_NAMED_TEXTS = {
    "tsvector": "io.debezium.data.Tsvector",
    "xml": "io.debezium.data.Xml",
    "ltree": "io.debezium.data.Ltree",
}
_POINT: Schema = {
    "type": "struct",
    "fields": [
        {"type": "double", "optional": False, "field": "x"},
        {"type": "double", "optional": False, "field": "y"},
        {"type": "bytes", "optional": True, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ],
    "name": "io.debezium.data.geometry.Point",
    "version": 1,
    "doc": "Geometry (POINT)",
}


def point(text: str) -> dict[str, Any]:
    x, y = (float(part) for part in text[1:-1].split(","))
    x_json, y_json = (canonical.float_json(each) for each in (x, y))
    return {"x": x_json, "y": y_json, "wkb": _base64(struct.pack("<BIdd", 1, 1, x, y)), "srid": None}


def _bits(type_: ColumnType) -> Logical:
    match = _LENGTH.fullmatch(type_.name)
    length = int(match[1]) if match else 2**31 - 1
    if length == 1:
        return Logical({"type": "boolean"}, lambda text: text == "1")
    schema = named("bytes", "io.debezium.data.Bits", length=str(length))
    return Logical(schema, lambda text: _base64(bits(text)))


def bits(text: str) -> bytes:
    """Little-endian, the last bit first: as many bytes as the bits that are set need."""
    number = int(text, 2) if text else 0
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _array(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    assert type_.element is not None
    element = logical_of(type_.element, settings)
    schema = {"type": "array", "items": element.schema | {"optional": True}}
    return Logical(
        schema, lambda value: _items(value, element.write), _array_placeholder(type_.element, element, settings)
    )


def _items(value: list[Any] | str, write: Write) -> list[Any]:
    if isinstance(value, str) or any(isinstance(each, list) for each in value):
        raise ValueRefused(SHAPED)
    return [None if each is None else write(each) for each in value]


def _array_placeholder(type_: ColumnType, element: Logical, settings: DebeziumSettings) -> list[Any] | None:
    data = settings.placeholder.encode()
    if type_.kind in (Kind.INT16, Kind.INT32, Kind.INT64, Kind.DATE):
        return list(data)
    if type_.kind is Kind.UUID:
        return [str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))]
    return None if element.placeholder is None else [element.placeholder]


_FIXED: dict[Kind, Logical] = {
    Kind.BOOLEAN: Logical({"type": "boolean"}, bool),
    Kind.INT16: Logical({"type": "int16"}, int),
    Kind.INT32: Logical({"type": "int32"}, int),
    Kind.INT64: Logical({"type": "int64"}, int),
    Kind.FLOAT32: Logical({"type": "float"}, canonical.single_json),
    Kind.FLOAT64: Logical({"type": "double"}, canonical.float_json),
    Kind.DATE: Logical(named("int32", "io.debezium.time.Date"), canonical.days_of),
    Kind.TIMETZ: Logical(named("string", "io.debezium.time.ZonedTime"), zoned_time_text),
}
_STRINGS: dict[Kind, Schema] = {
    Kind.TEXT: {"type": "string"},
    Kind.UUID: named("string", "io.debezium.data.Uuid"),
    Kind.JSON: named("string", "io.debezium.data.Json"),
}
_TIMES: dict[Kind, Callable[[int], Logical]] = {
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _zoned,
}
_INTERVALS = {
    Intervals.NUMERIC: Logical(named("int64", "io.debezium.time.MicroDuration"), duration),
    Intervals.STRING: Logical(named("string", "io.debezium.time.Interval"), interval_text),
}
