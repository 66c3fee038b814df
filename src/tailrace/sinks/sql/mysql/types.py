"""The types of a MySQL or MariaDB sink: what a column is declared as, and what goes into one that is there already.

What comes from MySQL or MariaDB keeps its type (`native`). Texts of others are utf8mb4 in a binary collation without
padding: `a`, `A` and `a ` are three keys here, as in the source. JSON of others is text, because MySQL's own json type
writes documents anew. What has no type here keeps its canonical text.
"""

from __future__ import annotations

import re

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Types
from tailrace.sinks.sql.mysql import native
from tailrace.sinks.sql.mysql.fitting import fits
from tailrace.sinks.sql.mysql.flavor import Flavor

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
_FIRST_MOMENT = "NOT NULL DEFAULT '1970-01-01 00:00:01'"
"""Of a timestamp in a key: without a default of its own, some servers let it change by itself."""
_LABEL_SIZE = 255
"""The longest label of an ENUM of MySQL's."""
_TEXT_SIZES = {Kind.TIMETZ: 40, Kind.INTERVAL: 80, Kind.ENUM: 63}


_OWN = {"name": "varchar(255)", "text": "longtext", "integer": "bigint", "flag": "smallint", "moment": "datetime(6)"}


class MySqlTypes(Types):
    """What is not kept as it is at the source is in the flavor's own collation."""

    def __init__(self, flavor: Flavor) -> None:
        self._flavor = flavor
        self.own = {kind: collated(type_, flavor.collation) for kind, type_ in _OWN.items()}

    def declared(self, schema: TableSchema) -> dict[str, str]:
        """Texts in a key share what the other columns of the key leave."""
        types = {column.name: column.type for column in schema.columns}
        kept = {name: native.kept(type_, self._flavor) for name, type_ in types.items()}
        rest = KEY_BYTES - sum(self._key_bytes(types[name]) for name in schema.key)
        open_ended = [name for name in schema.key if kept[name] is None and is_open_ended(types[name])]
        share = rest // max(len(open_ended), 1)
        bare = {
            name: kept[name] or declared(type_, share if name in open_ended else None) for name, type_ in types.items()
        }
        for name in schema.key:
            bare[name] = re.sub(r"^(timestamp.*) NULL$", rf"\1 {_FIRST_MOMENT}", bare[name])
        return {name: collated(type_, self._flavor.collation) for name, type_ in bare.items()}

    def _key_bytes(self, type_: ColumnType) -> int:
        found = native.key_bytes(type_, self._flavor)
        return _key_bytes(type_) if found is None else found

    def hidden_columns(self, schema: TableSchema) -> dict[str, str]:
        return {} if schema.key else {ROW: NUMBERED}

    def fits(self, declared: str, existing: str) -> bool:
        return fits(declared, existing)

    def is_exact_key(self, wanted: str, existing: str) -> bool:
        """In the collation of the source's column, or in one in which different values are different keys."""
        collation = re.search(r"COLLATE (\w+)", existing)
        if collation is not None and wanted.endswith(f"COLLATE {collation[1]}"):
            return True
        if collation is None or collation[1] in ("utf8mb4_0900_bin", "ascii_bin"):
            return True
        return collation[1].endswith("nopad_bin")

    def can_widen(self, wanted: str, existing: str) -> bool:
        return fits(existing, wanted)


def collated(type_: str, collation: str) -> str:
    """A type whose texts are ours, whatever the database or the table has for a default."""
    is_text = type_.startswith(("varchar", "longtext")) and "COLLATE" not in type_
    return f"{type_} CHARACTER SET utf8mb4 COLLATE {collation}" if is_text else type_


def is_open_ended(type_: ColumnType) -> bool:
    """A text or bytes of any length."""
    return type_.kind not in _FIXED and decimal_of(type_) is None and text_size(type_) is None


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
    """The type of a column that is not kept; in a key it may have so many bytes."""
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


def _key_bytes(type_: ColumnType) -> int:
    if type_.kind in _FIXED:
        return _FIXED[type_.kind][1]
    if (digits := decimal_of(type_)) is not None:
        return digits[0] // 2 + 2
    return (text_size(type_) or 0) * _BYTES_PER_CHARACTER
