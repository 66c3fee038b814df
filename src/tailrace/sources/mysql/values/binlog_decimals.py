"""DECIMAL as row events have it: groups of nine digits in four bytes, for many values at once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.sources.mysql.decode_maps import MapColumn
from tailrace.sources.mysql.events import Bytes, Integers

_WIDTHS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_SHORT_DIGITS = 18  # that 64 bits hold
_LOW = np.uint64(0xFFFFFFFF)


def groups_of(precision: int, scale: int) -> list[tuple[int, int]]:
    """How many digits each group has, and how many bytes, from the left."""
    whole = precision - scale
    digits = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    return [(count, _WIDTHS[count]) for count in digits if count]


def decimals(
    buffer: Bytes, place: Integers, null: npt.NDArray[np.bool_] | None, column: MapColumn, target: pa.DataType
) -> pa.Array:
    """All values, as integers of 128 bits; noise where one is NULL."""
    if null is not None:
        place = np.where(null, 0, place)
    negative = buffer[place] < 128
    flip = np.where(negative, 255, 0).astype(np.uint8)
    groups = groups_of(column.length, column.scale)
    make = _short if column.length <= _SHORT_DIGITS else _long
    return make(_parts(buffer, place, flip, groups), negative, target)


def _parts(buffer: Bytes, place: Integers, flip: Bytes, groups: list[tuple[int, int]]) -> list[tuple[int, Integers]]:
    """How many digits each group has, and their number."""
    found, offset = [], 0
    for digits, width in groups:
        number = np.zeros(len(place), np.int64)
        for byte in range(width):
            one = buffer[place + offset + byte] ^ flip
            if not offset and not byte:
                one = one ^ np.uint8(0x80)
            number = (number << 8) | one
        found.append((digits, number))
        offset += width
    return found


def _short(parts: list[tuple[int, Integers]], negative: Any, target: pa.DataType) -> pa.Array:
    value = np.zeros(len(negative), np.int64)
    for digits, number in parts:
        value = value * 10**digits + number
    value = np.where(negative, -value, value)
    return from_words(value, value >> 63, target)


def _long(parts: list[tuple[int, Integers]], negative: Any, target: pa.DataType) -> pa.Array:
    """In four words of 32 bits, multiplied group by group."""
    words = [np.zeros(len(negative), np.uint64) for _ in range(4)]
    for digits, number in parts:
        carry = number.astype(np.uint64)
        for place in range(4):
            product = words[place] * np.uint64(10**digits) + carry
            words[place], carry = product & _LOW, product >> np.uint64(32)
    low = (words[0] | words[1] << np.uint64(32)).view(np.int64)
    high = (words[2] | words[3] << np.uint64(32)).view(np.int64)
    low = np.where(negative, -low, low)
    high = np.where(negative, ~high + (low == 0), high)
    return from_words(low, high, target)


def from_words(low: Integers, high: Integers, target: pa.DataType) -> pa.Array:
    words = np.empty((len(low), 2), np.int64)
    words[:, 0], words[:, 1] = low, high
    return pa.Array.from_buffers(target, len(low), [None, pa.py_buffer(words)])


def numeric_texts(values: pa.BinaryArray, precision: int, scale: int) -> pa.Array:
    """Those of more digits than 128 bits have: as the server prints them, one by one."""
    return pa.array([_text(value, precision, scale) if value else "0" for value in values.to_pylist()], pa.string())


def _text(value: bytes, precision: int, scale: int) -> str:
    is_negative = value[0] < 128
    raw = bytes([value[0] ^ 0x80, *value[1:]])
    raw = bytes(byte ^ 255 for byte in raw) if is_negative else raw
    digits, at = "", 0
    for count, width in groups_of(precision, scale):
        digits += f"{int.from_bytes(raw[at : at + width], 'big'):0{count}d}"
        at += width
    number = Decimal(int(digits)).scaleb(-scale) if not scale else None
    if number is not None:
        return f"{'-' if is_negative else ''}{int(digits)}"
    whole, fraction = digits[: len(digits) - scale].lstrip("0") or "0", digits[len(digits) - scale :]
    return f"{'-' if is_negative else ''}{whole}.{fraction}"
