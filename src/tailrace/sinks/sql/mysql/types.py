"""The types of a MySQL or MariaDB sink: what a column is declared as, and what goes into one that is there already.

Texts are utf8mb4 in a binary collation without padding: `a`, `A` and `a ` are three keys here, as in the source. JSON
is text, because MySQL's own json type writes documents anew. What has no type here keeps its canonical text.
"""

from __future__ import annotations

import re

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Types

ROW = "_tailrace_row"
"""An invisible column that tells equal rows of a table without a key apart, and of a staging table."""
NUMBERED = "bigint unsigned NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY"
KEY_BYTES = 3072
"""What InnoDB allows a key to have."""
_BYTES_PER_CHARACTER = 4
_MOST_DIGITS, _MOST_SCALE = 65, 30
_SHORT = 255

_FIXED = {
    Kind.BOOLEAN: ("tinyint(1)", 1),
    Kind.INT16: ("smallint", 2),
    Kind.INT32: ("int", 4),
    Kind.INT64: ("bigint", 8),
    Kind.FLOAT32: ("float", 4),
    Kind.FLOAT64: ("double", 8),
    Kind.UUID: ("char(36) CHARACTER SET ascii COLLATE ascii_bin", 36),
    Kind.DATE: ("date", 3),
    Kind.TIME: ("time(6)", 6),
    Kind.TIMESTAMP: ("datetime(6)", 8),
    Kind.TIMESTAMPTZ: ("datetime(6)", 8),
}
"""The type, and its bytes in a key."""
_SAME = {
    **dict.fromkeys((Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL), r"(tiny|small|medium|big)?int( unsigned)?"),
    Kind.OTHER: r"time(\(\d\))?",
}
"""By kind: the names of types that a MySQL source has, and that are kept."""
_LABEL_SIZE = 255
"""The longest label of an ENUM of MySQL's."""
_TEXT_SIZES = {Kind.TIMETZ: 40, Kind.INTERVAL: 80, Kind.ENUM: 63}


_OWN = {"name": "varchar(255)", "text": "longtext", "integer": "bigint", "flag": "smallint", "moment": "datetime(6)"}


class MySqlTypes(Types):
    """Texts are in `collation`."""

    def __init__(self, collation: str) -> None:
        self._collation = collation
        self.own = {kind: collated(type_, collation) for kind, type_ in _OWN.items()}

    def declared(self, schema: TableSchema) -> dict[str, str]:
        """Texts in a key share what the other columns of the key leave."""
        types = {column.name: column.type for column in schema.columns}
        rest = KEY_BYTES - sum(_key_bytes(types[name]) for name in schema.key)
        open_ended = [name for name in schema.key if is_open_ended(types[name])]
        share = rest // max(len(open_ended), 1)
        bare = {name: declared(type_, share if name in open_ended else None) for name, type_ in types.items()}
        return {name: collated(type_, self._collation) for name, type_ in bare.items()}

    def hidden_columns(self, schema: TableSchema) -> dict[str, str]:
        return {} if schema.key else {ROW: NUMBERED}

    def fits(self, declared: str, existing: str) -> bool:
        return fits(declared, existing)

    def is_exact_key(self, existing: str) -> bool:
        """Whether two different values are two different keys: no case folding, no padding."""
        collation = re.search(r"COLLATE (\w+)", existing)
        if collation is None or collation[1] in ("utf8mb4_0900_bin", "ascii_bin"):
            return True
        return collation[1].endswith("nopad_bin")

    def can_widen(self, wanted: str, existing: str) -> bool:
        return fits(existing, wanted)


def collated(type_: str, collation: str) -> str:
    """A type whose texts are ours, whatever the database or the table has for a default."""
    is_text = type_.startswith(("varchar", "longtext"))
    return f"{type_} CHARACTER SET utf8mb4 COLLATE {collation}" if is_text else type_


def is_open_ended(type_: ColumnType) -> bool:
    """A text or bytes of any length."""
    return type_.kind not in _FIXED and decimal_of(type_) is None and text_size(type_) is None and not is_same(type_)


def text_size(type_: ColumnType) -> int | None:
    """The most characters of a short text; None for a long one, and for what is no text."""
    if type_.name.startswith("enum("):
        return _LABEL_SIZE
    if type_.kind in _TEXT_SIZES:
        return _TEXT_SIZES[type_.kind]
    limited = re.fullmatch(r"(?:character varying|character|varchar|char)\((\d+)\)(?: collate \w+)?", type_.name)
    if type_.kind is Kind.TEXT and limited and int(limited[1]) <= _SHORT:
        return int(limited[1])
    return None


