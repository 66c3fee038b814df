"""Sizes: a number of bytes, or one with a unit such as `64 MiB`."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

HINT = "write a number, or one with a unit such as 64 MiB"


def is_size(key: str) -> bool:
    """Whether the value of this key is a size: its name has the unit."""
    return key.endswith("_bytes")


def parse_size(text: str) -> int | None:
    """The bytes that a text such as `64 MiB` means; None if it is no size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    number, unit = float(found[1]), (found[2] or "").upper()
    return int(number * (1024 if unit.endswith("I") or not unit else 1000) ** _POWERS[unit[:1]])
