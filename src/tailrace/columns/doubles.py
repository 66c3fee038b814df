"""Doubles as MySQL writes them in a JSON document."""

from __future__ import annotations

import math

_FIXED = 15
"""Digits before the point, or zeros behind it, that are written out."""


def json_double(value: float) -> str:
    """The shortest digits that mean the number, as the server writes them: with an exponent where it is far from 1."""
    sign = "-" if math.copysign(1, value) < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if digits == "0":
        return f"{sign}0.0"
    if not -_FIXED < point <= _FIXED:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
