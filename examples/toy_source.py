"""A source of your own: a SQLite database whose application keeps an outbox, `outbox:////folder/shop.db`.

    CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, at_us INTEGER NOT NULL, changes TEXT NOT NULL)

Whoever changes rows adds one row to the outbox in the same transaction. Its `changes` are a JSON list of what happened,
each `["insert" | "update" | "delete", table, row]`, and the old key behind it where an update changes that. SQLite has
one writer at a time, so the ids are in the order of commits: they are the source's positions.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from tailrace import config
from tailrace.errors import SourceRefused, SourceUnavailable
from tailrace.model.changes import Changes, Op
from tailrace.model.chunk import Chunk
from tailrace.model.frames import Frames
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import ExportedSnapshot
from tailrace.sources.simple import SimpleSource
from tailrace.sources.transactions import RowChange, Transaction, decode_each, rows_of

SCHEMA, AT_ONCE = "main", 1000
KINDS = {"INTEGER": Kind.INT64, "TEXT": Kind.TEXT, "REAL": Kind.FLOAT64}


class OutboxSettings(config.Settings, frozen=True):  # of its own in the pipeline file, beside url and tables
    outbox: Annotated[str, Meta(pattern="^[a-z_]+$", description="name of the outbox: a-z and _")] = "outbox"


class OutboxSource(SimpleSource):
    settings_type = OutboxSettings

    def __init__(self, pipeline: config.Pipeline) -> None:
        super().__init__(pipeline)
        self.outbox = pipeline.source_settings(OutboxSettings).outbox
        self.path = Path(pipeline.source.url.partition("://")[2])

    def identify(self) -> SourceIdentity:
        """A file that was put in its place, from a backup perhaps, has another number."""
        with opened(self.path):
            return SourceIdentity(str(self.path.stat().st_ino), "", str(self.path), "")

    def tables(self) -> list[TableSchema]:
        with opened(self.path) as database:
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name != ?"
            names = [name for (name,) in database.execute(query, [self.outbox]) if self.patterns.matches(SCHEMA, name)]
            return [table_schema(database, name) for name in names]

    def oldest_position(self) -> int:
        with opened(self.path) as database:
            ((first,),) = database.execute(f"SELECT min(id) FROM {self.outbox}")
            return last_id(database, self.outbox) if first is None else int(first) - 1

    def current_position(self) -> str:
        with opened(self.path) as database:
            return str(last_id(database, self.outbox))

    def transactions_after(self, position: int) -> list[Transaction]:
        query = f"SELECT id, at_us, changes FROM {self.outbox} WHERE id > ? ORDER BY id LIMIT {AT_ONCE}"
        with opened(self.path) as database:
            rows = database.execute(query, [position]).fetchall()
        return [
            Transaction(number, at_us, changes.encode(), [f"{SCHEMA}.{table}" for _, table, *_ in json.loads(changes)])
            for number, at_us, changes in rows
        ]

    @staticmethod
    def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        return decode_each(frames, first, last, tables, changes_in)

    @contextmanager
    def export_snapshot(self) -> Iterator[ExportedSnapshot]:
        """SQLite's views are of one connection each, so many tasks read from a copy of the file."""
        with tempfile.TemporaryDirectory(prefix="outbox-") as folder:
            copy = Path(folder) / "snapshot.db"
            with opened(self.path) as database:
                database.execute("VACUUM INTO ?", [str(copy)])
            with opened(copy) as database:
                position = str(last_id(database, self.outbox))
            yield ExportedSnapshot(id=str(copy), visibility=position, position=position)

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "") -> Iterator[pa.RecordBatch]:
        with opened(Path(snapshot)) as database:
            rows = database.execute(f"SELECT {listed(table)} FROM {quoted(table.name)}")
            while found := rows.fetchmany(AT_ONCE):
                yield rows_of(table, named(table, found))

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        condition = " AND ".join(f"{quoted(name)} = ?" for name in table.key)
        query = f"SELECT {listed(table)} FROM {quoted(table.name)} WHERE {condition}"
        with opened(self.path) as database:
            found = [row for key in keys.to_pylist() for row in database.execute(query, list(key.values()))]
        return rows_of(table, named(table, found))


def changes_in(message: bytes) -> Iterator[RowChange]:
    for op, table, row, *before in json.loads(message):
        yield RowChange(f"{SCHEMA}.{table}", Op[op.upper()], row, *before)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise SourceUnavailable(f"{path} can not be read: {error}") from error


def table_schema(database: sqlite3.Connection, table: str) -> TableSchema:
    found = database.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    for _, name, type_, *_ in found:
        if type_ not in KINDS:
            raise SourceRefused(f"{table}.{name} is {type_ or 'of no type'}", hint=f"use {', '.join(KINDS)}")
    columns = [Column(name, ColumnType(KINDS[type_], type_), number + 1) for number, name, type_, *_ in found]
    key = [name for place, name in sorted((row[5], row[1]) for row in found) if place]
    return TableSchema(SCHEMA, table, tuple(columns), tuple(key), relation=zlib.crc32(table.encode()))


def last_id(database: sqlite3.Connection, outbox: str) -> int:
    """Also of an outbox that was emptied."""
    found = database.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", [outbox]).fetchone()
    return int(found[0]) if found else 0


def named(table: TableSchema, rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(table.arrow.names, row, strict=True)) for row in rows]


def listed(table: TableSchema) -> str:
    return ", ".join(quoted(column.name) for column in table.columns)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
