"""The values of a column as Kafka Connect has them, all rows at once: an Arrow array of what its schema says.

A `Convert` takes an array without nulls. Where a type is rare, or a number has more digits than 64 bits hold, each
distinct value is converted by itself, by `logical`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.debezium import logical, moments, numbers
from tailrace.codecs.debezium.logical import Logical, Schema
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.columns import fragments, times
from tailrace.columns.characters import Array, in_rows, spans
from tailrace.columns.text import to_text
from tailrace.errors import ValueRefused
from tailrace.model import extremes, shapes
from tailrace.model.types import ColumnType, Kind

Convert = Callable[[pa.Array], pa.Array]
INT64 = np.iinfo(np.int64)


def converted(array: pa.Array, convert: Convert, type_: pa.DataType) -> pa.Array:
    """Of any array: nulls stay."""
    if not array.null_count:
        return convert(array)
    if array.null_count == len(array):
        return pa.nulls(len(array), type_)
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return in_rows([convert(array.drop_null())], [rows], len(array), type_)


def convert_of(type_: ColumnType, own: Logical, settings: DebeziumSettings) -> Convert:
    """What gives a column of a type whose single values `own` writes."""
    if type_.kind in _SIMPLE:
        return _SIMPLE[type_.kind]
    match type_.kind:
        case Kind.TIME:
            return partial(time_values, divisor=divisor_of(type_))
        case Kind.TIMESTAMP:
            return partial(timestamp_values, divisor=divisor_of(type_))
        case Kind.TIMESTAMPTZ:
            return partial(zoned_texts, digits=logical.precision_of(type_))
        case Kind.INTERVAL if settings.intervals is Intervals.NUMERIC:
            return duration_values
        case Kind.DECIMAL | Kind.NUMERIC:
            return _number(type_, own, settings)
        case Kind.BYTES:
            return _BYTES[settings.binary]
        case Kind.ARRAY:
            return _array(type_, settings)
        case Kind.OTHER if own.write is str:
            return _same
        case _:
            return partial(_each, write=own.write, schema=own.schema)


def _same(array: pa.Array) -> pa.Array:
    return array


_SIMPLE: dict[Kind, Convert] = {
    **dict.fromkeys((Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64, Kind.FLOAT32, Kind.FLOAT64), _same),
    **dict.fromkeys((Kind.TEXT, Kind.UUID, Kind.JSON, Kind.ENUM), _same),
    Kind.DATE: lambda array: array.view(pa.int32()),
}


# --- what a schema of Connect is in Arrow

_ARROW = {
    "boolean": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def arrow_of(schema: Schema) -> pa.DataType:
    match schema["type"]:
        case "struct":
            return pa.struct([pa.field(field["field"], arrow_of(field)) for field in schema["fields"]])
        case "array":
            return pa.list_(arrow_of(schema["items"]))
        case simple:
            return _ARROW[simple]


def from_payload(value: Any, schema: Schema) -> Any:
    """What a payload in JSON, read, says: bytes are base64 there, and a number may be a string."""
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {field["field"]: from_payload(value.get(field["field"]), field) for field in schema["fields"]}
        case "array":
            return [from_payload(each, schema["items"]) for each in value]
        case "bytes":
            return base64.b64decode(value)
        case "float" | "double":
            return float(value)
        case _:
            return value


def array_of(values: Sequence[Any], schema: Schema) -> pa.Array:
    return pa.array([from_payload(value, schema) for value in values], arrow_of(schema))


def _each(array: pa.Array, write: Callable[[Any], Any], schema: Schema) -> pa.Array:
    """Each distinct value by itself."""
    if pa.types.is_struct(array.type):
        return array_of([_plain(write(value)) for value in array.to_pylist()], schema)
    distinct = array.dictionary_encode()
    values = array_of([_plain(write(value)) for value in distinct.dictionary.to_pylist()], schema)
    return values.take(distinct.indices)


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _array(type_: ColumnType, settings: DebeziumSettings) -> Convert:
    assert type_.element is not None
    own = logical.logical_of(type_.element, settings)
    element, arrow = convert_of(type_.element, own, settings), arrow_of(own.schema)

    def convert(array: pa.Array) -> pa.ListArray:
        lists = plain_lists(array)
        offsets = lists.offsets.to_numpy()
        items = converted(lists.flatten(), element, arrow)
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), items)

    return convert


def plain_lists(array: pa.Array) -> pa.ListArray:
    """Arrays of one dimension that start at 1; others are refused."""
    if not shapes.is_shaped(array.type):
        return array
    if any(shape is not None for shape in shapes.shapes_of(array)):
        raise ValueRefused(logical.SHAPED)
    return shapes.elements_of(array)


_BYTES: dict[Binary, Convert] = {
    Binary.BYTES: _same,
    Binary.BASE64: fragments.base64,
    Binary.BASE64_URL_SAFE: partial(fragments.base64, is_url_safe=True),
    Binary.HEX: fragments.hexadecimal,
}


# --- times


def divisor_of(type_: ColumnType) -> int:
    return 1000 if logical.precision_of(type_) <= 3 else 1


def time_values(array: pa.Array, divisor: int) -> pa.Array:
    values = array.view(pa.int64()).to_numpy() // divisor
    return pa.array(values, pa.int64() if divisor == 1 else pa.int32())


def timestamp_values(array: pa.Array, divisor: int) -> pa.Array:
    values = array.view(pa.int64()).to_numpy()
    if extremes.has_late(values):
        raise ValueRefused(moments.LATE)
    values = np.where(values == INT64.max, moments.INFINITE_US[1], values)
    values = np.where(values == INT64.min, moments.INFINITE_US[-1], values)
    return pa.array(values // divisor)


def zoned_texts(array: pa.Array, digits: int) -> pa.StringArray:
    def rare(value: int) -> str:
        text: str = to_text(pa.array([value]).view(pa.timestamp("us")), ColumnType(Kind.TIMESTAMP))[0].as_py()
        return moments.zoned_text(text, digits)

    return times.iso_utc(array, digits, rare)


def duration_values(array: pa.StructArray) -> pa.Array:
    """`moments.duration`, in the same order of floating point."""
    months, days, microseconds = (array.field(name).to_numpy().astype(np.int64) for name in array.type.names)
    sign = np.where(microseconds < 0, -1, 1)
    minutes = np.abs(microseconds) // 60_000_000 * sign
    hours = np.abs(minutes) // 60 * sign
    count = months * moments.DAYS_PER_MONTH + days
    seconds = ((count * 24 + hours) * 60 + (minutes - hours * 60)) * 60 + (microseconds - minutes * 60_000_000) / 1e6
    whole = np.trunc(seconds * 1e6)
    with np.errstate(invalid="ignore"):
        found = np.where(whole >= 2.0**63, INT64.max, np.where(whole <= -(2.0**63), INT64.min, whole.astype(np.int64)))
    return pa.array(found)


# --- numbers


def _number(type_: ColumnType, own: Logical, settings: DebeziumSettings) -> Convert:
    if settings.decimals is Decimals.STRING:
        return lambda array: named_specials(to_text(array, type_))
    if settings.decimals is Decimals.DOUBLE:
        return partial(_doubles, type_=type_, own=own)
    if type_.kind is Kind.DECIMAL:
        return decimal_bytes
    limits = numbers.number_of(type_)
    short = _short_variable if limits is None else partial(unscaled_bytes, scale=limits[1])
    return partial(_digits, own=own, short=short)


def _doubles(array: pa.Array, type_: ColumnType, own: Logical) -> pa.Array:
    text = to_text(array, type_)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:  # one that is out of range
        return _each(text, own.write, own.schema)


def named_specials(text: pa.StringArray) -> pa.StringArray:
    for special, name in numbers.SPECIAL.items():
        is_special = pc.equal(text, special)
        if pc.any(is_special, min_count=0).as_py():
            text = pc.if_else(is_special, name, text)
    return text


def decimal_bytes(array: pa.Decimal128Array) -> pa.BinaryArray:
    """Their words as they are: what a Connect Decimal has is the number without its point."""
    if extremes.is_nan(array).any():
        raise ValueRefused(numbers.NO_NUMBER, hint=numbers.USE_STRINGS)
    words = extremes.decimal_words(array)
    return shortest(words[:, 0], words[:, 1])


def shortest(low: Array, high: Array) -> pa.BinaryArray:
    """Integers of 128 bits as two's complement, big-endian, as few bytes as it takes."""
    table = np.empty((len(low), 2), ">i8")
    table[:, 0], table[:, 1] = high, low
    characters = table.view(np.uint8).reshape(len(low), 16)
    magnitude = characters ^ (high < 0).astype(np.uint8)[:, None] * np.uint8(255)
    is_used = magnitude != 0
    first = np.where(is_used.any(axis=1), np.argmax(is_used, axis=1), 15)
    needs_sign = magnitude[np.arange(len(low)), first] >= 128
    start = np.maximum(first - needs_sign, 0)
    return spans(characters.reshape(-1), np.arange(len(low)) * 16 + start, 16 - start)


