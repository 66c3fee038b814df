"""The SQL of a SQLite sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import ExistingTable, Naming, Session, Statements, Target
from tailrace.sinks.sql.dialect.statements import INSERTED_INTO, on_conflict
from tailrace.sinks.sql.sqlite.catalog import COLUMNS, MADE, MARK
from tailrace.sinks.sql.sqlite.encoding import quoted_text
from tailrace.sinks.sql.sqlite.naming import OURS
from tailrace.sinks.sql.sqlite.types import EXACTLY
from tailrace.sinks.sql.staged import COPIES, Relation


class SqliteStatements(Statements):
    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def create_schema(self, name: str) -> str:
        raise NotImplementedError("a SQLite file has no schemas")

    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        """An integer key is SQLite's own row id."""
        body = ", ".join([*lines, f"PRIMARY KEY ({key})"] if key else lines)
        is_row_id = f"{key} INTEGER" in lines
        options = " WITHOUT ROWID" if key and not is_row_id else ""
        if table.startswith(f'"{OURS}') and not table.startswith(f'"{OURS}copy_'):
            return [f"CREATE TABLE {table} ({body}){options}"]
        return [f"CREATE TABLE {table} ({MARK} {body}){options}", *self.annotate(table, note)]

    def annotate(self, table: str, note: str) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {MADE} (name TEXT COLLATE NOCASE PRIMARY KEY, note TEXT) WITHOUT ROWID",
            f"INSERT OR REPLACE INTO {MADE} VALUES ({quoted_text(_unquoted(table))}, {quoted_text(note)})",
        ]

    def move(self, target: Target, new_target: Target) -> list[str]:
        old, new = quoted_text(target.name), quoted_text(new_target.name)
        return [
            f"ALTER TABLE {self._naming.qualified(target)} RENAME TO {self._naming.qualified(new_target)}",
            f"UPDATE OR REPLACE {MADE} SET name = {new} WHERE name = {old}",
        ]

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """By name only: SQLite would look for the table that is gone in every view of it."""
        drop = [f"DROP TABLE {self._naming.qualified(target)}"] if has_table else []
        return [*drop, "PRAGMA legacy_alter_table = ON", *self.move(copy, target), "PRAGMA legacy_alter_table = OFF"]

    def clear(self, session: Session, table: str) -> None:
        session.execute(f"DELETE FROM {table}")

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        return False

    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        """`WHERE true`, because SQLite would take the ON of the conflict for that of a join.

        OR ABORT, here and in `update`, overrules what a table's own constraints say, such as ON CONFLICT IGNORE.
        """
        statement = f"INSERT OR ABORT INTO {table} AS {INSERTED_INTO} ({columns}) {query}"
        return f"{statement} WHERE true {on_conflict(key, others)}" if key else statement

    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        left = ", ".join(key) if len(key) == 1 else f"({', '.join(key)})"
        staged = f"SELECT {', '.join(key.values())} FROM {relation}" + (f" WHERE {where}" if where else "")
        return f"DELETE FROM {table} WHERE {left} IN ({staged})"

    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        sets = ", ".join(f"{name} = {value}" for name, value in changes.items())
        return f"UPDATE OR ABORT {table} AS t SET {sets} FROM {relation} WHERE {match}"

    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Rows are numbered among their equals in the table: some that differ in the source (0.0, -0.0) are equal here.

        The join is a CROSS JOIN so that SQLite makes its index on the table, and not on the staged rows.
        """
        row_id = _row_id(session, table, schema)
        names = [column.name for column in schema.columns]
        equal = " AND ".join(f"t.{self._naming.quote(name)} IS {relation.values[name]}" for name in names)
        mine = ", ".join(f"t.{self._naming.quote(name)} {EXACTLY}" for name in names)
        ranked = (
            f"SELECT t.{row_id} AS place, sum({relation.values[COPIES]}) AS copies,"
            f" row_number() OVER (PARTITION BY {mine}) AS number"
            f" FROM {relation.sql} CROSS JOIN {table} t ON {equal} GROUP BY t.{row_id}"
        )
        return f"DELETE FROM {table} WHERE {row_id} IN (SELECT place FROM ({ranked}) WHERE number <= copies)"


def _row_id(session: Session, table: str, schema: TableSchema) -> str:
    """A name of the row id that no column of the table has taken."""
    taken = {column.lower() for column, *_ in session.execute(COLUMNS, [_unquoted(table), "main"])}
    for free in ("rowid", "_rowid_", "oid"):
        if free not in taken:
            return free
    raise SinkRejected(
        f"table {schema.table} has no key, and its columns rowid, _rowid_ and oid hide SQLite's own row id",
        hint="give the table a primary key, or exclude it in source.tables",
    )


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"')
