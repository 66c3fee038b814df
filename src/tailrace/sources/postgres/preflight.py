"""What must be so in PostgreSQL before anything starts: the server, our role and the slot. Changes nothing.

Publication and tables have files of their own. The findings are pure functions of what `facts` has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from tailrace.config import TablePatterns
from tailrace.errors import PositionLost, SourceError, SourceUnavailable
from tailrace.sources.base import Finding
from tailrace.sources.findings import fail, failure, ok, warn
from tailrace.sources.postgres import facts, preflight_publication, preflight_tables
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.facts import Server, SlotState
from tailrace.sources.postgres.preflight_publication import Publications
from tailrace.sources.postgres.publications import TOLERANT_VERSION, names_of
from tailrace.sources.postgres.settings import PostgresSettings
from tailrace.sources.postgres.slots import PLUGIN

MINIMUM_VERSION = 15
SHORT_TIMEOUT_MS = 5_000


class Platform(msgspec.Struct, frozen=True):
    """How a hosted service wants to be told what plain SQL does elsewhere."""

    wal_level: str
    replication: str  # SQL, with the role's quoted name


_PLAIN = Platform("ALTER SYSTEM SET wal_level = logical; then restart the server", "ALTER ROLE {} REPLICATION;")
_PLATFORMS = {
    "rds_superuser": Platform(
        "set rds.logical_replication = 1 in the parameter group, then reboot", "GRANT rds_replication TO {};"
    ),
    "cloudsqlsuperuser": Platform("set the flag cloudsql.logical_decoding = on", "ALTER ROLE {} REPLICATION;"),
    "azure_pg_admin": Platform(
        "set the server parameter wal_level = logical, then restart", "ALTER ROLE {} REPLICATION;"
    ),
}


def check(url: str, slot: str, publication: str, patterns: TablePatterns, settings: PostgresSettings) -> list[Finding]:
    """Every finding, over one connection. What stops the looking is the last finding, never an exception."""
    found: list[Finding] = []
    try:
        with source_errors(url, "reading its catalog"), connect(url, application="tailrace check") as connection:
            found.extend(_look(connection, slot, publication, patterns, settings))
    except SourceError as error:
        found.append(failure("server", error, _connection_fix(error)))
    return found


def _look(
    connection: psycopg.Connection[Any],
    slot: str,
    publication: str,
    patterns: TablePatterns,
    settings: PostgresSettings,
) -> Iterator[Finding]:
    yield version_finding(connection.info.server_version)
    if connection.info.server_version < MINIMUM_VERSION * 10_000:
        return
    server = facts.read_server(connection, list(_PLATFORMS))
    yield from server_findings(server)
    if server.is_standby:
        return
    state = facts.read_slot(connection, slot)
    yield from capacity_findings(server, state)
    yield from slot_findings(slot, state, server, may_create=settings.create)
    tables = facts.read_tables(connection, patterns, publication)
    main, inserts = (facts.read_publication(connection, name) for name in names_of(publication))
    around = Publications(
        names_of(publication),
        main,
        inserts,
        slot,
        may_create=settings.create,
        is_named=settings.publication is None,
        is_late=state is not None and connection.info.server_version < TOLERANT_VERSION,
    )
    yield from preflight_publication.findings(around, tables.captured, server)
    unmatched = patterns.unmatched((table.schema, table.name) for table in tables.every)
    others = facts.read_not_tables(connection) if unmatched else []
    yield from preflight_tables.findings(
        tables, around, server, patterns.patterns, unmatched, others, is_binary=settings.binary
    )


def version_finding(number: int) -> Finding:
    """`number` is libpq's: 180001 for 18.1."""
    shown = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number < MINIMUM_VERSION * 10_000:
        return fail(
            "server", f"{shown} is too old: {MINIMUM_VERSION} or newer is needed", "upgrade the source's server"
        )
    return ok("server", shown)


def server_findings(server: Server) -> Iterator[Finding]:
    if server.is_standby:
        yield fail(
            "server",
            "the server is a standby (pg_is_in_recovery): slot and publication can only be made on the primary",
            "let source.url lead to the primary",
        )
    yield _role(server)
    yield _wal_level(server)
    yield _encoding(server)
    yield _timeout(server)
    yield from _retention(server)
    if "*" in server.settings["synchronous_standby_names"].value:
        yield warn(
            "synchronous_standby_names",
            "* takes our stream for a synchronous standby: commits would wait for the sinks",
            "name the standbys in synchronous_standby_names",
        )


def _role(server: Server) -> Finding:
    if server.can_replicate:
        return ok("role", f"{server.role} {'is a superuser' if server.is_superuser else 'may replicate'}")
    return fail(
        "role",
        f"the role {server.role} may not replicate: it lacks the attribute REPLICATION",
        _platform(server).replication.format(sql.Identifier(server.role).as_string(None)),
    )


def _wal_level(server: Server) -> Finding:
    level = server.settings["wal_level"].value
    if level == "logical":
        return ok("wal_level", level)
    return fail("wal_level", f"wal_level is {level} and must be logical", _platform(server).wal_level)


def _encoding(server: Server) -> Finding:
    match server.encoding:
        case "UTF8":
            return ok("encoding", "UTF8")
        case "SQL_ASCII":
            return fail(
                "encoding",
                f"the database {server.database} has the encoding SQL_ASCII: what its bytes mean is not known",
                "dump it, and restore it into a database made with ENCODING 'UTF8'",
            )
        case other:
            return ok("encoding", f"{other}, converted to UTF8 by the server")


