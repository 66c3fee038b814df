"""PostgreSQL as a sink: staging by COPY, merging by one transaction a batch.

Rows travel in binary form. Tasks fill unlogged staging tables; a few rows travel in the receipt instead, and become
array parameters of the merging statements. Everything of ours lives in the schema `_tailrace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace import config
from tailrace.columns.text import to_text
from tailrace.errors import SinkRejected
from tailrace.model.rows import POSTGRES_COPY
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import (
    INSERTED_INTO,
    Dialect,
    ExistingColumn,
    ExistingTable,
    Explanation,
    Field,
    Reference,
    Session,
    Target,
    matching,
    on_conflict,
)
from tailrace.sinks.sql.postgres import read as postgres_reading
from tailrace.sinks.sql.postgres import types as postgres_types
from tailrace.sinks.sql.postgres.arrays import array_literals
from tailrace.sinks.sql.postgres.encode import array_of, copy_rows, large_row
from tailrace.sinks.sql.postgres.session import PostgresSession, explain, server_of
from tailrace.sinks.sql.sink import SqlSink
from tailrace.sinks.sql.staged import COPIES, Relation, StagedColumn

SCHEMA = "_tailrace"
OLDEST_VERSION = 12

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod),
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
    coalesce(obj_description(c.oid, 'pg_class'), ''),
    c.relpersistence = 'u' OR EXISTS (
        SELECT FROM pg_partition_tree(c.oid) k JOIN pg_class p ON p.oid = k.relid WHERE p.relpersistence = 'u')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1], i.indcollation[0:i.indnkeyatts - 1]) k (attnum, collation_id)
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
LEFT JOIN pg_collation folding ON folding.oid IN (k.collation_id, a.attcollation) AND NOT folding.collisdeterministic
WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
    AND i.indexprs IS NULL AND i.indimmediate
GROUP BY i.indexrelid HAVING count(folding.oid) = 0
"""
"""Not those that take different texts for equal, or whose columns do."""
_REFERENCES = """
SELECT r.conname::text, r.conrelid::regclass::text, r.confdeltype IN ('c', 'n', 'd')
FROM pg_constraint r JOIN pg_class c ON c.oid = r.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE r.contype = 'f' AND r.conrelid <> r.confrelid AND r.conparentid = 0 AND n.nspname = %s AND c.relname = %s
ORDER BY 3 DESC, 1
"""
_STAGING = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)
"""
_IDENTITY = """
SELECT (SELECT system_identifier::text FROM pg_control_system()), concat(datname, ' (', oid, ')')
FROM pg_database WHERE datname = current_database()
"""

_SERVER = """
SELECT current_setting('server_version_num')::int, getdatabaseencoding(), pg_is_in_recovery(),
    has_database_privilege(current_database(), 'CREATE'), current_database()