def decimal_of(type_: ColumnType) -> tuple[int, int] | None:
    """Digits and scale of an exact number: its own, or the most there are when it has no limit that fits."""
    if type_.kind not in (Kind.DECIMAL, Kind.NUMERIC):
        return None
    precision, scale = type_.precision, type_.scale
    limits = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", type_.name)
    if precision is None and limits:
        precision, scale = int(limits[1]), int(limits[2])
        precision, scale = max(precision, scale) - min(scale, 0), max(scale, 0)
    if precision is None or precision > _MOST_DIGITS or (scale or 0) > _MOST_SCALE:
        return _MOST_DIGITS, _MOST_SCALE
    return precision, scale or 0


def declared(type_: ColumnType, key_bytes: int | None = None) -> str:
    """The type of a column; in a key it may have so many bytes."""
    if is_same(type_):
        return type_.name
    if type_.kind in _FIXED:
        return _FIXED[type_.kind][0]
    if (digits := decimal_of(type_)) is not None:
        return f"decimal({digits[0]},{digits[1]})"
    if type_.kind is Kind.BYTES:
        return "longblob" if key_bytes is None else f"varbinary({key_bytes})"
    size = text_size(type_)
    if size is not None:
        return f"varchar({size})"
    return "longtext" if key_bytes is None else f"varchar({key_bytes // _BYTES_PER_CHARACTER})"


def is_same(type_: ColumnType) -> bool:
    """Whether a column has the very type that it has at a MySQL source, because its values are the same then."""
    return type_.kind in _SAME and re.fullmatch(_SAME[type_.kind], type_.name) is not None


def _key_bytes(type_: ColumnType) -> int:
    if type_.kind in _FIXED:
        return _FIXED[type_.kind][1]
    if (digits := decimal_of(type_)) is not None:
        return digits[0] // 2 + 2
    return (text_size(type_) or 0) * _BYTES_PER_CHARACTER


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXT_LIMITS = {"tinytext": 63, "text": 16_383, "mediumtext": 4_194_303, "longtext": 2**30}
_BLOB_LIMITS = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 2**32}


def fits(wanted: str, existing: str) -> bool:
    """Whether all values of a column declared as `wanted` go unchanged into one that the catalog calls `existing`."""
    base, limits, is_signed = _parsed(wanted)
    other, others, is_other_signed = _parsed(existing)
    if base in _INTEGERS:
        return other in _INTEGERS and is_signed == is_other_signed and _INTEGERS.index(base) <= _INTEGERS.index(other)
    if base == other == "decimal":
        return limits[1] == others[1] and limits[0] <= others[0]
    if (size := _size(base, limits, _TEXT_LIMITS, ("varchar", "char"))) is not None:
        room = _size(other, others, _TEXT_LIMITS, ("varchar",) if base != "char" else ("varchar", "char"))
        return room is not None and size <= room and _holds_unicode(wanted, existing)
    if (size := _size(base, limits, _BLOB_LIMITS, ("varbinary",))) is not None:
        room = _size(other, others, _BLOB_LIMITS, ("varbinary",))
        return room is not None and size <= room
    return base == other and (limits or [0]) <= (others or [0])


def _holds_unicode(wanted: str, existing: str) -> bool:
    is_ascii = re.search(r"CHARACTER SET (?!ucs2|utf16|utf32)", existing) is not None  # as far as its values go
    return "utf8mb4" in existing or ("CHARACTER SET ascii" in wanted and is_ascii)


def _size(base: str, limits: list[int], named: dict[str, int], limited: tuple[str, ...]) -> int | None:
    if base in named:
        return named[base]
    return limits[0] if base in limited and limits else None


def _parsed(name: str) -> tuple[str, list[int], bool]:
    """Its base, its limits, and whether it is signed. The width in which MariaDB shows integers means nothing."""
    found = re.match(r"(\w+)(?:\(([\d,]+)\))?", name)
    assert found is not None
    limits = [] if found[2] is None or found[1] in _INTEGERS else [int(part) for part in found[2].split(",")]
    return found[1], limits, "unsigned" not in name
