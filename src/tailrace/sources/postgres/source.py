"""PostgreSQL as a source: the contract of `sources.base`, over the parts of this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa

from tailrace import config
from tailrace.config import TablePatterns
from tailrace.errors import PositionLost, SourceRefused, SourceUnavailable
from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.details import TableDetails
from tailrace.model.lifecycle import StoredAs
from tailrace.model.rows import ReadRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import (
    Absence,
    ExportedSnapshot,
    Finding,
    Published,
    Source,
    StorageChange,
    TableFacts,
)
from tailrace.sources.postgres import (
    catalog,
    defaults,
    details,
    followed,
    identity,
    lookup,
    pgoutput,
    positions,
    preflight,
    publications,
    slots,
    snapshot,
    storage,
    visibility,
)
from tailrace.sources.postgres.capture import PostgresCapture
from tailrace.sources.postgres.catalog import SourceTable, list_tables, table_schemas
from tailrace.sources.postgres.connection import connect, current_position, server_of, source_errors
from tailrace.sources.postgres.publications import Maker
from tailrace.sources.postgres.publisher import Publisher
from tailrace.sources.postgres.replication import ReplicationStream
from tailrace.sources.postgres.settings import PostgresSettings
from tailrace.sources.postgres.types import has_binary_decoder
from tailrace.sources.postgres.witness import check_same_past

LOOK_SECONDS = 1.0
"""How long a look into a table waits for a lock on it: others wait for us meanwhile."""


class PostgresSource(Source):
    """Holds settings only: it pickles, and every method opens what it needs."""

    settings_type = PostgresSettings

    def __init__(self, pipeline: config.Pipeline) -> None:
        self.settings = pipeline.source_settings(PostgresSettings)
        self.url = pipeline.source.url
        self.slot = self.settings.slot_of(pipeline.name)
        self.publications = publications.names_of(self.settings.publication_of(pipeline.name))
        self.patterns = TablePatterns(pipeline.source.tables)
        self._heartbeat_seconds = pipeline.source.heartbeat_ms / 1000
        self._is_named = self.settings.publication is None  # by us
        self._maker = Maker(pipeline.name, self.slot)
        self._founders: dict[int, str] = {}  # what was published when we made the slot

    @property
    def name(self) -> str:
        return server_of(self.url)

    @property
    def reads_from(self) -> str:
        return f"slot {self.slot} with the publications {' and '.join(self.publications)}"

    def preflight(self) -> list[Finding]:
        return preflight.check(self.url, self.slot, self.publications[0], self.patterns, self.settings)

    def identify(self) -> SourceIdentity:
        return identity.identify(self.url, self.slot)

    def check_same(
        self, known: SourceIdentity, position: str, on_wait: Callable[[], None] = lambda: None
    ) -> SourceIdentity:
        with closing(ReplicationStream(self.url, self.slot, self._streamed())) as stream:
            return check_same_past(stream, known, position, on_wait)

    def prepare(
        self, on_wait: Callable[[list[str]], None] = lambda _: None, on_create: Callable[[], None] = lambda: None
    ) -> str:
        with source_errors(self.url, "preparing the slot and the publication"), connect(self.url) as connection:
            self._require_tables(connection)
            slot = slots.usable_slot(connection, self.slot)
            self._prepare_publications(connection, has_slot=slot is not None)
            if slot is not None and slot.active_pid is not None:
                raise SourceUnavailable(
                    f"replication slot {self.slot} at {self.name} is in use by process {slot.active_pid} of the server",
                    hint="stop the other reader, or choose another name with source.slot in the pipeline file",
                )
            if slot is None:
                if not self.settings.create:
                    raise SourceRefused(
                        f"replication slot {self.slot} does not exist and source.create is off",
                        hint=f"run: SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput');",
                    )
                self._founders = storage.memberships(connection, self.publications)
                on_create()
                slot = slots.create_slot(self.url, self.slot, on_wait)
            assert slot.confirmed is not None
            return slot.confirmed

    def new_start(self, oldest: str, needed: Collection[str] | None) -> str:
        return oldest  # the slot itself is at what somebody needs

    def publish(self, is_known: Callable[[str], bool]) -> Published:
        """Publish the tables that have come, and those whose identity came or went in the right way. Cheap.

        A table that `is_known` and is not published was taken out on purpose, and stays out. While `source.create` is
        off nothing is published, and what lacks is refused.
        """
        with source_errors(self.url, "publishing tables"), connect(self.url) as connection:
            return self._publisher(connection).publish(lambda table: not is_known(table))

    def tables(self) -> list[TableSchema]:
        with source_errors(self.url, "listing the tables"), connect(self.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # tables come and go
            wanted = [t for t in list_tables(connection) if self.patterns.matches(t.schema, t.name)]
            return table_schemas(connection, wanted, self.publications)

    def readable(self) -> list[TableSchema]:
        with source_errors(self.url, "listing the tables"), connect(self.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._require_tables(connection)
            wanted = [t for t in list_tables(connection) if self.patterns.matches(t.schema, t.name)]
            return catalog.whole_schemas(connection, wanted)

    def facts(self, refused: Mapping[str, str] = MappingProxyType({})) -> list[TableFacts]:
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if not publications.existing(connection, self.publications[:1]):
                raise PositionLost(
                    f"publication {self.publications[0]} is gone from {self.name}: what changed since is not in the"
                    " stream"
                )
            wanted = {t.oid: t for t in list_tables(connection) if self.patterns.matches(t.schema, t.name)}
            schemas = table_schemas(connection, wanted.values(), self.publications)
            published = storage.memberships(connection, self.publications)
            stored = storage.stored_as(connection, [schema.relation for schema in schemas])
            troubles = followed.troubles(connection, schemas, self.publications)
            remarks = followed.remarks(connection, self.publications)
            found = [
                TableFacts(
                    *(s, published[s.relation], stored[s.relation], wanted[s.relation].bytes),
                    trouble=troubles.get(s.relation, ""),
                    remark=remarks.get(s.relation, ""),
                )
                for s in schemas
                if s.relation in published
            ]
            lacking = [table for table in wanted.values() if table.oid not in published]
            return found + [_unpublished(t, refused[t.table]) for t in lacking if t.table in refused]

    def details(self, tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            return details.table_details(connection, tables)

    def index_statement(self, table: TableSchema, columns: Sequence[str]) -> str:
        return details.index_statement(table, columns)

    def is_founder(self, facts: TableFacts) -> bool:
        return self._founders.get(facts.schema.relation) == facts.membership

    def storage_change(self, schema: TableSchema, old: StoredAs, new: StoredAs) -> StorageChange:
        return storage.change_of(schema.relation, old, new)

    def has_rows(self, schema: TableSchema, relations: Iterable[str]) -> bool:
        """Whether any of these relations, by number, has a row."""
        doing = f"looking into {schema.table}"
        with snapshot.table_errors(self.url, schema, doing), connect(self.url, lock_seconds=LOOK_SECONDS) as connection:
            return storage.has_rows(connection, [int(relation) for relation in relations])

    def writers(self, facts: TableFacts) -> dict[str, str]:
        with source_errors(self.url, f"looking who writes to {facts.schema.table}"), connect(self.url) as connection:
            return dict(storage.writers(connection, facts.stored, facts.schema.relation))

    def current_position(self) -> str:
        with source_errors(self.url, "asking for the current position"), connect(self.url) as connection:
            return current_position(connection)

    def reached(self, position: str, target: str) -> bool:
        return positions.reached(position, target)

    def distance(self, position: str, target: str) -> int:
        """Bytes of the source's log between two positions."""
        return max(positions.parse_lsn(target) - positions.parse_lsn(position), 0)

    def end_positions(self, transactions: pa.RecordBatch) -> list[str]:
        return [positions.format_lsn(value) for value in transactions.column("end_position").to_pylist()]

    def capture(
        self,
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        known: SourceIdentity | None = None,
        *,
        messages: bool = False,
    ) -> PostgresCapture:
        streamed = self._streamed()
        return PostgresCapture(
            self.url,
            self.slot,
            streamed,
            [name for name in self.publications if name not in streamed],
            after,
            first_offset,
            described,
            known=known,
            binary=self.settings.binary and self._all_binary(),
            mark_seconds=self._heartbeat_seconds,
            messages=messages,
        )

    def transaction_ids(self, transactions: pa.RecordBatch) -> list[str]:
        return [str(xid) for xid in transactions.column("xid").to_pylist()]

    decode = staticmethod(pgoutput.decode)
    messages = staticmethod(pgoutput.messages)
    transaction_columns = pgoutput.TOLD

    def export_snapshot(self) -> AbstractContextManager[ExportedSnapshot]:
        return snapshot.export_snapshot(self.url)

    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
        return snapshot.plan(self.url, table, chunk_bytes)

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot_id: str, form: str = "") -> Iterator[Rows]:
        return snapshot.read_chunk(self.url, table, chunk, snapshot_id, form)

    def read_where(self, table: TableSchema, chunk: Chunk, snapshot_id: str, where: str) -> Iterator[pa.RecordBatch]:
        return snapshot.read_where(self.url, table, chunk, snapshot_id, where)

    def read_written(
        self, table: TableSchema, chunk: Chunk, snapshot_id: str, seen_by: str
    ) -> Iterator[pa.RecordBatch]:
        return snapshot.read_where(self.url, table, chunk, snapshot_id, visibility.written_since(seen_by))

    def read_all(self, table: TableSchema, snapshot_id: str | None = None) -> Iterator[pa.RecordBatch]:
        return snapshot.read_all(self.url, table, snapshot=snapshot_id, as_text=True)

    def seen(self, transactions: pa.RecordBatch, seen_by: str) -> pa.BooleanArray:
        xids = transactions.column("xid").to_numpy()
        return pa.array(visibility.is_visible(xids, seen_by), mask=xids == 0)

    def unseen(self, changes: Changes, seen_by: str) -> npt.NDArray[np.bool_]:
        xids = changes.transactions.column("_xid").to_numpy()
        return ~visibility.is_visible(xids, seen_by)[changes.transaction]

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        return snapshot.read_rows(self.url, table, keys)

    def reader(self, snapshot_id: str) -> AbstractContextManager[ReadRows]:
        return lookup.reader(self.url, snapshot_id)

    def captures(self, table: TableSchema) -> bool:
        return self.patterns.matches(table.schema, table.name)

    def old_values(self, table: TableSchema, added: list[str], stored: StoredAs | None) -> pa.RecordBatch | None:
        if stored is None:
            return None
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            now = storage.stored_as(connection, [table.relation])[table.relation]
            if storage.change_of(table.relation, stored, now).is_rewritten or storage.has_had(stored, table, added):
                return None
            return defaults.old_values(connection, table, added, stored)

    def absence(self, table: TableSchema) -> Absence:
        """Why a table that was captured is not among those to capture now."""
        if not self.patterns.matches(table.schema, table.name):
            return Absence("it is excluded by source.tables")
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            return catalog.absence(connection, table)

    def is_shown(self, transactions: Iterable[pa.RecordBatch]) -> bool:
        with source_errors(self.url, "asking which transactions run"), connect(self.url) as connection:
            row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
        running = visibility.running(row[0])
        return not len(running) or not any(np.isin(running, t.column("xid").to_numpy()).any() for t in transactions)

    def drop_slot(self) -> bool:
        """Remove the slot, if it is there."""
        with source_errors(self.url, "dropping the slot"), connect(self.url) as connection:
            return slots.drop_slot(connection, self.slot)

    def drop(self) -> list[str]:
        if not self.settings.create:
            return []  # others made them
        with source_errors(self.url, "dropping the slot and the publication"), connect(self.url) as connection:
            dropped = []
            if slots.drop_slot(connection, self.slot):
                dropped.append(f"replication slot {self.slot}")
            names = publications.drop(connection, self.publications, self._maker, is_named=self._is_named)
            return [*dropped, *(f"publication {name}" for name in names)]

    def _require_tables(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        if not any(self.patterns.matches(t.schema, t.name) and not t.is_unlogged for t in list_tables(connection)):
            raise SourceRefused(
                f"no table of {self.name} matches source.tables: {', '.join(self.patterns.patterns)}",
                hint="tables are named schema.name; patterns such as public.* are allowed",
            )

    def _streamed(self) -> list[str]:
        with source_errors(self.url, "looking for the publications"), connect(self.url) as connection:
            return publications.subscribed(connection, self.publications)

    def _publisher(self, connection: psycopg.Connection[tuple[object, ...]]) -> Publisher:
        return Publisher(
            connection,
            self.publications,
            self.patterns,
            self._maker,
            is_named=self._is_named,
            may_alter=self.settings.create,
        )

    def _prepare_publications(self, connection: psycopg.Connection[tuple[object, ...]], *, has_slot: bool) -> None:
        publisher = self._publisher(connection)
        if self.settings.create:
            publisher.create(has_slot=has_slot)
        publisher.require(publisher.publish(lambda _: True).waiting)

    def _all_binary(self) -> bool:
        """A first guess: the stream itself says when a type comes that it can not send in binary."""
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # types come and go
            return all(map(has_binary_decoder, catalog.published_types(connection, self.publications)))


def _unpublished(table: SourceTable, reason: str) -> TableFacts:
    """A table that is not in the stream: nothing of it is known but its name."""
    schema = TableSchema(table.schema, table.name, (), (), table.identity, table.oid)
    return TableFacts(schema, "", StoredAs({}, ""), table.bytes, trouble=reason)
