"""MySQL and MariaDB as sinks: staging by LOAD DATA LOCAL, merging by one transaction a batch.

DDL is not transactional here. It comes before the transaction, and every statement of it can be repeated. Our own
tables lie beside the user's, their names beginning with `_tailrace_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql

from tailrace import config
from tailrace.columns.text import to_text
from tailrace.errors import ConfigError, SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import (
    Dialect,
    ExistingColumn,
    ExistingTable,
    Explanation,
    Field,
    Reference,
    Session,
    Target,
    matching,
)
from tailrace.sinks.sql.mysql import encode as mysql_text
from tailrace.sinks.sql.mysql import read as mysql_reading
from tailrace.sinks.sql.mysql import types as mysql_types
from tailrace.sinks.sql.mysql.session import MySqlSession, database_of, explain, server_of
from tailrace.sinks.sql.mysql.types import NUMBERED, ROW, STAGED
from tailrace.sinks.sql.naming import flat_name
from tailrace.sinks.sql.sink import SqlSink
from tailrace.sinks.sql.staged import COPIES, Relation, StagedColumn

OURS = "_tailrace_"

_COLUMNS = """
SELECT c.column_name, c.column_type, c.character_set_name, c.collation_name,
    c.is_nullable = 'NO' AND c.column_default IS NULL AND c.extra NOT LIKE '%%auto_increment%%'
        AND c.extra NOT LIKE '%%GENERATED%%',
    t.table_comment, t.engine, e.transactions = 'YES'
FROM information_schema.tables t
LEFT JOIN information_schema.engines e ON e.engine = t.engine
JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
WHERE t.table_schema = %s AND t.table_name = %s AND t.table_type = 'BASE TABLE' ORDER BY c.ordinal_position
"""
_UNIQUE = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0
"""
_REFERENCES = """
SELECT constraint_name, table_name, delete_rule NOT IN ('NO ACTION', 'RESTRICT')
FROM information_schema.referential_constraints
WHERE unique_constraint_schema = %s AND referenced_table_name = %s
    AND (constraint_schema <> unique_constraint_schema OR table_name <> referenced_table_name)
ORDER BY 3 DESC, 1
"""
_STAGING = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s"
_STATE_TYPES = {
    "name": "varchar(255)",
    "text": "longtext",
    "integer": "bigint",
    "flag": "smallint",
    "moment": "datetime(6)",
}


