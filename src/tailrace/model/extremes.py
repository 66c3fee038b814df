"""Values for which an Arrow type has no place but the bits that nothing else uses.

- Infinity and -infinity of a date or a timestamp are the largest and the smallest integer.
- 64 bits of microseconds since 1970 end at 294247-01-10 04:00:54.775807, PostgreSQL's time with the year 294276. What
  lies between is held as the integers just above the smallest, in the same order; no other timestamp is there, for
  PostgreSQL's time begins in 4714 BC.
- NaN in a decimal with precision and scale is the smallest integer of 128 bits, which has more digits than any decimal.

Two of them are equal if their bits are. Of all of them only the infinities leave tailrace (`Changes.to_arrow`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

_INT64 = np.iinfo(np.int64)
_WRAP = (1 << 64) - 2
"""From the integer that holds a late timestamp to its microseconds since 1970, which begin with those of infinity."""
_LATE_END = 9_224_318_016_000_000_000 - _WRAP
"""The integer of 294277-01-01, the end of PostgreSQL's time."""

NAN_WORDS = (0, int(_INT64.min))
"""The low and the high word of the decimal that stands for NaN."""


def is_late(values: Array) -> Array:
    """Which integers of a timestamp column hold a timestamp past 64 bits of microseconds since 1970."""
    return np.asarray((values > _INT64.min) & (values < _LATE_END))


def has_late(values: Array) -> bool:
    return int(values.min(initial=0)) < _LATE_END and bool(is_late(values).any())


def held(microseconds: int) -> int | None:
    """What holds a finite timestamp; None if none does."""
    if _INT64.min < microseconds < _INT64.max:
        return microseconds
    late = microseconds - _WRAP
    return late if _INT64.min < late < _LATE_END else None


def microseconds_of(value: int) -> int:
    """Since 1970, of what holds a finite timestamp."""
    return value + _WRAP if value < _LATE_END else value


def shifted(since: Array, by: int) -> Array:
    """Late timestamps counted from a later epoch (`by` microseconds after 1970) as what holds them here."""
    return np.asarray(since + np.int64(by) + np.int64(2))  # wraps round


def unshifted(values: Array, by: int) -> Array:
    """The way back."""
    return np.asarray(values - np.int64(by) - np.int64(2))


def decimal_words(array: pa.Decimal128Array) -> Array:
    """Low and high word of each value."""
    return np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)[array.offset : array.offset + len(array)]


def is_nan(array: pa.Decimal128Array) -> Array:
    """Which decimals are NaN. The words of a null are noise."""
    words = decimal_words(array)
    found: Array = (words[:, 1] == NAN_WORDS[1]) & (words[:, 0] == NAN_WORDS[0])
    if array.null_count and found.any():
        found &= array.is_valid().to_numpy(zero_copy_only=False)
    return found


def nans(count: int, type_: pa.DataType) -> pa.Decimal128Array:
    words = np.tile(np.array(NAN_WORDS, np.int64), count)
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(words)])
