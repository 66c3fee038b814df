"""Times and intervals as Debezium writes them, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tailrace.codecs import canonical
from tailrace.columns.calendar import civil_from_days
from tailrace.columns.times import clock
from tailrace.errors import ValueRefused

DAYS_PER_MONTH = 365.25 / 12.0
INFINITE_US = {1: 9_223_372_036_825_200_000, -1: -9_223_372_036_832_400_000}
"""What Debezium, and PostgreSQL's JDBC driver before it, have for an infinite timestamp."""
MAX64 = 2**63 - 1
LATE = "a timestamp is past the year 294247, the end of 64 bits of microseconds since 1970"


def microseconds(value: datetime | str) -> int:
    if sign := canonical.infinite(value):
        return INFINITE_US[sign]
    found = canonical.microseconds_of(value)
    if found >= MAX64:  # the last integer is Arrow's infinity
        raise ValueRefused(LATE)
    return found


def zoned_text(value: datetime | str, digits: int) -> str:
    """ISO 8601 in UTC with that many digits of a fraction; years are astronomical, those past 9999 have a sign."""
    return str(value) if canonical.infinite(value) else iso_text(canonical.microseconds_of(value), digits)


def iso_text(microseconds: int, digits: int) -> str:
    days, rest = divmod(microseconds, canonical.DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    year, month, day = civil_from_days(days)
    written = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    tail = "." + f"{fraction:06d}"[:digits] if digits else ""
    return f"{written}-{month:02d}-{day:02d}T{clock(seconds, 0)}{tail}Z"


def zoned_time_text(value: Mapping[str, int]) -> str:
    """In UTC, as Java writes an OffsetTime."""
    microseconds = (value["microseconds"] - value["offset_seconds"] * 1_000_000) % canonical.DAY_US
    seconds, fraction = divmod(microseconds, 1_000_000)
    return clock(seconds, 0) + (f".{fraction:06d}".rstrip("0") if fraction else "") + "Z"


def _parts(value: Mapping[str, int]) -> tuple[int, int, int, int, int, int]:
    """Years, months, days, hours, minutes, microseconds: each with the sign of what it is a part of."""
    months, microseconds = value["months"], value["microseconds"]
    minutes = abs(microseconds) // 60_000_000
    clock_sign = -1 if microseconds < 0 else 1
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    rest = microseconds - clock_sign * minutes * 60_000_000
    return years, months - 12 * years, value["days"], clock_sign * (minutes // 60), clock_sign * (minutes % 60), rest


def duration(value: Mapping[str, int]) -> int:
    """In the order of Java's floating point, so that the same digits come out."""
    years, months, days, hours, minutes, microseconds = _parts(value)
    count = (years * 12 + months) * DAYS_PER_MONTH + days
    seconds = ((count * 24 + hours) * 60 + minutes) * 60 + microseconds / 1e6
    return max(min(int(seconds * 1e6), MAX64), ~MAX64)


def interval_text(value: Mapping[str, int]) -> str:
    years, months, days, hours, minutes, microseconds = _parts(value)
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    written = f"{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "")
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{'-' if microseconds < 0 else ''}{written}S"
