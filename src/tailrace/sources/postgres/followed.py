"""Whether the stream tells all that becomes of a published table; read from the catalog without a lock on any table.

A partition has a replica identity and a persistence of its own, whatever its root says: what the server sends of its
rows may not say which row of the root is meant, and of an unlogged one it sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from tailrace.model.names import table_name
from tailrace.model.schema import TableSchema
from tailrace.sources.postgres.catalog import PUBLISHED

_ACTIONS = f"""
SELECT c.oid::bigint, string_agg(p.pubname, ' and ' ORDER BY p.pubname), bool_or(p.pubname = %(main)s),
    bool_or(p.pubinsert), bool_or(p.pubtruncate), bool_or(p.pubupdate), bool_or(p.pubdelete),
    bool_or(r.prqual IS NOT NULL)
FROM {PUBLISHED} WHERE p.pubname = ANY (%(names)s) GROUP BY c.oid
"""

_INSERTS_ONLY = f"""
SELECT c.oid::bigint FROM {PUBLISHED} WHERE p.pubname = ANY (%s)
GROUP BY c.oid HAVING NOT bool_or(p.pubupdate OR p.pubdelete)
"""

_LEAVES = """
WITH RECURSIVE part (root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[]) AND relkind = 'p'
    UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT part.root::bigint, n.nspname::text, c.relname::text, c.relpersistence = 'u', c.relreplident = 'f',
    ARRAY(SELECT a.attname::text FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (attnum, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND k.place <= i.indnkeyatts AND i.indimmediate
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' ORDER BY part.root, n.nspname, c.relname
"""

_UNIQUE = {"regproc": "regprocedure", "regoper": "regoperator"}
"""Types that print a name which may repeat, each with the one that prints its arguments as well."""


class Actions(msgspec.Struct, frozen=True):
    """What a table's publications send of it."""

    publications: str
    is_in_main: bool  # or only in the one for inserts
    insert: bool
    truncate: bool
    update: bool
    delete: bool
    is_filtered: bool

    @property
    def lacking(self) -> list[str]:
        wanted = ["insert", "truncate", *(["update", "delete"] if self.is_in_main else [])]
        return [action for action in wanted if not getattr(self, action)]


class Leaf(msgspec.Struct, frozen=True):
    """A partition that holds rows, and what it says of a row that is updated or deleted."""

    schema: str
    name: str
    is_unlogged: bool
    is_full: bool
    identity: list[str]

    @property
    def table(self) -> str:
        return table_name(self.schema, self.name)


def troubles(
    connection: psycopg.Connection[Any], tables: Iterable[TableSchema], publications: Sequence[str]
) -> dict[int, str]:
    """By table: why the sinks can not be kept equal to it, and what to do. Sound tables are left out."""
    by_relation = {table.relation: table for table in tables}
    names = {"main": publications[0], "names": list(publications)}
    actions = {oid: Actions(*facts) for oid, *facts in connection.execute(_ACTIONS, names)}
    leaves: dict[int, list[Leaf]] = {}
    for root, *facts in connection.execute(_LEAVES, [list(by_relation)]):
        leaves.setdefault(root, []).append(Leaf(*facts))
    found = {oid: _trouble(table, actions, leaves.get(oid, [])) for oid, table in by_relation.items()}
    return {oid: trouble for oid, trouble in found.items() if trouble is not None}


def remarks(connection: psycopg.Connection[Any], publications: Sequence[str]) -> dict[int, str]:
    """By table: what is lost of a sound one. Of a table without key and identity the server sends inserts only."""
    found = connection.execute(_INSERTS_ONLY, [list(publications)]).fetchall()
    words = "only its inserts are captured: it has no key and no replica identity; ALTER TABLE … REPLICA IDENTITY FULL"
    return dict.fromkeys((oid for (oid,) in found), words)


def _trouble(table: TableSchema, actions: Mapping[int, Actions], leaves: Sequence[Leaf]) -> str | None:
    sent = actions.get(table.relation)
    if sent is not None and sent.lacking:
        return (
            f"publication {sent.publications} does not publish {', '.join(sent.lacking)}: such changes are lost;"
            " ALTER PUBLICATION … SET (publish = …) with all of them"
        )
    if sent is not None and sent.is_filtered:
        return (
            f"publication {sent.publications} sends only those of its rows that a filter takes, and the others would"
            " not be kept up to date; take the table out of the publication, and add it without WHERE"
        )
    if (repeating := _repeating_key(table)) is not None:
        return repeating
    for leaf in leaves:
        if leaf.is_unlogged:
            return f"its partition {leaf.table} is unlogged, and sends no changes; ALTER TABLE {leaf.table} SET LOGGED"
    for leaf in leaves if sent is not None and sent.is_in_main else ():
        if not _identifies(leaf, table):
            return (
                f"its partition {leaf.table} has another replica identity than the table, and does not say which row"
                " was changed; ALTER TABLE … REPLICA IDENTITY on either, so that they agree, or FULL on the partition"
            )
    return None


def _repeating_key(table: TableSchema) -> str | None:
    for column in table.columns:
        better = _UNIQUE.get(column.type.name.removesuffix("[]"))
        if column.name in table.key and better is not None:
            return (
                f"its key column {column.name} is {column.type.name}, and two keys of that type can read the same;"
                f" ALTER TABLE … ALTER COLUMN … TYPE {better}, or REPLICA IDENTITY USING INDEX with other columns"
            )
    return None


def _identifies(leaf: Leaf, table: TableSchema) -> bool:
    """Whether an old row that the partition sends has the table's whole key.

    Where there is no key, the first change that does not say which row it is about is refused.
    """
    return leaf.is_full or set(leaf.identity).issuperset(table.key)
