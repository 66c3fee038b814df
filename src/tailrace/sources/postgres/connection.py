"""Connecting to PostgreSQL, and what its refusals mean for us."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import SourceError, SourceRefused, SourceUnavailable
from tailrace.sources.postgres.positions import end_of_record
from tailrace.sources.postgres.types import CAPTURE_SETTINGS

CONNECT_TIMEOUT_SECONDS = 10
_PASSING = "could not translate host name|failed to resolve host|too many connections for role"
_REFUSALS = re.compile(
    rf"{_PASSING}|authentication failed|no password supplied|does not exist|pg_hba\.conf|permission denied"
    r"|is not permitted|invalid (URI|connection)|must be superuser",
    re.IGNORECASE,
)
_VANISHED = "could not open relation with OID"  # an internal error of the server's own views
_TRANSIENT = (
    *(pg.OperationalError, pg.InterfaceError, pg.AdminShutdown, pg.CrashShutdown, pg.QueryCanceled),
    *(pg.IdleInTransactionSessionTimeout, pg.TransactionTimeout),
)
LOCK_SECONDS = 10.0
"""How long a statement waits for a lock on a table. What we ask of the catalog needs none."""
_PATIENCE = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0"}
"""Whatever the role or the database says: a copy takes as long as it takes, and a snapshot is held in idleness."""

_WHOLE = {"row_security": "off"}
"""Rows that a policy would hide from us are an error: the stream has them."""


def connect(
    url: str, *, replication: bool = False, application: str = "tailrace", lock_seconds: float = LOCK_SECONDS
) -> psycopg.Connection[Any]:
    """An autocommit connection whose text forms are the ones our decoders read, and that no timeout ends.

    It waits `lock_seconds` for a lock, for ever if that is 0, as replication does.
    """
    try:
        settings = conninfo_to_dict(url)
        settings.setdefault("connect_timeout", CONNECT_TIMEOUT_SECONDS)
        settings.setdefault("application_name", application)
        settings.setdefault("keepalives_idle", 30)
        waits = {"lock_timeout": "0" if replication else str(round(lock_seconds * 1000))}
        chosen = [f"-c {name}={value}" for name, value in (CAPTURE_SETTINGS | _PATIENCE | _WHOLE | waits).items()]
        settings["options"] = " ".join([str(settings.get("options") or ""), *chosen]).strip()
        if replication:
            settings["replication"] = "database"
        connection = psycopg.connect(make_conninfo("", **settings), autocommit=True)
        if connection.info.server_version >= 170_000:  # older ones do not know it
            connection.execute("SET transaction_timeout = 0")
        return connection
    except psycopg.Error as error:
        raise connection_error(url, error) from error


def server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "the source"
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def connection_error(url: str, error: psycopg.Error) -> SourceError:
    """One sentence about why the server cannot be used.

    A name that leads nowhere, and a role that has as many sessions as it may have, are refused at the start of a run.
    Later on the name has led somewhere, and the role had sessions: that is tried again.
    """
    reason = _sentence(error)
    kind = SourceRefused if _REFUSALS.search(reason) else SourceUnavailable
    found = kind(f"cannot connect to PostgreSQL at {server_of(url)}: {reason}")
    found.retry |= bool(re.search(_PASSING, reason))
    return found


_END = """
SELECT pg_current_wal_insert_lsn()::text, pg_size_bytes(current_setting('wal_segment_size')),
    current_setting('wal_block_size')::bigint,
    CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn() THEN pg_current_xact_id() END
"""
"""Only the end of a transaction with a number makes the server flush its last records, and streaming wait for that:
what an open transaction wrote would be kept back for up to 15 seconds on a server where nobody commits."""


def current_position(connection: psycopg.Connection[Any]) -> str:
    """The end of the server's log: whatever was committed before lies before it, and it will be streamed soon."""
    row = connection.execute(_END).fetchone()
    assert row is not None
    return end_of_record(*row[:3])


@contextmanager
def source_errors(url: str, doing: str) -> Iterator[None]:
    """Turns a driver's error while `doing` something into a SourceError."""
    try:
        yield
    except pg.LockNotAvailable as error:
        raise SourceUnavailable(f"somebody has locked what is needed at {server_of(url)} for {doing}") from error
    except _TRANSIENT as error:
        raise SourceUnavailable(
            f"PostgreSQL at {server_of(url)} went away while {doing}: {_sentence(error)}"
        ) from error
    except psycopg.Error as error:
        if _VANISHED in str(error):
            raise SourceUnavailable(f"a table of {server_of(url)} was dropped while {doing}") from error
        raise SourceRefused(f"PostgreSQL at {server_of(url)} refused {doing}: {_sentence(error)}") from error


def _sentence(error: psycopg.Error) -> str:
    """The server's last word, on one line."""
    text = error.diag.message_primary or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = next(
        (line for line in lines if "FATAL" in line or "failed:" in line), lines[0] if lines else "no reason given"
    )
    words = words.rsplit("FATAL:", 1)[-1].strip()
    return words.removeprefix("connection failed: ").rstrip(".")
