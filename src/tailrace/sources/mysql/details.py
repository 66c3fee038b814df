"""What the catalog of MySQL knows of tables besides their schemas: columns that are never null, and indexes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pymysql.connections import Connection

from tailrace.model.details import Index, TableDetails
from tailrace.model.schema import TableSchema
from tailrace.sources.mysql.catalog import Name, quoted
from tailrace.sources.mysql.connection import rows

_REQUIRED = """
SELECT table_schema, table_name, column_name FROM information_schema.columns
WHERE is_nullable = 'NO' AND table_schema IN ({databases})
"""
_INDEXES = """
SELECT table_schema, table_name, index_name, non_unique, column_name, sub_part, index_type
FROM information_schema.statistics WHERE table_schema IN ({databases})
ORDER BY table_schema, table_name, index_name, seq_in_index
"""


def table_details(connection: Connection[Any], tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
    wanted = {(table.schema, table.name): table.table for table in tables}
    databases = sorted({schema for schema, _ in wanted})
    if not databases:
        return {}
    marks = ", ".join("%s" for _ in databases)
    required: dict[Name, set[str]] = {}
    for schema, name, column in rows(connection, _REQUIRED.format(databases=marks), tuple(databases)):
        required.setdefault((schema, name), set()).add(column)
    indexes = _indexes(rows(connection, _INDEXES.format(databases=marks), tuple(databases)))
    return {
        table: TableDetails(frozenset(required.get(name, ())), tuple(indexes.get(name, ())))
        for name, table in wanted.items()
    }


def _indexes(listed: Iterable[tuple[Any, ...]]) -> dict[Name, list[Index]]:
    """Those that hold whole values of plain columns, and find rows by equal ones."""
    parts: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {}
    for schema, name, index, *part in listed:
        parts.setdefault((schema, name, index), []).append(tuple(part))
    found: dict[Name, list[Index]] = {}
    for (schema, name, _), columns in parts.items():
        if all(column and cut is None and kind in ("BTREE", "HASH") for _, column, cut, kind in columns):
            index = Index(tuple(column for _, column, _, _ in columns), not int(columns[0][0]))
            found.setdefault((schema, name), []).append(index)
    return found


def index_statement(table: TableSchema, columns: Sequence[str]) -> str:
    """InnoDB makes it while others write."""
    listed = ", ".join(quoted(column) for column in columns)
    return f"CREATE INDEX {quoted('_'.join(columns)[:60])} ON {quoted(table.schema, table.name)} ({listed});"
