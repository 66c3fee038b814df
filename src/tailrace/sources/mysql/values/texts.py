"""Values as SELECT prints them, a column at a time, into the Arrow form of their type.

Guarantee: a value arrives exactly, or it is refused with the names of its table and column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.calendar import days_from_civil
from tailrace.columns.characters import spans
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.schema import Column
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sources.mysql.results import Cells
from tailrace.sources.mysql.types import GEOMETRIES, ZEROS_ARE_NULL, base_of
from tailrace.sources.mysql.values.geometry import wkb

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Digits = npt.NDArray[np.uint8]

_DAY_US = 86_400_000_000
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, *([0] * 87)])


@dataclass(frozen=True, slots=True)
class Given:
    """The cells of a column, and what errors call it."""

    cells: Cells
    type: ColumnType
    where: str


def expression(name: str, type_: ColumnType) -> str:
    """What to select of a column, so that its text has all of its value: a float is cut to six digits otherwise."""
    base = base_of(type_.name)
    if base == "bit":
        return f"{name} + 0"
    return f"CAST({name} AS DOUBLE)" if base == "float" else name


def decode(cells: Cells, column: Column, table: str) -> pa.Array:
    """The values of one column."""
    where = f"column {table}.{column.name} ({column.type.name})"
    try:
        return _decoded(Given(cells, column.type, where))
    except pa.ArrowInvalid:  # its words have the value
        raise DecodeError(f"{where}: a value is not what its type prints") from None


def _decoded(given: Given) -> pa.Array:
    if base_of(given.type.name) in GEOMETRIES and given.type.kind is Kind.BYTES:
        return wkb(binary(given.cells))
    decoder = _DECODERS.get(given.type.kind)
    return text(given.cells, given.where) if decoder is None else decoder(given)


def binary(cells: Cells) -> pa.BinaryArray:
    values = spans(cells.buffer, cells.place, cells.length)
    if cells.is_null is None:
        return values
    valid = pa.py_buffer(np.packbits(~cells.is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(values), [valid, *values.buffers()[1:]], offset=values.offset)


def text(cells: Cells, where: str) -> pa.StringArray:
    values = binary(cells)
    data = values.buffers()[2]
    if data is None or not len(data) or int(np.frombuffer(data, np.uint8).max()) < 128:
        return values.view(pa.string())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError(f"{where}: a value is not valid UTF-8") from None


def _cast(given: Given) -> pa.Array:
    return text(given.cells, given.where).cast(arrow_type(given.type))


def _boolean(given: Given) -> pa.Array:
    return pc.not_equal(text(given.cells, given.where).cast(pa.int64()), 0)


def _float32(given: Given) -> pa.Array:
    return text(given.cells, given.where).cast(pa.float64()).cast(pa.float32())


def _bytes(given: Given) -> pa.Array:
    return binary(given.cells)


def _vectors(given: Given) -> pa.Array:
    """Four bytes a number, as the machine has them."""
    cells = given.cells
    values = binary(cells)
    count = pa.array(cells.length // 4, pa.int32())
    offsets = np.concatenate([[0], np.cumsum(count.to_numpy())]).astype(np.int32)
    data = values.buffers()[2]
    numbers = pa.Array.from_buffers(pa.float32(), int(offsets[-1]), [None, data])
    mask = None if cells.is_null is None else pa.array(cells.is_null)
    return pa.ListArray.from_arrays(pa.array(offsets), numbers, mask=mask)


def _date(given: Given) -> pa.Array:
    days, is_real = _days(_digits(given.cells, 10))
    return _checked(days.astype(np.int32), is_real, given).cast(pa.date32())


def _timestamp(given: Given) -> pa.Array:
    cells = given.cells
    digits = _digits(cells, int(cells.length.max(initial=0)))
    days, is_real = _days(digits)
    seconds = (_number(digits, 11, 2) * 60 + _number(digits, 14, 2)) * 60 + _number(digits, 17, 2)
    microseconds = seconds * 1_000_000 + _fraction(digits, 20)
    return _checked(days * _DAY_US + microseconds, is_real, given).cast(arrow_type(given.type))


def _days(digits: Digits) -> tuple[Integers, Flags]:
    """Days since 1970, and whether the calendar has them."""
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 2), _number(digits, 8, 2)
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    longest = _MONTH_DAYS[month] + (is_leap & (month == 2))
    return days_from_civil(year, month, day), (day >= 1) & (day <= longest) & (year >= 1)


def _digits(cells: Cells, width: int) -> Digits:
    """The first characters of all values, as what they are as digits: a row a character. Noise where there is NULL."""
    last = max(len(cells.buffer) - width, 0)
    window = np.ndarray((last + 1, min(width, len(cells.buffer))), np.uint8, cells.buffer, 0, (1, 1))
    found = window[np.minimum(cells.place, last)].T - np.uint8(ord("0"))
    return np.where(found <= 9, found, 0)


def _number(digits: Digits, at: int, count: int) -> Integers:
    """The digits at a place of all values; 0 for those that are too short for it."""
    found: Integers = np.zeros(digits.shape[1], np.int32)
    for row in digits[at : at + count]:
        found = found * 10 + row
    return found.astype(np.int64)


def _fraction(digits: Digits, at: int) -> Integers:
    """Microseconds of digits that end with the value: all values of a column have as many."""
    count = len(digits) - at
    return _number(digits, at, count) * 10 ** (6 - count) if count > 0 else np.zeros(digits.shape[1], np.int64)


def _checked(values: npt.NDArray[Any], is_real: Flags, given: Given) -> pa.Array:
    is_null = np.zeros(len(values), np.bool_) if given.cells.is_null is None else given.cells.is_null
    unreal = ~is_real & ~is_null
    if unreal.any() and ZEROS_ARE_NULL not in given.type.attributes:
        raise ValueRefused(
            f"{given.where}: a date that no calendar has, such as 0000-00-00",
            hint="set source.zero_dates to `null` or `text`, or exclude the table with source.tables",
        )
    return pa.array(values, mask=is_null | unreal)


_DECODERS: dict[Kind, Callable[[Given], pa.Array]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT16: _cast,
    Kind.INT32: _cast,
    Kind.INT64: _cast,
    Kind.DECIMAL: _cast,
    Kind.FLOAT32: _float32,
    Kind.FLOAT64: _cast,
    Kind.BYTES: _bytes,
    Kind.ARRAY: _vectors,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
}
"""By kind; the others are the server's text."""
