"""The proleptic Gregorian calendar in plain arithmetic, for integers and numpy arrays alike.

Years are astronomical: year 0 is 1 BC. No range limits: PostgreSQL's dates go from 4713 BC to the year 5874897.
After Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
"""

from __future__ import annotations

from typing import Any

Integer = Any
"""An int or a numpy array of int64: the same arithmetic serves both."""

_ERA_DAYS = 146_097  # 400 years
_EPOCH = 719_468  # 1970-01-01, counted from 0000-03-01


def days_from_civil(year: Integer, month: Integer, day: Integer) -> Integer:
    """Days since 1970-01-01."""
    year = year - (month <= 2)  # a year begins in March, so that the leap day is its last
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _ERA_DAYS + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - _EPOCH


def civil_from_days(days: Integer) -> tuple[Integer, Integer, Integer]:
    """Year, month and day of a count of days since 1970-01-01."""
    days = days + _EPOCH
    era = days // _ERA_DAYS
    day_of_era = days - era * _ERA_DAYS
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    from_march = (5 * day_of_year + 2) // 153
    month = (from_march + 2) % 12 + 1
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * from_march + 2) // 5 + 1
