"""The SQL of a PostgreSQL sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psycopg

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import ExistingTable, Naming, Session, Statements, Target
from tailrace.sinks.sql.dialect.statements import INSERTED_INTO, matching, on_conflict
from tailrace.sinks.sql.postgres import types
from tailrace.sinks.sql.staged import COPIES, Relation

_EXACTLY = 'COLLATE pg_catalog."C"'
"""Overrules the collation that somebody gave to a column, which may be another than that of staged rows."""


class PostgresStatements(Statements):
    builds_keys_late = True

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def create_schema(self, name: str) -> str:
        return f"CREATE SCHEMA IF NOT EXISTS {self._naming.quote(name)}"

    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        rest = f", PRIMARY KEY ({key})" if key else ""
        return [f"CREATE TABLE {table} ({', '.join(lines)}{rest})", *self.annotate(table, note)]

    def annotate(self, table: str, note: str) -> list[str]:
        text = note.replace("'", "''")
        return [f"COMMENT ON TABLE {table} IS '{text}'"]

    def widen(self, table: str, column: str, type_: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_}"

    def move(self, target: Target, new_target: Target) -> list[str]:
        table = self._naming.qualified(target)
        moved = self._naming.qualified(Target(new_target.schema, target.name))
        statements = []
        if target.schema != new_target.schema:
            statements.append(f"ALTER TABLE {table} SET SCHEMA {self._naming.quote(new_target.schema)}")
        if target.name != new_target.name:
            statements.append(f"ALTER TABLE {moved} RENAME TO {self._naming.quote(new_target.name)}")
        return statements

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        drop = [f"DROP TABLE {self._naming.qualified(target)}"] if has_table else []
        return [*drop, *self.move(copy, target)]

    def clear(self, session: Session, table: str) -> None:
        """TRUNCATE, unless a foreign key of somebody's leads here."""
        session.execute("SAVEPOINT clearing")
        try:
            session.execute(f"TRUNCATE {table}")
        except psycopg.errors.FeatureNotSupported:
            session.execute("ROLLBACK TO SAVEPOINT clearing")
            session.execute(f"DELETE FROM {table}")
        session.execute("RELEASE SAVEPOINT clearing")

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        found = {column.name: column.type for column in existing.columns}
        return not any(
            types.is_cast(column.type) or not types.has_same_form(types.declared(column.type), found[column.name])
            for column in schema.columns
        )

    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        statement = f"INSERT INTO {table} AS {INSERTED_INTO} ({columns}) OVERRIDING SYSTEM VALUE {query}"
        return f"{statement} {on_conflict(key, others)}" if key else statement

    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        return f"DELETE FROM {table} t USING {relation} WHERE {matching(key, where)}"

    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        sets = ", ".join(f"{name} = {value}" for name, value in changes.items())
        return f"UPDATE {table} t SET {sets} FROM {relation} WHERE {match}"

    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Rows are joined by the text of their columns: records of texts can be hashed, and NULL equals NULL there.

        Staged rows may be equal, and their copies are added up: they differed in a column that is gone, or in what a
        transform made one of.
        """
        names = [column.name for column in schema.columns]
        mine = ", ".join(f"{self._naming.quote(name)}::text {_EXACTLY}" for name in names)
        staged = ", ".join(f"({relation.values[name]})::text {_EXACTLY}" for name in names)
        ranked = (
            "SELECT t.file, t.place, s.copies, row_number() OVER (PARTITION BY s.content) AS number"
            f" FROM (SELECT ROW({staged}) AS content, sum({relation.values[COPIES]}) AS copies FROM {relation.sql}"
            " GROUP BY 1) s"
            f" JOIN (SELECT tableoid AS file, ctid AS place, ROW({mine}) AS content FROM {table}) t"
            " ON t.content = s.content"
        )
        gone = f"SELECT file, place FROM ({ranked}) r WHERE number <= copies"
        return f"DELETE FROM {table} WHERE (tableoid, ctid) IN ({gone})"

    def exchange(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """Rows are compared by their bytes: equal numbers may have another scale, and some types know no equality."""
        match = matching({name: f"s.{name}" for name in key})
        columns = ", ".join(names)
        changes = {name: f"s.{name}" for name in names if name not in key}
        differs = f"{match} AND {_other_bytes(names)}"
        new = f"SELECT {columns} FROM {copy} s WHERE NOT EXISTS (SELECT FROM {table} t WHERE {match})"
        return [
            f"DELETE FROM {table} t WHERE NOT EXISTS (SELECT FROM {copy} s WHERE {match})",
            *([self.update(table, f"{copy} s", differs, changes)] if changes else []),
            self.insert(table, columns, new, [], {}),
        ]

    def restate(self, table: str, copy: str, key: Mapping[str, ColumnType]) -> list[str]:
        """Other keys are left alone: an integer may be an identity column, which no UPDATE may name."""
        forms = {name: f"s.{name}" for name, type_ in key.items() if types.has_forms(type_)}
        match = matching({name: f"s.{name}" for name in key}, _other_bytes(forms))
        return [self.update(table, f"{copy} s", match, forms)] if forms else []


def _other_bytes(names: Iterable[str]) -> str:
    """The condition that a row of the table, called `t`, and one of its copy, called `s`, are not the same."""
    mine, theirs = (f"ROW({', '.join(f'{one}.{name}' for name in names)})::record" for one in "ts")
    return f"{mine} OPERATOR(pg_catalog.*<>) {theirs}"
