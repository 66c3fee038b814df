"""Table_map events: what the rows that follow are made of. Everything is in them if binlog_row_metadata is FULL.

Protocol page: "Table_map_event", with its optional metadata.
"""

from __future__ import annotations

import zlib
from functools import cached_property

import msgspec

from tailrace.errors import DecodeError
from tailrace.sources.mysql.events import lenenc

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, DATE, YEAR, NEWDATE = 1, 2, 3, 4, 5, 8, 9, 10, 13, 14
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 15, 16, 17, 18, 19
TIMESTAMP, TIME, DATETIME = 7, 11, 12
VECTOR, JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 242, 245, 246, 247, 248, 252, 253, 254, 255
_FIXED = {TINY: 1, SHORT: 2, LONG: 4, FLOAT: 4, DOUBLE: 8, LONGLONG: 8, INT24: 3, DATE: 3, NEWDATE: 3, YEAR: 1}
_FIXED |= {TIMESTAMP: 4, TIME: 3, DATETIME: 8}
_FRACTIONAL = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
_ONE_BYTE = {FLOAT, DOUBLE, BLOB, GEOMETRY, JSON, VECTOR, TIMESTAMP2, DATETIME2, TIME2}
_TWO_BYTES = {VARCHAR, BIT, NEWDECIMAL, STRING, VAR_STRING, ENUM, SET}
_NUMERIC = {TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR}
_CHARACTER = {STRING, VAR_STRING, VARCHAR, BLOB}
_LABELLED = {ENUM, SET}
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_LABELS, _ENUM_LABELS = 1, 2, 3, 4, 5, 6
_KEY, _KEY_WITH_PREFIX, _LABEL_DEFAULT_CHARSET, _LABEL_CHARSET = 8, 9, 10, 11


class MapColumn(msgspec.Struct, frozen=True):
    """One column: its `width` in bytes, or that of the length that stands before a value.

    `length` is what the type's metadata says: of a text its most bytes, of a decimal its digits, of a time its
    fraction's digits, of a bit field its bits.
    """

    name: str
    type: int
    length: int
    scale: int
    width: int
    prefix: int
    is_unsigned: bool = False
    collation: int = 0
    labels: tuple[bytes, ...] = ()


