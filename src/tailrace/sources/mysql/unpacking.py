"""Events that come packed: compressed transactions of MySQL, compressed rows of MariaDB; and which have a checksum."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa

from tailrace.errors import DecodeError
from tailrace.sources.mysql import events as kinds
from tailrace.sources.mysql.events import HEADER, TRAILER, Events, lenenc, rebuilt

_PAYLOAD_END, _SIZE, _COMPRESSION, _UNPACKED_SIZE = 0, 1, 2, 3
_ZSTD, _NONE = 0, 255
_CRC32 = 1


def note_checksums(events: Events, *, has_checksums: bool) -> bool:
    """Mark which events have one, and say whether those that follow do: a Format_description event decides."""
    for row in np.flatnonzero(events.types == kinds.FORMAT).tolist():
        has_checksums = int(events.buffer[events.ends[row] - TRAILER - 1]) == _CRC32
        events.trailers[row:] = TRAILER if has_checksums else 0
    return has_checksums


def unpacked(events: Events) -> Events:
    """The same events, none of them packed."""
    types = events.types
    packed = {kinds.PAYLOAD, kinds.QUERY_COMPRESSED, *kinds.COMPRESSED_ROWS}
    if not np.isin(types, list(packed)).any():
        return events
    found: list[bytes] = []
    for row, kind in enumerate(types.tolist()):
        event = events.event(row)
        if kind == kinds.PAYLOAD:
            found += _transaction(event)
        elif kind == kinds.QUERY_COMPRESSED:
            found.append(_query(event))
        elif kind in kinds.COMPRESSED_ROWS:
            found.append(_rows(event, kinds.COMPRESSED_ROWS[kind]))
        else:
            found.append(event[:9] + struct.pack("<I", len(event)) + event[13:])
    return rebuilt(found)


def _transaction(event: bytes) -> list[bytes]:
    """Protocol page "Transaction_payload_event": fields, then the events of a transaction. All end where it ends."""
    at, fields = HEADER, {}
    while True:
        kind, at = lenenc(event, at)
        if kind == _PAYLOAD_END:
            break
        size, at = lenenc(event, at)
        fields[kind], _ = lenenc(event, at)
        at += size
    data = event[at:]
    if fields.get(_COMPRESSION, _NONE) == _ZSTD:
        data = pa.decompress(data, fields[_UNPACKED_SIZE], codec="zstd", asbytes=True)
    elif fields.get(_COMPRESSION, _NONE) != _NONE:
        raise DecodeError(f"a transaction is compressed in a way that is not known: {fields[_COMPRESSION]}")
    end, found, place = event[13:17], [], 0
    while place < len(data):
        (size,) = struct.unpack_from("<I", data, place + 9)
        found.append(data[place : place + 13] + end + data[place + 17 : place + size])
        place += size
    return found


def _inflated(data: bytes) -> bytes:
    """MariaDB: a byte that says how long the length is, the length, then zlib."""
    if data[0] & 0x70:
        raise DecodeError("an event is compressed in a way that is not known")
    size = data[0] & 0x07
    return zlib.decompress(data[1 + size :])


def _query(event: bytes) -> bytes:
    _, _, named, _, told = struct.unpack_from("<IIBHH", event, HEADER)
    start = HEADER + 13 + told + named + 1
    return _retyped(event, kinds.QUERY, event[HEADER:start] + _inflated(event[start:]))


def _rows(event: bytes, kind: int) -> bytes:
    """What is compressed are the rows behind the bitmaps of columns."""
    at = HEADER + 8
    if kind >= 30:
        at += struct.unpack_from("<H", event, at)[0]
    count, at = lenenc(event, at)
    at += (count + 7) // 8 * (2 if kind in (24, 31) else 1)
    return _retyped(event, kind, event[HEADER:at] + _inflated(event[at:]))


def _retyped(event: bytes, kind: int, body: bytes) -> bytes:
    return event[:4] + bytes([kind]) + event[5:9] + struct.pack("<I", HEADER + len(body)) + event[13:HEADER] + body