"""
_MAY_USE = """
SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s
"""
_EXACTLY = 'COLLATE pg_catalog."C"'
"""Overrules the collation that somebody gave to a column, which may be another than that of staged rows."""
_STATE_TYPES = {"name": "text", "text": "text", "integer": "bigint", "flag": "smallint", "moment": "timestamptz"}


class PostgresDialect(Dialect):
    name = "PostgreSQL"
    longest_name = 63
    folds_names = False
    ddl_is_transactional = True
    builds_keys_late = True
    load_replaces = False
    update_lock = " FOR UPDATE"

    def connect(self, url: str) -> Session:
        return PostgresSession(url)

    def server(self, url: str) -> str:
        return server_of(url)

    def identity(self, session: Session) -> tuple[str, str] | None:
        [(system, database)] = session.execute(_IDENTITY)
        return str(system), str(database)

    def check(self, session: Session, url: str, schemas: Iterable[str]) -> None:
        [(version, encoding, is_standby, may_create, database)] = session.execute(_SERVER)
        if version < OLDEST_VERSION * 10_000:
            raise SinkRejected(f"PostgreSQL {version // 10_000} is too old: {OLDEST_VERSION} is needed")
        if encoding != "UTF8":
            hint = f"CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, instead of {database}"
            raise SinkRejected(f"the database has the encoding {encoding}, which can not hold every text", hint=hint)
        if is_standby:
            raise SinkRejected("the server is a standby and takes no writes", hint="use the primary's address")
        for name in [SCHEMA, *schemas]:
            self._check_schema(session, name, may_create=may_create)

    def _check_schema(self, session: Session, name: str, *, may_create: bool) -> None:
        """It is there and takes tables, or can be made."""
        found = session.execute(_MAY_USE, [name])
        if found == [(True,)] or (may_create and not found):
            return
        [(user,)] = session.execute("SELECT current_user::text")
        schema, user = self.quote(name), self.quote(user)
        hint = f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {user}"
        raise SinkRejected(
            f"this user may not create tables in schema {name}",
            hint=hint if found else f"CREATE SCHEMA {schema} AUTHORIZATION {user}",
        )

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def length(self, name: str) -> int:
        return len(name.encode())

    def target(self, schema: TableSchema, schemas: Mapping[str, str], url: str) -> Target:
        return Target(schemas.get(schema.schema, schema.schema), schema.name)

    def own(self, name: str, url: str) -> Target:
        return Target(SCHEMA, name)

    def is_own(self, target: Target, url: str) -> bool:
        return target.schema == SCHEMA

    def declared(self, schema: TableSchema) -> dict[str, str]:
        return {column.name: postgres_types.declared(column.type) for column in schema.columns}

    def row_form(self, types: Iterable[ColumnType]) -> str:
        return POSTGRES_COPY if all(map(postgres_types.keeps_form, types)) else ""

    def fits(self, declared: str, existing: str) -> bool:
        return postgres_types.fits(declared, existing)

    def state_type(self, kind: str) -> str:
        return _STATE_TYPES[kind]

    def encode(self, fields: Sequence[Field]) -> bytes | pa.Buffer:
        return copy_rows([_sendable(field) for field in fields])

    def encode_large(self, fields: Sequence[Field]) -> Iterator[bytes | pa.Buffer]:
        return large_row([_sendable(field) for field in fields])

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        return tuple(array_of(postgres_types.sent_oid(field.type), *_sendable(field)) for field in fields)

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        types = {column.name: column.type for column in existing.columns}
        return not any(
            postgres_types.is_cast(column.type)
            or not postgres_types.has_same_form(postgres_types.declared(column.type), types[column.name])
            for column in schema.columns
        )

    def selected(self, name: str, type_: ColumnType) -> str:
        return name

    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        return postgres_reading.read_values(values, type_)

    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        return postgres_reading.expected_values(array, type_)

    def key_text(self, value: str, type_: ColumnType) -> str:
        return f"{value}::text"

    def key_is(self, name: str, type_: ColumnType) -> str:
        """The text is read as the column's own type, so that the key's index serves."""
        return f"{name} = %s"

    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        found = session.execute(_COLUMNS, [target.schema, target.name])
        if not found:
            return None
        columns = [ExistingColumn(name, type_, required) for name, type_, required, *_ in found if name is not None]
        unique = session.execute(_UNIQUE, [target.schema, target.name])
        *_, note, is_unlogged = found[0]
        risk = "unlogged" if is_unlogged else ""
        return ExistingTable(
            tuple(columns), frozenset(frozenset(names) for (names,) in unique), note, risk, "SET LOGGED"
        )

    def references(self, session: Session, target: Target) -> list[Reference]:
        return [Reference(*found) for found in session.execute(_REFERENCES, [target.schema, target.name])]

    def has_schema(self, session: Session, name: str) -> bool:
        return bool(session.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [name]))

    def staging_tables(self, session: Session, url: str, prefix: str) -> list[str]:
        found = session.execute(_STAGING, [SCHEMA, prefix])
        return [self.qualified(Target(SCHEMA, name)) for (name,) in found]

    def create_schema(self, name: str) -> str:
        return f"CREATE SCHEMA IF NOT EXISTS {self.quote(name)}"

    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        rest = f", PRIMARY KEY ({key})" if key else ""
        return [f"CREATE TABLE {table} ({', '.join(lines)}{rest})", *self.annotate(table, note)]

    def annotate(self, table: str, note: str) -> list[str]:
        text = note.replace("'", "''")
        return [f"COMMENT ON TABLE {table} IS '{text}'"]

    def literal(self, field: Field) -> str | None:
        _, array = _sendable(field)
        text = array if array.type == pa.string() else to_text(array, field.type)
        return f"{sql.Literal(text[0].as_py()).as_string(None)}::{postgres_types.declared(field.type)}"

    def can_widen(self, wanted: str, existing: str) -> bool:
        return self.fits(existing, wanted)

    def widen(self, table: str, column: str, type_: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_}"

    def move(self, target: Target, new_target: Target) -> list[str]:
        table = self.qualified(target)
        moved = self.qualified(Target(new_target.schema, target.name))
        statements = []
        if target.schema != new_target.schema:
            statements.append(f"ALTER TABLE {table} SET SCHEMA {self.quote(new_target.schema)}")
        if target.name != new_target.name:
            statements.append(f"ALTER TABLE {moved} RENAME TO {self.quote(new_target.name)}")
        return statements

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        drop = [f"DROP TABLE {self.qualified(target)}"] if has_table else []
        return [*drop, *self.move(copy, target)]

    def create_staging(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        lines = ", ".join(f"c{place} {postgres_types.sent(column.type)}" for place, column in enumerate(columns))
        return f"CREATE UNLOGGED TABLE {table} ({lines}) WITH (autovacuum_enabled = off)"

    def clear(self, session: Session, table: str) -> None:
        """TRUNCATE, unless a foreign key of somebody's leads here."""
        session.execute("SAVEPOINT clearing")
        try:
            session.execute(f"TRUNCATE {table}")
        except psycopg.errors.FeatureNotSupported:
            session.execute("ROLLBACK TO SAVEPOINT clearing")
            session.execute(f"DELETE FROM {table}")
        session.execute("RELEASE SAVEPOINT clearing")

    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        statement = f"INSERT INTO {table} AS {INSERTED_INTO} ({columns}) OVERRIDING SYSTEM VALUE {query}"
        return f"{statement} {on_conflict(key, others)}" if key else statement

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
        forms = {name: f"s.{name}" for name, type_ in key.items() if postgres_types.has_forms(type_)}
        match = matching({name: f"s.{name}" for name in key}, _other_bytes(forms))
        return [self.update(table, f"{copy} s", match, forms)] if forms else []

    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        return f"DELETE FROM {table} t USING {relation} WHERE {matching(key, where)}"

    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        sets = ", ".join(f"{name} = {value}" for name, value in changes.items())
        return f"UPDATE {table} t SET {sets} FROM {relation} WHERE {match}"

    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Rows are joined by the text of their columns: records of texts can be hashed, and NULL equals NULL there.

        Staged rows are one of a kind, unless a column is gone in which they differed: then their copies are added up.
        """
        names = [column.name for column in schema.columns]
        mine = ", ".join(f"{self.quote(name)}::text {_EXACTLY}" for name in names)
        staged = ", ".join(f"({relation.values[name]})::text {_EXACTLY}" for name in names)
        is_distinct = relation.values.keys() == {*names, COPIES}
        copies = relation.values[COPIES] if is_distinct else f"sum({relation.values[COPIES]})"
        grouped = "" if is_distinct else " GROUP BY 1"
        ranked = (
            "SELECT t.file, t.place, s.copies, row_number() OVER (PARTITION BY s.content) AS number"
            f" FROM (SELECT ROW({staged}) AS content, {copies} AS copies FROM {relation.sql}{grouped}) s"
            f" JOIN (SELECT tableoid AS file, ctid AS place, ROW({mine}) AS content FROM {table}) t"
            " ON t.content = s.content"
        )
        gone = f"SELECT file, place FROM ({ranked}) r WHERE number <= copies"
        return f"DELETE FROM {table} WHERE (tableoid, ctid) IN ({gone})"


def _other_bytes(names: Iterable[str]) -> str:
    """The condition that a row of the table, called `t`, and one of its copy, called `s`, are not the same."""
    mine, theirs = (f"ROW({', '.join(f'{one}.{name}' for name in names)})::record" for one in "ts")
    return f"{mine} OPERATOR(pg_catalog.*<>) {theirs}"


def _sendable(field: Field) -> tuple[ColumnType, pa.Array]:
    """What has no binary form of ours goes as PostgreSQL's own text."""
    if field.type.element is not None:
        return postgres_types.TEXT, array_literals(field.array, field.type)
    return field.type, field.array


class PostgresSink(SqlSink):
    """`postgresql://…` as a sink."""

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        super().__init__(PostgresDialect(), pipeline, name)
