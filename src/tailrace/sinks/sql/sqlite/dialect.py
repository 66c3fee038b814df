"""SQLite as a sink: one file, one writer; readers see whole source transactions only.

Tasks stage into files of their own, at the same time; the driver attaches them and merges in one transaction. Our own
tables lie beside the user's, their names beginning with `_tailrace_`. A table has no comment here: one that we made
says so in the text of its CREATE TABLE, which goes with it, and for whom is a row of `_tailrace_made`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace import config
from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import (
    INSERTED_INTO,
    Dialect,
    ExistingColumn,
    ExistingTable,
    Explanation,
    Field,
    Session,
    StagingFile,
    Target,
    on_conflict,
)
from tailrace.sinks.sql.naming import flat_name
from tailrace.sinks.sql.sink import SqlSink
from tailrace.sinks.sql.sqlite import session as sqlite_session
from tailrace.sinks.sql.sqlite import types as sqlite_values
from tailrace.sinks.sql.sqlite.session import SqliteFile, SqliteSession, explain
from tailrace.sinks.sql.sqlite.staging import SqliteStagingFile
from tailrace.sinks.sql.staged import COPIES, Relation, StagedColumn

MAX_PARTS = 8  # SQLite attaches ten databases at the most
OURS = "_tailrace_"
MADE = "_tailrace_made"
MARK = "/* made by tailrace */"

_TABLE = "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = %s COLLATE NOCASE"
_COLUMNS = 'SELECT name, type, "notnull" AND dflt_value IS NULL, pk FROM pragma_table_info(%s, %s)'
_UNIQUE = """
SELECT l.name, l.origin, x.name, x.coll FROM pragma_index_list(%s, 'main') l, pragma_index_xinfo(l.name, 'main') x
WHERE l."unique" AND NOT l.partial AND x.key
"""
_STATE_TYPES = {"name": "TEXT", "text": "TEXT", "integer": "INTEGER", "flag": "INTEGER", "moment": "TEXT"}


class SqliteDialect(Dialect):
    name = "SQLite"
    longest_name = 1 << 30
    folds_names = True
    ddl_is_transactional = True
    load_replaces = False
    most_inline_bytes = 1 << 14  # a file takes 2 ms, and fills much faster

    def __init__(self, file: SqliteFile) -> None:
        self.file = file

    def connect(self, url: str) -> Session:
        return SqliteSession(self.file, sqlite_session.BUSY_SECONDS)

    def connect_in_task(self, url: str) -> Session:
        return SqliteSession(self.file, sqlite_session.LOAD_BUSY_SECONDS)

    def connect_to_read(self, url: str) -> Session:
        return SqliteSession(self.file, sqlite_session.BUSY_SECONDS, is_reading=True)

    def is_there(self, url: str) -> bool:
        return self.file.path.exists()

    def server(self, url: str) -> str:
        return str(self.file.path)

    def check(self, session: Session, url: str, schemas: Iterable[str]) -> None:
        self.file.check_folder()
        session.execute("PRAGMA schema_version")

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)

    # --- names

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def length(self, name: str) -> int:
        return len(name)

    def target(self, schema: TableSchema, schemas: Mapping[str, str], url: str) -> Target:
        return Target("", flat_name(schema.schema, schema.name, schemas))

    def own(self, name: str, url: str) -> Target:
        return Target("", OURS + name)

    def is_own(self, target: Target, url: str) -> bool:
        return target.name.lower().startswith(OURS)

    def qualified(self, target: Target) -> str:
        return self.quote(target.name)

    # --- types and values

    def declared(self, schema: TableSchema) -> dict[str, str]:
        return {column.name: sqlite_values.declared_type(column.type) for column in schema.columns}

    def fits(self, declared: str, existing: str) -> bool:
        return sqlite_values.fits(declared, existing)

    def state_type(self, kind: str) -> str:
        return _STATE_TYPES[kind]

    def encode(self, fields: Sequence[Field]) -> pa.RecordBatch:
        return sqlite_values.encoded(fields)

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        batch = self.encode(fields)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
        return (buffer.getvalue().to_pybytes(),)

    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        return False

    def selected(self, name: str, type_: ColumnType) -> str:
        return name

    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        return values

    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        return sqlite_values.expected(array, type_)

    def key_text(self, value: str, type_: ColumnType) -> str:
        """As it is: SQLite's own text of a float is not exact, the session's is."""
        return value

    def key_is(self, name: str, type_: ColumnType) -> str:
        return sqlite_values.key_is(name, type_)

    # --- the catalog

    def existing(self, session: Session, target: Target) -> ExistingTable | None:
        table = session.execute(_TABLE, [target.name])
        if not table:
            return None
        found = session.execute(_COLUMNS, [target.name, "main"])
        unique = _unique(session, target, frozenset(name for name, _, _, place in found if place))
        columns = [ExistingColumn(name, type_, bool(required)) for name, type_, required, _ in found]
        note = self._note(session, target) if MARK in table[0][0] else ""
        return ExistingTable(tuple(columns), unique, note)

    def _note(self, session: Session, target: Target) -> str:
        if not session.execute(_TABLE, [MADE]):
            return ""
        found = session.execute(f"SELECT note FROM {MADE} WHERE name = %s", [target.name])
        return str(found[0][0]) if found else ""

    def has_schema(self, session: Session, name: str) -> bool:
        return True

    def count(self, session: Session, table: str, seconds: float) -> int | None:
        assert isinstance(session, SqliteSession)
        return session.count(table, seconds)

    # --- what is staged

    def staging_file(self, name: str) -> StagingFile | None:
        return SqliteStagingFile(self.file.staged(name), name)

    def is_staged(self, session: Session, names: Sequence[str]) -> bool:
        return all(self.file.staged(name).exists() for name in names)

    def staging_tables(self, session: Session, url: str, prefix: str) -> list[str]:
        return [self.quote(path.stem) for path in self.file.scratch.glob("*.db")]

    def drop_staged(self, session: Session, name: str, *, is_private: bool = False) -> None:
        self.file.staged(name).unlink(missing_ok=True)

    # --- statements

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
            f"INSERT OR REPLACE INTO {MADE} VALUES ({_literal(_unquoted(table))}, {_literal(note)})",
        ]

    def literal(self, field: Field) -> str | None:
        return sqlite_values.literal(field.array, field.type)

    def move(self, target: Target, new_target: Target) -> list[str]:
        old, new = _literal(target.name), _literal(new_target.name)
        return [
            f"ALTER TABLE {self.qualified(target)} RENAME TO {self.qualified(new_target)}",
            f"UPDATE OR REPLACE {MADE} SET name = {new} WHERE name = {old}",
        ]

    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """By name only: SQLite would look for the table that is gone in every view of it."""
        drop = [f"DROP TABLE {self.qualified(target)}"] if has_table else []
        return [*drop, "PRAGMA legacy_alter_table = ON", *self.move(copy, target), "PRAGMA legacy_alter_table = OFF"]

    def create_staging(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        raise NotImplementedError("SQLite stages in files")

    def clear(self, session: Session, table: str) -> None:
        session.execute(f"DELETE FROM {table}")

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
        equal = " AND ".join(f"t.{self.quote(name)} IS {relation.values[name]}" for name in names)
        mine = ", ".join(f"t.{self.quote(name)} {sqlite_values.EXACTLY}" for name in names)
        ranked = (
            f"SELECT t.{row_id} AS place, sum({relation.values[COPIES]}) AS copies,"
            f" row_number() OVER (PARTITION BY {mine}) AS number"
            f" FROM {relation.sql} CROSS JOIN {table} t ON {equal} GROUP BY t.{row_id}"
        )
        return f"DELETE FROM {table} WHERE {row_id} IN (SELECT place FROM ({ranked}) WHERE number <= copies)"


def _unique(session: Session, target: Target, primary: frozenset[str]) -> frozenset[frozenset[str]]:
    """Unique indexes that tell all values apart, and the key that is the row id, which has no index.

    Not those beside which the same columns are unique by another collation: an upsert would take either for the key.
    """
    found: dict[str, set[str]] = {}
    folding, origins = set(), set()
    for index, origin, column, collation in session.execute(_UNIQUE, [target.name]):
        found.setdefault(index, set()).add(column)
        origins.add(origin)
        if collation != "BINARY" or column is None:
            folding.add(index)
    exact = {frozenset(names) for index, names in found.items() if index not in folding}
    exact -= {frozenset(found[index]) for index in folding}
    return frozenset(exact if "pk" in origins or not primary else exact | {primary})


def _row_id(session: Session, table: str, schema: TableSchema) -> str:
    """A name of the row id that no column of the table has taken."""
    taken = {column.lower() for column, *_ in session.execute(_COLUMNS, [_unquoted(table), "main"])}
    for free in ("rowid", "_rowid_", "oid"):
        if free not in taken:
            return free
    raise SinkRejected(
        f"table {schema.table} has no key, and its columns rowid, _rowid_ and oid hide SQLite's own row id",
        hint="give the table a primary key, or exclude it in source.tables",
    )


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"')


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


class SqliteSink(SqlSink):
    """`sqlite:///…` as a sink."""

    max_parts = MAX_PARTS
    is_local_only = True

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        path = config.sqlite_path(pipeline.sinks[name].url)
        file = SqliteFile(name, path, _scratch(pipeline, name, path))
        super().__init__(SqliteDialect(file), pipeline, name)


def _scratch(pipeline: config.Pipeline, name: str, path: Path) -> Path:
    """Where tasks stage: in the state folder, or beside the sink's file where that is in an object store."""
    if "://" in pipeline.state:
        return path.with_name(f".{path.name}.staged")
    return Path(pipeline.state) / "staged" / name
