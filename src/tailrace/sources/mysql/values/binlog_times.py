"""Dates and times of row events: their bit fields, and the texts that the server prints of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.calendar import civil_from_days, days_from_civil
from tailrace.sources.mysql.events import Integers

_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0])


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of many dates, and their time of day in microseconds."""

    year: Integers
    month: Integers
    day: Integers
    time_us: Integers

    @property
    def days(self) -> Integers:
        found: Integers = days_from_civil(self.year, self.month, self.day)
        return found

    @property
    def microseconds(self) -> Integers:
        return self.days * 86_400_000_000 + self.time_us

    @property
    def is_odd(self) -> npt.NDArray[np.bool_]:
        """No calendar has it: a zero, or the 30th of February."""
        is_leap = (self.year % 4 == 0) & ((self.year % 100 != 0) | (self.year % 400 == 0))
        is_late = (self.month == 2) & (self.day == 29) & ~is_leap
        return np.asarray((self.month == 0) | (self.day == 0) | (self.day > _DAYS[self.month & 15]) | is_late)


def date_parts(packed: Integers) -> tuple[Parts]:
    return (Parts(packed >> 9, packed >> 5 & 15, packed & 31, np.zeros(len(packed), np.int64)),)


def datetime_parts(packed: Integers, fraction: Integers) -> tuple[Parts]:
    """17 bits of year * 13 + month, then day, hour, minute and second."""
    months = packed >> 22 & 0x1FFFF
    seconds = (packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
    return (Parts(months // 13, months % 13, packed >> 17 & 31, seconds * 1_000_000 + fraction),)


def texts(parts: Parts, digits: int) -> pa.StringArray:
    """As the server prints them; with -1 digits a date without a time."""
    date = _joined([_padded(parts.year, 4), _padded(parts.month, 2), _padded(parts.day, 2)], "-")
    return date if digits < 0 else _joined([date, _clock(parts.time_us, digits)], " ")


def timestamp_texts(seconds: Integers, fraction: Integers, digits: int) -> pa.StringArray:
    year, month, day = civil_from_days(seconds // 86_400)
    is_zero = seconds == 0
    year, month, day = (np.where(is_zero, 0, each) for each in (year, month, day))
    parts = Parts(year, month, day, seconds % 86_400 * 1_000_000 + fraction)
    return texts(parts, digits)


def time_texts(packed: Integers, width: int, digits: int) -> pa.StringArray:
    """TIME, which may be negative and longer than a day."""
    size = np.abs(packed)
    whole, fraction = size >> 8 * width, (size & ((1 << 8 * width) - 1)) * 100 ** (3 - width)
    seconds = (whole >> 12 & 1023) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
    sign = pa.array(["", "-"]).take(pa.array((packed < 0).astype(np.int8)))
    return _joined([sign, _clock(seconds * 1_000_000 + fraction, digits)], "")


def _clock(time_us: Integers, digits: int) -> pa.StringArray:
    seconds = time_us // 1_000_000
    clock = _joined([_padded(seconds // 3600, 2), _padded(seconds // 60 % 60, 2), _padded(seconds % 60, 2)], ":")
    return _joined([clock, _padded(time_us % 1_000_000 // 10 ** (6 - digits), digits)], ".") if digits else clock


def _padded(numbers: Integers, width: int) -> pa.StringArray:
    return pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), width, "0")


def _joined(parts: list[pa.Array], between: str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, between)
