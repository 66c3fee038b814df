"""The SQL of a MySQL or MariaDB sink. Every statement of DDL can be repeated, for DDL is not transactional here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pymysql

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import ExistingTable, Naming, Session, Statements, Target
from tailrace.sinks.sql.dialect.statements import matching
from tailrace.sinks.sql.mysql import native
from tailrace.sinks.sql.mysql.encoding import quoted_text
from tailrace.sinks.sql.mysql.flavor import Flavor
from tailrace.sinks.sql.mysql.staging import STAGED
from tailrace.sinks.sql.mysql.types import ROW
from tailrace.sinks.sql.staged import COPIES, Relation

_REFERENCED = 1701


class MySqlStatements(Statements):
    load_replaces = True

    def __init__(self, naming: Naming, flavor: Flavor) -> None:
        self._naming, self._flavor, self._collation = naming, flavor, flavor.collation

    def create_schema(self, name: str) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {self._naming.quote(name)} CHARACTER SET utf8mb4"

    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        body = ", ".join([*lines, f"PRIMARY KEY ({key})"] if key else lines)
        options = f"ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {self._collation}"
        return [f"CREATE TABLE IF NOT EXISTS {table} ({body}) {options} COMMENT = {quoted_text(note)}"]

    def annotate(self, table: str, note: str) -> list[str]:
        return [f"ALTER TABLE {table} COMMENT = {quoted_text(note)}"]

    def widen(self, table: str, column: str, type_: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {type_}"

    def move(self, target: Target, new_target: Target) -> list[str]:
        return [f"RENAME TABLE {self._naming.qualified(target)} TO {self._naming.qualified(new_target)}"]

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """In one step for readers. What is left of a try that was broken off goes first."""
        if not has_table:
            return self.move(copy, target)
        table, new, old = (self._naming.qualified(place) for place in (target, copy, self.replaced(copy)))
        moves = f"{table} TO {old}, {new} TO {table}"
        return [f"DROP TABLE IF EXISTS {old}", f"RENAME TABLE {moves}"]

    def replaced(self, copy: Target) -> Target:
        return Target(copy.schema, f"{copy.name}_old")

    def clear(self, session: Session, table: str) -> None:
        """TRUNCATE, unless a foreign key of somebody's leads here."""
        try:
            session.execute(f"TRUNCATE TABLE {table}")
        except pymysql.MySQLError as error:
            if error.args[0] != _REFERENCED:
                raise
            session.execute(f"DELETE FROM {table}")

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        return self.is_single_key(existing, schema)

    def is_single_key(self, existing: ExistingTable, schema: TableSchema) -> bool:
        """REPLACE and ON DUPLICATE KEY take any unique index for the key."""
        key = {name.lower() for name in schema.key}
        return all({name.lower() for name in names} in (key, {ROW}) for names in existing.unique)

    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        statement = f"INSERT INTO {table} ({columns}) {query}"
        if not key:
            return statement
        changes = ", ".join(f"{name} = {value}" for name, value in others.items())
        return f"{statement} ON DUPLICATE KEY UPDATE {changes or f'{key[0]} = {table}.{key[0]}'}"

    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        return f"DELETE t FROM {table} t JOIN {relation} ON {matching(key, where)}"

    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        sets = ", ".join(f"t.{name} = {value}" for name, value in changes.items())
        return f"UPDATE {table} t JOIN {relation} ON {match} SET {sets}"

    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Rows are joined by a digest of their columns, byte by byte; NULL has one of its own.

        Staged rows may be equal: they differed in a column that is gone, or as 0.0 and -0.0 do, which MariaDB can not.
        """
        mine = _digest([(f"m.{self._naming.quote(column.name)}", column.type) for column in schema.columns])
        staged = _digest([(relation.values[column.name], column.type) for column in schema.columns])
        if session.execute(f"SELECT 1 FROM {relation.sql} WHERE {staged} IS NULL LIMIT 1"):
            raise SinkRejected(
                f"a row that was deleted in {schema.table} can not be told from others: it has no digest"
            )
        ranked = (
            "SELECT m.place, r.copies, ROW_NUMBER() OVER (PARTITION BY r.digest ORDER BY m.place) AS number"
            f" FROM (SELECT {staged} AS digest, SUM({relation.values[COPIES]}) AS copies FROM {relation.sql}"
            " GROUP BY digest) r"
            f" JOIN (SELECT m.{ROW} AS place, {mine} AS digest FROM {table} m) m ON m.digest = r.digest"
        )
        gone = f"SELECT place FROM ({ranked}) n WHERE number <= copies"
        return f"DELETE t FROM {table} t JOIN ({gone}) g ON t.{ROW} = g.place"

    def exchange(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """InnoDB writes nothing where a row is set to the bytes that it has."""
        selected = ", ".join(f"{STAGED}.{name}" for name in names)
        others = {name: f"{STAGED}.{name}" for name in names if name not in key}
        return [
            _delete_absent(table, copy, key),
            self.insert(table, ", ".join(names), f"SELECT {selected} FROM {copy} {STAGED}", key, others),
        ]

    def restate(self, table: str, copy: str, key: Mapping[str, ColumnType]) -> list[str]:
        """Keys in a collation of the source's may be equal and differ in case."""
        forms = {
            name: f"{STAGED}.{name}"
            for name, type_ in key.items()
            if "COLLATE" in (native.kept(type_, self._flavor) or "")
        }
        differs = " OR ".join(f"CAST(t.{name} AS BINARY) <> CAST({value} AS BINARY)" for name, value in forms.items())
        match = f"{_same_key(list(key))} AND ({differs})"
        return [self.update(table, f"{copy} {STAGED}", match, forms)] if forms else []

    def exchange_by_key(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        match = _same_key(key)
        selected = ", ".join(f"{STAGED}.{name}" for name in names)
        others = {name: f"{STAGED}.{name}" for name in names if name not in key}
        new = f"SELECT {selected} FROM {copy} {STAGED} LEFT JOIN {table} t ON {match} WHERE t.{key[0]} IS NULL"
        return [
            _delete_absent(table, copy, key),
            *([self.update(table, f"{copy} {STAGED}", match, others)] if others else []),
            self.insert(table, ", ".join(names), new, [], {}),
        ]


def _same_key(key: Sequence[str]) -> str:
    return matching({name: f"{STAGED}.{name}" for name in key})


def _delete_absent(table: str, copy: str, key: Sequence[str]) -> str:
    absent = f"{STAGED}.{key[0]} IS NULL"
    return f"DELETE t FROM {table} t LEFT JOIN {copy} {STAGED} ON {_same_key(key)} WHERE {absent}"


def _digest(columns: Sequence[tuple[str, ColumnType]]) -> str:
    """SHA-256 over those of all values, each by itself: together they may be larger than the server allows a text."""
    parts = []
    for value, type_ in columns:
        text = f"CAST({value} AS DOUBLE)" if type_.kind is Kind.FLOAT32 else value
        parts.append(f"IF({value} IS NULL, 'N', SHA2({text}, 256))")
    return f"SHA2(CONCAT({', '.join(parts)}), 256)"
