"""PostgreSQL as a source: the contract of `sources.base`, over the parts of this package."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa

from tailrace import config
from tailrace.config import TablePatterns
from tailrace.errors import SourceRefused, SourceUnavailable
from tailrace.model.changes import Changes
from tailrace.model.frames import Frames
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.sources.base import Chunk, ExportedSnapshot, Finding, Visibility
from tailrace.sources.postgres import catalog, pgoutput, positions, preflight, slots, snapshot, visibility
from tailrace.sources.postgres.capture import PostgresCapture
from tailrace.sources.postgres.catalog import SourceTable, list_tables, table_schemas
from tailrace.sources.postgres.connection import connect, current_position, server_of, source_errors
from tailrace.sources.postgres.types import has_binary_decoder


class PostgresSource:
    """Holds settings only: it pickles, and every method opens what it needs."""

    def __init__(self, pipeline: config.Pipeline) -> None:
        self.settings = pipeline.source
        self.url = pipeline.source.url
        self.slot = pipeline.slot_name
        self.publication = pipeline.publication_name
        self.patterns = TablePatterns(pipeline.source.tables)

    @property
    def name(self) -> str:
        return server_of(self.url)

    def preflight(self) -> list[Finding]:
        return preflight.check(self.url, self.slot, self.publication, self.patterns, self.settings)

    def prepare(self) -> str:
        with connect(self.url) as connection, source_errors(self.url, "preparing the slot and the publication"):
            wanted = {(t.schema, t.name) for t in self._wanted(connection)}
            slots.ensure_publication(connection, self.publication, wanted, may_create=self.settings.create)
            slot = slots.usable_slot(connection, self.slot)
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
                slot = slots.create_slot(connection, self.slot)
            assert slot.confirmed is not None
            return slot.confirmed

    def tables(self) -> list[TableSchema]:
        with connect(self.url) as connection, source_errors(self.url, "listing the tables"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # tables come and go
            wanted = [t for t in list_tables(connection) if self.patterns.matches(t.schema, t.name)]
            return table_schemas(connection, wanted, self.publication)

    def current_position(self) -> str:
        with connect(self.url) as connection, source_errors(self.url, "asking for the current position"):
            return current_position(connection)

    def reached(self, position: str, target: str) -> bool:
        return positions.reached(position, target)

    def distance(self, position: str, target: str) -> int:
        """Bytes of the source's log between two positions."""
        return max(positions.parse_lsn(target) - positions.parse_lsn(position), 0)

    def positions(self, values: npt.NDArray[np.int64]) -> list[str]:
        return [positions.format_lsn(value) for value in values.tolist()]

    def capture(self, after: str, first_offset: int, known: Mapping[int, TableSchema]) -> PostgresCapture:
        return PostgresCapture(
            self.url,
            self.slot,
            self.publication,
            after,
            first_offset,
            known,
            binary=self.settings.binary and self._all_binary(),
            mark_seconds=self.settings.heartbeat_ms / 1000,
        )

    def decode(self, frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        return pgoutput.decode(frames, first, last, tables)

    def export_snapshot(self) -> AbstractContextManager[ExportedSnapshot]:
        return snapshot.export_snapshot(self.url)

    def consistent_snapshot(self) -> AbstractContextManager[tuple[str, str]]:
        """A snapshot's id, and the position whose past it sees exactly."""
        return snapshot.consistent_snapshot(self.url)

    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
        return snapshot.plan(self.url, table, chunk_bytes)

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot_id: str, form: str = "") -> Iterator[Rows]:
        return snapshot.read_chunk(self.url, table, chunk, snapshot_id, form)

    def read_all(self, table: TableSchema, snapshot_id: str | None = None) -> Iterator[pa.RecordBatch]:
        return snapshot.read_all(self.url, table, snapshot=snapshot_id, as_text=True)

    def is_visible(self, xids: npt.NDArray[np.int64], seen: Visibility) -> npt.NDArray[np.bool_]:
        return visibility.is_visible(xids, seen.snapshot)

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        return snapshot.read_rows(self.url, table, keys)

    def adds_only_nulls(self, table: TableSchema, added: list[str]) -> bool:
        """True when rows that were there before the columns `added` came have NULL in them."""
        with connect(self.url) as connection, source_errors(self.url, "reading the catalog"):
            return catalog.adds_only_nulls(connection, table, added)

    def drop(self) -> list[str]:
        with connect(self.url) as connection, source_errors(self.url, "dropping the slot and the publication"):
            dropped = []
            if slots.drop_slot(connection, self.slot):
                dropped.append(f"replication slot {self.slot}")
            if slots.drop_publication(connection, self.publication):
                dropped.append(f"publication {self.publication}")
            return dropped

    def _wanted(self, connection: psycopg.Connection[tuple[object, ...]]) -> list[SourceTable]:
        wanted = [t for t in list_tables(connection) if self.patterns.matches(t.schema, t.name) and not t.is_unlogged]
        if not wanted:
            raise SourceRefused(
                f"no table of {self.name} matches source.tables: {', '.join(self.settings.tables)}",
                hint="tables are named schema.name; patterns such as public.* are allowed",
            )
        return wanted

    def _all_binary(self) -> bool:
        """A first guess: the stream itself says when a type comes that it can not send in binary."""
        with connect(self.url) as connection, source_errors(self.url, "reading the catalog"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # types come and go
            return all(map(has_binary_decoder, catalog.published_types(connection, [self.publication])))
