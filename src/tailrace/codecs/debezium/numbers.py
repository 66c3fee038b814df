"""Exact numbers as Kafka Connect and Debezium have them, one at a time; and bytes as text."""

from __future__ import annotations

import base64
import re
from decimal import Context, Decimal
from typing import Any

from tailrace.errors import ValueRefused
from tailrace.model.types import ColumnType, Kind

NO_NUMBER, USE_STRINGS = "NaN and the infinities have no place in a Connect Decimal", "use decimals: string"
SPECIAL = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_EXACT = Context(prec=200_000, Emax=999_999, Emin=-999_999)
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def number_of(type_: ColumnType) -> tuple[int, int] | None:
    """Precision and scale; None where each value has its own."""
    if type_.kind is Kind.DECIMAL:
        return type_.precision or 38, type_.scale or 0
    match = _NUMERIC.fullmatch(type_.name)
    return None if match is None else (int(match[1]), int(match[2]))


def decimal_of(value: Decimal | str) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value)


def digits_of(value: Decimal) -> str:
    return format(value, "f") if value.is_finite() else SPECIAL[str(value)]


def finite(value: Decimal | str) -> Decimal:
    number = decimal_of(value)
    if not number.is_finite():
        raise ValueRefused(NO_NUMBER, hint=USE_STRINGS)
    return number


def unscaled(value: Decimal, scale: int) -> bytes:
    """Java's `BigDecimal.unscaledValue().toByteArray()`: two's complement, as few bytes as it takes."""
    return integer_bytes(int(value.scaleb(scale, _EXACT)))


def integer_bytes(number: int) -> bytes:
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() // 8) + 1, "big", signed=True)


def variable(value: Decimal | str) -> dict[str, Any]:
    """Without the zeros that end its fraction, as Debezium has it."""
    number = finite(value)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    scale = max(-exponent - zeros, 0) if any(digits) else 0
    return {"scale": scale, "value": base64_text(unscaled(number, scale))}
