"""Positions of PostgreSQL: log sequence numbers, written `16/B374D848`."""

from __future__ import annotations


def parse_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def reached(position: str, target: str) -> bool:
    """True when `position` is at or past `target`."""
    return parse_lsn(position) >= parse_lsn(target)
