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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.codecs import canonical
from tailrace.codecs.debezium import moments, numbers
from tailrace.codecs.debezium.numbers import base64_text
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.errors import ValueRefused
from tailrace.model.types import ColumnType, Kind, label_of

Schema = dict[str, Any]
Write = Callable[[Any], Any]

DECIMAL = "org.apache.kafka.connect.data.Decimal"
SHAPED = "an array has several dimensions or does not start at 1, which its schema can not express"
_PRECISION = re.compile(r"\((\d+)\)")
_LENGTH = re.compile(r"bit(?: varying)?\((\d+)\)")


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


def _number(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    if settings.decimals is Decimals.STRING:
        return Logical(
            {"type": "string"}, lambda value: numbers.digits_of(numbers.decimal_of(value)), settings.placeholder
        )
    if settings.decimals is Decimals.DOUBLE:
        return Logical({"type": "double"}, lambda value: canonical.float_json(float(numbers.decimal_of(value))))
    limits = numbers.number_of(type_)
    if limits is None:
        return Logical(_VARIABLE, numbers.variable)
    scale = limits[1]
    schema = named("bytes", DECIMAL, scale=str(scale), **{"connect.decimal.precision": str(limits[0])})
    return Logical(schema, lambda value: base64_text(numbers.unscaled(numbers.finite(value), scale)))


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
# --- bytes


BINARY: dict[Binary, Callable[[bytes], str]] = {
    Binary.BYTES: base64_text,
    Binary.BASE64: base64_text,
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
        return Logical(named("int64", "io.debezium.time.Timestamp"), lambda value: moments.microseconds(value) // 1000)
    return Logical(named("int64", "io.debezium.time.MicroTimestamp"), moments.microseconds)


def _time(digits: int) -> Logical:
    if digits <= 3:
        return Logical(named("int32", "io.debezium.time.Time"), lambda value: canonical.time_of(value) // 1000)
    return Logical(named("int64", "io.debezium.time.MicroTime"), canonical.time_of)


def _zoned(digits: int) -> Logical:
    return Logical(named("string", "io.debezium.time.ZonedTimestamp"), lambda value: moments.zoned_text(value, digits))


# --- others


def _enum(type_: ColumnType, settings: DebeziumSettings) -> Logical:
    allowed = ",".join(label_of(label) for label in type_.labels)
    return _string(named("string", "io.debezium.data.Enum", allowed=allowed), settings)


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
    return {"x": x_json, "y": y_json, "wkb": base64_text(struct.pack("<BIdd", 1, 1, x, y)), "srid": None}


def _bits(type_: ColumnType) -> Logical:
    match = _LENGTH.fullmatch(type_.name)
    length = int(match[1]) if match else 2**31 - 1
    if length == 1:
        return Logical({"type": "boolean"}, lambda text: text == "1")
    schema = named("bytes", "io.debezium.data.Bits", length=str(length))
    return Logical(schema, lambda text: base64_text(bits(text)))


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
    Kind.TIMETZ: Logical(named("string", "io.debezium.time.ZonedTime"), moments.zoned_time_text),
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
    Intervals.NUMERIC: Logical(named("int64", "io.debezium.time.MicroDuration"), moments.duration),
    Intervals.STRING: Logical(named("string", "io.debezium.time.Interval"), moments.interval_text),
}
