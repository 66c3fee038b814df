"""MySQL's binary JSON as the text that the server prints of it.

Server sources, "JSON binary format": a type byte, then a value; containers have a count, a size, and places of keys and
values, of 2 bytes each in a small one and of 4 in a large one. Keys stand in the server's own order.
"""

from __future__ import annotations

import base64
import json
import struct

from tailrace.columns.doubles import json_double

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_LITERALS = {0: "null", 1: "true", 2: "false"}
_INTEGERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DOUBLE, _STRING, _OPAQUE = 11, 12, 15
_DATE, _TIME, _DATETIME, _TIMESTAMP, _DECIMAL = 10, 11, 12, 7, 246


def text(data: bytes) -> str:
    """No bytes are NULL's own JSON: a column that a statement without strict mode left empty."""
    return _value(data[0], data, 1) if data else "null"


def _value(kind: int, data: bytes, at: int) -> str:
    if kind <= _LARGE_ARRAY:
        return _container(kind, data, at)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _INTEGERS:
        return str(struct.unpack_from(_INTEGERS[kind], data, at)[0])
    if kind == _DOUBLE:
        return json_double(struct.unpack_from("<d", data, at)[0])
    if kind == _STRING:
        size, at = _size(data, at)
        return quoted(data[at : at + size].decode())
    if kind == _OPAQUE:
        size, start = _size(data, at + 1)
        return _opaque(data[at], data[start : start + size])
    raise KeyError(kind)


def _container(kind: int, data: bytes, at: int) -> str:
    wide = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    word, width = ("<I", 4) if wide else ("<H", 2)
    count = struct.unpack_from(word, data, at)[0]
    entries = at + 2 * width
    keys = []
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        for number in range(count):
            place = struct.unpack_from(word, data, entries + number * (width + 2))[0]
            size = struct.unpack_from("<H", data, entries + number * (width + 2) + width)[0]
            keys.append(quoted(data[at + place : at + place + size].decode()))
        entries += count * (width + 2)
    values = [_entry(data, at, entries + number * (width + 1), wide) for number in range(count)]
    if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
        return f"[{', '.join(values)}]"
    return "{" + ", ".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True)) + "}"


def _entry(data: bytes, container: int, at: int, wide: bool) -> str:
    """A value of a container: in its entry if it is small enough, else where that says."""
    kind = data[at]
    if kind == _LITERAL or kind in (5, 6) or (wide and kind in (7, 8)):
        return _value(kind, data, at + 1)
    place = struct.unpack_from("<I" if wide else "<H", data, at + 1)[0]
    return _value(kind, data, container + place)


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first."""
    size = 0
    for number in range(5):
        size |= (data[at + number] & 0x7F) << 7 * number
        if not data[at + number] & 0x80:
            return size, at + number + 1
    raise ValueError


def quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _opaque(kind: int, data: bytes) -> str:
    if kind == _DECIMAL:
        from tailrace.sources.mysql.values.binlog_decimals import _text

        return _text(data[2:], data[0], data[1])
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        return f'"{_time(kind, int.from_bytes(data, "little", signed=True))}"'
    return quoted(f"base64:type{kind}:{base64.b64encode(data).decode()}")


def _time(kind: int, packed: int) -> str:
    sign = "-" if packed < 0 else ""
    fraction, whole = abs(packed) & 0xFFFFFF, abs(packed) >> 24
    if kind == _TIME:
        return f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{fraction:06d}"
    months, day = whole >> 22, whole >> 17 & 31
    date = f"{months // 13:04d}-{months % 13:02d}-{day:02d}"
    if kind == _DATE:
        return date
    return f"{date} {whole >> 12 & 31:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{fraction:06d}"
