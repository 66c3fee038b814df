"""Cells: where the values of one column lie in a buffer, and taking them out for all rows at once.

Guarantee: no byte outside of the buffer is read, and none outside of a value is used. Every value here is present:
NULL and unchanged TOAST are dealt with in `values.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.columns.characters import MAX_BYTES, Array, in_rows, spans
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.types import ColumnType, arrow_type

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Cells:
    """`place[i]` is where the bytes of value i start in `buffer`, `length[i]` how many there are."""

    __slots__ = ("buffer", "length", "place", "type_", "where")

    def __init__(self, buffer: Bytes, place: Integers, length: Integers, type_: ColumnType, where: str) -> None:
        self.buffer = buffer
        self.place = place
        self.length = length
        self.type_ = type_
        self.where = where
        if len(place) and (place.min() < 0 or length.min() < 0 or (length > len(buffer) - place).any()):
            raise self.malformed("a value reaches outside of its message")

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, row: int) -> bytes:
        """The bytes of one value. For the rare rows and types only."""
        start = int(self.place[row])
        return self.buffer[start : start + int(self.length[row])].tobytes()

    def at(self, rows: Array) -> Cells:
        """The cells of these rows (indexes or a mask)."""
        return Cells(self.buffer, self.place[rows], self.length[rows], self.type_, self.where)

    def malformed(self, problem: str) -> DecodeError:
        return DecodeError(f"column {self.where} ({self.type_.name}): {problem}")

    def refused(self, problem: str) -> ValueRefused:
        return ValueRefused(f"column {self.where} ({self.type_.name}): {problem}")

    def fixed(self, dtype: str) -> Array:
        """Values that all have the width of `dtype`; still in its byte order."""
        width = np.dtype(dtype).itemsize
        if (self.length != width).any():
            raise self.malformed(f"a value is not {width} bytes long")
        return self.window(dtype)

    def window(self, dtype: str) -> Array:
        """What lies at the start of each value, read as `dtype`; bytes past the value's end are noise."""
        last = len(self.buffer) - np.dtype(dtype).itemsize
        if not len(self) or int(self.place.max()) <= last:
            return _windows(self.buffer, dtype)[self.place]
        first = max(last, 0)
        tail = np.concatenate([self.buffer[first:], np.zeros(np.dtype(dtype).itemsize, np.uint8)])
        is_last = self.place >= first
        values = np.empty(len(self), dtype)
        values[~is_last] = _windows(self.buffer, dtype)[self.place[~is_last]]
        values[is_last] = _windows(tail, dtype)[self.place[is_last] - first]
        return values

    def binary(self) -> pa.BinaryArray:
        """The values themselves."""
        if int(self.length.sum()) > MAX_BYTES:
            raise self.refused("more than 2 GiB of it in one batch; decode fewer rows at once")
        return spans(self.buffer, self.place, self.length)

    def text(self) -> pa.StringArray:
        """The values as UTF-8."""
        return as_text(self.binary(), self)


def _windows(buffer: Bytes, dtype: str) -> Array:
    """What lies at every byte of a buffer, read as `dtype`."""
    count = max(len(buffer) - np.dtype(dtype).itemsize + 1, 0)
    return np.ndarray((count,), np.dtype(dtype), buffer, 0, (1,))


def as_text(values: pa.BinaryArray, cells: Cells) -> pa.StringArray:
    """Bytes as UTF-8 text, checked. All-ASCII data, found in one sweep, needs no check value by value."""
    data = values.buffers()[2]
    if data is None or not len(data) or int(np.frombuffer(data, np.uint8).max()) < 128:
        return values.view(pa.string())
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise cells.malformed("a value is not valid UTF-8") from None


def from_list(values: list[bytes], type_: ColumnType, where: str) -> Cells:
    """Cells of values that were made one by one."""
    length = np.fromiter(map(len, values), np.int64, len(values))
    place = np.cumsum(length) - length
    return Cells(np.frombuffer(b"".join(values) + bytes(16), np.uint8), place, length, type_, where)


def in_order(parts: list[pa.Array], rows: list[Array], count: int, type_: ColumnType) -> pa.Array:
    """Parts of a column put back into the rows they came from; null where there is none."""
    return in_rows(parts, rows, count, arrow_type(type_))
