"""SQLite as a sink: one file, one writer, WAL mode; readers see whole source transactions only.

Tasks stage into scratch databases; the driver attaches them and merges everything, with table statuses and the
watermark, in one transaction. `synchronous=FULL`: what was committed survives a power cut, because the source is told
to forget it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote as quote_path

import msgspec
import pyarrow as pa

from tailrace import config, failpoints
from tailrace.errors import SinkError, SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import TableStatus
from tailrace.model.net import NetChanges
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Batch, ChunkMark, FetchRows, SinkState
from tailrace.sinks.sql.naming import check_collisions, flat_name
from tailrace.sinks.sql.sqlite_merge import absent_keys, apply_partial, merge, quote, upsert
from tailrace.sinks.sql.sqlite_staging import StagedChanges, StagedPart, StagedPartial, StagingFile, stage
from tailrace.sinks.sql.sqlite_values import declared_type, has_nan, stored

BUSY_SECONDS = 10  # then the supervisor says so, and tries again
LOAD_BUSY_SECONDS = 60  # of a task, which waits for the chunks that other tasks load
MAX_PARTS = 8  # SQLite attaches ten databases at the most
READ_ROWS = 20_000
OURS = "_tailrace_"  # how the names of our own tables begin
_RETRIED = ("locked", "busy", "full", "disk i/o")

_STATE = """
CREATE TABLE IF NOT EXISTS _tailrace_watermarks (
    pipeline TEXT PRIMARY KEY, log_id TEXT NOT NULL, "offset" INTEGER NOT NULL, position TEXT NOT NULL,
    committed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS _tailrace_tables (
    pipeline TEXT, name TEXT, status TEXT NOT NULL, PRIMARY KEY (pipeline, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS _tailrace_chunks (
    pipeline TEXT, name TEXT, generation INTEGER, number INTEGER, chunk TEXT NOT NULL, is_loaded INTEGER NOT NULL,
    rows INTEGER NOT NULL, PRIMARY KEY (pipeline, name, generation, number)
) WITHOUT ROWID;
"""


class SqliteSink:
    """Picklable: the connection is made where it is used, one a process."""

    max_parts = MAX_PARTS

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.settings = pipeline.sinks[name]
        self.name = name
        self.pipeline = pipeline.name
        self.path = str(config.sqlite_path(self.settings.url))
        self.scratch = Path(pipeline.state) / "staged" / name
        self._connection: sqlite3.Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None}

    def check(self) -> None:
        """Changes nothing: a file that is not there yet is made by the first commit."""
        self._check_folder()
        if Path(self.path).exists():
            with self._errors("opening it"), closing(self._connect("rw")) as connection:
                connection.execute("PRAGMA schema_version").fetchone()

    def read_state(self) -> SinkState:
        with self._errors("reading its state"):
            if not self._has_state():
                return SinkState(None, {}, {})
            connection = self._open()
            row = connection.execute(
                'SELECT log_id, "offset", position FROM _tailrace_watermarks WHERE pipeline = ?', [self.pipeline]
            ).fetchone()
            statuses = [status for (status,) in self._rows("SELECT status FROM _tailrace_tables WHERE pipeline = ?")]
            tables = [msgspec.json.decode(status, type=TableStatus) for status in statuses]
            chunks: dict[str, list[ChunkMark]] = {}
            query = "SELECT name, generation, number, chunk, is_loaded, rows FROM _tailrace_chunks WHERE pipeline = ?"
            for table, generation, number, chunk, is_loaded, rows in self._rows(query + " ORDER BY name, number"):
                mark = ChunkMark(table, generation, number, msgspec.json.decode(chunk), bool(is_loaded), rows)
                chunks.setdefault(table, []).append(mark)
            return SinkState(Watermark(*row) if row else None, {t.table: t for t in tables}, chunks)

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> StagedPart:
        return stage(self.scratch / batch, part, changes)

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        connection = self._open()
        with self._errors("committing a batch"):
            names = [self._attach(f"part{number}", part.path) for number, part in enumerate(batch.parts)]
            try:
                connection.execute("BEGIN IMMEDIATE")
                if self._is_committed(batch):
                    connection.execute("ROLLBACK")
                    return 0
                touched = sum(
                    self._apply(name, changes, fetch)
                    for name, part in zip(names, batch.parts, strict=True)
                    for changes in part.changes
                )
                for status in batch.tables:
                    self._write_status(status)
                if batch.watermark is not None:
                    self._write_watermark(batch.watermark)
                failpoints.reached("sink-before-commit")
                connection.execute("COMMIT")
                failpoints.reached("sink-committed")
                return touched
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                for name, part in zip(names, batch.parts, strict=True):
                    connection.execute(f"DETACH {name}")
                    Path(part.path).unlink(missing_ok=True)

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> None:
        connection = self._open()
        with self._errors(f"preparing the table {status.table}"), self._transaction():
            self._check_names(status)
            if clear:
                connection.execute(f"DROP TABLE IF EXISTS {self._target(status.schema)}")
            self._ensure_table(status.schema)
            connection.execute(
                "DELETE FROM _tailrace_chunks WHERE pipeline = ? AND name = ?", [self.pipeline, status.table]
            )
            for mark in chunks:
                self._write_mark(mark)
            self._write_status(status)

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[pa.RecordBatch]) -> int:
        path = self.scratch / "chunks" / f"{uuid.uuid4().hex}.db"
        file = StagingFile(path)
        try:
            rows = file.write(schema, batches)
        finally:
            file.close()
        failpoints.reached("chunk-before-load")
        with self._errors(f"loading {schema.table}"):
            connection = self._open()
            connection.execute(f"PRAGMA busy_timeout = {LOAD_BUSY_SECONDS * 1000}")
            name = self._attach("chunk", str(path))
            try:
                with self._transaction():
                    if self._is_loaded(mark):
                        return 0
                    if rows.rows:
                        connection.execute(upsert(self._target(schema), name, schema, rows))
                    self._write_mark(msgspec.structs.replace(mark, is_loaded=True, rows=rows.rows))
                failpoints.reached("chunk-loaded")
                return rows.rows
            finally:
                connection.execute(f"DETACH {name}")
                path.unlink(missing_ok=True)

    def finish_snapshot(self, schema: TableSchema) -> None:
        """Nothing: a table is its key's index."""

    def clean(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        columns = ", ".join(quote(column.name) for column in schema.columns)
        with self._errors(f"reading {schema.table}"):
            cursor = self._open().execute(f"SELECT {columns} FROM {self._target(schema)}")
            while rows := cursor.fetchmany(READ_ROWS):
                yield rows

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        arrays = [stored(column, c.type) for column, c in zip(batch.columns, schema.columns, strict=True)]
        lists = [_without_nan(array) if has_nan(array) else array.to_pylist() for array in arrays]
        return list(zip(*lists, strict=True))

    def forget(self) -> None:
        with self._errors("forgetting the pipeline"), self._transaction():
            for table in ("_tailrace_watermarks", "_tailrace_tables", "_tailrace_chunks"):
                self._open().execute(f"DELETE FROM {table} WHERE pipeline = ?", [self.pipeline])
        self.clean()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        """The connection of this process, the file and our tables in it made if they are missing."""
        if self._connection is None:
            self._check_folder()
            with self._errors("opening it"):
                connection = self._connect("rwc")
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("PRAGMA cache_size=-65536")
                connection.executescript(_STATE)
            self._connection = connection
        return self._connection

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"file:{quote_path(self.path)}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _check_folder(self) -> None:
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise SinkRejected(
                f"sink {self.name}: the folder {folder} of the SQLite file does not exist", hint=f"mkdir -p {folder}"
            )
        if not os.access(folder, os.W_OK):
            raise SinkRejected(f"sink {self.name}: the folder {folder} of the SQLite file cannot be written")

    def _has_state(self) -> bool:
        if self._connection is not None:
            return True
        if not Path(self.path).exists():
            return False
        with closing(self._connect("ro")) as connection:
            found = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE name LIKE '\\_tailrace\\_%' ESCAPE '\\'"
            )
            return int(found.fetchone()[0]) >= 3

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error, doing) from error

    def _explain(self, error: sqlite3.Error, doing: str) -> SinkError:
        kind = SinkUnavailable if any(word in str(error).lower() for word in _RETRIED) else SinkRejected
        return kind(f"sink {self.name}: SQLite file {self.path} refused {doing}: {error}")

    def _rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        yield from self._open().execute(query, [self.pipeline])

    def _attach(self, name: str, path: str) -> str:
        with suppress(sqlite3.OperationalError):
            self._open().execute(f"DETACH {name}")
        self._open().execute(f"ATTACH ? AS {name}", [path])
        return name

    def _target(self, schema: TableSchema) -> str:
        name = flat_name(schema.schema, schema.name, self.settings.schemas)
        if name.lower().startswith(OURS):
            raise SinkRejected(
                f"sink {self.name}: table {schema.table} would be {name}, a name that tailrace keeps for itself",
                hint="exclude the table in source.tables, or rename its schema under sinks.<name>.schemas",
            )
        return quote(name)

    def _check_names(self, status: TableStatus) -> None:
        others = [t.schema for t in self.read_state().tables.values() if t.table != status.table]
        check_collisions((s.table, self._target(s)) for s in [*others, status.schema])

    def _ensure_table(self, schema: TableSchema) -> None:
        """Create the table, or add the columns it lacks."""
        connection, target = self._open(), self._target(schema)
        existing = {row[1].lower() for row in connection.execute(f"PRAGMA main.table_info({target})")}
        if not existing:
            connection.execute(create_table(target, schema))
            return
        for column in schema.columns:
            if column.name.lower() not in existing:
                connection.execute(f"ALTER TABLE {target} ADD COLUMN {quote(column.name)} {declared_type(column.type)}")

    def _apply(self, origin: str, changes: StagedChanges, fetch: FetchRows) -> int:
        connection, target = self._open(), self._target(changes.schema)
        self._ensure_table(changes.schema)
        merge(connection, target, origin, changes)
        for partial in changes.partials:
            self._apply_partial(origin, changes.schema, partial, fetch)
        return changes.count

    def _apply_partial(self, origin: str, schema: TableSchema, partial: StagedPartial, fetch: FetchRows) -> None:
        """A partial row that the table lacks is read from the source; if it is gone there, its delete follows."""
        connection, target = self._open(), self._target(schema)
        absent = connection.execute(absent_keys(target, origin, schema, partial)).fetchall()
        for statement in apply_partial(target, origin, schema, partial):
            connection.execute(statement)
        if absent:
            keys = {name: _as_text(values) for name, values in zip(schema.key, zip(*absent, strict=True), strict=True)}
            self._insert_rows(schema, fetch(schema, pa.RecordBatch.from_pydict(keys)))

    def _insert_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        names = [column.name for column in schema.columns]
        marks = ", ".join("?" for _ in names)
        columns = ", ".join(quote(name) for name in names)
        statement = f"INSERT OR REPLACE INTO {self._target(schema)} ({columns}) VALUES ({marks})"
        self._open().executemany(statement, self.expected_rows(schema, rows))

    def _is_committed(self, batch: Batch) -> bool:
        state = self.read_state()
        if batch.watermark is not None:
            return _covers(state.watermark, batch.watermark)
        stored = [state.tables.get(status.table) for status in batch.tables]
        return bool(stored) and all(
            old is not None and old.state == new.state and _covers(old.watermark, new.watermark)
            for old, new in zip(stored, batch.tables, strict=True)
        )

    def _is_loaded(self, mark: ChunkMark) -> bool:
        row = (
            self._open()
            .execute(
                "SELECT is_loaded FROM _tailrace_chunks"
                " WHERE pipeline = ? AND name = ? AND generation = ? AND number = ?",
                [self.pipeline, mark.table, mark.generation, mark.number],
            )
            .fetchone()
        )
        return row is None or bool(row[0])  # a chunk of a plan that was given up counts as done

    def _write_watermark(self, mark: Watermark) -> None:
        self._open().execute(
            'INSERT OR REPLACE INTO _tailrace_watermarks (pipeline, log_id, "offset", position) VALUES (?, ?, ?, ?)',
            [self.pipeline, mark.log_id, mark.offset, mark.position],
        )

    def _write_status(self, status: TableStatus) -> None:
        body = msgspec.json.encode(status).decode()
        self._open().execute(
            "INSERT OR REPLACE INTO _tailrace_tables VALUES (?, ?, ?)", [self.pipeline, status.table, body]
        )

    def _write_mark(self, mark: ChunkMark) -> None:
        chunk = msgspec.json.encode(mark.chunk).decode()
        self._open().execute(
            "INSERT OR REPLACE INTO _tailrace_chunks VALUES (?, ?, ?, ?, ?, ?, ?)",
            [self.pipeline, mark.table, mark.generation, mark.number, chunk, mark.is_loaded, mark.rows],
        )


def create_table(target: str, schema: TableSchema) -> str:
    """The best matching types and the primary key; an integer key is SQLite's own row id."""
    columns = {column.name: declared_type(column.type) for column in schema.columns}
    is_row_id = len(schema.key) == 1 and columns[schema.key[0]] == "INTEGER"
    lines = [
        f"{quote(name)} {declared}{' PRIMARY KEY' if is_row_id and name in schema.key else ''}"
        for name, declared in columns.items()
    ]
    if schema.key and not is_row_id:
        lines.append(f"PRIMARY KEY ({', '.join(quote(name) for name in schema.key)})")
    without = " WITHOUT ROWID" if schema.key and not is_row_id else ""
    return f"CREATE TABLE {target} ({', '.join(lines)}){without}"


def _covers(old: Watermark | None, new: Watermark) -> bool:
    return old is not None and old.log_id == new.log_id and old.offset >= new.offset


def _as_text(values: Sequence[Any]) -> pa.Array:
    """Keys for the source: it reads their text, whatever their type; bytes stay bytes."""
    return pa.array([value if isinstance(value, bytes) else str(value) for value in values])


def _without_nan(array: pa.Array) -> list[Any]:
    return ["NaN" if value != value else value for value in array.to_pylist()]
