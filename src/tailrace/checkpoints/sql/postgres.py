"""Checkpoints in PostgreSQL. A holder's lock is an advisory one of its session."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from tailrace.checkpoints.sql.database import Connection, Database, Explanation
from tailrace.errors import Misuse, StateError

CONNECT_TIMEOUT_SECONDS = 10
_SETTINGS = {
    "lock_timeout": "10s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # the lock of a machine that vanished must not last for hours
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_SETTLE = """
SELECT set_config(name, CASE name WHEN 'synchronous_commit' THEN 'on' ELSE '0' END, false) FROM pg_catalog.pg_settings
WHERE name IN ('idle_session_timeout', 'transaction_timeout') OR name = 'synchronous_commit' AND setting = 'off'
"""
"""A commit waits for the disk, and nothing ends the session but us."""
_NUMBER = "hashtextextended('tailrace checkpoint ' || %s, 0)"
"""Of an advisory lock; others of the database's users have theirs."""
_PASSING = ("08", "40", "53", "57P", "58", "55P03", "57014", "25006", "25P03", "25P04")
_OPEN = (pq.TransactionStatus.ACTIVE, pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|does not exist|pg_hba\.conf|permission denied|is not permitted"
    r"|invalid (URI|connection)",
    re.IGNORECASE,
)
_FOUND = """
SELECT COALESCE(n.nspname, current_schema()), n.nspname IS NOT NULL
FROM (SELECT to_regclass(%s) AS oid) t LEFT JOIN pg_catalog.pg_class c ON c.oid = t.oid
    LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""


class Postgres(Database):
    name = "psycopg"
    columns = (
        "name varchar(100) PRIMARY KEY, record text, saved_at timestamptz, token text NOT NULL, holder text NOT NULL"
    )
    now = "clock_timestamp()"
    age = "extract(epoch FROM clock_timestamp() - saved_at)::float8"

    def __init__(self, url: str | None = None) -> None:
        super().__init__("the given connection" if url is None else _server_of(url))
        self._url = url

    def connect(self) -> Connection:
        settings = conninfo_to_dict(self._url or "")
        settings.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
        settings.setdefault("application_name", "tailrace checkpoints")
        settings.setdefault("keepalives_idle", 30)
        options = [str(settings.get("options") or ""), *(f"-c {name}={value}" for name, value in _SETTINGS.items())]
        settings["options"] = " ".join(options).strip()
        connection = psycopg.connect(make_conninfo("", **settings), autocommit=True, prepare_threshold=None)
        connection.execute(_SETTLE)
        return connection

    def explain(self, error: BaseException, connection: Connection | None) -> Explanation | None:
        if not isinstance(error, psycopg.Error):
            return None
        lines = (error.diag.message_primary or str(error) or "no reason given").splitlines()
        words = next((line for line in lines if "FATAL" in line or "failed:" in line), lines[0])
        words = words.rpartition("FATAL:")[2].strip()
        is_gone = connection is None or connection.closed
        is_lost = error.sqlstate is None and isinstance(error, psycopg.OperationalError) and not _REFUSALS.search(words)
        return Explanation(words, is_lost or (error.sqlstate or "").startswith(_PASSING), is_gone)

    def found(self, connection: Connection, table: str) -> tuple[str, bool]:
        [(schema, is_there)] = self.execute(connection, _FOUND, [table])
        if schema is None:
            raise StateError(
                f"{self.where} has no schema to keep checkpoints in", hint="name one in the search_path of its role"
            )
        quoted = schema.replace('"', '""').replace("%", "%%")
        return f'"{quoted}".{table}', is_there

    def transaction(self, connection: Connection, *, is_writing: bool = True) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = connection.transaction()
        return context

    def has_transaction(self, connection: Connection) -> bool:
        return connection.info.transaction_status in _OPEN

    def join_transaction(self, connection: Connection) -> bool:
        return self.has_transaction(connection) or not connection.autocommit

    def take(self, connection: Connection, key: str, name: str) -> Any:
        [(is_ours,)] = self.execute(connection, f"SELECT pg_try_advisory_lock({_NUMBER})", [key])
        return True if is_ours else None

    def let_go(self, connection: Connection, key: str, lock: Any) -> None:
        self.execute(connection, f"SELECT pg_advisory_unlock({_NUMBER})", [key])

    def session(self, connection: Connection) -> str:
        return str(connection.info.backend_pid)

    def cursor(self, connection: Connection) -> Any:
        return connection.cursor(row_factory=tuple_row)

    def check_ours(self, connection: Connection) -> None:
        super().check_ours(connection)
        if isinstance(connection, psycopg.AsyncConnection):
            raise Misuse("checkpoints can not be written through an AsyncConnection", hint="use psycopg.Connection")


def _server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "PostgreSQL"
    return f"PostgreSQL at {parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
