"""What PostgreSQL's catalog says: which tables there are, their columns, keys and types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import psycopg

from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.sources.postgres.pgoutput import Relation
from tailrace.sources.postgres.types import TYPES_SQL, TypeInfo, column_type, is_built_in, load_types

IDENTITIES = {"d": Identity.DEFAULT, "i": Identity.INDEX, "f": Identity.FULL, "n": Identity.NOTHING}

_TABLES = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relkind::text, c.relreplident::text, c.relpersistence::text,
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    pg_catalog.has_table_privilege(c.oid, 'SELECT'),
    pg_catalog.pg_table_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY 1, 2
"""

_PUBLISHED = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1, 2"

_COLUMNS = """
SELECT a.attname, a.atttypid::bigint, a.atttypmod, a.attnum
FROM pg_attribute a
WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname = ANY (
        SELECT unnest(p.attnames) FROM pg_publication_tables p
        WHERE p.pubname = %(publication)s AND p.schemaname = %(schema)s AND p.tablename = %(name)s)
ORDER BY a.attnum
"""

_NUMBERS = "SELECT attname, attnum FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"

_KEY = """
SELECT a.attname
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %(table)s AND k.place <= i.indnkeyatts
    AND CASE WHEN %(identity)s = 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
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
    bytes: int

    @property
    def table(self) -> str:
        return f"{self.schema}.{self.name}"


def list_tables(connection: psycopg.Connection[Any]) -> list[SourceTable]:
    """Every ordinary table and partitioned root."""
    return [
        SourceTable(schema, name, oid, kind == "p", IDENTITIES[identity], persistence == "u", has_key, can, size or 0)
        for schema, name, oid, kind, identity, persistence, has_key, can, size in connection.execute(_TABLES)
    ]


def published_tables(connection: psycopg.Connection[Any], publication: str) -> set[tuple[str, str]]:
    return {(schema, name) for schema, name in connection.execute(_PUBLISHED, [publication])}


def table_schema(connection: psycopg.Connection[Any], table: SourceTable, publication: str) -> TableSchema:
    """The table's present schema: the same columns and key that pgoutput describes it with."""
    rows = connection.execute(
        _COLUMNS,
        {"table": table.oid, "publication": publication, "schema": table.schema, "name": table.name},
    ).fetchall()
    types = fetch_types(connection, (oid for _, oid, _, _ in rows))
    key = primary_key(connection, table.oid, table.identity)
    columns = tuple(
        Column(name, column_type(oid, modifier, types), nullable=name not in key, number=number)
        for name, oid, modifier, number in rows
    )
    names = {column.name for column in columns}
    usable = key if names.issuperset(key) else ()
    return TableSchema(table.schema, table.name, columns, usable, table.identity, table.oid)


def primary_key(connection: psycopg.Connection[Any], oid: int, identity: Identity) -> tuple[str, ...]:
    """The columns that identify a row: those of the identity index if one was chosen, else the primary key."""
    if identity is Identity.NOTHING:
        return ()
    letter = "i" if identity is Identity.INDEX else "d"
    return tuple(name for (name,) in connection.execute(_KEY, {"table": oid, "identity": letter}))


def adds_only_nulls(connection: psycopg.Connection[Any], table: TableSchema, added: Sequence[str]) -> bool:
    """True when none of the columns `added` gave a value to rows that were there before it."""
    row = connection.execute(
        """SELECT count(*) = %(count)s
            AND bool_and(NOT attnotnull AND NOT atthasmissing AND NOT atthasdef AND attidentity = '')
        FROM pg_attribute WHERE attname = ANY (%(added)s) AND NOT attisdropped
            AND attrelid = (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = %(schema)s AND c.relname = %(name)s)""",
        {"count": len(added), "added": list(added), "schema": table.schema, "name": table.name},
    ).fetchone()
    return bool(row and row[0])


def fetch_types(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, TypeInfo]:
    """What the catalog knows about those of `oids` that are not built in."""
    unknown = [oid for oid in set(oids) if not is_built_in(oid)]
    return load_types(connection.execute(TYPES_SQL, {"oids": unknown}).fetchall()) if unknown else {}


def described_schema(connection: psycopg.Connection[Any], relation: Relation) -> TableSchema:
    """The schema that a Relation message describes, its types looked up in the catalog.

    The message flags every column as key when the identity is FULL; the primary key then comes from the catalog.
    """
    identity = IDENTITIES[relation.identity]
    types = fetch_types(connection, (oid for _, _, oid, _ in relation.columns))
    key = _described_key(connection, relation, identity)
    numbers = dict(connection.execute(_NUMBERS, [relation.id]).fetchall())
    columns = tuple(
        Column(name, column_type(oid, modifier, types), nullable=name not in key, number=numbers.get(name, 0))
        for _, name, oid, modifier in relation.columns
    )
    return TableSchema(relation.schema, relation.name, columns, key, identity, relation.id)


def _described_key(connection: psycopg.Connection[Any], relation: Relation, identity: Identity) -> tuple[str, ...]:
    names = [name for _, name, _, _ in relation.columns]
    flagged = {name for is_key, name, _, _ in relation.columns if is_key}
    if identity is Identity.NOTHING:
        return ()
    key = primary_key(connection, relation.id, identity)
    if identity is Identity.FULL:
        return key if set(names).issuperset(key) else ()
    return key if set(key) == flagged else _in_table_order(names, flagged)


def _in_table_order(names: Sequence[str], members: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in members)
