"""The types of a MySQL or MariaDB source that a column of the sink keeps: the name of a column type says which.

Guarantee: a kept column takes every value that the source's can have, with one exception: a JSON document may have
numbers that no text tells (`encoding` refuses them).
"""

from __future__ import annotations

import re

from tailrace.model.types import CANONICAL, ColumnType, Kind
from tailrace.sinks.sql.mysql.flavor import Flavor

_INTEGERS = r"(tiny|small|medium|big)?int( unsigned)?"
_BITS = r"bit\(\d+\)"
GEOMETRIES = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "geomcollection"),
)
_SAME: dict[Kind, str] = {
    Kind.BOOLEAN: _BITS,
    Kind.INT16: f"{_INTEGERS}|year",
    Kind.INT32: _INTEGERS,
    Kind.INT64: f"{_INTEGERS}|{_BITS}",
    Kind.DECIMAL: rf"bigint unsigned|{_BITS}|decimal\(\d+(,\d+)?\)( unsigned)?",
    Kind.NUMERIC: r"decimal\(\d+(,\d+)?\)( unsigned)?",
    Kind.FLOAT32: r"float( unsigned)?",
    Kind.FLOAT64: r"double( unsigned)?",
    Kind.TIMESTAMP: r"datetime(\(\d\))?",
    Kind.TIMESTAMPTZ: r"timestamp(\(\d\))?",
    Kind.BYTES: rf"(var)?binary\(\d+\)|(tiny|medium|long)?blob|{'|'.join(GEOMETRIES)}",
    Kind.OTHER: r"time(\(\d\))?",
}
"""By kind: the names of types that both servers have, and that no other database calls so."""
_OWN: dict[Kind, str] = {
    Kind.JSON: "json",
    Kind.UUID: "uuid",
    Kind.OTHER: "inet4|inet6",
    Kind.ARRAY: r"vector\(\d+\)",
}
_COLLATED = re.compile(r"((?:(?:var)?char\(\d+\)|(?:tiny|medium|long)?text|enum\(|set\()).* collate (\w+)", re.DOTALL)
_SHORT = 255
_CHARACTER_BYTES = 4
_STORED_UTF8 = ("utf8mb4", "utf8mb3", "utf8", "ascii")


def kept(type_: ColumnType, flavor: Flavor) -> str | None:
    """How a column is declared that has the very type of the source's; None where the server has no such type."""
    name = type_.name
    if (collated := _COLLATED.fullmatch(name)) is not None:
        return _collated(type_, collated[1], collated[2]) if flavor.has_collation(collated[2]) else None
    if type_.kind in _SAME and re.fullmatch(_SAME[type_.kind], name):
        if name.startswith("timestamp"):
            return f"{name} NULL"  # otherwise some servers let it change by itself
        return "geometrycollection" if name == "geomcollection" else name
    is_canonical = type_.kind not in (Kind.JSON, Kind.UUID) or CANONICAL in type_.attributes
    if is_canonical and type_.kind in _OWN and re.fullmatch(_OWN[type_.kind], name):
        return name if base_of(name) in flavor.own_types else None
    return None


def _collated(type_: ColumnType, start: str, collation: str) -> str:
    if start in ("enum(", "set("):
        labels = ",".join("'" + label.replace("\\", "\\\\").replace("'", "''") + "'" for label in type_.labels)
        start = f"{start}{labels})"
    return f"{start} CHARACTER SET {charset_of(collation)} COLLATE {collation}"


def staged(type_: ColumnType, flavor: Flavor) -> str | None:
    """The same for staged rows: what may be long does not count for the size of a row."""
    found = kept(type_, flavor)
    size = None if found is None else re.match(r"var(char|binary)\((\d+)\)", found)
    if found is None or size is None or int(size[2]) <= _SHORT:
        return found
    return ("longblob" if size[1] == "binary" else "longtext") + found[size.end() :]


def loaded(value: str, type_: ColumnType, flavor: Flavor) -> str | None:
    """What a bulk load, which reads bytes, has to make of a value for a kept column; None where it takes the bytes."""
    found = kept(type_, flavor)
    if found is None:
        return None
    base = base_of(found)
    if base in ("bit", "year"):
        return f"CAST({value} AS UNSIGNED)"
    charset = re.search(r"CHARACTER SET (\w+)", found)
    is_plain = charset is None or (charset[1] in _STORED_UTF8 and base not in ("enum", "set"))
    if is_plain and base not in ("json", "uuid", "inet4", "inet6"):
        return None
    return f"CONVERT({value} USING utf8mb4)"


def key_bytes(type_: ColumnType, flavor: Flavor) -> int | None:
    """The most that a kept column takes of a key; None for others."""
    found = kept(type_, flavor)
    if found is None:
        return None
    size = re.match(r"(var)?(char|binary)\((\d+)\)", found)
    if size is None:
        return 2 + type_.precision if type_.precision else 16
    return int(size[3]) * (_CHARACTER_BYTES if size[2] == "char" else 1)


def base_of(name: str) -> str:
    """`varchar` of `varchar(20) CHARACTER SET …`."""
    found = re.match(r"[a-z0-9]+", name)
    return "" if found is None else found[0]


def charset_of(collation: str) -> str:
    return collation.partition("_")[0]


def is_geometry(type_: ColumnType) -> bool:
    return type_.kind is Kind.BYTES and type_.name in GEOMETRIES


def is_vector(type_: ColumnType, flavor: Flavor) -> bool:
    """Whether values are the numbers themselves, not their text."""
    return type_.kind is Kind.ARRAY and kept(type_, flavor) is not None
