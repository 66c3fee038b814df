"""The canonical text of `columns.text`, for one Python value of an event at a time, and back.

Values are as in `model.event`: what Python's own types can not hold is its canonical text there already.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from tailrace.columns.calendar import days_from_civil
from tailrace.columns.times import clock, duration, zone
from tailrace.model.types import ColumnType, Kind

DAY_US = 86_400_000_000
_MAX32, _MAX64 = 2**31 - 1, 2**63 - 1
_MOMENT = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{6}))?(?:\+00:00)?)?( BC)?")
_DURATION = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d+))?S)?)?"
)
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{6}))?")
_DOUBLE, _SINGLE = pa.float64(), pa.float32()
_INFINITE = {"infinity": 1, "-infinity": -1}


def to_json(value: Any, type_: ColumnType) -> Any:
    """What stands for a value in JSON: a number, true, false or a list where JSON has it exactly, else a string."""
    if value is None:
        return None
    if type_.kind is Kind.ARRAY:
        return _array(value, type_)
    write = _TO_JSON.get(type_.kind)
    return value if write is None else write(value)


def from_json(value: Any, type_: ColumnType) -> Any:
    """The value that `to_json` made this of."""
    if value is None:
        return None
    if type_.kind is Kind.ARRAY:
        return _read_array(value, type_)
    read = _FROM_JSON.get(type_.kind)
    return value if read is None else read(value)


def decimal_text(value: Decimal) -> str:
    """Every digit, never an exponent."""
    return format(value, "f") if value.is_finite() else "NaN"


def moment_text(value: datetime) -> str:
    fraction = value.microsecond
    text = f"{value.year:04d}-{value.month:02d}-{value.day:02d} {clock(_seconds(value), fraction)}"
    return text if value.tzinfo is None else text + "+00:00"


def days_of(value: date | str) -> int:
    """Days since 1970; the extreme integers are the infinities."""
    if isinstance(value, date):
        return value.toordinal() - 719_163
    if value in _INFINITE:
        return _MAX32 if value == "infinity" else ~_MAX32
    return _days(_matched(_MOMENT, value))


def microseconds_of(value: datetime | str) -> int:
    """Microseconds since 1970 of what is not `infinite`, past 64 bits if need be."""
    if isinstance(value, datetime):
        return (value.toordinal() - 719_163) * DAY_US + _seconds(value) * 1_000_000 + value.microsecond
    match = _matched(_MOMENT, value)
    return _days(match) * DAY_US + time_of(match[4]) + int(match[5] or 0)


def infinite(value: Any) -> int:
    """1 and -1 for the infinities, 0 for all else."""
    return _INFINITE.get(value, 0) if isinstance(value, str) else 0


def time_of(value: time | str) -> int:
    """Microseconds since midnight."""
    if isinstance(value, time):
        return _seconds(value) * 1_000_000 + value.microsecond
    match = _matched(_TIME, value)
    return (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])) * 1_000_000 + int(match[4] or 0)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"not a canonical text: {len(text)} characters")
    return match


def _days(match: re.Match[str]) -> int:
    year = int(match[1])
    days: int = days_from_civil(1 - year if match[6] else year, int(match[2]), int(match[3]))
    return days


def _seconds(value: time | datetime) -> int:
    return value.hour * 3600 + value.minute * 60 + value.second


def float_json(value: float, type_: pa.DataType = _DOUBLE) -> Raw | str:
    """The digits that a column has of it, so that equal keys are equal bytes: with a point, or an exponent."""
    if math.isfinite(value):
        text: str = pa.scalar(value, type_).cast(pa.string()).as_py()
        return Raw((text if "." in text or "e" in text else f"{text}.0").encode())
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def single_json(value: float) -> Raw | str:
    """With as few digits as tell it from its neighbours of 32 bits."""
    return float_json(value, _SINGLE)


def _time(value: Any) -> str:
    return value if isinstance(value, str) else clock(_seconds(value), value.microsecond)


def _timetz(value: Mapping[str, int]) -> str:
    seconds, fraction = divmod(value["microseconds"], 1_000_000)
    return clock(seconds, fraction) + zone(value["offset_seconds"])


def _array(value: Any, type_: ColumnType) -> Any:
    if isinstance(value, str):
        return Raw(value.encode())  # one that does not start at 1: its text is JSON
    assert type_.element is not None
    return [_array(each, type_) if isinstance(each, list) else to_json(each, type_.element) for each in value]


_TO_JSON: dict[Kind, Callable[[Any], Any]] = {
    Kind.FLOAT32: single_json,
    Kind.FLOAT64: float_json,
    Kind.DECIMAL: lambda value: decimal_text(value),
    Kind.BYTES: lambda value: "\\x" + value.hex(),
    Kind.DATE: lambda value: value if isinstance(value, str) else value.isoformat(),
    Kind.TIME: _time,
    Kind.TIMETZ: _timetz,
    Kind.TIMESTAMP: lambda value: value if isinstance(value, str) else moment_text(value),
    Kind.TIMESTAMPTZ: lambda value: value if isinstance(value, str) else moment_text(value),
    Kind.INTERVAL: lambda value: duration(value["months"], value["days"], value["microseconds"]),
}
"""By kind; the values of those that are not here are JSON's own, or text."""


def _read_date(text: str) -> date | str:
    return date.fromisoformat(text) if len(text) == 10 and text[0].isdigit() else text


def _read_time(text: str) -> time | str:
    return text if text.startswith("24") else time.fromisoformat(text)


def _read_moment(text: str) -> datetime | str:
    if text[4:5] != "-" or text.endswith("BC"):
        return text
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.replace(tzinfo=UTC)


def _read_timetz(text: str) -> dict[str, int]:
    at = max(text.find("+"), text.find("-"))
    hours, minutes, *seconds = (int(part) for part in text[at + 1 :].split(":"))
    offset = hours * 3600 + minutes * 60 + sum(seconds)
    return {"microseconds": time_of(text[:at]), "offset_seconds": -offset if text[at] == "-" else offset}


def _read_interval(text: str) -> dict[str, int]:
    if sign := infinite(text):
        extremes = (_MAX32, _MAX32, _MAX64) if sign > 0 else (~_MAX32, ~_MAX32, ~_MAX64)
        return dict(zip(("months", "days", "microseconds"), extremes, strict=True))
    years, months, days, hours, minutes, sign_, seconds, fraction = _matched(_DURATION, text).groups(default="")
    rest = int(seconds or 0) * 1_000_000 + int((fraction or "").ljust(6, "0") or 0)
    clock_us = int(hours or 0) * 3_600_000_000 + int(minutes or 0) * 60_000_000 + (-rest if sign_ else rest)
    return {"months": int(years or 0) * 12 + int(months or 0), "days": int(days or 0), "microseconds": clock_us}


def _read_array(value: Any, type_: ColumnType) -> Any:
    assert type_.element is not None
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return [_read_array(each, type_) if isinstance(each, list) else from_json(each, type_.element) for each in value]


_FROM_JSON: dict[Kind, Callable[[Any], Any]] = {
    Kind.FLOAT32: lambda value: float(np.float32(value)),
    Kind.FLOAT64: lambda value: float(value),
    Kind.DECIMAL: lambda value: Decimal(value),
    Kind.BYTES: lambda value: bytes.fromhex(value[2:]),
    Kind.DATE: _read_date,
    Kind.TIME: _read_time,
    Kind.TIMETZ: _read_timetz,
    Kind.TIMESTAMP: _read_moment,
    Kind.TIMESTAMPTZ: _read_moment,
    Kind.INTERVAL: _read_interval,
}
