"""Types of MySQL and MariaDB, by what the catalog calls them, as neutral column types.

A type's name stays the server's own, with the collation of a text behind it: a sink of the same kind makes the same
column of it. What no neutral type holds exactly travels as the text that the server prints.
"""

from __future__ import annotations

import re
from enum import StrEnum

from tailrace.errors import SourceRefused
from tailrace.model.types import CANONICAL, ColumnType, Kind

MOST_DIGITS = 38
"""Of a DECIMAL that Arrow holds; MySQL has 65."""
ZEROS_ARE_NULL = "zero dates are null"
"""The attribute of a type whose zero dates are read as NULL."""


class ZeroDates(StrEnum):
    """What becomes of a date that no calendar has: `0000-00-00`, `2024-00-00`, `2024-02-30`."""

    STOP = "stop"  # the table is set aside, with a sentence
    NULL = "null"  # it is NULL
    TEXT = "text"  # columns of dates are text, as the server prints them


_PLAIN = {
    "tinyint": Kind.INT16,
    "tinyint unsigned": Kind.INT16,
    "smallint": Kind.INT16,
    "year": Kind.INT16,
    "smallint unsigned": Kind.INT32,
    "mediumint": Kind.INT32,
    "mediumint unsigned": Kind.INT32,
    "int": Kind.INT32,
    "int unsigned": Kind.INT64,
    "bigint": Kind.INT64,
    "float": Kind.FLOAT32,
    "float unsigned": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "double unsigned": Kind.FLOAT64,
    "json": Kind.JSON,
    "uuid": Kind.UUID,
    "inet4": Kind.OTHER,
    "inet6": Kind.OTHER,
}
_BASES = {
    "date": Kind.DATE,
    "datetime": Kind.TIMESTAMP,
    "timestamp": Kind.TIMESTAMPTZ,
    "time": Kind.OTHER,
    "char": Kind.TEXT,
    "varchar": Kind.TEXT,
    "tinytext": Kind.TEXT,
    "text": Kind.TEXT,
    "mediumtext": Kind.TEXT,
    "longtext": Kind.TEXT,
    "binary": Kind.BYTES,
    "varbinary": Kind.BYTES,
    "tinyblob": Kind.BYTES,
    "blob": Kind.BYTES,
    "mediumblob": Kind.BYTES,
    "longblob": Kind.BYTES,
    "enum": Kind.ENUM,
    "set": Kind.OTHER,
}
GEOMETRIES = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)
_CANONICAL = ("json", "uuid")
"""Names that other databases have as well, for types that keep a text as it was written."""
_DATES = ("date", "datetime", "timestamp")
_COLLATED = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_INTEGERS = "tinyint|smallint|mediumint|int|bigint|year"
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\.", re.DOTALL)


def column_type(text: str, collation: str | None, *, is_mariadb: bool, zero_dates: str = ZeroDates.STOP) -> ColumnType:
    """The type that information_schema calls `text` (COLUMN_TYPE). Raises SourceRefused for one that nobody knows."""
    del is_mariadb  # its json is a longtext by the catalog's own word
    name = normalised(text)
    base = base_of(name)
    if base in _DATES and zero_dates != ZeroDates.STOP:
        return _lenient_date(name, base, zero_dates)
    if base in ("decimal", "bit", "vector"):
        return _limited(name, base)
    if name == "bigint unsigned":
        return ColumnType(Kind.DECIMAL, name, 20, 0)
    if base in GEOMETRIES:
        return ColumnType(Kind.BYTES, name)
    kind = _PLAIN.get(name) or _BASES.get(base)
    if kind is None:
        raise SourceRefused(f"type {name} is unknown", hint="exclude the table with source.tables")
    if base in _COLLATED:
        named = f"{name} collate {collation}" if collation else name
        return ColumnType(kind, named, labels=labels_of(name) if base in ("enum", "set") else ())
    return ColumnType(kind, name, attributes=(CANONICAL,) if base in _CANONICAL else ())


def _lenient_date(name: str, base: str, zero_dates: str) -> ColumnType:
    if zero_dates == ZeroDates.TEXT:
        return ColumnType(Kind.OTHER, name)
    return ColumnType(_BASES[base], name, attributes=(ZEROS_ARE_NULL,))


def _limited(name: str, base: str) -> ColumnType:
    limits = limits_of(name)
    if base == "decimal":
        precision, scale = (*limits, 10, 0)[:2] if len(limits) != 1 else (limits[0], 0)
        return ColumnType(Kind.DECIMAL if precision <= MOST_DIGITS else Kind.NUMERIC, name, precision, scale)
    if base == "vector":
        return ColumnType(Kind.ARRAY, name, element=ColumnType(Kind.FLOAT32, "float"))
    bits = limits[0] if limits else 1
    if bits == 1:
        return ColumnType(Kind.BOOLEAN, name)
    return ColumnType(Kind.INT64, name) if bits < 64 else ColumnType(Kind.DECIMAL, name, 20, 0)


def normalised(text: str) -> str:
    """Without what is only for show: the width of an integer, ZEROFILL, and MariaDB's remarks in comments."""
    if text.lower().startswith(("enum(", "set(")):
        return text[: text.index("(")].lower() + text[text.index("(") :]
    name = re.sub(r"\s*/\*.*?\*/", "", text.lower()).replace(" zerofill", "").strip()
    name = re.sub(r"^numeric|^dec(?!imal)", "decimal", name)
    name = re.sub(r"^(float|double)\(\d+(,\d+)?\)", r"\1", name)
    return re.sub(rf"^({_INTEGERS})\(\d+\)", r"\1", name)


def base_of(name: str) -> str:
    """`varchar` of `varchar(20) collate latin1_swedish_ci`."""
    found = re.match(r"[a-z0-9]+", name)
    return "" if found is None else found[0]


def limits_of(name: str) -> list[int]:
    found = re.match(r"\w+\(([\d,\s]+)\)", name)
    return [] if found is None else [int(part) for part in found[1].split(",")]


def labels_of(name: str) -> tuple[str, ...]:
    """The labels of `enum('a','it''s')`, in order."""
    return tuple(_ESCAPED.sub(_unescaped, found) for found in _LABEL.findall(name))


def _unescaped(found: re.Match[str]) -> str:
    return {"''": "'", r"\n": "\n", r"\r": "\r", r"\0": "\0"}.get(found[0], found[0][1:])


def collation_of(type_: ColumnType) -> str:
    """The collation of a text; empty for what has none."""
    _, _, collation = type_.name.rpartition(" collate ")
    return collation if " collate " in type_.name else ""
