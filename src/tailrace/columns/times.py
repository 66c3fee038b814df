"""The text of dates, times and intervals; the forms are listed in `text.py`.

The characters come from tables (one entry a day, a second, a thousandth), which beats arithmetic and Arrow's strftime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.calendar import civil_from_days
from tailrace.columns.characters import GROUPS, Array, fixed_width, in_rows, spans
from tailrace.model import extremes

_DAY_US = 86_400_000_000
_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)

_FIRST_DAY, _LAST_DAY = -25_567, 73_049  # 1900-01-01 to 2170-01-01: what one table serves
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897


def _date_characters(days: Array) -> Array:
    """`YYYY-MM-DD` of days in the years 1 to 9999."""
    if len(days) and int(days.min()) >= _FIRST_DAY and int(days.max()) <= _LAST_DAY:
        table: Array = _dates_table()
        return table.take(days - _FIRST_DAY)
    distinct, inverse = np.unique(days, return_inverse=True)
    return _write_dates(distinct).take(inverse)


@cache
def _dates_table() -> Array:
    return _write_dates(np.arange(_FIRST_DAY, _LAST_DAY + 1))


def _write_dates(days: Array) -> Array:
    year, month, day = civil_from_days(days)
    text = np.full((len(days), 10), ord("-"), np.uint8)
    text[:, 0:4] = _four(year)
    text[:, 5:7] = _four(month)[:, 2:]
    text[:, 8:10] = _four(day)[:, 2:]
    return text.view("V10").ravel()


def _four(values: Array) -> Array:
    return GROUPS[values].view(np.uint8).reshape(-1, 4)


@cache
def _seconds_table() -> Array:
    """`HH:MM:SS` of each second from 00:00:00 to 24:00:00."""
    seconds = np.arange(86_401)
    text = np.full((len(seconds), 8), ord(":"), np.uint8)
    for column, values in ((0, seconds // 3600), (3, seconds // 60 % 60), (6, seconds % 60)):
        text[:, column : column + 2] = _four(values)[:, 2:]
    return text.view("V8").ravel()


@cache
def _thousand_table() -> Array:
    return np.ascontiguousarray(_four(np.arange(1000))[:, 1:]).view("V3").ravel()


def date(array: pa.Array) -> pa.StringArray:
    return iso_date(array, _extreme_date)


def timestamp(array: pa.Array) -> pa.StringArray:
    zone = b"+00:00" if array.type.tz else b""
    values = array.view(pa.int64()).to_numpy()
    return _with_extremes(
        values,
        values // _DAY_US,
        lambda some: _write_times(some, zone, with_date=True),
        lambda value: _extreme_timestamp(value, zone.decode()),
    )


def time(array: pa.Array) -> pa.StringArray:
    return _write_times(array.view(pa.int64()).to_numpy(), b"", with_date=False)


def iso_date(array: pa.Array, write_one: Callable[[int], str]) -> pa.StringArray:
    """`2024-02-29`; other years than 1 to 9999 by `write_one`."""
    days = array.view(pa.int32()).to_numpy().astype(np.int64)
    return _with_extremes(days, days, lambda some: fixed_width(_rows(_date_characters(some))), write_one)


def iso_utc(array: pa.Array, digits: int, write_one: Callable[[int], str]) -> pa.StringArray:
    """`2024-02-29T23:59:59.500000Z` with that many digits of a fraction; other years than 1 to 9999 by `write_one`."""
    values = array.view(pa.int64()).to_numpy()
    return _with_extremes(values, values // _DAY_US, lambda some: _write_iso(some, digits), write_one)


def _write_iso(microseconds: Array, digits: int) -> pa.StringArray:
    layout = [("date", "V10"), ("t", "u1"), ("time", "V8"), ("point", "u1"), ("milli", "V3"), ("micro", "V3")]
    rows = np.empty(len(microseconds), [*layout, ("z", "u1")])
    days = microseconds // _DAY_US
    microseconds = microseconds - days * _DAY_US
    seconds = microseconds // 1_000_000
    milliseconds, micro = np.divmod(microseconds - seconds * 1_000_000, 1000)
    rows["date"], rows["time"] = _date_characters(days), _seconds_table()[seconds]
    rows["t"], rows["point"], rows["z"] = ord("T"), ord("."), ord("Z")
    rows["milli"], rows["micro"] = _thousand_table()[milliseconds], _thousand_table()[micro]
    characters = _rows(rows)
    if digits == 6:
        return fixed_width(characters)
    end = 20 + digits if digits else 19
    return fixed_width(np.hstack([characters[:, :end], characters[:, -1:]]))


def _rows(characters: Array) -> Array:
    return characters.view(np.uint8).reshape(len(characters), characters.dtype.itemsize)


def _write_times(microseconds: Array, zone: bytes, *, with_date: bool) -> pa.StringArray:
    """One fixed row a value; the zone moves forward over the fraction where that is zero."""
    layout = [("date", "V10"), ("space", "u1")] * with_date + [("time", "V8"), ("point", "u1"), ("milli", "V3")]
    rows = np.empty(len(microseconds), [*layout, ("micro", "V3"), ("zone", f"S{len(zone)}")])
    if with_date:
        days = microseconds // _DAY_US
        microseconds = microseconds - days * _DAY_US
        rows["date"] = _date_characters(days)
        rows["space"] = ord(" ")
    seconds = microseconds // 1_000_000
    fraction = microseconds - seconds * 1_000_000
    rows["time"] = _seconds_table()[seconds]
    rows["point"] = ord(".")
    milliseconds = fraction // 1000
    rows["milli"] = _thousand_table()[milliseconds]
    rows["micro"] = _thousand_table()[fraction - milliseconds * 1000]
    rows["zone"] = zone
    return _without_zero_fractions(_rows(rows), fraction == 0, len(zone))


def _without_zero_fractions(characters: Array, is_zero: Array, zone: int) -> pa.StringArray:
    width = characters.shape[1]
    if not is_zero.any():
        return fixed_width(characters)
    end = width - zone
    if is_zero.all():
        return fixed_width(np.hstack([characters[:, : end - 7], characters[:, end:]]))
    zeros = np.nonzero(is_zero)[0]
    characters[zeros, end - 7 : width - 7] = characters[0, end:]
    place = np.arange(0, len(characters) * width, width)
    return spans(characters.reshape(-1), place, width - 7 * is_zero.astype(np.int64)).view(pa.string())


def _with_extremes(
    values: Array, days: Array, write: Callable[[Array], pa.Array], write_one: Callable[[int], str]
) -> pa.StringArray:
    """The years 1 to 9999 all at once, the rare others and the infinities one by one."""
    if not len(days) or (int(days.min()) >= _YEAR_1 and int(days.max()) < _YEAR_10000):
        return write(values)
    is_usual = (days >= _YEAR_1) & (days < _YEAR_10000)
    rare = pa.array([write_one(value) for value in values[~is_usual].tolist()], pa.string())
    rows = [np.nonzero(is_usual)[0], np.nonzero(~is_usual)[0]]
    return in_rows([write(values[is_usual]), rare], rows, len(values), pa.string())


def _extreme_date(days: int) -> str:
    if days in (_INT32.max, _INT32.min):
        return "infinity" if days > 0 else "-infinity"
    return "".join(_civil(days))


def _extreme_timestamp(microseconds: int, zone: str) -> str:
    if microseconds in (_INT64.max, _INT64.min):
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(extremes.microseconds_of(microseconds), _DAY_US)
    seconds, fraction = divmod(rest, 1_000_000)
    date, era = _civil(days)
    return f"{date} {clock(seconds, fraction)}{zone}{era}"


def _civil(days: int) -> tuple[str, str]:
    year, month, day = civil_from_days(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"


def clock(seconds: int, fraction: int) -> str:
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def timetz(array: pa.StructArray) -> pa.StringArray:
    times = _write_times(array.field("microseconds").to_numpy(), b"", with_date=False)
    zones = array.field("offset_seconds").dictionary_encode()
    written = pa.array([zone(seconds) for seconds in zones.dictionary.to_pylist()], pa.string())
    return pc.binary_join_element_wise(times, written.take(zones.indices), "")


def zone(seconds: int) -> str:
    east = abs(seconds)
    text = f"{'-' if seconds < 0 else '+'}{east // 3600:02d}:{east // 60 % 60:02d}"
    return f"{text}:{east % 60:02d}" if east % 60 else text


def interval(array: pa.StructArray) -> pa.StringArray:
    parts = (array.field(name).to_pylist() for name in ("months", "days", "microseconds"))
    return pa.array([duration(*row) for row in zip(*parts, strict=True)], pa.string())


def duration(months: int, days: int, microseconds: int) -> str:
    if (months, days, microseconds) in _INFINITE:
        return "infinity" if months > 0 else "-infinity"
    date = _parts((_trunc(months, 12), "Y"), (months - 12 * _trunc(months, 12), "M"), (days, "D"))
    minutes = _trunc(microseconds, 60_000_000)
    time = _parts((_trunc(minutes, 60), "H"), (minutes - 60 * _trunc(minutes, 60), "M"))
    rest = microseconds - 60_000_000 * minutes
    if rest:
        seconds, fraction = divmod(abs(rest), 1_000_000)
        time += f"{'-' if rest < 0 else ''}{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "") + "S"
    return f"P{date}T{time}" if time else f"P{date}" if date else "PT0S"


_INFINITE = ((_INT32.max, _INT32.max, _INT64.max), (_INT32.min, _INT32.min, _INT64.min))


def _trunc(value: int, by: int) -> int:
    """Division towards zero, so that all parts have the sign of the whole."""
    return -(-value // by) if value < 0 else value // by


def _parts(*parts: tuple[int, str]) -> str:
    return "".join(f"{value}{unit}" for value, unit in parts if value)
