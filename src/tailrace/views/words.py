"""Sizes, times and counts as a person reads them."""

from __future__ import annotations


def size(count: int) -> str:
    """Bytes with a unit: `12.5 MiB`."""
    rest = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if rest < 1024:
            return f"{rest:.0f} {unit}" if unit == "B" else f"{rest:.1f} {unit}"
        rest /= 1024
    return f"{rest:.1f} TiB"


def part(done: int, total: int) -> str:
    """Bytes of all bytes, in the unit of all: `6.0 of 54.5 MiB`."""
    number, unit = size(total).split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    return f"{done:,} of {number} B" if unit == "B" else f"{done / scale:.1f} of {number} {unit}"


def span(seconds: float) -> str:
    """A time that passes, in its two largest units: `8 s`, `2 m 05 s`, `3 h 20 m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def lag(seconds: float | None) -> str:
    """As `lag_seconds` of an event."""
    if seconds is None:
        return "unknown"
    if seconds == 0:
        return "none"
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def counted(count: int, noun: str) -> str:
    """`1 table`, `2,000 tables`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
