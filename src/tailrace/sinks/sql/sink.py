"""A SQL database as a sink: one sink for all of them, the differences being in its dialect.

Tasks stage rows in parallel; the driver merges all tables, with their statuses and the watermark, in one transaction.
A batch of few rows takes a shorter way with the same promise: its rows travel in the receipts, and there is nothing to
create or drop. Here is what a task stages and what is read back; the rest is `commits`, `snapshots`, `recovery`,
`cleanup` and `quarantine/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from tailrace import config
from tailrace.columns.net import NetChanges, drained
from tailrace.config import Misfits
from tailrace.model.lifecycle import TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sinks.base import Atomic, Batch, ChunkMark, DatabaseSink, Evolved, FetchRows, Quarantined, SinkState
from tailrace.sinks.sql.cleanup import Cleanup
from tailrace.sinks.sql.commits import Commits
from tailrace.sinks.sql.dialect import Dialect
from tailrace.sinks.sql.notes import JUST_READ
from tailrace.sinks.sql.parts import parts_of
from tailrace.sinks.sql.pieces import composed, few_of
from tailrace.sinks.sql.quarantine.entries import Quarantine
from tailrace.sinks.sql.quarantine.sieve import Sieve
from tailrace.sinks.sql.recovery import Recovery
from tailrace.sinks.sql.sessions import transaction
from tailrace.sinks.sql.snapshots import SnapshotLoads
from tailrace.sinks.sql.staged import StagedChanges, StagedPart
from tailrace.sinks.sql.writers import FileWriter, InlineWriter, StagingWriter, TableWriter, Writer, stage_changes

INLINE_BYTES = 1 << 20
"""What a task's receipt may hold; more goes into staging tables."""