class MySqlDialect(Dialect):
    """MySQL; a flavour says in what MariaDB differs."""

    name = "MySQL"
    collation = "utf8mb4_0900_bin"  # binary, and without padding
    oldest = (8, 0, 23)
    has_negative_zero = True
    longest_name = 64
    folds_names = True
    ddl_is_transactional = False
    load_replaces = True
    share_lock = " LOCK IN SHARE MODE"
    update_lock = " FOR UPDATE"

    def connect(self, url: str) -> Session:
        return MySqlSession(url, self.collation)

    def server(self, url: str) -> str:
        return server_of(url)

    def check(self, session: Session, url: str, schemas: Iterable[str]) -> None:
        query = "SELECT VERSION(), @@local_infile, @@read_only, @@innodb_page_size"
        [(version, local_infile, is_read_only, _)] = session.execute(query)
        if ("mariadb" in version.lower()) != (self.name == "MariaDB"):
            other = "mariadb" if self.name == "MySQL" else "mysql"
            raise SinkRejected(f"the server is {version}, not {self.name}", hint=f"begin its URL with {other}://")
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        if numbers < self.oldest:
            needed = ".".join(map(str, self.oldest))
            raise SinkRejected(f"{self.name} {version} is too old: {needed} is needed")
        if not int(local_infile):
            raise SinkRejected("the server does not take LOAD DATA LOCAL", hint="SET GLOBAL local_infile = 1")
        if str(is_read_only).upper() in ("1", "ON"):
            raise SinkRejected("the server is read-only", hint="use the primary's address")

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def length(self, name: str) -> int:
        return len(name)

    def target(self, schema: TableSchema, schemas: Mapping[str, str], url: str) -> Target:
        """A schema with a name under `schemas` is that database; others share the URL's, `public` without a prefix."""
        if schema.schema in schemas:
            return Target(schemas[schema.schema], schema.name)
        return Target(database_of(url), flat_name(schema.schema, schema.name, {}))

    def own(self, name: str, url: str) -> Target:
        return Target(database_of(url), OURS + name)

    def is_own(self, target: Target, url: str) -> bool:
        return target.name.lower().startswith(OURS)

    def declared(self, schema: TableSchema) -> dict[str, str]:
        return mysql_types.declared(schema, self.collation)

    def fits(self, declared: str, existing: str) -> bool:
        return mysql_types.fits(declared, existing)

    def is_exact_key(self, existing: str) -> bool:
        return mysql_types.is_exact_key(existing)

    def state_type(self, kind: str) -> str:
        return mysql_types.collated(_STATE_TYPES[kind], self.collation)

    def has_misfits(self, type_: ColumnType) -> bool:
        return mysql_text.has_misfits(type_)

    def misfits(self, field: Field) -> tuple[npt.NDArray[np.bool_], str] | None:
        return mysql_text.misfits(field)

    def encode(self, fields: Sequence[Field]) -> bytes | pa.Buffer:
        return mysql_text.rows_text(fields)

    def encode_large(self, fields: Sequence[Field]) -> Iterator[bytes]:
        return mysql_text.large_row_text(fields)

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        return (bytes(mysql_text.rows_text(fields)),)

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        return self.is_single_key(existing, schema)

    def is_single_key(self, existing: ExistingTable, schema: TableSchema) -> bool:
        """REPLACE and ON DUPLICATE KEY take any unique index for the key."""
        key = {name.lower() for name in schema.key}
        return all({name.lower() for name in names} in (key, {ROW}) for names in existing.unique)

    def selected(self, name: str, type_: ColumnType) -> str:
        return mysql_reading.selected(name, type_)

    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        return mysql_reading.read_values(values, type_)

    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        return mysql_reading.expected_values(array, type_, has_negative_zero=self.has_negative_zero)

    def key_text(self, value: str, type_: ColumnType) -> str:
        return mysql_reading.key_text(value, type_)

    def key_is(self, name: str, type_: ColumnType) -> str:
        return mysql_reading.key_is(name, type_)

    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        found = session.execute(_COLUMNS, [target.schema, target.name])
        if not found:
            return None
        columns = [
            ExistingColumn(name, _with_collation(type_, charset, collation), bool(required))
            for name, type_, charset, collation, required, *_ in found
        ]
        unique: dict[str, set[str]] = {}
        for index, column, part in session.execute(_UNIQUE, [target.schema, target.name]):
            unique.setdefault(index, set()).add(column if part is None and column else f"{column}\0{part}")
        *_, note, engine, is_transactional = found[0]
        risk = "" if is_transactional else f"of the engine {engine}, which has no transactions"
        # what is unique and no column, a part of one or an expression, has a NUL in its name
        names = frozenset(frozenset(names) for names in unique.values())
        return ExistingTable(tuple(columns), names, note, risk, "ENGINE = InnoDB")

    def references(self, session: Session, target: Target) -> list[Reference]:
        found = session.execute(_REFERENCES, [target.schema, target.name])
        return [Reference(name, table, bool(has_action)) for name, table, has_action in found]

    def has_schema(self, session: Session, name: str) -> bool:
        return bool(session.execute("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", [name]))

    def staging_tables(self, session: Session, url: str, prefix: str) -> list[str]:
        start = OURS + prefix
        found = session.execute(_STAGING, [database_of(url), len(start), start])
        return [self.qualified(Target(database_of(url), name)) for (name,) in found]

    def create_schema(self, name: str) -> str:
        return f"CREATE DATABASE IF NOT EXISTS {self.quote(name)} CHARACTER SET utf8mb4"

    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        body = ", ".join([*lines, f"PRIMARY KEY ({key})"] if key else lines)
        options = f"ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {self.collation}"
        return [f"CREATE TABLE IF NOT EXISTS {table} ({body}) {options} COMMENT = {_literal(note)}"]

    def hidden_columns(self, schema: TableSchema) -> dict[str, str]:
        return {} if schema.key else {ROW: NUMBERED}

    def annotate(self, table: str, note: str) -> list[str]:
        return [f"ALTER TABLE {table} COMMENT = {_literal(note)}"]

    def literal(self, field: Field) -> str | None:
        """In parentheses: a long text takes its default as an expression only."""
        if field.type.kind in _NUMBERS:
            return str(to_text(field.array, field.type)[0].as_py()) if self.misfits(field) is None else None
        if field.type.kind is Kind.BOOLEAN:
            return str(int(field.array[0].as_py()))
        return f"({_literal(field.array[0].as_py())})" if field.type.kind in _TEXTS else None

    def can_widen(self, wanted: str, existing: str) -> bool:
        return mysql_types.fits(existing, wanted)

    def widen(self, table: str, column: str, type_: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {type_}"

    def move(self, target: Target, new_target: Target) -> list[str]:
        return [f"RENAME TABLE {self.qualified(target)} TO {self.qualified(new_target)}"]

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """In one step for readers. What is left of a try that was broken off goes first."""
        if not has_table:
            return self.move(copy, target)
        old = self.qualified(self.replaced(copy))
        moves = f"{self.qualified(target)} TO {old}, {self.qualified(copy)} TO {self.qualified(target)}"
        return [f"DROP TABLE IF EXISTS {old}", f"RENAME TABLE {moves}"]

    def replaced(self, copy: Target) -> Target:
        return Target(copy.schema, f"{copy.name}_old")

    def create_staging(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        return mysql_types.create_staging(table, columns, self.collation, is_private=is_private)

    def drop_staged(self, session: Session, name: str, *, is_private: bool = False) -> None:
        session.execute(f"DROP {'TEMPORARY TABLE' if is_private else 'TABLE'} IF EXISTS {name}")

    def clear(self, session: Session, table: str) -> None:
        """TRUNCATE, unless a foreign key of somebody's leads here."""
        try:
            session.execute(f"TRUNCATE TABLE {table}")
        except pymysql.MySQLError as error:
            if error.args[0] != _REFERENCED:
                raise
            session.execute(f"DELETE FROM {table}")

    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        statement = f"INSERT INTO {table} ({columns}) {query}"
        if not key:
            return statement
        changes = ", ".join(f"{name} = {value}" for name, value in others.items())
        return f"{statement} ON DUPLICATE KEY UPDATE {changes or f'{key[0]} = {table}.{key[0]}'}"

    def exchange(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """InnoDB writes nothing where a row is set to the bytes that it has."""
        selected = ", ".join(f"{STAGED}.{name}" for name in names)
        others = {name: f"{STAGED}.{name}" for name in names if name not in key}
        return [
            _delete_absent(table, copy, key),
            self.insert(table, ", ".join(names), f"SELECT {selected} FROM {copy} {STAGED}", key, others),
        ]

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

    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        return f"DELETE t FROM {table} t JOIN {relation} ON {matching(key, where)}"

    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        sets = ", ".join(f"t.{name} = {value}" for name, value in changes.items())
        return f"UPDATE {table} t JOIN {relation} ON {match} SET {sets}"

    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Rows are joined by a digest of their columns, byte by byte; NULL has one of its own.

        Staged rows may be equal: they differed in a column that is gone, or as 0.0 and -0.0 do, which MariaDB can not.
        """
        mine = _digest([(f"m.{self.quote(column.name)}", column.type) for column in schema.columns])
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


_REFERENCED = 1701
_NUMBERS = (Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.NUMERIC)
_TEXTS = (Kind.TEXT, Kind.ENUM, Kind.UUID, Kind.JSON, Kind.OTHER)


class MariaDbDialect(MySqlDialect):
    name = "MariaDB"
    collation = "utf8mb4_nopad_bin"
    oldest = (10, 5, 0)
    has_negative_zero = False  # -0.0 becomes 0.0, which is equal


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _same_key(key: Sequence[str]) -> str:
    return matching({name: f"{STAGED}.{name}" for name in key})


def _delete_absent(table: str, copy: str, key: Sequence[str]) -> str:
    absent = f"{STAGED}.{key[0]} IS NULL"
    return f"DELETE t FROM {table} t LEFT JOIN {copy} {STAGED} ON {_same_key(key)} WHERE {absent}"


def _with_collation(type_: str, charset: str | None, collation: str | None) -> str:
    return type_ if collation is None else f"{type_} CHARACTER SET {charset} COLLATE {collation}"


def _digest(columns: Sequence[tuple[str, ColumnType]]) -> str:
    """SHA-256 over those of all values, each by itself: together they may be larger than the server allows a text."""
    parts = []
    for value, type_ in columns:
        text = f"CAST({value} AS DOUBLE)" if type_.kind is Kind.FLOAT32 else value
        parts.append(f"IF({value} IS NULL, 'N', SHA2({text}, 256))")
    return f"SHA2(CONCAT({', '.join(parts)}), 256)"


class MySqlSink(SqlSink):
    """`mysql://…` as a sink."""

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        super().__init__(MySqlDialect(), _with_database(pipeline, name), name)


class MariaDbSink(SqlSink):
    """`mariadb://…` as a sink."""

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        super().__init__(MariaDbDialect(), _with_database(pipeline, name), name)


def _with_database(pipeline: config.Pipeline, name: str) -> config.Pipeline:
    url = pipeline.sinks[name].url
    if not database_of(url):
        raise ConfigError(f"sinks.{name}.url names no database", hint=f"{config.scheme(url)}://user@host:3306/database")
    return pipeline
