"""Staging for SQLite: each task fills a database file of its own, the driver attaches it and merges in C.

Files are written through ADBC, which binds Arrow columns without a Python object a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import pyarrow as pa

from tailrace.sinks.sql.dialect import Naming, Session, Staging, StagingFile
from tailrace.sinks.sql.sqlite.file import SqliteFile
from tailrace.sinks.sql.sqlite.types import EXACTLY, FLOATS
from tailrace.sinks.sql.staged import StagedColumn

_PRAGMAS = ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-4096")


class SqliteStaging(Staging):
    most_inline_bytes = 1 << 14  # a file takes 2 ms, and fills much faster

    def __init__(self, file: SqliteFile, naming: Naming) -> None:
        self._file, self._naming = file, naming

    def file(self, name: str) -> StagingFile | None:
        return SqliteStagingFile(self._file.staged(name), name)

    def create(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        raise NotImplementedError("SQLite stages in files")

    def found(self, session: Session, prefix: str) -> list[str]:
        return [self._naming.quote(path.stem) for path in self._file.scratch.glob("*.db")]

    def has_rows(self, session: Session, names: Sequence[str]) -> bool:
        return all(self._file.staged(name).exists() for name in names)

    def drop(self, session: Session, name: str, *, is_private: bool = False) -> None:
        self._file.staged(name).unlink(missing_ok=True)


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


def staged_names(columns: Sequence[StagedColumn]) -> list[str]:
    """The columns of a staging table. They have no type, so that a value stays what it is."""
    marks = [f"n{place}" for place, column in enumerate(columns) if column.type.kind in FLOATS]
    return [f"c{place}" for place in range(len(columns))] + marks


def staged_value(place: int, column: StagedColumn) -> str:
    """SQL that gives a staged column back; what is compared with it is equal in every byte."""
    is_float = column.type.kind in FLOATS
    return f"CASE WHEN s.n{place} THEN 'NaN' ELSE s.c{place} END" if is_float else f"s.c{place} {EXACTLY}"
