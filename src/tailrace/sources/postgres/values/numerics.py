"""PostgreSQL's binary numeric, all rows at once: to Arrow decimals, or to text digit for digit.

The form (numeric_send): ndigits, weight, sign, dscale, then ndigits groups of four decimal digits, each a 2-byte
number; the first group counts 10000**weight.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.columns import characters
from tailrace.columns.characters import GROUPS, Array
from tailrace.model import extremes
from tailrace.sources.postgres.values.cells import Cells, Integers, in_order
from tailrace.sources.postgres.values.output import numeric_out
from tailrace.sources.postgres.values.rendering import rendered

_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_SIGNS = (0, _NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY)

_DECIMAL_GROUPS = 11  # 38 digits, wherever the point lies
_TEXT_GROUPS = 12  # wider numbers are written row by row
_BELOW = _DECIMAL_GROUPS
_POWERS = np.array([0] * _BELOW + [10_000**n for n in range(5)], np.int64)  # zero where a number has no group


class Numbers:
    """The header fields and digit groups of a column of numerics; groups past a number's own are zero."""

    __slots__ = ("cells", "groups", "ndigits", "negative", "scale", "sign", "special", "weight")

    def __init__(self, cells: Cells, max_groups: int) -> None:
        if (cells.length < 8).any():
            raise cells.malformed("a numeric is shorter than its header")
        self.cells = cells
        count = min((int(cells.length.max(initial=8)) - 8) // 2, max_groups)
        raw = cells.window(f"V{8 + 2 * count}").view(">i2").reshape(len(cells), 4 + count)
        self.sign = sign = raw[:, 2].astype(np.uint16)
        self.ndigits: Integers = raw[:, 0].astype(np.uint16).astype(np.int64)
        self.weight: Integers = raw[:, 1].astype(np.int64)
        self.weight *= self.ndigits > 0
        self.scale: Integers = raw[:, 3].astype(np.uint16).astype(np.int64)
        self.negative = sign == _NEGATIVE
        self.special = sign > _NEGATIVE
        if (cells.length != 8 + 2 * self.ndigits).any():
            raise cells.malformed("a numeric's length does not match its digits")
        if not (self.negative | (sign == 0)).all() and not np.isin(sign, _SIGNS).all():
            raise cells.malformed("a numeric has an unknown sign")
        self.groups = [self._group(raw[:, 4 + i], i) for i in range(count)]

    def _group(self, raw: Array, index: int) -> Integers:
        group: Integers = raw.astype(np.int64)
        group *= self.ndigits > index
        if int(group.max(initial=0)) > 9999 or int(group.min(initial=0)) < 0:
            raise self.cells.malformed("a numeric has a digit group above 9999")
        return group


def decimals(cells: Cells, precision: int, scale: int) -> pa.Decimal128Array:
    """numeric(precision, scale) exactly, NaN as `extremes` holds it; what does not fit is refused."""
    words = np.empty((len(cells), 2), np.int64)
    for start in range(0, len(cells), _BLOCK):
        block = slice(start, start + _BLOCK)
        part = Cells(cells.buffer, cells.place[block], cells.length[block], cells.type_, cells.where)
        _decimals(part, precision, scale, words[block])
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(cells), [None, pa.py_buffer(words)])


_BLOCK = 16_384  # rows whose intermediate columns fit the processor's second cache together


