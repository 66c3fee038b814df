"""What a preflight reads of a server: everything in a few catalog queries, whatever the number of tables.

Catalogs that every role can read, on every supported version: what a version does not have yet is read through
`to_jsonb`, which answers NULL for a column that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from tailrace.config import TablePatterns
from tailrace.sources.postgres.catalog import (
    HAS_KEY,
    IDENTIFIES,
    IS_PUBLISHED,
    PARTS,
    PUBLISHED,
    SourceTable,
    fetch_types,
    list_tables,
)
from tailrace.sources.postgres.types import TypeInfo

SETTINGS = [
    "wal_level",
    "max_replication_slots",
    "max_wal_senders",
    "max_slot_wal_keep_size",
    "wal_sender_timeout",
    "idle_replication_slot_timeout",
    "synchronous_standby_names",
]

_SETTINGS = "SELECT name, setting, pg_catalog.current_setting(name) FROM pg_settings WHERE name = ANY (%s)"

_SERVER = """
SELECT current_database()::text, current_user::text, r.rolsuper,
    r.rolsuper OR r.rolreplication
        OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(m.oid, 'MEMBER')),
    has_database_privilege(current_database(), 'CREATE'),
    pg_is_in_recovery(),
    (SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = current_database()),
    (SELECT count(*) FROM pg_replication_slots),
    (SELECT count(*) FROM pg_stat_replication),
    ARRAY(SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%s))
FROM pg_roles r WHERE r.rolname = current_user
"""

_SLOT = """
SELECT s.slot_type, s.plugin::text, s.database::text, s.active_pid, s.confirmed_flush_lsn IS NOT NULL, s.wal_status,
    to_jsonb(s) ->> 'invalidation_reason', s.two_phase,
    pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn))
FROM pg_replication_slots s WHERE s.slot_name = %s
"""

_PUBLICATION = """
SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
    pg_has_role(p.pubowner, 'USAGE'), coalesce(obj_description(p.oid, 'pg_publication'), ''),
    ARRAY(SELECT r.prrelid::bigint FROM pg_publication_rel r WHERE r.prpubid = p.oid)
FROM pg_publication p WHERE p.pubname = %s
"""

_PUBLISHED_SCHEMAS = """
SELECT n.nspname::text FROM pg_publication p
JOIN pg_publication_namespace s ON s.pnpubid = p.oid JOIN pg_namespace n ON n.oid = s.pnnspid
WHERE p.pubname = %s
"""

_PUBLISHED = f"""
SELECT n.nspname::text, c.relname::text,
    ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND {IS_PUBLISHED}), r.prqual IS NOT NULL
FROM {PUBLISHED} WHERE p.pubname = %s
"""

# A table with its partitions, each row one relation.
_PARTS = f"""
WITH RECURSIVE {PARTS}
SELECT part.root::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence = 'u',
    {HAS_KEY},
    {IDENTIFIES},
    has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), pg_has_role(c.relowner, 'USAGE'),
    row_security_active(c.oid)
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE part.root = ANY (%(oids)s::oid[]) AND (c.oid = part.root OR c.relkind <> 'p')
ORDER BY part.root, c.oid <> part.root, n.nspname, c.relname
"""

_COLUMNS = """
SELECT a.attrelid::bigint, a.attname::text, a.atttypid::bigint, a.attgenerated <> ''
FROM pg_attribute a WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_NOT_TABLES = """
SELECT n.nspname::text, c.relname::text, c.relkind::text, rn.nspname || '.' || r.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE (c.relkind IN ('v', 'm', 'f') OR c.relkind IN ('r', 'p') AND c.relispartition)
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', '_tailrace') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY 1, 2
"""


class Setting(msgspec.Struct, frozen=True):
    value: str  # in the setting's base unit
    shown: str  # as SHOW prints it


class Server(msgspec.Struct, frozen=True):
    """The server, and what our role may do on it."""

    settings: dict[str, Setting]
    database: str
    role: str
    is_superuser: bool
    can_replicate: bool
    can_create: bool  # a publication, in this database
    is_standby: bool
    encoding: str
    used_slots: int
    used_senders: int
    platform_roles: list[str]

    def number(self, setting: str) -> int:
        return int(self.settings[setting].value)


