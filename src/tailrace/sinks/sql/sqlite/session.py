"""One connection to a SQLite file, over Python's sqlite3.

WAL mode, so that readers see whole transactions; `synchronous=FULL`: what was committed survives a power cut, because
the source is told to forget it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote as quote_path

import adbc_driver_manager
import pyarrow as pa

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import Explanation
from tailrace.sinks.sql.sessions import in_pieces
from tailrace.sinks.sql.sqlite.file import SqliteFile
from tailrace.sinks.sql.sqlite.staging import staged_names, staged_value
from tailrace.sinks.sql.staged import Relation, StagedRows

BUSY_SECONDS = 10  # then the supervisor says so, and tries again
LOAD_BUSY_SECONDS = 60  # of a task, which waits for the chunks that other tasks load
STEPS = 10_000  # of SQLite's machine between two looks at the clock
_SETTINGS = ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "temp_store=MEMORY", "foreign_keys=OFF")
"""Foreign keys are for those who enforce them: rows of ours that go for a moment take nobody's along."""
_RETRIED = ("locked", "busy", "full", "disk i/o")


class SqliteSession:
    """Connects when it is first used, and makes the file if it is missing.

    One that only reads makes nothing: neither the file nor a `-wal` beside it; a missing file is an empty database.
    """

    def __init__(self, file: SqliteFile, busy_seconds: float, *, is_reading: bool = False) -> None:
        self._file, self._busy_seconds, self._is_reading = file, busy_seconds, is_reading
        self._attached: list[str] = []
        self._temporary: list[str] = []
        self._inode: tuple[int, int] | None = None

    @cached_property
    def connection(self) -> sqlite3.Connection:
        if self._is_reading:
            return self._connect(self._file.address_to_read())
        self._file.check_folder()
        connection = self._connect(self._file.address())
        self._inode = self._file.inode()
        try:
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self, address: str) -> sqlite3.Connection:
        return sqlite3.connect(
            address, uri=True, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if parameters:
            statement = statement.replace("%s", "?")
        return self.connection.execute(statement, parameters).fetchall()

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        """The source reads a key's text, whatever its type; bytes stay bytes."""
        rows = self.connection.execute(statement).fetchall()
        return [tuple(value if isinstance(value, bytes | None) else str(value) for value in row) for row in rows]

    def relation(self, rows: StagedRows) -> Relation:
        """The file of staged rows is attached until the transaction ends; rows from a receipt become a temporary table.

        SQLite attaches ten files at the most.
        """
        values = {column.label: staged_value(place, column) for place, column in enumerate(rows.columns)}
        if not rows.table:
            return Relation(f"{self._fill_temporary(rows)} s", values)
        name = rows.table.rpartition(".")[0]
        if name not in self._attached:
            path = quote_path(str(self._file.staged(name).absolute()))
            self.connection.execute(f"ATTACH ? AS {name}", [f"file:{path}?mode=ro&immutable=1"])
            self._attached.append(name)
        return Relation(f"{rows.table} s", values)

    def _fill_temporary(self, rows: StagedRows) -> str:
        name = f"temp._tailrace_rows_{len(self._temporary)}"
        self.connection.execute(f"CREATE TABLE {name} ({', '.join(staged_names(rows.columns))})")
        self._temporary.append(name)
        self.load(name, (), (pa.ipc.open_stream(piece).read_next_batch() for piece in rows.inline))
        return name

    def load(
        self,
        table: str,
        names: Sequence[str],
        payload: Iterable[pa.RecordBatch],
        types: Sequence[ColumnType] = (),
    ) -> None:
        """For the few rows of a receipt; the batches name their columns themselves."""
        for batch in payload:
            marks = ", ".join("?" for _ in batch.schema.names)
            statement = f"INSERT INTO {table} ({', '.join(batch.schema.names)}) VALUES ({marks})"
            columns = [column.to_pylist() for column in batch.columns]
            self.connection.executemany(statement, zip(*columns, strict=True))

    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self.connection.execute(query)
        yield from in_pieces(cursor.fetchmany)

    def count(self, table: str, seconds: float) -> int | None:
        """None if it takes longer, or the table is not there yet."""
        deadline = time.monotonic() + seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
        try:
            return int(self.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        except sqlite3.OperationalError:
            return None
        finally:
            self.connection.set_progress_handler(None, 0)

    def lock(self, name: str) -> None:
        """There is one writer at a time, whoever it is."""

    def lock_shared(self, name: str) -> None:
        """There is one writer at a time, whoever it is."""

    def take_over(self, name: str) -> None:
        """A process that holds a SQLite file can not be broken off; while it does, the file is busy, which is said."""

    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self._check_file()

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self._release()
        self._check_file()

    def _check_file(self) -> None:
        """Who opened a file goes on writing to it when it is removed, or another takes its place; nobody reads that."""
        if self._file.inode() != self._inode:
            raise SinkUnavailable(f"sink {self._file.sink}: the file {self._file.path} was replaced while it was open")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self._release()

    def _release(self) -> None:
        for name in self._temporary:
            self.connection.execute(f"DROP TABLE IF EXISTS {name}")
        for name in self._attached:
            self.connection.execute(f"DETACH {name}")
        self._temporary.clear()
        self._attached.clear()

    def close(self) -> None:
        if "connection" in self.__dict__:
            self.connection.close()


def explain(error: BaseException) -> Explanation | None:
    """What the errors of sqlite3, and of ADBC in a staging file, mean. None of them shows a value."""
    if not isinstance(error, sqlite3.Error | adbc_driver_manager.Error):
        return None
    is_passing = any(word in str(error).lower() for word in _RETRIED)
    return Explanation(
        SinkUnavailable if is_passing else SinkRejected,
        str(error),
        is_about_rows=isinstance(error, sqlite3.IntegrityError),
    )
