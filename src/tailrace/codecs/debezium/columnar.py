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
from msgspec.json import encode

from tailrace.codecs.debezium import logical, numbers, values
from tailrace.codecs.debezium.logical import Logical
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.columns import fragments
from tailrace.columns.characters import in_rows
from tailrace.columns.fragments import Fragment
from tailrace.columns.text import to_text
from tailrace.model.types import ColumnType, Kind


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
            return partial(_time, divisor=values.divisor_of(type_))
        case Kind.TIMESTAMP:
            return partial(_timestamp, divisor=values.divisor_of(type_))
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


def _time(array: pa.Array, divisor: int) -> pa.StringArray:
    return fragments.numbers(values.time_values(array, divisor))


def _timestamp(array: pa.Array, divisor: int) -> pa.StringArray:
    return fragments.numbers(values.timestamp_values(array, divisor))


def _zoned(array: pa.Array, digits: int) -> pa.StringArray:
    return fragments.literal(values.zoned_texts(array, digits))


def _durations(array: pa.StructArray) -> pa.StringArray:
    return fragments.numbers(values.duration_values(array))


_BYTES: dict[Binary, Fragment] = {
    Binary.BYTES: lambda array: fragments.literal(fragments.base64(array)),
    Binary.BASE64: lambda array: fragments.literal(fragments.base64(array)),
    Binary.BASE64_URL_SAFE: lambda array: fragments.literal(fragments.base64(array, is_url_safe=True)),
    Binary.HEX: lambda array: fragments.literal(fragments.hexadecimal(array)),
}


def _array(type_: ColumnType, settings: DebeziumSettings) -> Fragment:
    assert type_.element is not None
    element = fragment_of(type_.element, logical.logical_of(type_.element, settings), settings)

    return lambda array: fragments.lists(values.plain_lists(array), element)


# --- numbers


def _number(type_: ColumnType, own: Logical, settings: DebeziumSettings) -> Fragment:
    if settings.decimals is Decimals.STRING:
        return lambda array: fragments.literal(values.named_specials(to_text(array, type_)))
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


def _decimals(array: pa.Decimal128Array) -> pa.StringArray:
    return fragments.literal(fragments.base64(values.decimal_bytes(array)))


def _digits(text: pa.StringArray, own: Logical, scale: int | None) -> pa.StringArray:
    """Numbers as text: those of up to 18 digits all at once, the others one by one."""
    is_short = values.is_short(text)
    if is_short.all():
        return _short_digits(text, scale)
    rows = [np.flatnonzero(is_short), np.flatnonzero(~is_short)]
    parts = [text.take(pa.array(each)) for each in rows]
    written = [_short_digits(parts[0], scale), each_distinct(parts[1], own.write)]
    return in_rows(written, rows, len(text), pa.string())


def _short_digits(text: pa.StringArray, scale: int | None) -> pa.StringArray:
    if scale is not None:
        return fragments.literal(fragments.base64(values.unscaled_bytes(text, scale)))
    scales, digits = values.variable_parts(text)
    return fragments.join(['{"scale":', scales.cast(pa.string()), ',"value":"', fragments.base64(digits), '"}'])
