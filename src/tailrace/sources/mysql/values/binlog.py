"""Values of row events to Arrow, a column at a time.

Manual pages: "Data Type Storage Requirements", "Date and Time Data Type Representation"; the packed form of DECIMAL is
described with `decimal2bin` in the server's sources.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.columns.characters import spans
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sources.mysql import decode_maps as maps
from tailrace.sources.mysql.decode_maps import MapColumn
from tailrace.sources.mysql.decode_rows import Cell
from tailrace.sources.mysql.events import Bytes, Integers
from tailrace.sources.mysql.types import base_of, collation_of
from tailrace.sources.mysql.values import binlog_json, binlog_texts, binlog_times
from tailrace.sources.mysql.values.binlog_decimals import decimals, from_words, numeric_texts
from tailrace.sources.mysql.values.geometry import wkb

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Values:
    """The cells of a column that has this type in a table; `where` names it."""

    buffer: Bytes
    cell: Cell
    column: MapColumn
    type: ColumnType
    where: str

    def __len__(self) -> int:
        return len(self.cell.place)

    @property
    def null(self) -> Flags | None:
        return self.cell.null

    def refused(self, problem: str) -> ValueRefused:
        return ValueRefused(f"column {self.where} ({self.type.name}): {problem}")

    def malformed(self, problem: str) -> DecodeError:
        return DecodeError(f"column {self.where} ({self.type.name}): {problem}")

    def window(self, dtype: str) -> npt.NDArray[np.generic]:
        """What lies at each place, read as `dtype`; noise where a value is NULL."""
        size = np.dtype(dtype).itemsize
        everywhere = np.ndarray((max(len(self.buffer) - size + 1, 0),), dtype, self.buffer, 0, (1,))
        return everywhere[self.cell.place]

    def big_endian(self, offset: int, width: int) -> Integers:
        """The unsigned number of so many bytes, at this place of each value; 0 where it is NULL."""
        value = np.zeros(len(self), np.int64)
        for byte in range(offset, offset + width):
            value = (value << 8) | self.buffer[self.cell.place + byte]
        if self.null is not None:
            value[self.null] = 0
        return value

    def binary(self) -> pa.BinaryArray:
        """The values themselves; empty where one is NULL."""
        length = self.cell.length
        if length is None:
            length = np.full(len(self), self.column.width, np.int64)
            if self.null is not None:
                length[self.null] = 0
        if len(self) and (self.cell.place + length > len(self.buffer)).any():
            raise self.malformed("a value reaches outside of its event")
        return spans(self.buffer, self.cell.place, length)


def decode(values: Values) -> pa.Array:
    """The column as Arrow has it."""
    if not len(values):
        return pa.array([], arrow_type(values.type))
    decoder = _DECODERS.get(values.column.type)
    if decoder is None:
        raise values.malformed(f"the binlog type {values.column.type} has no decoder")
    return decoder(values)


def masked(array: pa.Array, null: Flags | None) -> pa.Array:
    """With NULL where it is."""
    if null is None or not null.any():
        return array
    if pa.types.is_primitive(array.type) and not pa.types.is_boolean(array.type):
        bits = pa.py_buffer(np.packbits(~null, bitorder="little"))
        return pa.Array.from_buffers(array.type, len(array), [bits, *array.buffers()[1:]])
    return array.take(pa.array(np.arange(len(array)), mask=null))


def _fixed(values: Values, array: npt.NDArray[np.generic]) -> pa.Array:
    """Numbers as the Arrow type has them."""
    target = arrow_type(values.type)
    if pa.types.is_decimal(target):
        return masked(
            from_words(array.astype(np.uint64).view(np.int64), np.zeros(len(array), np.int64), target), values.null
        )
    if pa.types.is_boolean(target):
        return masked(pa.array(array != 0), values.null)
    if target == pa.string():
        raise values.malformed("a number has no text form here")
    stored = np.ascontiguousarray(array, dtype=target.to_pandas_dtype())
    return masked(pa.Array.from_buffers(target, len(array), [None, pa.py_buffer(stored)]), values.null)


def _integer(values: Values) -> pa.Array:
    sign = "u" if values.column.is_unsigned else "i"
    if values.column.type != maps.INT24:
        return _fixed(values, values.window(f"<{sign}{values.column.width}"))
    number = values.window("<u4").astype(np.int64) & 0xFFFFFF
    return _fixed(values, number if sign == "u" else number - ((number >> 23) << 24))


def _year(values: Values) -> pa.Array:
    number = values.window("u1").astype(np.int16)
    return _fixed(values, np.where(number == 0, 0, number + 1900))


def _bit(values: Values) -> pa.Array:
    return _fixed(values, values.big_endian(0, values.column.width))


def _decimal(values: Values) -> pa.Array:
    if values.type.kind is Kind.NUMERIC:
        return masked(numeric_texts(values.binary(), values.column.length, values.column.scale), values.null)
    found = decimals(values.buffer, values.cell.place, values.null, values.column, arrow_type(values.type))
    return masked(found, values.null)


def _date(values: Values) -> pa.Array:
    return _calendar(values, *binlog_times.date_parts(values.window("<u4").astype(np.int64) & 0xFFFFFF))


def _datetime(values: Values) -> pa.Array:
    return _calendar(values, *binlog_times.datetime_parts(values.big_endian(0, 5), _fraction(values, 5)))


def _timestamp(values: Values) -> pa.Array:
    seconds, fraction = values.big_endian(0, 4), _fraction(values, 4)
    is_zero = seconds == 0
    if values.type.kind is Kind.OTHER:
        return masked(binlog_times.timestamp_texts(seconds, fraction, values.column.length), values.null)
    return _valid(values, seconds * 1_000_000 + fraction, is_zero)


def _calendar(values: Values, parts: binlog_times.Parts) -> pa.Array:
    if values.type.kind is Kind.OTHER:
        digits = values.column.length if values.column.type != maps.DATE else -1
        return masked(binlog_times.texts(parts, digits), values.null)
    is_day = values.column.type in (maps.DATE, maps.NEWDATE)
    number = parts.days if is_day else parts.microseconds
    return _valid(values, number, parts.is_odd)


def _valid(values: Values, number: Integers, is_odd: Flags) -> pa.Array:
    """Days or microseconds; what no calendar has is refused, or NULL if the type says so."""
    null = values.null
    is_odd = is_odd if null is None else is_odd & ~null
    if is_odd.any():
        if "zero dates are null" not in values.type.attributes:
            raise values.refused("a date that no calendar has, such as 0000-00-00 or 2024-02-00") from None
        null = is_odd if null is None else null | is_odd
    target = arrow_type(values.type)
    stored = number.astype(np.int32 if pa.types.is_date32(target) else np.int64)
    return masked(pa.Array.from_buffers(target, len(number), [None, pa.py_buffer(stored)]), null)


def _fraction(values: Values, offset: int) -> Integers:
    """Microseconds. Two digits a byte."""
    width = (values.column.length + 1) // 2
    return np.asarray(values.big_endian(offset, width) * 100 ** (3 - width))


def _time(values: Values) -> pa.Array:
    width = (values.column.length + 1) // 2
    packed = values.big_endian(0, 3 + width) - (0x800000 << 8 * width)
    return masked(binlog_times.time_texts(packed, width, values.column.length), values.null)


def _characters(values: Values) -> pa.Array:
    base = base_of(values.type.name)
    if base in ("uuid", "inet4", "inet6"):
        return _address(values, base)
    if values.type.kind is Kind.BYTES:
        return masked(_padded(values) if base == "binary" else values.binary(), values.null)
    collation = collation_of(values.type)
    return masked(binlog_texts.decoded(values.binary(), collation, values.where), values.null)


def _padded(values: Values) -> pa.BinaryArray:
    """BINARY(n): the server leaves away zeros at the end of a value."""
    found, width = values.binary(), values.column.length
    if (np.diff(np.frombuffer(found.buffers()[1], np.int32)) == width).all():
        return found
    return pa.array([value.ljust(width, b"\0") for value in found.to_pylist()], pa.binary())


def _address(values: Values, base: str) -> pa.Array:
    width = 4 if base == "inet4" else 16
    written: dict[str, Callable[[bytes], str]] = {"uuid": _uuid, "inet4": _inet4, "inet6": _inet6}
    found = [
        None if value is None else written[base](value.ljust(width, b"\0"))
        for value in masked(values.binary(), values.null).to_pylist()
    ]
    return pa.array(found, pa.string())


def _uuid(value: bytes) -> str:
    """MariaDB turns its parts round in its files only, and not in the log."""
    return str(uuid.UUID(bytes=value))


def _inet4(value: bytes) -> str:
    return str(ipaddress.IPv4Address(value))


def _inet6(value: bytes) -> str:
    """As inet_ntop writes it: addresses that hold one of version 4 show it."""
    address = ipaddress.IPv6Address(value)
    if address.ipv4_mapped is not None:
        return f"::ffff:{address.ipv4_mapped}"
    if not any(value[:12]) and any(value[12:14]):
        return f"::{ipaddress.IPv4Address(value[12:])}"
    return str(address)


def _blob(values: Values) -> pa.Array:
    base = base_of(values.type.name)
    if values.type.kind is Kind.BYTES and "blob" in base:
        return masked(values.binary(), values.null)
    return _characters(values)


def _geometry(values: Values) -> pa.Array:
    return wkb(masked(values.binary(), values.null))


def _vector(values: Values) -> pa.Array:
    found = values.binary()
    bounds = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1)
    data = found.buffers()[2]
    floats = pa.Array.from_buffers(pa.float32(), len(data) // 4 if data else 0, [None, data])
    return masked(pa.ListArray.from_arrays(pa.array(bounds // 4), floats), values.null)


def _enum(values: Values) -> pa.Array:
    index = values.window("u1" if values.column.width == 1 else "<u2").astype(np.int64)
    labels = _label_texts(values) if values.column.labels else values.type.labels
    if values.null is not None:
        index[values.null] = 0
    if len(index) and int(index.max()) > len(labels):
        raise values.malformed("a value is none of the labels")
    return masked(pa.array(["", *labels], pa.string()).take(pa.array(index)), values.null)


def _set(values: Values) -> pa.Array:
    width = values.column.width
    mask = values.window("<u8").astype(np.uint64) & np.uint64((1 << 8 * width) - 1)
    labels = _label_texts(values) if values.column.labels else values.type.labels
    distinct, codes = np.unique(mask, return_inverse=True)
    texts = [",".join(label for bit, label in enumerate(labels) if int(each) >> bit & 1) for each in distinct]
    return masked(pa.array(texts, pa.string()).take(pa.array(codes)), values.null)


def _label_texts(values: Values) -> tuple[str, ...]:
    array = pa.array(values.column.labels, pa.binary())
    return tuple(binlog_texts.decoded(array, collation_of(values.type), values.where).to_pylist())


def _json(values: Values) -> pa.Array:
    found = masked(values.binary(), values.null).to_pylist()
    try:
        return pa.array([None if value is None else binlog_json.text(value) for value in found], pa.string())
    except (IndexError, ValueError, KeyError) as error:
        raise values.malformed("a JSON value is not in the server's binary form") from error


_DECODERS: dict[int, Callable[[Values], pa.Array]] = {
    **dict.fromkeys((maps.TINY, maps.SHORT, maps.INT24, maps.LONG, maps.LONGLONG), _integer),
    maps.FLOAT: lambda values: _fixed(values, values.window("<f4")),
    maps.DOUBLE: lambda values: _fixed(values, values.window("<f8")),
    maps.YEAR: _year,
    maps.BIT: _bit,
    maps.NEWDECIMAL: _decimal,
    maps.DATE: _date,
    maps.NEWDATE: _date,
    maps.DATETIME2: _datetime,
    maps.TIMESTAMP2: _timestamp,
    maps.TIME2: _time,
    maps.VARCHAR: _characters,
    maps.STRING: _characters,
    maps.BLOB: _blob,
    maps.GEOMETRY: _geometry,
    maps.VECTOR: _vector,
    maps.ENUM: _enum,
    maps.SET: _set,
    maps.JSON: _json,
}
