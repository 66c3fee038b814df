"""The text form of PostgreSQL values (the types' output functions) to Arrow, a column at a time.

The slower way, for streams in text mode, and the oracle of the binary one. It reads what a session with
`types.CAPTURE_SETTINGS` prints; timestamptz with any offset.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.calendar import civil_from_days, days_from_civil
from tailrace.columns.characters import Array, offsets_of
from tailrace.model import extremes
from tailrace.model.types import TIMETZ, Kind, arrow_type
from tailrace.sources.postgres.values.arrays import parse_array
from tailrace.sources.postgres.values.binary import DAY_US, day_time, interval
from tailrace.sources.postgres.values.cells import Cells, in_order

_INT32, _INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


def decode_text(cells: Cells) -> pa.Array:
    """An array of the column's Arrow type, without nulls."""
    if not len(cells):
        return pa.array([], arrow_type(cells.type_))
    return _DECODERS[cells.type_.kind](cells)


def _plain(cells: Cells) -> pa.Array:
    """Types whose text Arrow reads exactly."""
    return _cast(cells.text(), arrow_type(cells.type_), cells)


def _cast(values: pa.StringArray, type_: pa.DataType, cells: Cells) -> pa.Array:
    try:
        return values.cast(type_)
    except pa.ArrowInvalid:
        raise cells.malformed("a value is not the text of its type") from None


def _boolean(cells: Cells) -> pa.Array:
    """boolout prints t and f; a cast to text prints whole words."""
    values = cells.text()
    if not pc.all(pc.is_in(values, pa.array(["t", "f", "true", "false"])), min_count=0).as_py():
        raise cells.malformed("a value is not the text of its type")
    return pc.is_in(values, pa.array(["t", "true"]))


def _decimal(cells: Cells) -> pa.Array:
    values = cells.text()
    try:
        return values.cast(arrow_type(cells.type_))
    except pa.ArrowInvalid:
        is_nan = pc.equal(values, "NaN").to_numpy(zero_copy_only=False)
        if is_nan.any():
            return _with_nan(cells, is_nan)
        if pc.all(pc.match_substring_regex(values, _NUMBER)).as_py():
            raise cells.refused("a number does not fit the column's precision and scale") from None
        raise cells.malformed("a value is not the text of its type") from None


_NUMBER = r"^(-?[0-9]+(\.[0-9]*)?|-?Infinity)$"


def _with_nan(cells: Cells, is_nan: Array) -> pa.Array:
    rows = [np.flatnonzero(~is_nan), np.flatnonzero(is_nan)]
    parts = [decode_text(cells.at(rows[0])), extremes.nans(len(rows[1]), arrow_type(cells.type_))]
    return in_order(parts, rows, len(cells), cells.type_)