class TableMap(msgspec.Struct, frozen=True, dict=True):
    """`code` is the same for equal maps, whichever number the server gave the table."""

    code: int
    schema: str
    name: str
    columns: tuple[MapColumn, ...]
    has_names: bool
    key: tuple[str, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


def code_of(body: bytes) -> int:
    """Of the body of an event, without the table's number and its flags."""
    return zlib.crc32(body[8:])


def parse(body: bytes, *, is_mariadb: bool) -> TableMap:
    try:
        return _parse(body, is_mariadb)
    except (IndexError, UnicodeDecodeError, KeyError) as error:
        raise DecodeError("a Table_map event is cut short or malformed") from error


def _parse(body: bytes, is_mariadb: bool) -> TableMap:
    at = 8
    schema, name = body[at + 1 : at + 1 + body[at]], b""
    at += body[at] + 2
    name = body[at + 1 : at + 1 + body[at]]
    at += body[at] + 2
    count, at = lenenc(body, at)
    types = body[at : at + count]
    size, at = lenenc(body, at + count)
    columns = _columns(types, body[at : at + size], f"{schema.decode()}.{name.decode()}")
    told = _optional(body, at + size + (count + 7) // 8)
    names = _strings(told[_NAMES]) if _NAMES in told else [b""] * count
    if len(names) != count:
        raise IndexError
    columns = [msgspec.structs.replace(c, name=n.decode()) for c, n in zip(columns, names, strict=True)]
    columns = _signed(_lettered(_labelled(columns, told), told, is_mariadb), told.get(_SIGNEDNESS, b""))
    key = _key(told, [column.name for column in columns])
    return TableMap(code_of(body), schema.decode(), name.decode(), tuple(columns), _NAMES in told, key)


def _columns(types: bytes, metadata: bytes, table: str) -> list[MapColumn]:
    columns, at = [], 0
    for kind in types:
        width = 1 if kind in _ONE_BYTE else 2 if kind in _TWO_BYTES else 0
        columns.append(_column(kind, metadata[at : at + width], table))
        at += width
    return columns


def _column(kind: int, told: bytes, table: str) -> MapColumn:
    if kind in _FIXED:
        return MapColumn("", kind, 0, 0, _FIXED[kind], 0)
    if kind in _FRACTIONAL:
        return MapColumn("", kind, told[0], 0, _FRACTIONAL[kind] + (told[0] + 1) // 2, 0)
    if kind == VARCHAR:
        most = told[0] | told[1] << 8
        return MapColumn("", kind, most, 0, 0, 1 if most < 256 else 2)
    if kind == BIT:
        return MapColumn("", kind, told[1] * 8 + told[0], 0, told[1] + (told[0] > 0), 0)
    if kind == NEWDECIMAL:
        return MapColumn("", kind, told[0], told[1], decimal_bytes(told[0], told[1]), 0)
    if kind in (BLOB, GEOMETRY, JSON, VECTOR):
        return MapColumn("", kind, 0, 0, 0, told[0])
    if kind in (STRING, VAR_STRING, ENUM, SET):
        return _string(told)
    raise DecodeError(f"{table} has a column of the binlog type {kind}, which is not known")


def _string(told: bytes) -> MapColumn:
    """A CHAR, or an ENUM or a SET in its disguise. Two bits of a long CHAR's length are in its type."""
    kind, most = told[0], told[1]
    if kind & 0x30 != 0x30:
        most |= ((kind & 0x30) ^ 0x30) << 4
        kind |= 0x30
    if kind in _LABELLED:
        return MapColumn("", kind, most, 0, most, 0)
    return MapColumn("", STRING, most, 0, 0, 1 if most < 256 else 2)


def decimal_bytes(precision: int, scale: int) -> int:
    whole = precision - scale
    parts = (whole // 9, whole % 9, scale // 9, scale % 9)
    return parts[0] * 4 + _DECIMAL_BYTES[parts[1]] + parts[2] * 4 + _DECIMAL_BYTES[parts[3]]


def _optional(body: bytes, at: int) -> dict[int, bytes]:
    found = {}
    while at < len(body):
        kind = body[at]
        size, at = lenenc(body, at + 1)
        found[kind] = body[at : at + size]
        at += size
    return found


def _strings(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, at = lenenc(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def _numbers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = lenenc(data, at)
        found.append(number)
    return found


def _signed(columns: list[MapColumn], bits: bytes) -> list[MapColumn]:
    places = [place for place, column in enumerate(columns) if column.type in _NUMERIC]
    found = list(columns)
    for number, place in enumerate(places if bits else []):
        if bits[number // 8] >> (7 - number % 8) & 1:
            found[place] = msgspec.structs.replace(found[place], is_unsigned=True)
    return found


def _lettered(columns: list[MapColumn], told: dict[int, bytes], is_mariadb: bool) -> list[MapColumn]:
    """For MariaDB a geometry is a text as well."""
    types = _CHARACTER | ({GEOMETRY} if is_mariadb else set())
    found = _collated(columns, told, types, _DEFAULT_CHARSET, _COLUMN_CHARSET)
    return _collated(found, told, _LABELLED, _LABEL_DEFAULT_CHARSET, _LABEL_CHARSET)


def _collated(
    columns: list[MapColumn], told: dict[int, bytes], types: set[int], default: int, each: int
) -> list[MapColumn]:
    places = [place for place, column in enumerate(columns) if column.type in types]
    found = list(columns)
    if default in told:
        usual, *pairs = _numbers(told[default])
        others = dict(zip(pairs[::2], pairs[1::2], strict=True))
        collations = [others.get(number, usual) for number in range(len(places))]
    else:
        collations = _numbers(told.get(each, b""))
    for place, collation in zip(places, collations, strict=False):
        found[place] = msgspec.structs.replace(found[place], collation=collation)
    return found


def _labelled(columns: list[MapColumn], told: dict[int, bytes]) -> list[MapColumn]:
    found = list(columns)
    for kind, which in ((SET, _SET_LABELS), (ENUM, _ENUM_LABELS)):
        data, at = told.get(which, b""), 0
        for place in [place for place, column in enumerate(columns) if column.type == kind] if data else []:
            count, at = lenenc(data, at)
            labels = []
            for _ in range(count):
                size, at = lenenc(data, at)
                labels.append(data[at : at + size])
                at += size
            found[place] = msgspec.structs.replace(found[place], labels=tuple(labels))
    return found


def _key(told: dict[int, bytes], names: list[str]) -> tuple[str, ...]:
    if _KEY in told:
        return tuple(names[place] for place in _numbers(told[_KEY]))
    return ()  # one of parts of columns is none, as `catalog` has it