def is_short(text: pa.StringArray) -> Array:
    """Numbers of up to 18 digits."""
    return np.asarray(pc.match_substring_regex(text, r"^-?\d{1,18}$|^-?[\d.]{3,19}$"))


def _digits(text: pa.StringArray, own: Logical, short: Convert) -> pa.Array:
    """Numbers as text: those of up to 18 digits all at once, the others one by one."""
    are_short = is_short(text)
    if are_short.all():
        return short(text)
    rows = [np.flatnonzero(are_short), np.flatnonzero(~are_short)]
    parts = [text.take(pa.array(each)) for each in rows]
    found = [short(parts[0]), _each(parts[1], own.write, own.schema)]
    return in_rows(found, rows, len(text), found[1].type)


def _short_variable(text: pa.StringArray) -> pa.StructArray:
    scales, values = variable_parts(text)
    return pa.StructArray.from_arrays([scales.cast(pa.int32()), values], names=["scale", "value"])


def variable_parts(text: pa.StringArray) -> tuple[pa.Array, pa.BinaryArray]:
    """The scale and the digits of short numbers, without the zeros that end a fraction."""
    has_point = pc.match_substring(text, ".")
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    text = pc.if_else(has_point, trimmed, text)
    point = pc.find_substring(text, ".")
    behind = pc.subtract(pc.subtract(pc.binary_length(text), point), 1)
    return pc.if_else(pc.less(point, 0), 0, behind), unscaled_bytes(text, None)


def unscaled_bytes(text: pa.StringArray, scale: int | None) -> pa.BinaryArray:
    """The digits without their point; a column's numbers all have its scale, or less than none."""
    values = pc.replace_substring(text, ".", "").cast(pa.int64()).to_numpy()
    if scale is not None and scale < 0:
        values = values // 10**-scale
    return shortest(values, np.where(values < 0, np.int64(-1), np.int64(0)))
