"""The replication slot: our place in the source's log."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from tailrace.errors import PositionLost, SourceRefused

PLUGIN = "pgoutput"
FAILOVER_VERSION = 170_000
"""From here on a slot can follow the primary to a standby, if the standby is set up to synchronise slots."""

_SLOT = """
SELECT plugin, slot_type, database, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,
    pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""


class Slot(msgspec.Struct, frozen=True):
    name: str
    plugin: str | None
    kind: str
    database: str | None
    active_pid: int | None
    confirmed: str | None
    restart: str | None
    wal_status: str | None
    retained_bytes: int | None


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


def create_slot(connection: psycopg.Connection[Any], name: str) -> Slot:
    """Raises SourceRefused with the exact SQL when the role may not."""
    statement = f"SELECT pg_create_logical_replication_slot('{name}', '{PLUGIN}')"
    try:
        follows = ", failover => true" if connection.info.server_version >= FAILOVER_VERSION else ""
        connection.execute(f"SELECT pg_create_logical_replication_slot(%s, %s{follows})".encode(), [name, PLUGIN])
    except psycopg.Error as error:
        raise SourceRefused(
            f"cannot create the replication slot {name}: {error.diag.message_primary}",
            hint=f"let a role with REPLICATION run: {statement};",
        ) from error
    slot = read_slot(connection, name)
    assert slot is not None
    return slot


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