def _decimals(cells: Cells, precision: int, scale: int, words: Integers) -> None:
    numbers = Numbers(cells, _DECIMAL_GROUPS)
    if numbers.special.any():
        _with_nan(cells, numbers, precision, scale, words)
        return
    lowest = -(-scale // 4)  # groups behind the point
    drop = 4 * lowest - scale  # digits of the last group that are past the scale
    position = numbers.weight + lowest  # of the first group, counted from the last possible one
    is_too_large = (4 * numbers.weight >= precision - scale) & (numbers.ndigits > 0)
    if is_too_large.any() or (position - numbers.ndigits < -1).any():
        raise _too_precise(cells)
    if precision + drop <= 15:  # then 64 bits suffice, even for a first group that is too long
        _small(numbers, position, drop, 10**precision, words)
    else:
        _large(numbers, position, drop, 10**precision, words)


def _with_nan(cells: Cells, numbers: Numbers, precision: int, scale: int, words: Integers) -> None:
    if (numbers.sign[numbers.special] != _NAN).any():
        raise cells.refused("infinity has no place in a decimal with precision and scale")
    plain = np.empty((int((~numbers.special).sum()), 2), np.int64)
    _decimals(cells.at(~numbers.special), precision, scale, plain)
    words[~numbers.special] = plain
    words[numbers.special] = extremes.NAN_WORDS


def _small(numbers: Numbers, position: Integers, drop: int, limit: int, words: Integers) -> None:
    total = np.zeros(len(position), np.int64)
    for i, group in enumerate(numbers.groups):
        group *= _POWERS.take(position + (_BELOW - i), mode="clip")
        total += group
    if drop:
        total, longer = total // 10**drop, total
        if (total * 10**drop != longer).any():
            raise _too_precise(numbers.cells)
    if int(total.max(initial=0)) >= limit:
        raise _too_precise(numbers.cells)
    total *= 1 - 2 * numbers.negative.view(np.int8)
    words[:, 0] = total
    words[:, 1] = total >> 63


def _large(numbers: Numbers, position: Integers, drop: int, limit: int, words: Integers) -> None:
    """The same in 128 bits: Horner's rule, group by group, over four 32-bit limbs."""
    cells = numbers.cells
    count = max(int(position.max(initial=0)) + 1, 1)
    *aligned, last = _aligned(numbers, count - 1 - position, count)
    limbs = [np.zeros(len(cells), np.uint64) for _ in range(4)]
    for group in aligned:
        _multiply_add(limbs, 10_000, group, cells)
    kept = last // np.uint64(10**drop)
    if (kept * np.uint64(10**drop) != last).any():
        raise _too_precise(cells)
    _multiply_add(limbs, 10 ** (4 - drop), kept, cells)
    low, high = limbs[0] | limbs[1] << np.uint64(32), limbs[2] | limbs[3] << np.uint64(32)
    limit_high, limit_low = divmod(limit, 1 << 64)
    if ((high > limit_high) | ((high == limit_high) & (low >= limit_low))).any():
        raise _too_precise(cells)
    words[:, 0] = np.where(numbers.negative, ~low + np.uint64(1), low).view(np.int64)
    words[:, 1] = np.where(numbers.negative, ~high + (low == 0), high).view(np.int64)


def _aligned(numbers: Numbers, first: Integers, count: int) -> list[Array]:
    """The groups of all rows in `count` common columns; `first` is the column of each row's first group."""
    table = np.zeros((count, len(first)), np.uint64)
    rows = np.arange(len(first))
    for i, group in enumerate(numbers.groups):
        used = numbers.ndigits > i
        table[(first + i)[used], rows[used]] = group[used]
    return list(table)


def _multiply_add(limbs: list[Array], factor: int, addend: Array, cells: Cells) -> None:
    carry = addend
    for i, limb in enumerate(limbs):
        limb = limb * np.uint64(factor) + carry
        limbs[i] = limb & np.uint64(0xFFFFFFFF)
        carry = limb >> np.uint64(32)
    if carry.any():
        raise _too_precise(cells)


def _too_precise(cells: Cells) -> Exception:
    return cells.refused("a number has more digits than the column's precision and scale")


_GROUP_LENGTH = np.array([len(str(n)) for n in range(10_000)], np.int64)


def numeric_text(cells: Cells) -> pa.StringArray:
    """Any numeric as numeric_out prints it: every digit of its display scale, never an exponent."""
    numbers = Numbers(cells, _TEXT_GROUPS)
    wide = numbers.special | (numbers.ndigits > _TEXT_GROUPS)
    wide |= (numbers.weight >= _TEXT_GROUPS) | (numbers.weight < -_TEXT_GROUPS) | (numbers.scale > 4 * _TEXT_GROUPS)
    if not wide.any():
        return _write(numbers)
    narrow = np.nonzero(~wide)[0]
    rows = np.nonzero(wide)[0]
    written = rendered(cells.at(rows), numeric_out)
    return in_order([_write(Numbers(cells.at(narrow), _TEXT_GROUPS)), written], [narrow, rows], len(cells), cells.type_)


def _write(numbers: Numbers) -> pa.StringArray:
    """Numbers of a similar size: their groups aligned at the point, in one table."""
    rows = len(numbers.weight)
    whole = max(int(numbers.weight.max(initial=0)) + 1, 1)
    fraction = -(-int(numbers.scale.max(initial=0)) // 4)
    first = whole - 1 - numbers.weight
    if ((first + numbers.ndigits)[numbers.ndigits > 0] > whole + fraction).any():
        raise numbers.cells.malformed("a numeric has digits past its display scale")
    table = np.stack(_aligned(numbers, first, whole + fraction), axis=1)
    digits = GROUPS[table].view(np.uint8)
    leading = numbers.groups[0] if numbers.groups else np.zeros(rows, np.int64)
    length = np.where(numbers.weight >= 0, 4 * numbers.weight + _GROUP_LENGTH[leading], 1)
    return characters.numbers(digits, 4 * whole, length, numbers.scale, numbers.negative)
