"""How much history the change log keeps: a time such as `24 h`, or a size such as `10 GiB`."""

from __future__ import annotations

import re

import msgspec

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
PATTERN = r"^\s*\d+(\.\d+)?\s*(s|min|h|d|[KMGT]i?B)\s*$"
_PARTS = re.compile(r"\s*([\d.]+)\s*([A-Za-z]+)\s*")


class Keep(msgspec.Struct, frozen=True):
    """One of the two is given."""

    seconds: float | None
    bytes: int

    @classmethod
    def parse(cls, text: str) -> Keep:
        """`text` follows PATTERN."""
        found = _PARTS.fullmatch(text)
        assert found is not None
        number, unit = float(found[1]), found[2]
        if unit in SECONDS:
            return cls(number * SECONDS[unit], 0)
        return cls(None, int(number * (1024 if "i" in unit else 1000) ** (1 + "KMGT".index(unit[0]))))
