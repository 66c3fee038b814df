"""The statements that bring staged rows into a SQLite table, all inside the sink's one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.sqlite_staging import StagedChanges, StagedPartial, StagedRows


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def merge(connection: sqlite3.Connection, target: str, origin: str, changes: StagedChanges) -> None:
    """Apply truncate, deletes and whole rows; partial rows are the caller's, because they may need the source.

    `target` is the table, quoted; `origin` the name under which the staging file is attached.
    """
    if changes.truncate:
        connection.execute(f"DELETE FROM {target}")
    if changes.deletes is not None:
        if changes.schema.key:
            connection.execute(_delete_keys(target, origin, changes.schema, changes.deletes))
        else:
            row_id = _row_id(connection, target, changes.schema)
            connection.execute(_delete_copies(target, origin, changes.schema, changes.deletes, row_id))
    if changes.upserts is not None:
        connection.execute(upsert(target, origin, changes.schema, changes.upserts))


def upsert(target: str, origin: str, schema: TableSchema, rows: StagedRows) -> str:
    names = [column.name for column in schema.columns]
    selected = ", ".join(rows.values[name] for name in names)
    insert = f"INSERT INTO {target} ({_list(names)}) SELECT {selected} FROM {origin}.{rows.name} s WHERE true"
    return insert + _on_conflict(schema, names)


def _on_conflict(schema: TableSchema, names: Sequence[str]) -> str:
    if not schema.key:
        return ""
    others = [name for name in names if name not in schema.key]
    action = "UPDATE SET " + ", ".join(f"{quote(n)} = excluded.{quote(n)}" for n in others) if others else "NOTHING"
    return f" ON CONFLICT ({_list(schema.key)}) DO {action}"


def _delete_keys(target: str, origin: str, schema: TableSchema, rows: StagedRows) -> str:
    selected = ", ".join(rows.values[name] for name in schema.key)
    left = _list(schema.key) if len(schema.key) == 1 else f"({_list(schema.key)})"
    return f"DELETE FROM {target} WHERE {left} IN (SELECT {selected} FROM {origin}.{rows.name} s)"


def _delete_copies(target: str, origin: str, schema: TableSchema, rows: StagedRows, row_id: str) -> str:
    """Of each staged row, as many equal rows as it counts; equal means column by column, NULL being equal to NULL.

    Rows are numbered among their equals in the table, because some that differ in the source (0.0 and -0.0) are equal
    here. The join is a CROSS JOIN so that SQLite makes its index on the table, and not on the staged rows.
    """
    names = [column.name for column in schema.columns]
    equal = " AND ".join(f"t.{quote(n)} IS {rows.values[n]}" for n in names) or "true"
    values = ", ".join(f"t.{quote(n)}" for n in names)
    ranked = (
        f"SELECT t.{row_id} AS place, sum(s.x0) AS copies, row_number() OVER (PARTITION BY {values}) AS number"
        f" FROM {origin}.{rows.name} s CROSS JOIN {target} t ON {equal} GROUP BY t.{row_id}"
    )
    return f"DELETE FROM {target} WHERE {row_id} IN (SELECT place FROM ({ranked}) WHERE number <= copies)"


def _row_id(connection: sqlite3.Connection, target: str, schema: TableSchema) -> str:
    """A name of the row id that no column of the table has taken."""
    taken = {row[1].lower() for row in connection.execute(f"PRAGMA main.table_info({target})")}
    for name in ("rowid", "_rowid_", "oid"):
        if name not in taken:
            return name
    raise SinkRejected(
        f"table {schema.table} has no key, and its columns rowid, _rowid_ and oid hide SQLite's own row id",
        hint="give the table a primary key, or exclude it in source.tables",
    )


def absent_keys(target: str, origin: str, schema: TableSchema, partial: StagedPartial) -> str:
    """The keys of staged partial rows that the table has no row for."""
    values = partial.rows.values
    current = [values[f"old {name}"] if partial.moves else values[name] for name in schema.key]
    found = " AND ".join(f"t.{quote(n)} = {v}" for n, v in zip(schema.key, current, strict=True))
    selected = ", ".join(values[name] for name in schema.key)
    return (
        f"SELECT {selected} FROM {origin}.{partial.rows.name} s"
        f" WHERE NOT EXISTS (SELECT 1 FROM {target} t WHERE {found})"
    )


def apply_partial(target: str, origin: str, schema: TableSchema, partial: StagedPartial) -> list[str]:
    """Statements that update what was sent and leave the rest as it is."""
    return _move(target, origin, schema, partial) if partial.moves else [_update(target, origin, schema, partial)]


def _update(target: str, origin: str, schema: TableSchema, partial: StagedPartial) -> str:
    values = partial.rows.values
    sent = [c.name for c in schema.columns if c.name not in partial.unchanged and c.name not in schema.key]
    changes = ", ".join(f"{quote(n)} = {values[n]}" for n in sent or schema.key)
    same = " AND ".join(f"{target}.{quote(n)} = {values[n]}" for n in schema.key)
    return f"UPDATE {target} SET {changes} FROM {origin}.{partial.rows.name} s WHERE {same}"


def _move(target: str, origin: str, schema: TableSchema, partial: StagedPartial) -> list[str]:
    """The row under the old key becomes the row under the new one."""
    values = partial.rows.values
    names = [column.name for column in schema.columns]
    selected = ", ".join(f"t.{quote(n)}" if n in partial.unchanged else values[n] for n in names)
    source = f"{origin}.{partial.rows.name} s"
    olds = [(n, values[f"old {n}"]) for n in schema.key]
    at_old = " AND ".join(f"t.{quote(n)} = {v}" for n, v in olds)
    insert = (
        f"INSERT INTO {target} ({_list(names)}) SELECT {selected} FROM {source} JOIN {target} t ON {at_old} WHERE true"
    )
    moved = " OR ".join(f"{v} IS NOT {values[n]}" for n, v in olds)
    columns = ", ".join(v for _, v in olds)
    left = _list(schema.key) if len(schema.key) == 1 else f"({_list(schema.key)})"
    return [
        insert + _on_conflict(schema, names),
        f"DELETE FROM {target} WHERE {left} IN (SELECT {columns} FROM {source} WHERE {moved})",
    ]


def _list(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)