def _bytes(cells: Cells) -> pa.Array:
    """`\\x` and two hexadecimal digits a byte."""
    if (cells.length < 2).any() or (cells.length % 2).any() or (cells.window(">u2") != 0x5C78).any():
        raise cells.malformed("a bytea is not in hex form: set bytea_output to hex")
    digits = Cells(cells.buffer, cells.place + 2, cells.length - 2, cells.type_, cells.where).binary()
    nibbles = _NIBBLES[np.frombuffer(digits.buffers()[2] or b"", np.uint8)[: int((cells.length - 2).sum())]]
    if int(nibbles.max(initial=0)) > 15:
        raise cells.malformed("a bytea is not in hex form: set bytea_output to hex")
    data = nibbles[0::2] << 4 | nibbles[1::2]
    buffers = [None, offsets_of(cells.length // 2 - 1), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)
_NIBBLES[np.frombuffer(b"ABCDEF", np.uint8)] = range(10, 16)


def _split(cells: Cells, is_regular: Array, parse: Callable[[str, Cells], int]) -> pa.Array:
    """Regular rows through Arrow's cast, the rare others one by one."""
    if is_regular.all():
        return _plain(cells)
    type_ = arrow_type(cells.type_)
    regular, rare = np.nonzero(is_regular)[0], np.nonzero(~is_regular)[0]
    texts = cells.at(rare).text().to_pylist()
    values = pa.array([parse(text, cells) for text in texts], pa.int32() if type_ == pa.date32() else pa.int64())
    return in_order([_plain(cells.at(regular)), values.cast(type_)], [regular, rare], len(cells), cells.type_)


def _date(cells: Cells) -> pa.Array:
    """Irregular: infinities, BC and years past 9999."""
    return _split(cells, (cells.length == 10) & (_byte(cells, 4) == ord("-")), _parse_date)


def _byte(cells: Cells, index: int) -> Array:
    """The byte at this index of each value; from the end if negative; 0 where the value is shorter."""
    within = cells.length >= (index + 1 if index >= 0 else -index)
    at = cells.place + (index if index >= 0 else cells.length + index)
    return np.where(within, cells.buffer[np.where(within, at, 0)], 0)


def _timestamp(cells: Cells) -> pa.Array:
    """Irregular: infinities, BC, years past 9999 and offsets with seconds."""
    is_regular = (_byte(cells, 4) == ord("-")) & (_byte(cells, -1) != ord("C"))
    if cells.type_.kind is Kind.TIMESTAMPTZ:
        is_regular &= (_byte(cells, -3) != ord(":")) | (_byte(cells, -6) != ord(":"))
    return _split(cells, is_regular, _parse_timestamp)


_DATE = r"(\d{4,7})-(\d\d)-(\d\d)"
_TIME = r"([01]\d|2[0-4]):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?"
_ZONE = r"([+-])([01]\d)(?::([0-5]\d))?(?::([0-5]\d))?"
_DATE_ONLY = re.compile(rf"{_DATE}( BC)?", re.ASCII)
_TIMESTAMP = re.compile(rf"{_DATE} {_TIME}(?:{_ZONE})?( BC)?", re.ASCII)
_TIMETZ = re.compile(rf"{_TIME}{_ZONE}", re.ASCII)


def _match(pattern: re.Pattern[str], text: str, cells: Cells) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise cells.malformed("a value is not the text of its type")
    return tuple(group or "" for group in match.groups())


def _parse_date(text: str, cells: Cells) -> int:
    if text in _INFINITE:
        return int(_INT32.max if text == "infinity" else _INT32.min)
    days = _days(_match(_DATE_ONLY, text, cells), cells)
    if not _INT32.min < days < _INT32.max:
        raise cells.refused("a date is past what 32 bits of days since 1970 hold")
    return days


def _parse_timestamp(text: str, cells: Cells) -> int:
    if text in _INFINITE:
        return int(_INT64.max if text == "infinity" else _INT64.min)
    groups = _match(_TIMESTAMP, text, cells)
    days = _days((*groups[:3], groups[11]), cells)
    microseconds = days * DAY_US + _microseconds(*groups[3:7]) - _offset(*groups[7:11]) * 1_000_000
    held = extremes.held(microseconds)
    if held is None:
        raise cells.malformed("a timestamp is past the year 294276")
    return held


_INFINITE = ("infinity", "-infinity")


def _days(groups: tuple[str, ...], cells: Cells) -> int:
    year, month, day = (int(group) for group in groups[:3])
    year = 1 - year if groups[3] else year
    days = int(days_from_civil(year, month, day))
    if civil_from_days(days) != (year, month, day):
        raise cells.malformed("a date is not in the calendar")
    return days


def _microseconds(hours: str, minutes: str, seconds: str, fraction: str) -> int:
    return (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _offset(sign: str, hours: str, minutes: str, seconds: str) -> int:
    """Seconds east of UTC."""
    east = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return -east if sign == "-" else east


def _time(cells: Cells) -> pa.Array:
    """Arrow does not read times alone, so they are read as times of the first day of 1970. Irregular: 24:00:00."""
    values = cells.text()
    midnight = pc.equal(values, "24:00:00")
    dated = pc.binary_join_element_wise("1970-01-01", pc.if_else(midnight, "00:00:00", values), " ")
    if pc.any(pc.less(pc.binary_length(values), 8)).as_py():
        raise cells.malformed("a value is not the text of its type")
    microseconds = _cast(dated, pa.timestamp("us"), cells).view(pa.int64())
    return pc.if_else(midnight, DAY_US, microseconds).view(pa.time64("us"))


def _timetz(cells: Cells) -> pa.Array:
    rows = [_match(_TIMETZ, text, cells) for text in cells.text().to_pylist()]
    times = pa.array(day_time(cells, np.array([_microseconds(*row[:4]) for row in rows], np.int64)))
    offsets = pa.array([_offset(*row[4:]) for row in rows], pa.int32())
    return pa.StructArray.from_arrays([times, offsets], fields=list(TIMETZ))


_INTERVAL = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?)?",
    re.ASCII,
)
_INFINITE_INTERVALS = {
    "infinity": (int(_INT32.max), int(_INT32.max), int(_INT64.max)),
    "-infinity": (int(_INT32.min), int(_INT32.min), int(_INT64.min)),
}


def _interval(cells: Cells) -> pa.Array:
    """IntervalStyle postgres: `1 year 2 mons -3 days +04:05:06.789`."""
    rows = np.array([_parse_interval(text, cells) for text in cells.text().to_pylist()], np.int64).reshape(-1, 3)
    return interval(rows[:, 0], rows[:, 1], rows[:, 2].copy())


def _parse_interval(text: str, cells: Cells) -> tuple[int, int, int]:
    if text in _INFINITE_INTERVALS:
        return _INFINITE_INTERVALS[text]
    years, months, days, sign, *time = _match(_INTERVAL, text, cells)
    microseconds = _microseconds(*time) if time[0] else 0
    whole = (int(years or 0) * 12 + int(months or 0), int(days or 0), -microseconds if sign == "-" else microseconds)
    fits = all(-limit <= part < limit for part, limit in zip(whole, (2**31, 2**31, 2**63), strict=True))
    if not text or text.endswith(" ") or not fits:
        raise cells.malformed("a value is not the text of its type")
    return whole


_DECODERS: dict[Kind, Callable[[Cells], pa.Array]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INT16: _plain,
    Kind.INT32: _plain,
    Kind.INT64: _plain,
    Kind.FLOAT32: _plain,
    Kind.FLOAT64: _plain,
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: Cells.text,
    Kind.TEXT: Cells.text,
    Kind.BYTES: _bytes,
    Kind.UUID: Cells.text,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMETZ: _timetz,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.INTERVAL: _interval,
    Kind.JSON: Cells.text,
    Kind.ENUM: Cells.text,
    Kind.ARRAY: lambda cells: parse_array(cells, decode_text),
    Kind.OTHER: Cells.text,
}
