"""The statements that bring staged rows into a table, all inside of the sink's one transaction.

In `match` conditions `t` is the table; staged rows go by the alias of their relation.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, Session
from tailrace.sinks.sql.dialect.statements import matching
from tailrace.sinks.sql.staged import Relation, old


def upsert(
    dialect: Dialect, table: str, schema: TableSchema, rows: Relation, *, is_single_key: bool = True
) -> list[str]:
    """Whole rows, in the place of those under the same key."""
    names = [column.name for column in schema.columns]
    query = f"SELECT {', '.join(rows.values[name] for name in names)} FROM {rows.sql}"
    key = [dialect.naming.quote(name) for name in schema.key]
    others = {dialect.naming.quote(name): rows.values[name] for name in names if name not in schema.key}
    if is_single_key or not key:
        return [dialect.statements.insert(table, dialect.naming.quoted(names), query, key, others)]
    match = _same_key(dialect, schema.key, rows)
    new = f"{query} WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE {match})"
    changes = [dialect.statements.update(table, rows.sql, match, others)] if others else []
    return [*changes, dialect.statements.insert(table, dialect.naming.quoted(names), new, [], {})]


def exchange(
    dialect: Dialect, table: str, copy: str, schema: TableSchema, *, is_plain: bool, keeps_rows: bool = False
) -> list[str]:
    """The table's rows become those of a copy. With `is_plain` its key is all that is unique in it.

    With `keeps_rows` none goes that comes back; the table has a key then.
    """
    names = [dialect.naming.quote(column.name) for column in schema.columns]
    types = {column.name: column.type for column in schema.columns}
    key = {dialect.naming.quote(name): types[name] for name in schema.key}
    if key and is_plain:
        return [
            *dialect.statements.exchange(table, copy, names, list(key)),
            *dialect.statements.restate(table, copy, key),
        ]
    if keeps_rows:
        return [
            *dialect.statements.exchange_by_key(table, copy, names, list(key)),
            *dialect.statements.restate(table, copy, key),
        ]
    return dialect.statements.exchange_all(table, copy, names)


def delete(dialect: Dialect, session: Session, table: str, schema: TableSchema, rows: Relation) -> str:
    if not schema.key:
        return dialect.statements.delete_copies(session, table, schema, rows)
    return dialect.statements.delete(table, rows.sql, _key(dialect, schema.key, rows))


def absent_keys(dialect: Dialect, table: str, schema: TableSchema, rows: Relation, *, moves: bool) -> str:
    """The keys (as text for the source) of staged partial rows that the table has no row for."""
    match = _old_key(dialect, schema.key, rows) if moves else _same_key(dialect, schema.key, rows)
    return f"{staged_keys(dialect, schema, rows)} WHERE NOT EXISTS (SELECT 1 FROM {table} t WHERE {match})"


def staged_keys(dialect: Dialect, schema: TableSchema, rows: Relation) -> str:
    """The keys (as text for the source) of all staged rows, the new ones if they move."""
    types = {column.name: column.type for column in schema.columns}
    selected = ", ".join(dialect.reading.key_text(rows.values[name], types[name]) for name in schema.key)
    return f"SELECT {selected} FROM {rows.sql}"


def unmoved(dialect: Dialect, table: str, schema: TableSchema, rows: Relation) -> list[str]:
    """Nothing is left under the keys of moving rows."""
    olds = {dialect.naming.quote(name): rows.values[old(name)] for name in schema.key}
    return [dialect.statements.delete(table, rows.sql, key) for key in (olds, _key(dialect, schema.key, rows))]


def update(dialect: Dialect, table: str, schema: TableSchema, unchanged: Iterable[str], rows: Relation) -> str:
    """Set what was sent; a row of which nothing but the key was sent stays as it is."""
    left = {*unchanged, *schema.key}
    sent = [column.name for column in schema.columns if column.name not in left] or list(schema.key[:1])
    changes = {dialect.naming.quote(name): rows.values[name] for name in sent}
    return dialect.statements.update(table, rows.sql, _same_key(dialect, schema.key, rows), changes)


def move(dialect: Dialect, table: str, schema: TableSchema, unchanged: Iterable[str], rows: Relation) -> list[str]:
    """The row under the old key becomes the row under the new one.

    What else the table has under the new key can not be right at this moment of the source, and goes.
    """
    left = set(unchanged)
    changes = {
        dialect.naming.quote(column.name): rows.values[column.name]
        for column in schema.columns
        if column.name not in left
    }
    differs = " OR ".join(f"{rows.values[old(name)]} <> {rows.values[name]}" for name in schema.key)
    return [
        dialect.statements.delete(table, rows.sql, _key(dialect, schema.key, rows), f"({differs})"),
        dialect.statements.update(table, rows.sql, _old_key(dialect, schema.key, rows), changes),
    ]


def _key(dialect: Dialect, key: Iterable[str], rows: Relation) -> dict[str, str]:
    return {dialect.naming.quote(name): rows.values[name] for name in key}


def _same_key(dialect: Dialect, key: Iterable[str], rows: Relation) -> str:
    return matching(_key(dialect, key, rows))


def _old_key(dialect: Dialect, key: Iterable[str], rows: Relation) -> str:
    return matching({dialect.naming.quote(name): rows.values[old(name)] for name in key})
