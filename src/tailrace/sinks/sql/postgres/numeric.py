"""Exact numbers as PostgreSQL's binary numeric, all rows at once.

The form (numeric_recv): ndigits, weight, sign, dscale, then ndigits groups of four decimal digits, each a 2-byte
number; the first group counts 10000**weight. Groups of zeros at both ends are left out.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.characters import Array, spans
from tailrace.columns.text import to_text
from tailrace.model import extremes
from tailrace.model.types import ColumnType

Piece = npt.NDArray[np.uint8] | Any

_NEGATIVE = 0x4000
_SPECIAL = {"NaN": 0xC000, "Infinity": 0xD000, "-Infinity": 0xF000}
_INT64_DIGITS = 18
_MOST_DIGITS = 64  # wider numbers are written row by row
_HEAD = [("length", ">i4"), ("ndigits", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">u2")]


def decimal_pieces(array: pa.Decimal128Array, type_: ColumnType) -> list[Piece]:
    """Arrow decimals; those that fit 64 bits by plain arithmetic, the others through their text."""
    precision, scale = array.type.precision, array.type.scale
    whole, fraction = -(-(precision - scale) // 4), -(-scale // 4)
    if 4 * (whole + fraction) > _INT64_DIGITS or scale < 0 or extremes.is_nan(array).any():
        return numeric_pieces(to_text(array, type_))
    filled = array.fill_null(0) if array.null_count else array
    words = extremes.decimal_words(filled)[:, 0]
    rest = np.abs(words) * 10 ** (4 * fraction - scale)
    groups = np.empty((len(words), whole + fraction), np.int64)
    for column in range(whole + fraction - 1, -1, -1):
        above = rest // 10_000
        groups[:, column] = rest - above * 10_000
        rest = above
    return _pieces(groups, whole, words < 0, np.full(len(words), scale), _nulls(array))


def numeric_pieces(array: pa.StringArray) -> list[Piece]:
    """Numbers written as digits, also NaN and the infinities."""
    is_null = _nulls(array)
    text = array.fill_null("0") if array.null_count else array
    is_special = pc.is_in(text, pa.array(list(_SPECIAL)))
    lengths = pc.binary_length(text).to_numpy()
    if pc.any(is_special).as_py() or int(lengths.max(initial=0)) > _MOST_DIGITS:
        return _one_by_one(text, is_null)
    negative, groups, whole, scale = _groups(text, lengths)
    return _pieces(groups, whole, negative, scale, is_null)


def _nulls(array: pa.Array) -> Array | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _groups(text: pa.StringArray, lengths: Array) -> tuple[Array, Array, int, Array]:
    """Sign, base-10000 groups, how many of them stand before the point, and digits behind it."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text)].astype(np.int64)
    characters = np.frombuffer(text.buffers()[2] or b"0", np.uint8)
    negative = characters[offsets] == ord("-")
    point = pc.find_substring(text, ".").to_numpy().astype(np.int64)
    point = np.where(point < 0, lengths, point)
    before, scale = point - negative, np.maximum(lengths - point - 1, 0)
    whole, fraction = -(-int(before.max(initial=0)) // 4), -(-int(scale.max(initial=0)) // 4)
    digits = np.zeros((len(text), 4 * (whole + fraction)), np.int64)
    for place in range(1, int(before.max(initial=0)) + 1):
        at = offsets + point - place
        digits[:, 4 * whole - place] = np.where(place <= before, characters.take(at, mode="clip") - ord("0"), 0)
    for place in range(int(scale.max(initial=0))):
        at = offsets + point + 1 + place
        digits[:, 4 * whole + place] = np.where(place < scale, characters.take(at, mode="clip") - ord("0"), 0)
    groups = digits.reshape(len(text), whole + fraction, 4) @ np.array([1000, 100, 10, 1])
    return negative, groups, whole, scale


def _pieces(groups: Array, whole: int, negative: Array, scale: Array, is_null: Array | None) -> list[Piece]:
    rows, count = groups.shape
    is_digit = groups != 0
    first = np.argmax(is_digit, axis=1)
    ndigits = np.where(is_digit.any(axis=1), count - np.argmax(is_digit[:, ::-1], axis=1) - first, 0)
    head = np.empty(rows, _HEAD)
    head["length"] = 8 + 2 * ndigits
    head["ndigits"] = ndigits
    head["weight"] = np.where(ndigits > 0, whole - 1 - first, 0)
    head["sign"] = np.where(negative & (ndigits > 0), _NEGATIVE, 0)
    head["scale"] = scale
    place = (np.arange(rows) * count + first) * 2
    bytes_ = np.ascontiguousarray(groups.astype(">i2")).view(np.uint8).reshape(-1)
    table = head.view(np.uint8).reshape(rows, 12)
    if is_null is None:
        return [table, spans(bytes_, place, 2 * ndigits)]
    lengths = np.where(is_null, -1, head["length"]).astype(">i4").view(np.uint8).reshape(rows, 4)
    heads = spans(table.reshape(-1), np.arange(rows) * 12 + 4, np.where(is_null, 0, 8))
    return [lengths, heads, spans(bytes_, place, np.where(is_null, 0, 2 * ndigits))]


def _one_by_one(text: pa.StringArray, is_null: Array | None) -> list[Piece]:
    """The wide, the infinite and their neighbours in the batch."""
    nulls = [False] * len(text) if is_null is None else is_null.tolist()
    values = [b"" if null else _numeric(value) for value, null in zip(text.to_pylist(), nulls, strict=True)]
    lengths = np.array([-1 if null else len(value) for value, null in zip(values, nulls, strict=True)], ">i4")
    return [lengths.view(np.uint8).reshape(len(values), 4), pa.array(values, pa.binary())]


def _numeric(text: str) -> bytes:
    if text in _SPECIAL:
        return struct.pack(">hhHH", 0, 0, _SPECIAL[text], 0)
    whole, _, fraction = text.lstrip("-").partition(".")
    digits = whole.zfill(-(-len(whole) // 4) * 4) + fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(digits[place : place + 4]) for place in range(0, len(digits), 4)]
    weight = -(-len(whole) // 4) - 1
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    while groups and not groups[-1]:
        groups.pop()
    sign = _NEGATIVE if text.startswith("-") and groups else 0
    return struct.pack(f">hhHH{len(groups)}h", len(groups), weight if groups else 0, sign, len(fraction), *groups)
