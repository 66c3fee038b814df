"""The replication slot: our place in the source's log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import psycopg
from psycopg import pq, sql

from tailrace.errors import PositionLost, SourceRefused
from tailrace.sources.postgres.connection import connect
from tailrace.sources.readiness import readable

PLUGIN = "pgoutput"
FAILOVER_VERSION = 170_000
"""From here on a slot can follow the primary to a standby, if the standby is set up to synchronise slots."""

_SLOT = """
SELECT plugin, slot_type, database, active_pid, confirmed_flush_lsn::text, wal_status,
    pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn)::bigint, catalog_xmin::text::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""


_AWAITED = """
SELECT DISTINCT h.pid, coalesce(a.usename, p.owner)::text, p.gid,
    to_char(coalesce(a.xact_start, p.prepared) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
FROM pg_locks w
JOIN pg_locks h ON h.locktype = 'transactionid' AND h.transactionid = w.transactionid AND h.granted
LEFT JOIN pg_stat_activity a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts p ON p.transaction = w.transactionid
WHERE w.pid = %s AND w.locktype = 'transactionid' AND NOT w.granted
"""
TICK_SECONDS = 0.2
CANCEL_SECONDS = 5.0

OnWait = Callable[[list[str]], None]
"""Told in words whom something waits for; may raise, to wait no longer."""


class Slot(msgspec.Struct, frozen=True):
    name: str
    plugin: str | None
    kind: str
    database: str | None
    active_pid: int | None
    confirmed: str | None
    wal_status: str | None
    retained_bytes: int | None
    catalog_xmin: int | None  # older transactions had ended where it begins


def read_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    row = connection.execute(_SLOT, [name]).fetchone()
    return Slot(name, *row) if row else None


def usable_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    """The slot if it is there and ours to use; raises when it can not be used."""
    slot = read_slot(connection, name)
    if slot is None:
        return None
    if slot.plugin != PLUGIN:
        raise SourceRefused(
            f"replication slot {name} belongs to the plugin {slot.plugin or 'of physical replication'}, not {PLUGIN}",
            hint="choose another name with source.slot in the pipeline file",
        )
    if slot.database != connection.info.dbname:
        raise SourceRefused(
            f"replication slot {name} belongs to the database {slot.database}, not {connection.info.dbname}",
            hint="choose another name with source.slot in the pipeline file",
        )
    if slot.wal_status == "lost" or slot.confirmed is None:
        raise PositionLost(
            f"replication slot {name} was invalidated by the server: it no longer has the changes we need"
        )
    return slot


def create_slot(url: str, name: str, on_wait: OnWait) -> Slot:
    """Raises SourceRefused with the exact SQL when the role may not.

    A new slot waits for every transaction under way. Meanwhile `on_wait` is told every moment whom it waits for; when
    it raises, or when we are killed, no slot is left behind.
    """
    with connect(url, lock_seconds=0) as connection, connect(url) as other:
        try:
            _be_mortal(connection)
            _run(connection, _creation(connection, name), lambda: on_wait(_awaited(other, connection)))
        except psycopg.Error as error:
            raise SourceRefused(
                f"cannot create the replication slot {name}: {error.diag.message_primary or error}",
                hint="let a role with REPLICATION run:"
                f" SELECT pg_create_logical_replication_slot('{name}', '{PLUGIN}');",
            ) from error
        except BaseException:
            _give_up(connection, other, name)
            raise
        slot = read_slot(other, name)
    assert slot is not None
    return slot


def _be_mortal(connection: psycopg.Connection[Any]) -> None:
    """Let the server notice that we are gone also while it waits for somebody, where it can."""
    with suppress(psycopg.Error):
        connection.execute("SET client_connection_check_interval = '1s'")


def _creation(connection: psycopg.Connection[Any], name: str) -> bytes:
    follows = ", failover => true" if connection.info.server_version >= FAILOVER_VERSION else ""
    statement = f"SELECT pg_create_logical_replication_slot({{}}, {{}}{follows})"
    return sql.SQL(statement).format(sql.Literal(name), sql.Literal(PLUGIN)).as_bytes(connection)


def _run(connection: psycopg.Connection[Any], statement: bytes, tick: Callable[[], None]) -> None:
    """Run a statement to its end, with a `tick` now and then."""
    connection.pgconn.send_query(statement)
    while not _has_answered(connection, TICK_SECONDS):
        tick()
    for result in _await_end(connection):
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, "utf-8")


def _has_answered(connection: psycopg.Connection[Any], seconds: float) -> bool:
    readable([connection.pgconn.socket], seconds)
    connection.pgconn.consume_input()
    return not connection.pgconn.is_busy()


def _await_end(connection: psycopg.Connection[Any]) -> list[pq.abc.PGresult]:
    """All results of a statement: the server answers with an error first, and lets go of the slot after that."""
    return list(iter(connection.pgconn.get_result, None))


def _give_up(connection: psycopg.Connection[Any], other: psycopg.Connection[Any], name: str) -> None:
    """End what is under way; a slot that was made at the last moment is dropped."""
    with suppress(psycopg.Error, SourceRefused):
        connection.cancel_safe(timeout=CANCEL_SECONDS)
        if _has_answered(connection, CANCEL_SECONDS):
            _await_end(connection)
        drop_slot(other, name)


def _awaited(connection: psycopg.Connection[Any], waiting: psycopg.Connection[Any]) -> list[str]:
    """The transactions that a session waits for."""
    rows = connection.execute(_AWAITED, [waiting.info.backend_pid]).fetchall()
    return [_transaction(*row) for row in rows]


def _transaction(pid: int | None, role: str | None, gid: str | None, since: str | None) -> str:
    who = f"the prepared transaction {gid}" if gid is not None else f"process {pid}"
    of = f" of {role}" if role else ""
    return f"{who}{of}" + (f", under way since {since}" if since else "")


def drop_slot(connection: psycopg.Connection[Any], name: str) -> bool:
    slot = read_slot(connection, name)
    if slot is None:
        return False
    if slot.active_pid is not None:
        raise SourceRefused(
            f"replication slot {name} is in use by process {slot.active_pid} of the server",
            hint="stop the pipeline that uses it first",
        )
    connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
    return True
