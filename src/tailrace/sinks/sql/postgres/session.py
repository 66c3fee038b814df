"""One connection to a PostgreSQL sink, over psycopg."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors as pg
from psycopg import postgres, pq
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import Explanation
from tailrace.sinks.sql.postgres.encoding import HEADER, TRAILER
from tailrace.sinks.sql.postgres.types import declared, is_cast, sent
from tailrace.sinks.sql.sessions import in_pieces
from tailrace.sinks.sql.staged import Relation, StagedRows

CONNECT_TIMEOUT_SECONDS = 10
LOCK_TIMEOUT_SECONDS = 30
_SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "array_nulls": "on",
    "xmloption": "content",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "row_security": "off",  # rows that a policy would hide from us are an error
    "search_path": "pg_catalog",
    "lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_isolation": "read\\ committed",
    # a driver whose machine vanished must not hold its locks for hours
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_YOUNGER_SETTINGS = ["idle_session_timeout", "transaction_timeout"]
"""Set where the server knows them."""
_SETTLE = """
SELECT set_config(name, CASE name WHEN 'synchronous_commit' THEN 'on' ELSE '0' END, false) FROM pg_catalog.pg_settings
WHERE name = ANY (%s) OR name = 'synchronous_commit' AND setting = 'off'
"""
"""A commit waits for the disk, and nothing ends the session but us."""
_RETRIED = ("08", "40", "53", "57P", "58", "55P03", "57014", "25006", "25P03", "25P04")
_GONE = ("08", "57P", "25P03", "25P04")
_WITH_VALUES = ("22", "23")
"""Classes of errors whose message may show a value."""
_ABOUT_ROWS = (*_WITH_VALUES, "54000", "P0001")
"""Other rows may be taken: also after a key that is too long for an index, and what a trigger raises."""
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|does not exist|pg_hba\.conf|permission denied|is not permitted"
    r"|invalid (URI|connection)",
    re.IGNORECASE,
)


class _AsText(Loader):
    """The server's own text of a value, of whatever type."""

    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


TAKE_OVER_SECONDS = 5
_BREAK_OFF = """
SELECT pg_terminate_backend(l.pid) FROM (SELECT hashtextextended(%s, 0) AS key) k, pg_locks l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND ((l.classid::bigint << 32) | l.objid::bigint) = k.key
"""


class PostgresSession:
    """A connection whose text forms are the ones that `postgres_reading` knows. A commit waits for the disk."""

    def __init__(self, url: str) -> None:
        settings = conninfo_to_dict(url)
        settings.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
        settings.setdefault("application_name", "tailrace sink")
        settings.setdefault("keepalives_idle", 30)
        options = [str(settings.get("options") or ""), *(f"-c {name}={value}" for name, value in _SETTINGS.items())]
        settings["options"] = " ".join(options).strip()
        self.connection = psycopg.connect(make_conninfo("", **settings), autocommit=True, prepare_threshold=None)
        self.connection.execute(_SETTLE, [_YOUNGER_SETTINGS])

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else []

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        """Parameters are in binary form, numbered `$1` and on."""
        connection = self.connection.pgconn
        formats = [pq.Format.BINARY] * len(relation.parameters)
        result = connection.exec_params(statement.encode(), list(relation.parameters), None, formats)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            if connection.status == pq.ConnStatus.BAD:
                raise pg.OperationalError(result.error_message.decode(errors="replace"))
            raise pg.error_from_result(result, "utf-8")
        return [
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def relation(self, rows: StagedRows) -> Relation:
        values = {
            column.label: f"s.c{place}::{declared(column.type)}" if is_cast(column.type) else f"s.c{place}"
            for place, column in enumerate(rows.columns)
        }
        if rows.table:
            return Relation(f"{rows.table} s", values)
        arrays = ", ".join(f"${place + 1}::{sent(column.type)}[]" for place, column in enumerate(rows.columns))
        names = ", ".join(f"c{place}" for place in range(len(rows.columns)))
        return Relation(f"unnest({arrays}) AS s ({names})", values, rows.inline)

    def load(
        self,
        table: str,
        names: Sequence[str],
        payload: Iterable[bytes | pa.Buffer],
        types: Sequence[ColumnType] = (),
    ) -> None:
        statement = f"COPY {table} ({', '.join(names)}) FROM STDIN (FORMAT binary)"
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(HEADER)
            for piece in payload:
                copy.write(memoryview(piece))
                del piece  # it may be large, and the next one is yet to be made
            copy.write(TRAILER)

    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        with self.connection.transaction(), self.connection.cursor(name="tailrace_read") as cursor:
            for type_ in postgres.types:
                for oid in (type_.oid, type_.array_oid):
                    cursor.adapters.register_loader(oid, _AsText)
            cursor.execute(query.encode())
            yield from in_pieces(cursor.fetchmany)

    def lock(self, name: str) -> None:
        self.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])

    def lock_shared(self, name: str) -> None:
        self.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 0))", [name])

    def take_over(self, name: str) -> None:
        self.execute(f"SET LOCAL lock_timeout = '{TAKE_OVER_SECONDS}s'")
        self.execute("SAVEPOINT taking")
        try:
            self.lock(name)
        except pg.LockNotAvailable:
            self.execute("ROLLBACK TO SAVEPOINT taking")
            self.execute(_BREAK_OFF, [name])
            self.lock(name)
        self.execute("SET LOCAL lock_timeout = 0")

    def begin(self) -> None:
        self.connection.execute("BEGIN")

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        if not self.connection.closed and self.connection.info.transaction_status != pq.TransactionStatus.IDLE:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "the server"
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def explain(error: BaseException) -> Explanation | None:
    """What psycopg's errors mean. A connection that is gone has no code."""
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or ""
    words = _sentence(error)
    if not code:
        is_refusal = isinstance(error, psycopg.OperationalError) and _REFUSALS.search(words)
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_refusal
        return Explanation(SinkUnavailable if is_lost else SinkRejected, words, is_gone=is_lost)
    kind = SinkUnavailable if code.startswith(_RETRIED) else SinkRejected
    return Explanation(
        kind,
        words,
        is_duplicate=isinstance(error, pg.UniqueViolation),
        is_about_rows=code.startswith(_ABOUT_ROWS),
        is_gone=code.startswith(_GONE),
    )


def _sentence(error: psycopg.Error) -> str:
    """The server's word on one line, with the column and the constraint it names; never a value."""
    diagnosis = error.diag
    if error.sqlstate and error.sqlstate.startswith(_WITH_VALUES):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
        column = diagnosis.column_name or _copied_column(diagnosis.context)
        words += f" in column {column}" if column else ""
        return words + (f" ({diagnosis.constraint_name})" if diagnosis.constraint_name else "")
    text = diagnosis.message_primary or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = next((line for line in lines if "FATAL" in line or "failed:" in line), lines[0] if lines else "no reason")
    return words.rsplit("FATAL:", 1)[-1].strip().removeprefix("connection failed: ").rstrip(".")


def _copied_column(context: str | None) -> str | None:
    """`COPY items, line 3, column amount: "…"` names the column before the value."""
    found = re.match(r"COPY .*?, line \d+, column ([^:]+)", context or "")
    return found[1] if found else None
