"""What changes in a table without a change event: its publication, its files, its partitions.

Read from the catalog without a lock on any table. A row of the catalog that was made anew has another oid, one that was
altered another `xmin`: what was undone again still shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
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
WITH RECURSIVE parts (root, oid, links) AS (
    SELECT oid, oid, NULL FROM unnest(%(oids)s::oid[]) oid
    UNION ALL
    SELECT parts.root, i.inhrelid, concat_ws('.', parts.links, i.xmin)
    FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT parts.root::bigint, c.oid::bigint, c.relfilenode::bigint, concat_ws(':', parts.links,
    (SELECT string_agg(concat_ws('=', i.indexrelid, i.xmin), ',' ORDER BY i.indexrelid) FROM pg_index i
        WHERE i.indrelid = c.oid AND parts.links IS NOT NULL AND i.indisunique AND i.indimmediate AND i.indisvalid))
FROM parts JOIN pg_class c ON c.oid = parts.oid WHERE c.relkind = 'r'
"""

_COLUMNS = """
SELECT c.oid::bigint, concat_ws(':', max(a.attnum),
    coalesce((SELECT coalesce(k.oid, i.indexrelid) FROM pg_index i
        LEFT JOIN pg_constraint k ON k.conrelid = c.oid AND k.conindid = i.indexrelid AND k.contype IN ('p', 'u')
        WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END), 0),
    md5(string_agg(concat_ws(':', a.attnum, a.xmin), ',' ORDER BY a.attnum))),
    concat_ws(':', c.relreplident, c.xmin::text,
        string_agg(DISTINCT a.xmin::text, ',') FILTER (WHERE NOT a.attisdropped))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.oid = ANY (%s::oid[]) GROUP BY c.oid, c.relreplident, c.xmin::text
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
    """Where tables have their rows. A partition that is being detached is none: the server shows its rows no more."""
    files: dict[int, dict[str, int]] = {oid: {} for oid in oids}
    marks: dict[int, dict[str, str]] = {oid: {} for oid in oids}
    for root, oid, number, mark in connection.execute(_FILES, {"oids": list(oids)}):
        files[root][str(oid)] = number
        marks[root][str(oid)] = mark
    columns = dict.fromkeys(oids, "")
    for oid, columns[oid], mark in connection.execute(_COLUMNS, [list(oids)]):
        marks[oid][str(oid)] = mark
    return {oid: StoredAs(files[oid], columns[oid], marks[oid]) for oid in oids}


def writers(connection: psycopg.Connection[Any], stored: StoredAs, oid: int) -> Mapping[str, str]:
    """The transactions that may have written to a table and have not ended: by their ids, who they are.

    One that has no id yet has not written. A prepared one keeps its id when the server is restarted, and nothing else.
    """
    return dict(connection.execute(_WRITERS, [[oid, *map(int, stored.files)]]).fetchall())


def has_rows(connection: psycopg.Connection[Any], oids: Sequence[int]) -> bool:
    """One relation at a time: while we wait for one that is locked, we hold no other."""
    names = connection.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[])",
        [list(oids)],
    ).fetchall()
    looks = (connection.execute(f"SELECT FROM ONLY {name} LIMIT 1".encode()) for (name,) in names)
    return any(look.fetchone() is not None for look in looks)


def has_had(stored: StoredAs, table: TableSchema, columns: Collection[str]) -> bool:
    """Whether one of these columns was there already, published or not, when the table was `stored` so."""
    last, _ = _last_and_key(stored)
    return any(0 < column.number <= last for column in table.columns if column.name in columns)


def _last_and_key(stored: StoredAs) -> tuple[int, int]:
    """The highest number of a column; and what the key is, by its constraint's oid or else its index's."""
    last, _, rest = stored.columns.partition(":")
    return (int(last), int(rest.partition(":")[0])) if rest else (0, 0)


class _Own(msgspec.Struct, frozen=True):
    """A table's own mark: its replica identity, the `xmin` of its row in the catalog, and those of its columns."""

    identity: str
    row: str
    columns: frozenset[str]


def _own(stored: StoredAs, relation: int) -> _Own | None:
    mark = stored.marks.get(str(relation))
    if mark is None:
        return None  # an earlier version of tailrace has looked
    identity, row, columns = (*mark.split(":"), "")[:3]
    return _Own(identity, row, frozenset(columns.split(",")) - {""})


def change_of(relation: int, old: StoredAs, new: StoredAs) -> StorageChange:
    """What became of a table's rows between two looks, apart from what the stream tells."""
    if old == new:
        return StorageChange()
    is_plain = set(old.files) == set(new.files) == {str(relation)}
    reason = _new_key(relation, old, new) or (
        _rewrite(relation, old, new) if is_plain else _other_partitions(old, new) or _other_marks(old, new)
    )
    if reason:
        return StorageChange(is_rewritten=True, reason=reason)
    added = tuple(sorted(new.files.keys() - old.files.keys(), key=int))
    return StorageChange(added=added, reason="a partition with rows was attached" if added else "")


def _new_key(relation: int, old: StoredAs, new: StoredAs) -> str:
    """A key that was gone for a time, while whole rows were sent: those that shared a key can not be told apart by it.

    Without whole rows the server takes no update or delete meanwhile. That the identity was FULL for a time has
    rewritten the table's row in the catalog; a key that is made again because its column got wider has not.
    """
    (_, old_key), (_, new_key) = _last_and_key(old), _last_and_key(new)
    if not old_key or not new_key or old_key == new_key:
        return ""
    before, after = _own(old, relation), _own(new, relation)
    is_told = before and after and before.row == after.row and after.identity != "f"
    return "" if is_told else "its key was dropped and made again"


def _rewrite(relation: int, old: StoredAs, new: StoredAs) -> str:
    """An ordinary table that has a new file and the columns that it had was vacuumed or truncated: the first changes
    nothing, the second is in the stream. One that was attached and detached has had all its columns altered.
    """
    if old.files != new.files and old.columns != new.columns:
        return "its rows were rewritten"
    before, after = _own(old, relation), _own(new, relation)
    if not before or not after or before.row == after.row or before.columns & after.columns:
        return ""
    return "it was a partition for a time"


def _other_partitions(old: StoredAs, new: StoredAs) -> str:
    """Of partitions that go, or that are emptied or rewritten, the stream does not tell.

    A new relation's file has the number of its oid, until it is emptied or rewritten.
    """
    if old.has_unseen:
        return "a partition came, and was changed before anybody looked at it"
    if old.files.keys() - new.files.keys():
        return "a partition was dropped or detached"
    is_rewritten = any(number != old.files.get(oid, int(oid)) for oid, number in new.files.items())
    return "a partition was truncated or rewritten" if is_rewritten else ""


def _other_marks(old: StoredAs, new: StoredAs) -> str:
    """A partition's mark is each link between it and the root, and each index that may be its replica identity."""
    for oid in old.files.keys() & old.marks.keys() & new.marks.keys():
        (links, _, indexes), (links_now, _, indexes_now) = old.marks[oid].partition(":"), new.marks[oid].partition(":")
        if links != links_now:
            return "a partition was detached and attached again"
        if _is_altered(indexes, indexes_now):
            return "a partition had another replica identity for a time"
    return ""


def _is_altered(old: str, new: str) -> bool:
    """Whether one of the indexes that are in both was altered. Others may come and go."""
    before, after = (dict(index.split("=") for index in text.split(",") if index) for text in (old, new))
    return any(before[index] != after[index] for index in before.keys() & after.keys())