def _timeout(server: Server) -> Finding:
    shown = server.settings["wal_sender_timeout"].shown
    timeout_ms = server.number("wal_sender_timeout")
    if 0 < timeout_ms < SHORT_TIMEOUT_MS:
        return warn(
            "wal_sender_timeout",
            f"{shown} is short: a moment's pause would cost the connection",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    if timeout_ms == 0:
        return ok("wal_sender_timeout", "off: after a lost connection the slot stays in use until TCP notices it")
    return ok("wal_sender_timeout", shown)


def _retention(server: Server) -> Iterator[Finding]:
    """What may make the server give up a slot that is not read fast enough."""
    setting = "max_slot_wal_keep_size"
    if server.number(setting) >= 0:
        yield warn(
            setting,
            f"the server keeps at most {server.settings[setting].shown} of its log for a slot:"
            " a pipeline that is down or slow for longer loses its place, and copies every table again",
            f"ALTER SYSTEM SET {setting} = -1; SELECT pg_reload_conf();",
        )
    else:
        yield ok(setting, "not limited: the server keeps its log until we have read it")
    setting = "idle_replication_slot_timeout"  # since 18
    if setting in server.settings and server.number(setting) > 0:
        yield warn(
            setting,
            f"the server gives up a slot that was not read for {server.settings[setting].shown}:"
            " a pipeline that is down for longer loses its place, and copies every table again",
            f"ALTER SYSTEM SET {setting} = 0; SELECT pg_reload_conf();",
        )


def capacity_findings(server: Server, slot: SlotState | None) -> Iterator[Finding]:
    """Room for one slot, unless it is there, and for one sender, unless the slot has one."""
    setting, used = "max_replication_slots", server.used_slots
    limit = server.number(setting)
    if slot is None and used >= limit:
        yield fail(
            setting,
            f"all {limit} replication slots of the server are taken",
            f"drop one that nobody reads (SELECT slot_name FROM pg_replication_slots WHERE NOT active), or"
            f" ALTER SYSTEM SET {setting} = {used + 1}; then restart the server",
        )
    else:
        yield ok(setting, f"{used} of {limit} in use")
    setting, used = "max_wal_senders", server.used_senders
    limit = server.number(setting)
    if used >= limit and (slot is None or slot.active_pid is None):
        yield fail(
            setting,
            f"all {limit} WAL senders of the server are in use",
            f"end one (SELECT pid, application_name FROM pg_stat_replication), or"
            f" ALTER SYSTEM SET {setting} = {used + 1}; then restart the server",
            SourceUnavailable,
        )
    else:
        yield ok(setting, f"{used} of {limit} in use")


def slot_findings(name: str, slot: SlotState | None, server: Server, *, may_create: bool) -> Iterator[Finding]:
    if slot is None:
        yield from _absent_slot(name, server, may_create)
    else:
        yield from _present_slot(name, slot, server)


def _absent_slot(name: str, server: Server, may_create: bool) -> Iterator[Finding]:
    if not may_create:
        yield fail(
            "slot",
            f"the replication slot {name} does not exist and source.create is off",
            f"SELECT pg_create_logical_replication_slot('{name}', '{PLUGIN}');",
        )
    elif server.can_replicate:  # if not, that has been said
        yield ok("slot", f"{name} does not exist yet: it will be created")


def _present_slot(name: str, slot: SlotState, server: Server) -> Iterator[Finding]:
    reason = _not_ours(slot, server)
    if reason is not None:
        yield fail(
            "slot",
            f"the replication slot {name} {reason}",
            f"choose another name with source.slot, or drop it: SELECT pg_drop_replication_slot('{name}');",
        )
    elif slot.wal_status == "lost" or slot.invalidation or not slot.has_position:
        why = f" ({slot.invalidation})" if slot.invalidation else ""
        message = f"the replication slot {name} was invalidated by the server{why}: it lost the changes that we need"
        yield failure("slot", PositionLost(message))
    else:
        yield from _usable_slot(name, slot)


def _not_ours(slot: SlotState, server: Server) -> str | None:
    if slot.kind != "logical":
        return "is one of physical replication"
    if slot.plugin != PLUGIN:
        return f"belongs to the plugin {slot.plugin}, not {PLUGIN}"
    if slot.database != server.database:
        return f"belongs to the database {slot.database}, not {server.database}"
    return "sends prepared transactions (two_phase), which are not supported" if slot.is_two_phase else None


def _usable_slot(name: str, slot: SlotState) -> Iterator[Finding]:
    if slot.wal_status == "unreserved":
        yield warn(
            "slot",
            f"the server is about to invalidate the replication slot {name}: it is {slot.retained_size} behind",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf(); and run the pipeline soon",
        )
    if slot.active_pid is not None:
        yield warn(
            "slot",
            f"{name} is in use by process {slot.active_pid} of the server: a pipeline that runs, or one that has just"
            " ended and is still being released",
            f"stop the other reader, or SELECT pg_terminate_backend({slot.active_pid});",
        )
    else:
        yield ok("slot", f"{name} exists; the server holds {slot.retained_size} of its log for it")


def _platform(server: Server) -> Platform:
    return next((platform for role, platform in _PLATFORMS.items() if role in server.platform_roles), _PLAIN)


def _connection_fix(error: SourceError) -> str:
    if isinstance(error, SourceUnavailable):
        return "see that the server runs and that host and port in source.url lead to it"
    if "pg_hba.conf" in str(error):
        return "add a line to the server's pg_hba.conf that admits this role to this database from here, and reload it"
    return "correct user, password, host or database in source.url"
