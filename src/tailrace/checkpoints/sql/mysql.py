"""Checkpoints in MySQL and MariaDB. A holder's lock is a named one of its session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import SERVER_STATUS

from tailrace.checkpoints.sql.database import Connection, Database, Explanation
from tailrace.errors import StateError

CONNECT_TIMEOUT_SECONDS = 10
PORT = 3306
_SETTINGS = "SET SESSION wait_timeout = 31536000, SESSION innodb_lock_wait_timeout = 10, SESSION lock_wait_timeout = 10"

# Server Error Message Reference, by what they mean for us
_GONE = {1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 4031}
_PASSING = _GONE | {1021, 1037, 1040, 1041, 1114, 1203, 1205, 1206, 1213, 1290, 1317, 1792, 1836, 3024, 3572}


class MySql(Database):
    name = "pymysql"
    columns = (
        "name VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,"
        " record LONGTEXT CHARACTER SET ascii COLLATE ascii_bin, saved_at DATETIME(6),"
        " token VARCHAR(32) NOT NULL, holder TEXT NOT NULL"
    )
    suffix = " ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
    now = "UTC_TIMESTAMP(6)"
    age = "TIMESTAMPDIFF(MICROSECOND, saved_at, UTC_TIMESTAMP(6)) / 1000000"

    def __init__(self, url: str | None = None) -> None:
        super().__init__("the given connection" if url is None else _server_of(url))
        self._url = url

    def connect(self) -> Connection:
        parts = urlsplit(self._url or "")
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        arguments: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": parts.port or PORT,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.strip("/")) or None,
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "program_name": "tailrace checkpoints",
            "charset": "utf8mb4",
            **options,
            "autocommit": True,
        }
        connection = pymysql.connect(**arguments)
        self.execute(connection, _SETTINGS)
        self.execute(
            connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        )  # no locks on what is not there
        return connection

    def explain(self, error: BaseException, connection: Connection | None) -> Explanation | None:
        if not isinstance(error, pymysql.MySQLError):
            return None
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        words = str(error.args[1] if len(error.args) > 1 else error).partition("\n")[0] or "the connection is gone"
        is_gone = code in _GONE or (isinstance(error, pymysql.InterfaceError) and code == 0)
        return Explanation(f"{words} (error {code})" if code else words, is_gone or code in _PASSING, is_gone)

    def found(self, connection: Connection, table: str) -> tuple[str, bool]:
        [(database,)] = self.execute(connection, "SELECT DATABASE()")
        if database is None:
            raise StateError(
                f"{self.where} is no database to keep checkpoints in", hint="name one: mysql://user@host/database"
            )
        asked = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        quoted = database.replace("`", "``").replace("%", "%%")
        return f"`{quoted}`.{table}", bool(self.execute(connection, asked, [database, table]))

    @contextmanager
    def transaction(self, connection: Connection, *, is_writing: bool = True) -> Iterator[None]:
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            with suppress(pymysql.MySQLError):  # with the connection it has ended as well
                connection.rollback()
            raise

    def has_transaction(self, connection: Connection) -> bool:
        return connection.open and bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def join_transaction(self, connection: Connection) -> bool:
        return self.has_transaction(connection) or not connection.get_autocommit()

    def take(self, connection: Connection, key: str, name: str) -> Any:
        return True if self.execute(connection, "SELECT GET_LOCK(%s, 0)", [_lock_name(key)]) == [(1,)] else None

    def let_go(self, connection: Connection, key: str, lock: Any) -> None:
        self.execute(connection, "SELECT RELEASE_LOCK(%s)", [_lock_name(key)])

    def session(self, connection: Connection) -> str:
        return str(connection.thread_id())


def _lock_name(key: str) -> str:
    """A name has 64 characters at most, and is the whole server's."""
    return f"tailrace_checkpoint_{hashlib.sha256(key.encode()).hexdigest()[:40]}"


def _server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    parts = urlsplit(url)
    return f"MySQL at {parts.hostname or 'localhost'}:{parts.port or PORT}{parts.path}"
