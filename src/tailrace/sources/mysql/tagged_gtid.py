"""Gtid_tagged_log_event: the GTID of a transaction with a tag (MySQL 8.4 and later).

Server sources, "mysql::serialization": a version, a size, and fields, each behind its number and in the order of these.
An integer takes as many bytes more as its first one has set bits at its lower end.
"""

from __future__ import annotations

import uuid
from typing import Any

from tailrace.errors import DecodeError

_FLAGS, _UUID, _NUMBER, _TAG, _LAST_COMMITTED, _SEQUENCE, _COMMITTED_AT = range(7)


def tagged(body: bytes) -> tuple[str, int, int]:
    """Server and tag as a GTID set has them, the number, and when it was committed, in microseconds."""
    try:
        found = _fields(body)
        return f"{uuid.UUID(bytes=found[_UUID])}:{found[_TAG].decode()}", found[_NUMBER], found[_COMMITTED_AT]
    except (IndexError, KeyError, ValueError) as error:
        raise DecodeError("a Gtid_tagged event is cut short or malformed") from error


def _fields(body: bytes) -> dict[int, Any]:
    found: dict[int, Any] = {}
    _, at = unsigned(body, 0)  # version
    _, at = unsigned(body, at)  # size
    _, at = unsigned(body, at)  # the last field that has to be understood
    while _COMMITTED_AT not in found:
        field, at = unsigned(body, at)
        if field == _UUID:
            found[field], at = _uuid(body, at)
        elif field == _TAG:
            size, at = unsigned(body, at)
            found[field], at = body[at : at + size], at + size
        elif field in (_NUMBER, _LAST_COMMITTED, _SEQUENCE):
            found[field], at = _signed(body, at)
        elif field in (_FLAGS, _COMMITTED_AT):
            found[field], at = unsigned(body, at)
        else:
            raise KeyError(field)
    return found


def unsigned(body: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    more = (~body[at] & (body[at] + 1)).bit_length() - 1
    end = at + 1 + more
    if end > len(body):
        raise IndexError
    if more == 8:
        return int.from_bytes(body[at + 1 : end], "little"), end
    return int.from_bytes(body[at:end], "little") >> (more + 1), end


def _signed(body: bytes, at: int) -> tuple[int, int]:
    """The lowest bit is the sign."""
    value, at = unsigned(body, at)
    return (~(value >> 1) if value & 1 else value >> 1), at


def _uuid(body: bytes, at: int) -> tuple[bytes, int]:
    """Sixteen integers."""
    parts = []
    for _ in range(16):
        part, at = unsigned(body, at)
        parts.append(part)
    return bytes(parts), at
