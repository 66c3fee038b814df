"""Staging for SQLite: each task fills a database file of its own, the driver attaches it and merges in C.

Files are written through ADBC, which binds Arrow columns without a Python object a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

from tailrace.sinks.sql.sqlite.types import staged_names
from tailrace.sinks.sql.staged import StagedColumn

_PRAGMAS = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-4096")


class SqliteStagingFile:
    """A scratch database: no journal, no sync, because a crash discards it whole. Made when the first rows come."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._count = 0
        self._connection: adbc.Connection | None = None

    def load(self, columns: Sequence[StagedColumn], payload: Iterable[pa.RecordBatch]) -> str:
        """Returns the table's name in a session that has attached the file as `name`."""
        if self._connection is None:
            self._open()
        self._count += 1
        table = f"s{self._count}"
        self._cursor.execute(f"CREATE TABLE {table} ({', '.join(staged_names(columns))})")
        for batch in payload:
            self._cursor.adbc_ingest(table, batch, mode="append")
            del batch  # it may be large, and the next one is yet to be made
        return f"{self._name}.{table}"

    def close(self) -> None:
        if self._connection is not None:
            self._cursor.close()
            self._connection.close()

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = adbc.connect(str(self._path), autocommit=True)
        self._cursor = self._connection.cursor()
        for pragma in _PRAGMAS:
            self._cursor.execute(f"PRAGMA {pragma}")
            self._cursor.fetchall()
