"""What PostgreSQL's catalog knows of tables besides their schemas: columns that are never null, and indexes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from tailrace.model.details import Index, TableDetails
from tailrace.model.schema import TableSchema

_REQUIRED = """
SELECT attrelid::bigint, attname FROM pg_attribute
WHERE attrelid = ANY (%s::bigint[]::oid[]) AND attnum > 0 AND NOT attisdropped AND attnotnull
"""

_INDEXES = """
SELECT i.indrelid::bigint, i.indisunique,
    array_agg(a.attname::text ORDER BY k.place) FILTER (WHERE k.place <= i.indnkeyatts)
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_am m ON m.oid = c.relam AND m.amname IN ('btree', 'hash')
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s::bigint[]::oid[]) AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indrelid, i.indisunique
ORDER BY i.indexrelid
"""
"""Those that hold every row, by plain columns. Other kinds of indexes do not find rows by equal values."""


def table_details(connection: psycopg.Connection[Any], tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
    numbers = {table.relation: table.table for table in tables}
    required: dict[int, list[str]] = {}
    for relation, column in connection.execute(_REQUIRED, [list(numbers)]):
        required.setdefault(relation, []).append(column)
    indexes: dict[int, list[Index]] = {}
    for relation, is_unique, columns in connection.execute(_INDEXES, [list(numbers)]):
        indexes.setdefault(relation, []).append(Index(tuple(columns), is_unique))
    return {
        table: TableDetails(frozenset(required.get(relation, ())), tuple(indexes.get(relation, ())))
        for relation, table in numbers.items()
    }


def index_statement(table: TableSchema, columns: Sequence[str]) -> str:
    """It locks no writer out. A partitioned table can not have one made so, and says it."""
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("CREATE INDEX CONCURRENTLY ON {} ({});").format(
        sql.Identifier(table.schema, table.name), listed
    )
    return statement.as_string()