class SlotState(msgspec.Struct, frozen=True):
    kind: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    has_position: bool
    wal_status: str | None
    invalidation: str | None
    is_two_phase: bool
    retained_size: str | None


class PublishedTable(msgspec.Struct, frozen=True):
    columns: list[str]
    has_filter: bool


class Publication(msgspec.Struct, frozen=True):
    tables: dict[tuple[str, str], PublishedTable]
    schemas: frozenset[str]
    takes_all: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    is_ours: bool  # our role may alter it
    comment: str
    members: list[int]


class Part(msgspec.Struct, frozen=True):
    """One relation of a table: the table itself, or a partition that holds rows of it."""

    schema: str
    name: str
    kind: str
    is_unlogged: bool
    has_key: bool
    identifies_rows: bool  # the server takes its updates and deletes when they are published
    can_select: bool
    can_use_schema: bool
    is_owned: bool
    hides_rows: bool


class TableColumn(msgspec.Struct, frozen=True):
    name: str
    type: int
    is_generated: bool


class Table(msgspec.Struct, frozen=True):
    """A table of the pipeline with all that a preflight asks about it. Its first part is the table itself."""

    source: SourceTable
    parts: list[Part]
    columns: list[TableColumn]

    @property
    def name(self) -> str:
        return self.source.table

    @property
    def is_owned(self) -> bool:
        return self.parts[0].is_owned

    @property
    def unidentified(self) -> list[Part]:
        """Its relations whose updates and deletes the server refuses when they are published."""
        return [p for p in self.parts if p.kind == "r" and not p.is_unlogged and not p.identifies_rows]


class Tables(msgspec.Struct, frozen=True):
    """The tables of the database as the patterns see them."""

    every: list[SourceTable]
    wanted: list[Table]
    types: Mapping[int, TypeInfo]

    @property
    def captured(self) -> list[Table]:
        """An unlogged table leaves nothing in the server's log."""
        return [table for table in self.wanted if not table.source.is_unlogged]


class NotTable(msgspec.Struct, frozen=True):
    """Something with a table's name that is not captured as one. A partition comes with its root."""

    schema: str
    name: str
    kind: str
    root: str | None


def read_server(connection: psycopg.Connection[Any], platforms: Sequence[str]) -> Server:
    """`platforms` are names of roles by which a hosted service can be told."""
    row = connection.execute(_SERVER, [list(platforms)]).fetchone()
    assert row is not None
    settings = {name: Setting(value, shown) for name, value, shown in connection.execute(_SETTINGS, [SETTINGS])}
    return Server(settings, *row)


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    row = connection.execute(_SLOT, [name]).fetchone()
    return SlotState(*row) if row else None


def read_publication(connection: psycopg.Connection[Any], name: str) -> Publication | None:
    row = connection.execute(_PUBLICATION, [name]).fetchone()
    if row is None:
        return None
    schemas = connection.execute(_PUBLISHED_SCHEMAS, [name]).fetchall()
    tables = {
        (schema, table): PublishedTable(columns, has_filter)
        for schema, table, columns, has_filter in connection.execute(_PUBLISHED, [name])
    }
    return Publication(tables, frozenset(schema for (schema,) in schemas), *row)


def read_tables(connection: psycopg.Connection[Any], patterns: TablePatterns, publication: str) -> Tables:
    every = list_tables(connection)
    wanted = [table for table in every if patterns.matches(table.schema, table.name)]
    oids = [table.oid for table in wanted]
    parts: dict[int, list[Part]] = {oid: [] for oid in oids}
    for root, *part in connection.execute(_PARTS, {"oids": oids, "main": publication}):
        parts[root].append(Part(*part))
    columns: dict[int, list[TableColumn]] = {oid: [] for oid in oids}
    for oid, *column in connection.execute(_COLUMNS, [oids]):
        columns[oid].append(TableColumn(*column))
    types = fetch_types(connection, (column.type for table in columns.values() for column in table))
    found = [Table(table, parts[table.oid], columns[table.oid]) for table in wanted]
    return Tables(every, _still_there(found), types)


def read_not_tables(connection: psycopg.Connection[Any]) -> list[NotTable]:
    return [NotTable(*row) for row in connection.execute(_NOT_TABLES)]


def _still_there(tables: Iterable[Table]) -> list[Table]:
    """Without those that were dropped between two of our queries."""
    return [table for table in tables if table.parts]
