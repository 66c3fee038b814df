"""Numbers and dates as PostgreSQL's output functions write them, one value at a time.

For bounds of ranges, coordinates, and numbers too wide for `numerics.py`. Layouts as in the send functions.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

from tailrace.columns.calendar import civil_from_days


def float_out(value: float) -> str:
    """float8out: the shortest digits that lie strictly between the neighbours; exponents from 1e+15 and below 1e-04."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    digits, exponent = _shortest(abs(value))
    if exponent < -4 or exponent >= 15:
        fraction = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return sign + whole + ("." + fraction if fraction else "")


def _shortest(value: float) -> tuple[str, int]:
    """Digits and decimal exponent. Unlike Python, PostgreSQL does not take digits exactly halfway to a neighbour."""
    text = f"{value!r}e0" if "e" not in repr(value) else repr(value)
    if not _strictly_closest(text, value):
        text = next(t for t in (f"{value:.{n}e}" for n in range(15, 18)) if _strictly_closest(t, value))
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    shift = int(exponent) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    return (digits.rstrip("0"), shift) if digits else ("0", 0)


def _strictly_closest(text: str, value: float) -> bool:
    mantissa, _, exponent = text.partition("e")
    written = Fraction(mantissa) * Fraction(10) ** int(exponent)
    exact = Fraction(value)
    neighbour = math.nextafter(value, math.inf if written > exact else -math.inf)
    if written == exact or math.isinf(neighbour):
        return True
    return abs(written - exact) * 2 < abs(Fraction(neighbour) - exact)


def numeric_out(value: bytes) -> str:
    count, weight, sign, scale = struct.unpack_from(">HhHH", value)
    groups = struct.unpack(f">{count}H", value[8:])
    if sign in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[sign]
    if sign not in (0, 0x4000) or max(groups, default=0) > 9999:
        raise ValueError("not a numeric")
    digits = "".join(f"{group:04d}" for group in groups)
    point = 4 * (weight + 1)
    whole = digits[: max(point, 0)].ljust(point, "0").lstrip("0") or "0"
    fraction = ("0" * max(-point, 0) + digits[max(point, 0) :])[:scale].ljust(scale, "0")
    return ("-" if sign else "") + whole + ("." + fraction if scale else "")


_NUMERIC_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def date_out(value: bytes) -> str:
    (days,) = struct.unpack(">i", value)
    infinite = _infinite(days, 31)
    return infinite or "".join(_civil(days))


def timestamp_out(value: bytes, zone: str = "") -> str:
    (microseconds,) = struct.unpack(">q", value)
    if infinite := _infinite(microseconds, 63):
        return infinite
    days, rest = divmod(microseconds, 86_400_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    date, era = _civil(days)
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{date} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{decimals}{zone}{era}"


def timestamptz_out(value: bytes) -> str:
    return timestamp_out(value, "+00")


def _infinite(value: int, bits: int) -> str:
    return {(1 << bits) - 1: "infinity", -1 << bits: "-infinity"}.get(value, "")


def _civil(days_since_2000: int) -> tuple[str, str]:
    year, month, day = civil_from_days(days_since_2000 + 10_957)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"
