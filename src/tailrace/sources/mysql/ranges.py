"""Ranges of a key: how a table is cut into chunks, and the condition that is true of the rows of one.

Bounds are literals that the server itself has written, and it compares them with the columns as it orders these: by
their collation, an ENUM by the number of its label. A range begins behind its lower bound and ends with its upper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
from pymysql.connections import Connection

from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import Kind
from tailrace.sources.mysql.catalog import quoted
from tailrace.sources.mysql.connection import rows
from tailrace.sources.mysql.types import base_of

MOST_CHUNKS = 4096
_SIZE = """SELECT coalesce(data_length, 0), coalesce(table_rows, 0) FROM information_schema.tables
    WHERE table_schema = %s AND table_name = %s"""
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_NUMBERED = frozenset({"enum", "set", "bit"})
"""Types that are ordered by a number which is not what they are compared by."""


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Literals of the key's columns, in its order; none where there is no bound."""

    above: tuple[str, ...] = ()
    up_to: tuple[str, ...] = ()


def plan_ranges(connection: Connection[Any], table: TableSchema, chunk_bytes: int) -> list[tuple[Range, int]]:
    """Ranges that together hold every row, and about how many bytes each has."""
    size, count = _size(connection, table)
    pieces = min(-(-size // chunk_bytes), MOST_CHUNKS, count)
    bounds = _bounds(connection, table, pieces, count) if table.key and pieces > 1 else []
    edges = [(), *bounds, ()]
    each = size // (len(edges) - 1)
    return [(Range(low, high), each) for low, high in pairwise(edges)]


def _size(connection: Connection[Any], table: TableSchema) -> tuple[int, int]:
    if rows(connection, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"):
        rows(connection, "SET SESSION information_schema_stats_expiry = 0")
    found = rows(connection, _SIZE, (table.schema, table.name))
    return (int(found[0][0]), int(found[0][1])) if found else (0, 0)


def _bounds(connection: Connection[Any], table: TableSchema, pieces: int, count: int) -> list[tuple[str, ...]]:
    key = _key(table)
    if len(key) == 1 and base_of(key[0].type.name) in _INTEGERS:
        return _even(connection, table, key[0], pieces)
    return _stepped(connection, table, key, max(count // pieces, 1))


def _even(connection: Connection[Any], table: TableSchema, column: Column, pieces: int) -> list[tuple[str, ...]]:
    """An integer's range in equal parts: nothing has to be read for it but the ends."""
    name = quoted(column.name)
    ((least, most),) = rows(connection, f"SELECT min({name}), max({name}) FROM {quoted(table.schema, table.name)}")
    if least is None:
        return []
    cuts = [int(least) + (int(most) - int(least)) * part // pieces for part in range(1, pieces)]
    return [(str(cut),) for cut in dict.fromkeys(cuts) if cut < int(most)]


def _stepped(
    connection: Connection[Any], table: TableSchema, key: Sequence[Column], step: int
) -> list[tuple[str, ...]]:
    """Every so many rows in the key's order; the server walks through the index once."""
    written = ", ".join(_literal(column) for column in key)
    order = ", ".join(compared(column) for column in key)
    found: list[tuple[str, ...]] = []
    while len(found) < MOST_CHUNKS:
        where = f" WHERE {_above(key, found[-1])}" if found else ""
        statement = f"SELECT {written} FROM {quoted(table.schema, table.name)}{where} ORDER BY {order} LIMIT {step}, 1"
        answer = rows(connection, statement)
        if not answer:
            break
        found.append(tuple(_plain(part) for part in answer[0]))
    return found


def _plain(part: object) -> str:
    return part.decode() if isinstance(part, bytes) else str(part)


def condition(table: TableSchema, each: Range) -> str:
    """In the server's words; empty for all rows."""
    key = _key(table)
    conditions = [_above(key, each.above)] if each.above else []
    conditions += [_up_to(key, each.up_to)] if each.up_to else []
    return " AND ".join(conditions)


def _above(key: Sequence[Column], bound: Sequence[str]) -> str:
    """`a > x OR (a = x AND b > y)`, with a first condition that an index serves."""
    return _compared_with(key, bound, ">", ">")


def _up_to(key: Sequence[Column], bound: Sequence[str]) -> str:
    return _compared_with(key, bound, "<", "<=")


def _compared_with(key: Sequence[Column], bound: Sequence[str], strictly: str, at_last: str) -> str:
    names = [compared(column) for column in key]
    if len(names) == 1:
        return f"{names[0]} {at_last} {bound[0]}"
    ways = []
    for place, name in enumerate(names):
        equal = [f"{names[before]} = {bound[before]}" for before in range(place)]
        sign = at_last if place == len(names) - 1 else strictly
        ways.append("(" + " AND ".join([*equal, f"{name} {sign} {bound[place]}"]) + ")")
    return f"({names[0]} {strictly}= {bound[0]} AND ({' OR '.join(ways)}))"


def _key(table: TableSchema) -> list[Column]:
    return [table.columns[place] for place in table.key_indexes]


def compared(column: Column) -> str:
    name, base = quoted(column.name), base_of(column.type.name)
    if base in _NUMBERED:
        return f"({name} + 0)"
    return f"CAST({name} AS DOUBLE)" if base == "float" else name


def _literal(column: Column) -> str:
    """An expression for the literal of a column's value."""
    name, base = quoted(column.name), base_of(column.type.name)
    if base in _NUMBERED or base == "float":
        return f"CAST({compared(column)} AS CHAR)"
    match column.type.kind:
        case Kind.TEXT:
            return f"""CONCAT("_utf8mb4 x'", HEX(CONVERT({name} USING utf8mb4)), "'")"""
        case Kind.BYTES:
            return f"""CONCAT("_binary x'", HEX({name}), "'")"""
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ | Kind.UUID | Kind.OTHER:
            return f"""CONCAT("'", {name}, "'")"""
        case _:
            return f"CAST({name} AS CHAR)"
