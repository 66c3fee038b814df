"""Positions of PostgreSQL: log sequence numbers, written `16/B374D848`."""

from __future__ import annotations

# the headers of the log's pages (access/xlog_internal.h); a segment begins with a long one
_SHORT_HEADER, _LONG_HEADER = 24, 40


def parse_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def end_of_record(lsn: str, segment_bytes: int, page_bytes: int) -> str:
    """The end of the record before `lsn`, where the next one would begin.

    They differ at the start of a page, whose header lies between: only the first is ever sent to us.
    """
    number = parse_lsn(lsn)
    if number % segment_bytes == _LONG_HEADER:
        return format_lsn(number - _LONG_HEADER)
    return format_lsn(number - _SHORT_HEADER) if number % page_bytes == _SHORT_HEADER else lsn


def reached(position: str, target: str) -> bool:
    """True when `position` is at or past `target`."""
    return parse_lsn(position) >= parse_lsn(target)
