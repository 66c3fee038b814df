"""The order of values: columns as something that Arrow sorts and compares as the values themselves are.

Numbers are ordered as numbers, NaN above all of them; text by its code points; an enum as its source has it; times by
their instant. Values that are equal have equal places, and a null stays null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model import extremes
from tailrace.model.types import ColumnType, Kind, label_of

Integers = npt.NDArray[np.int64]

DIGITS = 76
"""What Arrow's widest decimal holds."""


def sortable(array: pa.Array, type_: ColumnType) -> pa.Array:
    """An array of one of Arrow's own types whose order is that of the values."""
    match type_.kind:
        case Kind.FLOAT32 | Kind.FLOAT64:
            return _floats(array)
        case Kind.DECIMAL:
            return ranked(to_text(array, type_), _number) if extremes.is_nan(array).any() else array
        case Kind.NUMERIC:
            exact = decimals(array)
            return ranked(array, _number) if exact is None else exact
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _instants(array)
        case Kind.TIMETZ:
            return _zoned(array)
        case Kind.INTERVAL:
            return ranked(array, _length)
        case Kind.ENUM if type_.labels:
            place = pc.index_in(array, pa.array([label_of(label) for label in type_.labels], pa.string()))
            return pc.if_else(array.is_valid(), pc.fill_null(place, len(type_.labels)), None)
        case Kind.TEXT if is_padded(type_):
            return pc.utf8_rtrim(array, " ")
        case Kind.ARRAY | Kind.JSON:
            return to_text(array, type_)
        case _:
            return array


def is_padded(type_: ColumnType) -> bool:
    """Text at whose end blanks do not count."""
    return type_.kind is Kind.TEXT and type_.name.startswith(("character(", "char(", "bpchar"))


def decimals(texts: pa.StringArray) -> pa.Array | None:
    """Numbers in text as decimals of one scale; None where there is NaN or Infinity, or more digits than fit."""
    if not len(texts) or texts.null_count == len(texts):
        return pa.nulls(len(texts), pa.decimal256(DIGITS, 0))
    if pc.any(pc.match_substring_regex(texts, "[^0-9.-]")).as_py():
        return None
    point = pc.find_substring(texts, ".")
    length = pc.binary_length(texts)
    behind = pc.if_else(pc.less(point, 0), 0, pc.subtract(pc.subtract(length, point), 1))
    scale, before = pc.max(behind).as_py(), pc.max(pc.subtract(length, behind)).as_py()
    return texts.cast(pa.decimal256(DIGITS, scale)) if scale + before <= DIGITS else None


def ranked(array: pa.Array, key: Callable[[Any], Any]) -> pa.Array:
    """The places of values that only Python can order; each distinct value is looked at once."""
    encoded = pc.dictionary_encode(array if not pa.types.is_struct(array.type) else _texts(array))
    values = encoded.dictionary.to_pylist()
    keys = [key(value) for value in values]
    places = {each: place for place, each in enumerate(sorted(set(keys)))}
    return pa.array([places[each] for each in keys], pa.int64()).take(encoded.indices)


def _texts(array: pa.StructArray) -> pa.StringArray:
    """Structs of integers as text, which Arrow can tell apart."""
    parts = [field.cast(pa.string()) for field in array.flatten()]
    return pc.binary_join_element_wise(*parts, " ")


def _number(text: str) -> tuple[bool, Decimal]:
    number = Decimal(text)
    return (True, Decimal(0)) if number.is_nan() else (False, number)


def _length(text: str) -> int:
    months, days, microseconds = map(int, text.split())
    return ((months * 30 + days) * 86_400_000_000) + microseconds


def _floats(array: pa.Array) -> pa.Array:
    """The bits of the numbers as integers of the same order."""
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0 is 0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    places = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
    return pa.array(places, mask=array.is_null().to_numpy(zero_copy_only=False))


def _instants(array: pa.Array) -> pa.Array:
    values = array.view(pa.int64())
    if not extremes.has_late(values.drop_null().to_numpy()):
        return values
    smallest, largest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return ranked(values, lambda v: (v > smallest, v == largest, extremes.microseconds_of(v)))


def _zoned(array: pa.StructArray) -> pa.Array:
    """By the instant, then from east to west."""
    microseconds, offset = (pc.fill_null(field, 0).to_numpy().astype(np.int64) for field in array.flatten())
    places = (microseconds - offset * 1_000_000) * (1 << 18) - offset
    return pa.array(places, mask=array.is_null().to_numpy(zero_copy_only=False))


class Key(NamedTuple):
    """A column that rows are sorted by. Nulls come last, whichever way it runs, unless they come first."""

    values: pa.Array
    is_down: bool = False
    has_nulls_first: bool = False


def sorted_rows(keys: Sequence[Key]) -> Integers:
    """The numbers of the rows, in their order by the first key, then by the second, and so on."""
    columns: list[pa.Array] = []
    directions: list[str] = []
    for key in keys:
        if key.values.null_count:
            columns.append(key.values.is_null().cast(pa.int8()))
            directions.append("descending" if key.has_nulls_first else "ascending")
        columns.append(key.values)
        directions.append("descending" if key.is_down else "ascending")
    names = [str(place) for place in range(len(columns))]
    rows = pa.RecordBatch.from_arrays(columns, names=names)
    order: Integers = pc.sort_indices(rows, sort_keys=list(zip(names, directions, strict=True))).to_numpy()
    return order.astype(np.int64)
