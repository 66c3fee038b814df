"""What PostgreSQL's catalog says: which tables there are, their columns, keys and types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import psycopg

from tailrace.model.names import table_name
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType
from tailrace.sources.base import Absence
from tailrace.sources.postgres.types import TYPES_SQL, TypeInfo, column_type, is_built_in, load_types

IDENTITIES = {"d": Identity.DEFAULT, "i": Identity.INDEX, "f": Identity.FULL, "n": Identity.NOTHING}

IS_TABLE = """
c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', '_tailrace') AND n.nspname !~ '^pg_(toast|temp)'
"""
"""Ordinary tables and partitioned roots, of `pg_class c` and `pg_namespace n`."""

PARTS = f"""
part (root, oid) AS (
    SELECT c.oid, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {IS_TABLE}
    UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
"""
"""A recursive query: each table with itself and its partitions of all levels, without those that are being detached.

`pg_partition_tree` would lock them.
"""

HAS_KEY = """
EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid)
"""
"""Of a partitioned table its partitions inherit it."""

IDENTIFIES = """
CASE c.relreplident WHEN 'f' THEN true ELSE EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
        AND i.indpred IS NULL
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
) END
AND (current_setting('server_version_num')::int < 180000 OR NOT EXISTS (
    SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped
        AND (a.attgenerated <> 's' OR NOT EXISTS (
            SELECT FROM pg_publication p WHERE p.pubname = %(main)s AND to_jsonb(p) ->> 'pubgencols' = 's'))
        AND (c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
            AND a.attnum = ANY (i.indkey)))
))
"""
"""Whether the server takes an UPDATE or DELETE of `pg_class c` when publication `main` publishes such changes.

The index must be one that is checked at once; and since 18 the identity may hold no generated column that is not sent.
"""

_TABLES = f"""
WITH RECURSIVE {PARTS},
locked (oid) AS (
    SELECT relation FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
),
size (root, bytes) AS (
    SELECT part.root, sum(CASE WHEN c.relpages > 0
        THEN (c.relpages + coalesce(t.relpages, 0)) * current_setting('block_size')::bigint
        WHEN c.relkind <> 'r' OR c.oid IN (SELECT oid FROM locked) THEN 0 ELSE pg_catalog.pg_table_size(c.oid) END)
    FROM part JOIN pg_class c ON c.oid = part.oid LEFT JOIN pg_class t ON t.oid = c.reltoastrelid GROUP BY part.root
)
SELECT n.nspname, c.relname, c.oid::bigint, c.relkind::text, c.relreplident::text, c.relpersistence::text,
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
    pg_catalog.has_table_privilege(c.oid, 'SELECT'), coalesce(size.bytes, 0)::bigint
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN size ON size.root = c.oid
WHERE {IS_TABLE}
ORDER BY 1, 2
"""

PUBLISHED = """
pg_publication p
JOIN pg_class c ON c.relpersistence = 'p' AND NOT c.relispartition
    AND (c.relkind = 'r' OR c.relkind = 'p' AND p.pubviaroot)
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
JOIN pg_namespace n ON n.oid = c.relnamespace AND (p.puballtables OR r.oid IS NOT NULL
    OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))
"""
"""The tables `c` that publication `p` sends. The view `pg_publication_tables` would lock each of them."""

IS_PUBLISHED = """
a.attnum > 0 AND NOT a.attisdropped AND CASE WHEN r.prattrs IS NOT NULL THEN a.attnum = ANY (r.prattrs)
    ELSE a.attgenerated = '' OR a.attgenerated = 's' AND coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false) END
