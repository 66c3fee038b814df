"""The binary form of PostgreSQL values (the types' send functions) to Arrow, a column at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tailrace.columns.characters import HEX, Array, fixed_width
from tailrace.errors import ValueRefused
from tailrace.model import extremes
from tailrace.model.types import INTERVAL, TIMETZ, Kind, arrow_type
from tailrace.sources.postgres.values.arrays import decode_array
from tailrace.sources.postgres.values.cells import Cells
from tailrace.sources.postgres.values.numerics import decimals, numeric_text
from tailrace.sources.postgres.values.rendering import rendered, renderer_of

EPOCH_DAYS = 10_957  # 2000-01-01, PostgreSQL's day zero, counted from 1970-01-01
EPOCH_US = EPOCH_DAYS * 86_400_000_000
DAY_US = 86_400_000_000
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)
_END_US = 9_223_371_331_200_000_000  # 294277-01-01, the end of PostgreSQL's time, counted from 2000-01-01


def decode_binary(cells: Cells) -> pa.Array:
    """An array of the column's Arrow type, without nulls."""
    if not len(cells):
        return pa.array([], arrow_type(cells.type_))
    return _DECODERS[cells.type_.kind](cells)


def _fixed(cells: Cells, dtype: str) -> pa.Array:
    values = cells.fixed(dtype)
    return _of(values.astype(values.dtype.newbyteorder("=")), arrow_type(cells.type_))


def _of(values: Array, type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _boolean(cells: Cells) -> pa.Array:
    values = cells.fixed("u1")
    if int(values.max(initial=0)) > 1:
        raise cells.malformed("a boolean is neither 0 nor 1")
    return pa.Array.from_buffers(pa.bool_(), len(cells), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def _int64(cells: Cells) -> pa.Array:
    if cells.type_.name == "oid":
        return _of(cells.fixed(">u4").astype(np.int64), pa.int64())
    return _fixed(cells, ">i8")


def _date(cells: Cells) -> pa.Array:
    days = cells.fixed(">i4").astype(np.int64)
    infinite = (days == _INT32.max) | (days == _INT32.min)
    since_1970 = days + np.where(infinite, 0, EPOCH_DAYS)
    if ((since_1970 >= _INT32.max) & ~infinite).any():
        raise cells.refused("a date is past what 32 bits of days since 1970 hold")
    return _of(since_1970.astype(np.int32), pa.date32())


def _timestamp(cells: Cells) -> pa.Array:
    return _of(_shifted(cells, cells.fixed(">i8").astype(np.int64)), arrow_type(cells.type_))


def _shifted(cells: Cells, since_2000: Array) -> Array:
    """Microseconds since 1970 as `extremes` holds them."""
    highest, lowest = since_2000.max(initial=0), since_2000.min(initial=0)
    if highest < _INT64.max - EPOCH_US and lowest > _INT64.min:
        return since_2000 + EPOCH_US
    infinite = (since_2000 == _INT64.max) | (since_2000 == _INT64.min)
    if (since_2000[~infinite] >= _END_US).any():
        raise cells.malformed("a timestamp is past the year 294276")
    is_late = ~infinite & (since_2000 >= _INT64.max - EPOCH_US)
    shifted = np.where(is_late, extremes.shifted(since_2000, EPOCH_US), since_2000 + np.where(infinite, 0, EPOCH_US))
    return np.where(infinite, since_2000, shifted)


def _time(cells: Cells) -> pa.Array:
    return _of(day_time(cells, cells.fixed(">i8").astype(np.int64)), pa.time64("us"))


def day_time(cells: Cells, microseconds: Array) -> Array:
    if int(microseconds.min(initial=0)) < 0 or int(microseconds.max(initial=0)) > DAY_US:
        raise cells.malformed("a time is outside of 00:00:00 to 24:00:00")
    return microseconds


def _timetz(cells: Cells) -> pa.Array:
    values = cells.fixed("V12").view([("microseconds", ">i8"), ("west", ">i4")])
    microseconds = day_time(cells, values["microseconds"].astype(np.int64))
    west = values["west"].astype(np.int64)
    if (np.abs(west) >= 86_400).any():
        raise cells.malformed("an offset from UTC is a day or more")
    return pa.StructArray.from_arrays(
        [_of(microseconds, pa.int64()), _of((-west).astype(np.int32), pa.int32())], fields=list(TIMETZ)
    )


def _interval(cells: Cells) -> pa.Array:
    values = cells.fixed("V16").view([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
    return interval(*(values[name].astype(np.int64) for name in ("months", "days", "microseconds")))


def interval(months: Array, days: Array, microseconds: Array) -> pa.StructArray:
    arrays = [
        _of(months.astype(np.int32), pa.int32()),
        _of(days.astype(np.int32), pa.int32()),
        _of(microseconds, pa.int64()),
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(INTERVAL))


def _uuid(cells: Cells) -> pa.Array:
    digits = HEX[cells.fixed("V16").view(np.uint8)].view(np.uint8).reshape(-1, 32)
    characters = np.full((len(cells), 36), ord("-"), np.uint8)
    for first, start, end in ((0, 0, 8), (9, 8, 12), (14, 12, 16), (19, 16, 20), (24, 20, 32)):
        characters[:, first : first + end - start] = digits[:, start:end]
    return fixed_width(characters)


def _text(cells: Cells) -> pa.Array:
    if cells.type_.name == '"char"':
        return pa.array([_char(cells[row], cells) for row in range(len(cells))], pa.string())
    return cells.text()


def _char(value: bytes, cells: Cells) -> str:
    """As charout: one byte, or an octal escape above 127; the zero byte is the empty string."""
    if len(value) != 1:
        raise cells.malformed("a value is not 1 byte long")
    return f"\\{value[0]:03o}" if value[0] > 127 else value.replace(b"\0", b"").decode()


def _json(cells: Cells) -> pa.Array:
    if cells.type_.name != "jsonb":
        return cells.text()
    if (cells.length < 1).any() or (cells.buffer[cells.place] != 1).any():
        raise cells.malformed("a jsonb is not of version 1")
    return Cells(cells.buffer, cells.place + 1, cells.length - 1, cells.type_, cells.where).text()


def _decimal(cells: Cells) -> pa.Array:
    return decimals(cells, cells.type_.precision or 38, cells.type_.scale or 0)


def _other(cells: Cells) -> pa.Array:
    render = renderer_of(cells.type_)
    if render is None:
        raise ValueRefused(
            f"column {cells.where} ({cells.type_.name}): the binary form of this type can not be written as text",
            hint="capture in text mode (binary 'false'), and copy the column as text",
        )
    return rendered(cells, render)


_DECODERS: dict[Kind, Callable[[Cells], pa.Array]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT16: lambda cells: _fixed(cells, ">i2"),
    Kind.INT32: lambda cells: _fixed(cells, ">i4"),
    Kind.INT64: _int64,
    Kind.FLOAT32: lambda cells: _fixed(cells, ">f4"),
    Kind.FLOAT64: lambda cells: _fixed(cells, ">f8"),
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: numeric_text,
    Kind.TEXT: _text,
    Kind.BYTES: lambda cells: cells.binary(),
    Kind.UUID: _uuid,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMETZ: _timetz,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.INTERVAL: _interval,
    Kind.JSON: _json,
    Kind.ENUM: lambda cells: cells.text(),
    Kind.ARRAY: lambda cells: decode_array(cells, decode_binary),
    Kind.OTHER: _other,
}
