"""Checkpoints in a SQLite file, the user's own if he likes. Its journal mode stays as it is.

SQLite has no sessions, so a holder's lock is a file beside the database: `FILE-TABLE-NAME.lock`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.checkpoints.holders import HeldFile
from tailrace.checkpoints.sql.database import Connection, Database, Explanation
from tailrace.errors import StateError

BUSY_SECONDS = 10.0
_PASSING = ("locked", "busy", "full", "disk i/o")


class Held(NamedTuple):
    """A lock beside a database, and which file that was."""

    path: str
    inode: tuple[int, int] | None
    file: HeldFile


class Sqlite(Database):
    name = "sqlite3"
    columns = "name TEXT NOT NULL PRIMARY KEY, record TEXT, saved_at TEXT, token TEXT NOT NULL, holder TEXT NOT NULL"
    for_update = ""  # there is one writer at a time
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    age = "(julianday('now') - julianday(saved_at)) * 86400"

    def __init__(self, path: Path | None = None) -> None:
        super().__init__("the given connection" if path is None else str(path))
        self._path = path

    def connect(self) -> Connection:
        assert self._path is not None
        if not self._path.parent.is_dir():
            raise StateError(
                f"the folder {self._path.parent} of the checkpoints does not exist",
                hint=f"mkdir -p {self._path.parent}",
            )
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def explain(self, error: BaseException, connection: Connection | None) -> Explanation | None:
        if not isinstance(error, sqlite3.Error):
            return None
        words = str(error)
        return Explanation(words, may_pass=any(word in words.lower() for word in _PASSING))

    def found(self, connection: Connection, table: str) -> tuple[str, bool]:
        rows = self.execute(connection, "SELECT 1 FROM main.sqlite_master WHERE name = %s COLLATE NOCASE", [table])
        return f"main.{table}", bool(rows)

    @contextmanager
    def transaction(self, connection: Connection, *, is_writing: bool = True) -> Iterator[None]:
        self.execute(connection, "BEGIN IMMEDIATE" if is_writing else "BEGIN")
        try:
            yield
            self.execute(connection, "COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # it may have ended it itself
                self.execute(connection, "ROLLBACK")
            raise

    def has_transaction(self, connection: Connection) -> bool:
        return bool(connection.in_transaction)

    def join_transaction(self, connection: Connection) -> bool:
        """Python opens one by itself before the first change, and that would be late: before the first look."""
        if connection.in_transaction:
            return True
        if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
            return False
        self.execute(connection, "BEGIN IMMEDIATE")
        return True

    def take(self, connection: Connection, key: str, name: str) -> Any:
        """A database in memory has no file, and nobody else."""
        [path] = [path for _, schema, path in self.execute(connection, "PRAGMA database_list") if schema == "main"]
        suffix = key.removeprefix("main.").replace("/", "-")
        return Held(path, _inode(path), HeldFile.take(f"{path}-{suffix}.lock", name)) if path else True

    def let_go(self, connection: Connection, key: str, lock: Any) -> None:
        if isinstance(lock, Held):
            lock.file.close()

    def check(self, lock: Any) -> None:
        """Who opened a file goes on writing to it when it is removed, or another takes its place."""
        if isinstance(lock, Held):
            lock.file.check()
            if _inode(lock.path) != lock.inode:
                raise StateError(f"the file {lock.path} of the checkpoints was replaced while it was open")

    def cursor(self, connection: Connection) -> Any:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor

    def statement(self, statement: str) -> str:
        return statement.replace("%s", "?")


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