"""
"""Whether the server sends the column `pg_attribute a` of a table in `PUBLISHED`."""

_COLUMNS = f"""
SELECT DISTINCT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, a.attnum
FROM {PUBLISHED} JOIN pg_attribute a ON a.attrelid = c.oid AND {IS_PUBLISHED}
WHERE p.pubname = ANY (%s)
ORDER BY 1, a.attnum
"""

_ALL_COLUMNS = """
SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, a.attnum
FROM pg_attribute a WHERE a.attrelid = ANY (%s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1, a.attnum
"""

# Without the view pg_publication_tables, which waits for every table that somebody has locked.
_PUBLISHED_TYPES = """
SELECT DISTINCT a.atttypid::bigint, a.atttypmod
FROM pg_publication p
JOIN pg_class c ON c.relkind IN ('r', 'p') AND c.oid >= 16384
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND (r.prattrs IS NULL OR a.attnum = ANY (r.prattrs))
WHERE p.pubname = ANY (%s) AND (p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL)
"""

_KEYS = """
SELECT i.indrelid::bigint, a.attname
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s) AND k.place <= i.indnkeyatts
    AND i.indimmediate
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
ORDER BY i.indrelid, k.place
"""


class SourceTable(msgspec.Struct, frozen=True):
    """A table as the catalog lists it."""

    schema: str
    name: str
    oid: int
    is_partitioned: bool
    identity: Identity
    is_unlogged: bool
    has_primary_key: bool
    can_select: bool
    bytes: int  # about: a table that somebody has locked can not be measured

    @property
    def table(self) -> str:
        return table_name(self.schema, self.name)


def list_tables(connection: psycopg.Connection[Any]) -> list[SourceTable]:
    """Every ordinary table and partitioned root."""
    return [
        SourceTable(schema, name, oid, kind == "p", IDENTITIES[identity], persistence == "u", has_key, can, size)
        for schema, name, oid, kind, identity, persistence, has_key, can, size in connection.execute(_TABLES)
    ]


def table_schemas(
    connection: psycopg.Connection[Any], tables: Iterable[SourceTable], publications: Sequence[str]
) -> list[TableSchema]:
    """The present schemas of published tables: the same columns and keys that pgoutput describes them with.

    A few queries for all of them, because we ask again every few seconds.
    """
    return _schemas(connection, tables, connection.execute(_COLUMNS, [list(publications)]))


def whole_schemas(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> list[TableSchema]:
    """The same with all columns, whether or not anybody publishes them."""
    return _schemas(connection, tables, connection.execute(_ALL_COLUMNS, [[table.oid for table in tables]]))


def _schemas(
    connection: psycopg.Connection[Any], tables: Iterable[SourceTable], listed: Iterable[tuple[Any, ...]]
) -> list[TableSchema]:
    columns: dict[int, list[tuple[str, int, int, int]]] = {}
    for oid, *column in listed:
        columns.setdefault(oid, []).append(tuple(column))
    types = fetch_types(connection, (oid for rows in columns.values() for _, oid, _, _ in rows))
    found = [table for table in tables if table.oid in columns]
    keys = primary_keys(connection, [table.oid for table in found])
    return [_present_schema(table, columns[table.oid], keys.get(table.oid, ()), types) for table in found]


def _present_schema(
    table: SourceTable, rows: list[tuple[str, int, int, int]], key: tuple[str, ...], types: dict[int, TypeInfo]
) -> TableSchema:
    key = usable_key([name for name, *_ in rows], key)
    columns = tuple(
        Column(name, column_type(oid, modifier, types), number=number) for name, oid, modifier, number in rows
    )
    return TableSchema(table.schema, table.name, columns, key, table.identity, table.oid)


def usable_key(columns: Sequence[str], key: tuple[str, ...]) -> tuple[str, ...]:
    """The key of a table of which `columns` are published: all of it or none. A part of it may repeat."""
    return key if set(columns).issuperset(key) else ()


def primary_keys(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The columns that identify a row: those of the identity index if one was chosen, else the primary key.

    Not those of a deferrable one: within a transaction its keys may repeat, and the stream shows every step.
    """
    keys: dict[int, tuple[str, ...]] = {}
    for oid, name in connection.execute(_KEYS, [list(oids)]):
        keys[oid] = (*keys.get(oid, ()), name)
    return keys


def absence(connection: psycopg.Connection[Any], table: TableSchema) -> Absence:
    """Why a table is not published any more."""
    query = """SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = %s"""
    found = connection.execute(query, [table.relation]).fetchone()
    if found is None:
        return Absence("it was dropped at the source", is_gone=True)
    if found != (table.schema, table.name):
        return Absence(f"it is {table_name(*found)} at the source now", is_gone=True)
    return Absence("it is no longer published: somebody took it out of the publication")


def published_types(connection: psycopg.Connection[Any], publications: Sequence[str]) -> list[ColumnType]:
    """The types that a stream of these publications may send now."""
    rows = connection.execute(_PUBLISHED_TYPES, [list(publications)]).fetchall()
    types = fetch_types(connection, (oid for oid, _ in rows))
    return [column_type(oid, modifier, types) for oid, modifier in rows]


def fetch_types(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, TypeInfo]:
    """What the catalog knows about those of `oids` that are not built in."""
    unknown = [oid for oid in set(oids) if not is_built_in(oid)]
    return load_types(connection.execute(TYPES_SQL, {"oids": unknown}).fetchall()) if unknown else {}
