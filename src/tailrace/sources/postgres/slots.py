"""The replication slot and the publication: the only things of ours in the source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from tailrace.errors import PositionLost, SourceRefused
from tailrace.sources.postgres.catalog import published_tables

PLUGIN = "pgoutput"

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
        connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [name, PLUGIN])
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


def publication_exists(connection: psycopg.Connection[Any], name: str) -> bool:
    return connection.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone() is not None


def publication_sql(name: str, tables: Iterable[tuple[str, str]], *, exists: bool) -> str:
    """The statement that makes `tables` part of the publication."""
    listed = sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in sorted(tables))
    if exists:
        return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), listed).as_string(None)
    return (
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        .format(sql.Identifier(name), listed)
        .as_string(None)
    )


def ensure_publication(
    connection: psycopg.Connection[Any], name: str, tables: set[tuple[str, str]], *, may_create: bool
) -> None:
    """Make `tables` published. Raises SourceRefused with the exact SQL when the role may not."""
    exists = publication_exists(connection, name)
    missing = tables - published_tables(connection, name)
    if exists and not missing:
        return
    statement = publication_sql(name, missing if exists else tables, exists=exists)
    if not may_create:
        raise SourceRefused(
            f"publication {name} {'lacks ' + str(len(missing)) + ' tables' if exists else 'does not exist'}"
            " and source.create is off",
            hint=f"let the tables' owner run: {statement};",
        )
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        raise SourceRefused(
            f"cannot {'extend' if exists else 'create'} the publication {name}: {error.diag.message_primary}",
            hint=f"let the tables' owner run: {statement};",
        ) from error


def drop_publication(connection: psycopg.Connection[Any], name: str) -> bool:
    if not publication_exists(connection, name):
        return False
    connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
    return True
