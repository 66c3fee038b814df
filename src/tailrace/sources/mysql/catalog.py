"""The catalog of MySQL and MariaDB: tables by pattern, their columns and keys, and when each was made.

A table has no number that lasts and that everybody may ask for: it goes by its name, and one that was dropped and made
again, or swapped for another, shows in the time at which it was made (and in InnoDB's own number for it, where the
role has PROCESS).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pymysql.connections import Connection
from pymysql.err import MySQLError

from tailrace.errors import SourceRefused
from tailrace.model.lifecycle import StoredAs
from tailrace.model.names import table_name
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.sources.mysql.connection import Server, rows
from tailrace.sources.mysql.identity import relation_of
from tailrace.sources.mysql.types import ZeroDates, column_type
from tailrace.sources.mysql.wanted import SYSTEM, Wanted

Name = tuple[str, str]
"""Database and table."""

_TABLES = """
SELECT table_schema, table_name, coalesce(engine, ''), coalesce(data_length, 0),
    coalesce(unix_timestamp(create_time), 0), coalesce(table_rows, 0)
FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ({system})
ORDER BY table_schema, table_name
"""
_COLUMNS = """
SELECT table_schema, table_name, column_name, column_type, collation_name
FROM information_schema.columns WHERE {where} ORDER BY table_schema, table_name, ordinal_position
"""
_KEYS = """
SELECT s.table_schema, s.table_name, s.index_name, s.column_name, s.sub_part, s.nullable
FROM information_schema.statistics s WHERE s.non_unique = 0 AND {where}
ORDER BY s.table_schema, s.table_name, s.index_name <> 'PRIMARY', s.index_name, s.seq_in_index
"""
_NUMBERS = {
    False: "SELECT name, table_id FROM information_schema.innodb_tables",
    True: "SELECT name, table_id FROM information_schema.innodb_sys_tables",
}
_TRANSACTIONAL = frozenset({"innodb", "rocksdb", "tokudb", ""})
_PARTITION = re.compile("#p#", re.IGNORECASE)
MANY = 200
"""More tables than that are asked for all at once, with those that nobody wants."""
CREATED, NUMBER = "created", "number"


class SourceTable(msgspec.Struct, frozen=True):
    """A table as the catalog lists it. `created` is its time in seconds, `rows` about how many there are."""

    schema: str
    name: str
    engine: str
    bytes: int
    created: int
    rows: int

    @property
    def table(self) -> str:
        return table_name(self.schema, self.name)


class Described(msgspec.Struct, frozen=True):
    """Schemas by name, and why some tables have none."""

    schemas: dict[Name, TableSchema]
    troubles: dict[Name, str]


def list_tables(connection: Connection[Any], wanted: Wanted) -> list[SourceTable]:
    """The tables that a pipeline reads, without views and without those of the server itself."""
    with connection.cursor() as cursor:
        if _has_stale_sizes(connection):
            cursor.execute("SET SESSION information_schema_stats_expiry = 0")
        cursor.execute(_TABLES.format(system=", ".join(f"'{name}'" for name in sorted(SYSTEM))))
        found = [SourceTable(s, n, e, int(b), int(c), int(r)) for s, n, e, b, c, r in cursor.fetchall()]
    return [table for table in found if wanted.matches(table.schema, table.name)]


def _has_stale_sizes(connection: Connection[Any]) -> bool:
    return bool(rows(connection, "SHOW VARIABLES LIKE 'information_schema_stats_expiry'"))


def table_schemas(
    connection: Connection[Any], tables: Iterable[Name], zero_dates: str = ZeroDates.STOP, *, is_mariadb: bool = False
) -> dict[Name, TableSchema]:
    """The present schemas of those that are there, and all of whose types are known."""
    return described(connection, tables, zero_dates, is_mariadb=is_mariadb).schemas


def described(
    connection: Connection[Any], tables: Iterable[Name], zero_dates: str, *, is_mariadb: bool = False
) -> Described:
    """Two queries for all of them, because we ask again every few seconds."""
    names = list(dict.fromkeys(tables))
    if not names:
        return Described({}, {})
    listed = _by_table(rows(connection, *_asked(_COLUMNS, names)))
    keys = _keys(rows(connection, *_asked(_KEYS, names)))
    schemas: dict[Name, TableSchema] = {}
    troubles: dict[Name, str] = {}
    for name in (name for name in names if name in listed):
        try:
            schemas[name] = _schema(name, listed[name], keys.get(name, ()), zero_dates, is_mariadb)
        except SourceRefused as error:
            troubles[name] = str(error)
    return Described(schemas, troubles)


def _asked(query: str, names: list[Name]) -> tuple[str, tuple[object, ...]]:
    if len(names) > MANY:
        databases = sorted({schema for schema, _ in names})
        return query.format(where=f"table_schema IN ({_marks(databases)})"), tuple(databases)
    pairs = " OR ".join("(table_schema = %s AND table_name = %s)" for _ in names)
    return query.format(where=f"({pairs})"), tuple(part for name in names for part in name)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("%s" for _ in values)


def _by_table(listed: Iterable[tuple[Any, ...]]) -> dict[Name, list[tuple[Any, ...]]]:
    found: dict[Name, list[tuple[Any, ...]]] = {}
    for schema, name, *rest in listed:
        found.setdefault((schema, name), []).append(tuple(rest))
    return found


def _schema(
    name: Name, columns: list[tuple[Any, ...]], key: tuple[str, ...], zero_dates: str, is_mariadb: bool
) -> TableSchema:
    made = tuple(
        Column(column, column_type(text, collation, is_mariadb=is_mariadb, zero_dates=zero_dates))
        for column, text, collation in columns
    )
    return TableSchema(*name, made, key, Identity.FULL, relation_of(*name))


def _keys(listed: Iterable[tuple[Any, ...]]) -> dict[Name, tuple[str, ...]]:
    """The primary key, or the first unique index of whole columns of which none may be NULL."""
    found: dict[Name, tuple[str, ...]] = {}
    for name, parts in _by_table(listed).items():
        indexes: dict[str, list[tuple[Any, ...]]] = {}
        for index, *part in parts:
            indexes.setdefault(index, []).append(tuple(part))
        for columns in indexes.values():
            if all(column and part is None and nullable != "YES" for column, part, nullable in columns):
                found[name] = tuple(column for column, _, _ in columns)
                break
    return found


def is_transactional(table: SourceTable) -> bool:
    """Whether a snapshot of its rows stands still."""
    return table.engine.lower() in _TRANSACTIONAL


def table_numbers(connection: Connection[Any], server: Server) -> dict[str, int]:
    """InnoDB's own numbers of tables, by its names for them; none where the role may not ask.

    That of a table in partitions is made of theirs: it is another one if any of them is.
    """
    try:
        listed = sorted((str(name), int(number)) for name, number in rows(connection, _NUMBERS[server.is_mariadb]))
    except MySQLError:
        return {}
    found: dict[str, int] = {}
    for name, number in listed:
        table, *partition = _PARTITION.split(name, maxsplit=1)
        found[table] = zlib.crc32(f"{name} {number}".encode(), found.get(table, 0)) if partition else number
    return found


def stored_as(table: SourceTable, schema: TableSchema, numbers: Mapping[str, int]) -> StoredAs:
    """When a table was made, and its columns: what changes if it is another one, or was rewritten."""
    files = {CREATED: table.created}
    number = numbers.get(f"{encoded(table.schema)}/{encoded(table.name)}")
    if number is not None:
        files[NUMBER] = number
    columns = ", ".join(f"{column.name} {column.type.name}" for column in schema.columns)
    return StoredAs(files, f"{columns}; key {', '.join(schema.key)}")


def is_another(old: StoredAs, new: StoredAs) -> bool:
    """Whether a table is not the one that it was, or its rows were written anew. A number says it best."""
    decisive = NUMBER if NUMBER in old.files and NUMBER in new.files else CREATED
    return old.files.get(decisive) != new.files.get(decisive)


def encoded(name: str) -> str:
    """A name as InnoDB's files have it: all but letters, digits and _ by its code."""
    return "".join(each if each.isascii() and (each.isalnum() or each == "_") else f"@{ord(each):04x}" for each in name)


def quoted(*parts: str) -> str:
    """A name in SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
