"""Building Arrow strings from numpy characters, for all rows at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import ValueRefused
from tailrace.model import shapes

Array = npt.NDArray[Any]
MAX_BYTES = 2**31 - 1
"""What one Arrow string or binary array holds, for its offsets have 32 bits."""

GROUPS: Array = np.array([b"%04d" % n for n in range(10_000)], "S4").view(np.uint32)
"""The four characters of 0000 to 9999."""
HEX: Array = np.array([b"%02x" % n for n in range(256)], "S2").view(np.uint16)
"""The two characters of 00 to ff."""


def offsets_of(lengths: Array) -> pa.Buffer:
    """The offsets of an Arrow array whose elements have these lengths."""
    if int(lengths.sum()) > MAX_BYTES:
        raise ValueRefused("more than 2 GiB of one column in one batch", hint="use smaller batches")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def fixed_width(characters: Array, type_: pa.DataType | None = None) -> pa.Array:
    """Strings that are all as long as a row of `characters`."""
    rows, width = characters.shape
    buffers = [None, offsets_of(np.full(rows, width)), pa.py_buffer(np.ascontiguousarray(characters))]
    return pa.Array.from_buffers(type_ or pa.string(), rows, buffers)


def spans(buffer: Array, place: Array, length: Array) -> pa.BinaryArray:
    """`length[i]` bytes from `buffer[place[i]]`, for each i. The caller has checked that they are inside.

    Arrow's `take` does the copying, several times as fast as numpy can: the offsets s0 e0 s1 e1 ... describe a binary
    array over the buffer whose even elements are the spans; the odd ones, the gaps, are never looked at.
    """
    offsets_of(length)
    count = len(place)
    if not count:
        return pa.array([], pa.binary())
    if count == 1 and 2 * int(length[0]) > len(buffer):
        return _whole(buffer, int(place[0]), int(length[0]))
    even = np.arange(0, 2 * count, 2)
    if (place[1:] < place[:-1]).any():
        order = np.argsort(place, kind="stable")
        even[order] = even.copy()
        place, length = place[order], length[order]
    is_small = len(buffer) <= MAX_BYTES  # else the offsets need 64 bits
    bounds = np.empty(2 * count, np.int32 if is_small else np.int64)
    bounds[0::2] = place
    np.add(place, length, out=bounds[1::2], casting="unsafe")
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    both = pa.Array.from_buffers(pa.binary() if is_small else pa.large_binary(), 2 * count - 1, buffers)
    taken = both.take(pa.array(even))
    return taken if is_small else taken.cast(pa.binary())


def _whole(buffer: Array, place: int, length: int) -> pa.BinaryArray:
    """One value that is most of the buffer, and is not copied out of it."""
    bounds = np.array([0, length], np.int32)
    return pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer).slice(place, length)]
    )


def data_of(array: pa.Array) -> pa.Buffer:
    """The bytes of all values of a string or binary array, one after the other."""
    _, offsets, data = array.buffers()
    if data is None:
        return pa.py_buffer(b"")
    first, last = np.frombuffer(offsets, np.int32)[[array.offset, array.offset + len(array)]].tolist()
    return data.slice(first, last - first)


def numbers(digits: Array, point: int, length: Array, scale: Array | int, negative: Array) -> pa.StringArray:
    """Plain decimal numbers from a table with one row of digit characters a number.

    The point lies behind column `point`; `length` digits before it and `scale` behind it are written.
    """
    rows, width = digits.shape
    table = np.empty((rows, width + 2), np.uint8)
    table[:, 1 : point + 1] = digits[:, :point]
    table[:, point + 1] = ord(".")
    table[:, point + 2 :] = digits[:, point:]
    start = np.arange(1, rows * (width + 2), width + 2) + (point - length)
    below = start[negative] - 1
    characters = table.reshape(-1)
    characters[below] = ord("-")
    return spans(characters, start - negative, length + negative + scale + (np.asarray(scale) > 0)).view(pa.string())


def in_rows(parts: list[pa.Array], rows: list[Array], count: int, type_: pa.DataType) -> pa.Array:
    """Parts of a column put back into the rows they came from; null where there is none."""
    if not parts:
        return pa.nulls(count, type_)
    together = shapes.concat(parts)
    if len(rows) == 1 and len(rows[0]) == count:
        return together
    source = np.full(count, -1, np.int64)
    source[np.concatenate(rows)] = np.arange(len(together))
    return together.take(pa.array(source, mask=source < 0))
