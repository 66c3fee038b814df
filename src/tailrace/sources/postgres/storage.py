"""What changes in a table without a change event: its publication, its files, its partitions.

Read from the catalog without a lock on any table. A row of the catalog that was made anew has another oid, one that was
altered another `xmin`: what was undone again still shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg

from tailrace.model.lifecycle import StoredAs
from tailrace.model.schema import TableSchema
from tailrace.sources.base import StorageChange
from tailrace.sources.postgres.catalog import PUBLISHED

_MEMBERSHIP = f"""
SELECT c.oid::bigint, string_agg(concat_ws(':', p.oid, p.xmin, r.oid, r.xmin, s.oid,
    CASE WHEN r.oid IS NULL THEN coalesce(nullif(c.reltoastrelid, 0), c.relfilenode) END,
    CASE WHEN r.oid IS NULL AND s.oid IS NOT NULL THEN d.xmin END), ',' ORDER BY p.oid)
FROM {PUBLISHED}
LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = n.oid
LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
    AND d.refclassid = 'pg_namespace'::regclass
WHERE p.pubname = ANY (%s) GROUP BY c.oid
"""

_FILES = """
WITH RECURSIVE parts (root, oid) AS (
    SELECT oid, oid FROM unnest(%(oids)s::oid[]) oid
    UNION ALL
    SELECT parts.root, i.inhrelid FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT parts.root::bigint, c.oid::bigint, c.relfilenode::bigint
FROM parts JOIN pg_class c ON c.oid = parts.oid WHERE c.relkind = 'r'
"""

_COLUMNS = """
SELECT a.attrelid::bigint, concat_ws(':', max(a.attnum),
    coalesce((SELECT k.oid FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
        WHERE k.conrelid = a.attrelid AND k.contype = 'p' AND c.relreplident = 'f'), 0),
    md5(string_agg(concat_ws(':', a.attnum, a.xmin), ',' ORDER BY a.attnum)))
FROM pg_attribute a WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 GROUP BY a.attrelid
"""

_WRITERS = """
WITH held AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted)
SELECT DISTINCT x.transactionid::text, coalesce('process ' || l.pid, 'a prepared transaction')
FROM held l
JOIN held x ON x.virtualtransaction = l.virtualtransaction AND x.pid IS NOT DISTINCT FROM l.pid
    AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
WHERE l.locktype = 'relation' AND l.relation = ANY (%s::oid[])
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""


def memberships(connection: psycopg.Connection[Any], publications: Sequence[str]) -> dict[int, str]:
    """By table: that it is published, in a word that changes when it was not, for however short a time.

    A table that is published with all others, or with its schema, can be unlogged for a time, or in another schema: the
    one leaves it with other files (of its large values, which TRUNCATE and VACUUM keep, or of its rows if it has no
    such), the other has rewritten what says in which schema it is. Of tables that are published by name the server
    refuses the one, and sends them all the same after the other.
    """
    return dict(connection.execute(_MEMBERSHIP, [list(publications)]).fetchall())


def stored_as(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, StoredAs]:
    files: dict[int, dict[str, int]] = {oid: {} for oid in oids}
    for root, oid, number in connection.execute(_FILES, {"oids": list(oids)}):
        files[root][str(oid)] = number
    columns = dict(connection.execute(_COLUMNS, [list(oids)]).fetchall())
    return {oid: StoredAs(files[oid], columns.get(oid, "")) for oid in oids}


def writers(connection: psycopg.Connection[Any], stored: StoredAs, oid: int) -> Mapping[str, str]:
    """The transactions that may have written to a table and have not ended: by their ids, who they are.

    One that has no id yet has not written. A prepared one keeps its id when the server is restarted, and nothing else.
    """
    return dict(connection.execute(_WRITERS, [[oid, *map(int, stored.files)]]).fetchall())


def has_rows(connection: psycopg.Connection[Any], oids: Sequence[int]) -> bool:
    names = connection.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[])",
        [list(oids)],
    ).fetchall()
    looks = [f"EXISTS (SELECT FROM ONLY {name})" for (name,) in names]
    row = connection.execute(f"SELECT {' OR '.join(looks)}".encode()).fetchone() if looks else None
    return bool(row and row[0])


def has_had(stored: StoredAs, table: TableSchema, columns: Collection[str]) -> bool:
    """Whether one of these columns was there already, published or not, when the table was `stored` so."""
    last, _ = _last_and_key(stored)
    return any(0 < column.number <= last for column in table.columns if column.name in columns)


def _last_and_key(stored: StoredAs) -> tuple[int, int]:
    """The highest number of a column; and the primary key, by its oid, of a table whose identity is full."""
    last, _, rest = stored.columns.partition(":")
    return (int(last), int(rest.partition(":")[0])) if rest else (0, 0)


def change_of(relation: int, old: StoredAs, new: StoredAs) -> StorageChange:
    """What became of a table's rows between two looks, apart from what the stream tells.

    An ordinary table that has a new file and the columns that it had was vacuumed or truncated: the first changes
    nothing, the second is in the stream. Of a partition the stream does not tell. Nor does it of a primary key that was
    gone for a time, if whole rows are sent: rows that shared a key then can not be told apart by it.
    """
    if old == new:
        return StorageChange()
    (_, old_key), (_, new_key) = _last_and_key(old), _last_and_key(new)
    if old_key and new_key and old_key != new_key:
        return StorageChange(is_rewritten=True, reason="its primary key was dropped and made again")
    if set(old.files) == set(new.files) == {str(relation)}:
        is_rewritten = old.files != new.files and old.columns != new.columns
        return StorageChange(is_rewritten=is_rewritten, reason="its rows were rewritten" if is_rewritten else "")
    if old.files.keys() - new.files.keys():
        return StorageChange(is_rewritten=True, reason="a partition was dropped or detached")
    if any(new.files[oid] != number for oid, number in old.files.items()):
        return StorageChange(is_rewritten=True, reason="a partition was truncated or rewritten")
    added = tuple(sorted(new.files.keys() - old.files.keys(), key=int))
    return StorageChange(added=added, reason="a partition with rows was attached" if added else "")