class SqlSink(DatabaseSink):
    """Picklable: connections are made where they are used. Several threads may use it at once."""

    max_parts = 64
    atomic = Atomic.BATCH
    is_local_only = False

    def __init__(self, dialect: Dialect, pipeline: config.Pipeline, name: str) -> None:
        self.name, self.dialect = name, dialect
        self._parts = parts_of(dialect, pipeline, name)
        self._settings, self._sessions, self._places = self._parts.settings, self._parts.sessions, self._parts.places
        self._mapping, self._notes, self._ready = self._parts.mapping, self._parts.notes, self._parts.ready
        self._claim = self._parts.claim
        self._cleanup = Cleanup(self._parts)
        self._recovery = Recovery(self._parts, self._cleanup)
        self._commits = Commits(self._parts, self._cleanup, self._recovery)
        self._snapshots = SnapshotLoads(self._parts, self._cleanup, self._recovery)
        self._quarantine = Quarantine(self._parts)

    # --- what it is, and remembers

    def check(self) -> None:
        """Changes nothing: what is missing is made by the first snapshot."""
        with self._sessions.look("being checked") as session:
            self.dialect.server.check(session, self._settings.schemas.values())

    def is_database(self, identity: SourceIdentity) -> bool:
        with self._sessions.look("being asked who it is") as session:
            is_there = self.dialect.server.is_there()
            return is_there and self.dialect.server.identity(session) == (identity.system, identity.database)

    def read_state(self) -> SinkState:
        with self._sessions.look("reading its state") as session:
            return self._notes.read(session) if self._notes.exists(session) else SinkState(None, {}, {})

    def claim(self, run: str) -> None:
        with self._sessions.use("being claimed") as session:
            self._ready.ensure_notes(session)
            self._claim.make(session, run)

    def check_claim(self) -> None:
        with self._sessions.use("being asked who writes to it") as session:
            self._claim.check(session)

    def held_as(self, schema: TableSchema) -> str:
        renames = self._settings.columns.get(schema.table, {})
        return msgspec.json.encode([self._places.name(schema), sorted(renames.items())]).decode()

    def forget(self) -> None:
        self._cleanup.forget()

    def clean(self) -> None:
        self._cleanup.clean()

    def close(self) -> None:
        self._sessions.close()

    # --- batches

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> StagedPart:
        sieve = Sieve(self.dialect.encoding)
        pieces = self._sifted(composed(changes), sieve)
        few, more = few_of(pieces, min(INLINE_BYTES, self.dialect.staging.most_inline_bytes))
        if not more:
            inline = InlineWriter(self.dialect.encoding)
            staged = tuple(self._stage_changes(inline, piece) for piece in few)
            return StagedPart(staged, rejected=tuple(sieve.rejected))
        with self._staging() as staging:
            staged = tuple(self._stage_changes(staging, piece) for piece in drained(few, pieces))
        return StagedPart(staged, tuple(staging.names), tuple(sieve.rejected))

    def _stage_changes(self, writer: Writer, piece: NetChanges) -> StagedChanges:
        table = piece.schema.table
        with self._sessions.errors_of(table, f"staging {table}"):
            return stage_changes(writer, piece, self._mapping)

    def _sifted(self, pieces: Iterator[NetChanges], sieve: Sieve) -> Iterator[NetChanges]:
        return map(sieve.net, pieces) if self._settings.misfits is Misfits.QUARANTINE else pieces

    @contextmanager
    def _staging(self) -> Iterator[StagingWriter]:
        """Where a task writes what is too much for its receipt."""
        name = self._places.new_staging()
        if (file := self.dialect.staging.file(name)) is not None:
            with self._sessions.errors("staging a batch"), closing(file):
                yield FileWriter(self.dialect, file, name)
            return
        with self._sessions.open("staging a batch") as session:
            self._ready.ensure_notes(session)
            with transaction(session):
                yield TableWriter(self.dialect, session, self._places.new_staging)

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        return self._commits.commit(batch, fetch)

    def takes_in_place(self, evolved: Evolved) -> bool:
        looking = f"looking at the table of {evolved.schema.table}"
        if not self._ready.is_settled:
            with self._sessions.use(looking) as session:
                self._ready.ensure_notes(session)
                self._recovery.settle(session)
        with self._sessions.look(looking) as session:
            return self._parts.alterations.can_take_in(session, evolved)

    def tend_ahead(self, tend: Callable[[str, str], str]) -> None:
        with self._sessions.use("looking for tables that are ahead") as session:
            self._ready.ensure_notes(session)
            marks = self._notes.ahead(session)
        places = {table: "" if mark.startswith(JUST_READ) else mark for table, mark in marks.items()}
        changed = {table: now for table, place in places.items() if (now := tend(table, place)) != place}
        if not changed:
            return
        with self._sessions.use("marking tables that are ahead") as session, self._claim.transaction(session):
            for table, now in changed.items():
                self._notes.tend_ahead(session, table, marks[table], now)

    # --- snapshots

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        return self._snapshots.begin(status, chunks, clear=clear)

    def chunk_form(self, schema: TableSchema) -> str:
        return self._snapshots.chunk_form(schema)

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        return self._snapshots.load(schema, mark, batches)

    def finish_snapshot(self, status: TableStatus) -> None:
        self._snapshots.finish(status)

    # --- rows that were set aside

    def quarantined(self) -> list[Quarantined]:
        return self._quarantine.entries()

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        self._quarantine.drop(entries)

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        return self._quarantine.replay(entries, fetch)

    # --- reading back

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        with self._sessions.look(f"counting {schema.table}") as session:
            return self.dialect.catalog.count(
                session, self.dialect.naming.qualified(self._places.table(schema)), seconds
            )

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        table = self.dialect.naming.qualified(self._places.table(schema))
        schema = self._mapping.schema(schema)
        columns = ", ".join(
            self.dialect.reading.selected(self.dialect.naming.quote(c.name), c.type) for c in schema.columns
        )
        query = f"SELECT {columns} FROM {table}"
        types = [column.type for column in schema.columns]
        with self._sessions.open(f"reading {schema.table}") as session:
            for rows in session.stream(query):
                read = [
                    self.dialect.reading.read_values(values, type_)
                    for values, type_ in zip(zip(*rows, strict=True), types, strict=True)
                ]
                yield list(zip(*read, strict=True))

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        mapped = zip(self._mapping.rows(schema, batch).columns, self._mapping.schema(schema).columns, strict=True)
        columns = [self.dialect.reading.expected_values(array, column.type) for array, column in mapped]
        return list(zip(*columns, strict=True))
