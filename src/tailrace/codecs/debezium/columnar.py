"""How Debezium's types are written a column at a time: what `logical` does for one value, for all of a column.

Where a type is rare (bits, points, time with time zone), or a number has more digits than 64 bits hold, each distinct
value is written once, by `logical`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.codecs import fragments
from tailrace.codecs.debezium import logical, moments, numbers
from tailrace.codecs.debezium.logical import Logical
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.fragments import Fragment
from tailrace.columns import times
from tailrace.columns.characters import Array, in_rows, spans
from tailrace.columns.text import to_text
from tailrace.errors import ValueRefused
from tailrace.model import extremes, shapes
from tailrace.model.types import ColumnType, Kind

_INT64 = np.iinfo(np.int64)


def fragment_of(type_: ColumnType, own: Logical, settings: DebeziumSettings) -> Fragment:
    """What writes a column of a type whose single values `own` writes."""
    if type_.kind in _SIMPLE:
        return _SIMPLE[type_.kind]
    match type_.kind:
        case Kind.DECIMAL | Kind.NUMERIC:
            return _number(type_, own, settings)
        case Kind.BYTES:
            return _BYTES[settings.binary]
        case Kind.TIME:
            return partial(_time, divisor=_divisor(type_))
        case Kind.TIMESTAMP:
            return partial(_timestamp, divisor=_divisor(type_))
        case Kind.TIMESTAMPTZ:
            return partial(_zoned, digits=logical.precision_of(type_))
        case Kind.ARRAY:
            return _array(type_, settings)
        case Kind.INTERVAL if settings.intervals is Intervals.NUMERIC:
            return _durations
        case Kind.OTHER if own.write is str:
            return fragments.strings
        case _:
            return partial(each_distinct, write=own.write)


def each_distinct(array: pa.Array, write: Callable[[Any], Any]) -> pa.StringArray:
    """Each distinct value by itself."""
    if pa.types.is_struct(array.type):
        return pa.array([encode(write(value)).decode() for value in array.to_pylist()], pa.string())
    distinct = array.dictionary_encode()
    texts = pa.array([encode(write(value)).decode() for value in distinct.dictionary.to_pylist()], pa.string())
    return texts.take(distinct.indices)


_SIMPLE: dict[Kind, Fragment] = {
    **dict.fromkeys((Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64), fragments.numbers),
    **dict.fromkeys((Kind.FLOAT32, Kind.FLOAT64), fragments.floats),
    **dict.fromkeys((Kind.TEXT, Kind.UUID, Kind.JSON, Kind.ENUM), fragments.strings),
    Kind.DATE: lambda array: fragments.numbers(array.view(pa.int32())),
}


def _divisor(type_: ColumnType) -> int:
    return 1000 if logical.precision_of(type_) <= 3 else 1


def _time(array: pa.Array, divisor: int) -> pa.StringArray:
    return fragments.numbers(pa.array(array.view(pa.int64()).to_numpy() // divisor))


def _timestamp(array: pa.Array, divisor: int) -> pa.StringArray:
    values = array.view(pa.int64()).to_numpy()
    if extremes.has_late(values):
        raise ValueRefused(moments.LATE)
    values = np.where(values == _INT64.max, moments.INFINITE_US[1], values)
    values = np.where(values == _INT64.min, moments.INFINITE_US[-1], values)
    return fragments.numbers(pa.array(values // divisor))


def _zoned(array: pa.Array, digits: int) -> pa.StringArray:
    def rare(value: int) -> str:
        text: str = to_text(pa.array([value]).view(pa.timestamp("us")), ColumnType(Kind.TIMESTAMP))[0].as_py()
        return moments.zoned_text(text, digits)

    return fragments.literal(times.iso_utc(array, digits, rare))


def _durations(array: pa.StructArray) -> pa.StringArray:
    """`moments.duration`, in the same order of floating point."""
    months, days, microseconds = (array.field(name).to_numpy().astype(np.int64) for name in array.type.names)
    sign = np.where(microseconds < 0, -1, 1)
    minutes = np.abs(microseconds) // 60_000_000 * sign
    hours = np.abs(minutes) // 60 * sign
    count = months * moments.DAYS_PER_MONTH + days
    seconds = ((count * 24 + hours) * 60 + (minutes - hours * 60)) * 60 + (microseconds - minutes * 60_000_000) / 1e6
    whole = np.trunc(seconds * 1e6)
    with np.errstate(invalid="ignore"):
        found = np.where(
            whole >= 2.0**63, _INT64.max, np.where(whole <= -(2.0**63), _INT64.min, whole.astype(np.int64))
        )
    return fragments.numbers(pa.array(found))


_BYTES: dict[Binary, Fragment] = {
    Binary.BYTES: lambda array: fragments.literal(fragments.base64(array)),
    Binary.BASE64: lambda array: fragments.literal(fragments.base64(array)),
    Binary.BASE64_URL_SAFE: lambda array: fragments.literal(fragments.base64(array, is_url_safe=True)),
    Binary.HEX: lambda array: fragments.literal(fragments.hexadecimal(array)),
}


def _array(type_: ColumnType, settings: DebeziumSettings) -> Fragment:
    assert type_.element is not None
    element = fragment_of(type_.element, logical.logical_of(type_.element, settings), settings)

    def write(array: pa.Array) -> pa.StringArray:
        if shapes.is_shaped(array.type):
            if any(shape is not None for shape in shapes.shapes_of(array)):
                raise ValueRefused(logical.SHAPED)
            array = shapes.elements_of(array)
        return fragments.lists(array, element)

    return write


# --- numbers


def _number(type_: ColumnType, own: Logical, settings: DebeziumSettings) -> Fragment:
    if settings.decimals is Decimals.STRING:
        return lambda array: fragments.literal(_named_specials(to_text(array, type_)))
    if settings.decimals is Decimals.DOUBLE:
        return partial(_doubles, type_=type_, own=own)
    limits = numbers.number_of(type_)
    if type_.kind is Kind.DECIMAL:
        return _decimals
    return partial(_digits, own=own, scale=None if limits is None else limits[1])


def _doubles(array: pa.Array, type_: ColumnType, own: Logical) -> pa.StringArray:
    text = to_text(array, type_)
    try:
        return fragments.floats(text.cast(pa.float64()))
    except pa.ArrowInvalid:  # one that is out of range
        return each_distinct(text, own.write)


def _named_specials(text: pa.StringArray) -> pa.StringArray:
    for special, name in numbers.SPECIAL.items():
        is_special = pc.equal(text, special)
        if pc.any(is_special, min_count=0).as_py():
            text = pc.if_else(is_special, name, text)
    return text


def _decimals(array: pa.Decimal128Array) -> pa.StringArray:
    """Their words as they are: what a Connect Decimal has is the number without its point."""
    if extremes.is_nan(array).any():
        raise ValueRefused(numbers.NO_NUMBER, hint=numbers.USE_STRINGS)
    words = extremes.decimal_words(array)
    return fragments.literal(fragments.base64(_shortest(words[:, 0], words[:, 1])))


def _shortest(low: Array, high: Array) -> pa.BinaryArray:
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


def _digits(text: pa.StringArray, own: Logical, scale: int | None) -> pa.StringArray:
    """Numbers as text: those of up to 18 digits all at once, the others one by one."""
    is_short = np.asarray(pc.match_substring_regex(text, r"^-?\d{1,18}$|^-?[\d.]{3,19}$"))
    if is_short.all():
        return _short_digits(text, scale)
    rows = [np.flatnonzero(is_short), np.flatnonzero(~is_short)]
    parts = [text.take(pa.array(each)) for each in rows]
    written = [_short_digits(parts[0], scale), each_distinct(parts[1], own.write)]
    return in_rows(written, rows, len(text), pa.string())


def _short_digits(text: pa.StringArray, scale: int | None) -> pa.StringArray:
    if scale is not None:
        return fragments.literal(_unscaled(text, scale))
    has_point = pc.match_substring(text, ".")
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    text = pc.if_else(has_point, trimmed, text)
    point = pc.find_substring(text, ".")
    behind = pc.subtract(pc.subtract(pc.binary_length(text), point), 1)
    scales = pc.if_else(pc.less(point, 0), 0, behind)
    value = _unscaled(text, None)
    return fragments.join(['{"scale":', scales.cast(pa.string()), ',"value":"', value, '"}'])


def _unscaled(text: pa.StringArray, scale: int | None) -> pa.StringArray:
    """Base64 of the digits without their point; a column's numbers all have its scale, or less than none."""
    values = pc.replace_substring(text, ".", "").cast(pa.int64()).to_numpy()
    if scale is not None and scale < 0:
        values = values // 10**-scale
    return fragments.base64(_shortest(values, np.where(values < 0, np.int64(-1), np.int64(0))))
