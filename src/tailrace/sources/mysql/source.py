"""MySQL and MariaDB as a source: the contract of `sources.base`, over the parts of this package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pymysql.connections import Connection

from tailrace import config
from tailrace.errors import SourceRefused
from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.details import TableDetails
from tailrace.model.frames import Frames
from tailrace.model.lifecycle import StoredAs
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import (
    Absence,
    ExportedSnapshot,
    Finding,
    LoggedMessage,
    Published,
    Source,
    StorageChange,
    TableFacts,
)
from tailrace.sources.mysql import catalog, decode, details, identity, lookup, positions, preflight, snapshot
from tailrace.sources.mysql.capture import MysqlCapture
from tailrace.sources.mysql.connection import connect, database_of, read_server, server_of, source_errors
from tailrace.sources.mysql.identity import relation_of
from tailrace.sources.mysql.settings import MysqlSettings
from tailrace.sources.mysql.wanted import Wanted

LOGGED = "logged"
"""The membership of a table: all tables are in the binary log, and none can leave it alone."""

NO_MOMENT = (
    "it has no key, and {engine} has no transactions: nobody tells which of its rows a copy has seen; give it a primary"
    " key, or run ALTER TABLE … ENGINE = InnoDB"
)


class MysqlSource(Source):
    """Holds settings only: it pickles, and every method opens what it needs."""

    settings_type = MysqlSettings
    transaction_columns = decode.TOLD

    def __init__(self, pipeline: config.Pipeline) -> None:
        self.settings = pipeline.source_settings(MysqlSettings)
        self.url = pipeline.source.url
        self.kind = config.scheme(self.url)
        self.server_id = self.settings.server_id_of(pipeline.name)
        self.wanted = Wanted(pipeline.source.tables, database_of(self.url))
        self._mark_seconds = pipeline.source.heartbeat_ms / 1000

    @property
    def name(self) -> str:
        return server_of(self.url)

    @property
    def reads_from(self) -> str:
        return f"the binary log of {self.name}, tables {' and '.join(self.wanted.all.patterns)}"

    # --- who it is, and where it is

    def preflight(self) -> list[Finding]:
        return preflight.check(self.url, self.wanted, self.settings, self.server_id)

    def identify(self) -> SourceIdentity:
        return identity.identify(self.url)

    def check_same(
        self, known: SourceIdentity, position: str, on_wait: Callable[[], None] = lambda: None
    ) -> SourceIdentity:
        return identity.check_same(self.url, known, position, on_wait)

    def prepare(
        self, on_wait: Callable[[list[str]], None] = lambda _: None, on_create: Callable[[], None] = lambda: None
    ) -> str:
        """Nothing has to be made: the server keeps its log for all. The oldest place that it still has."""
        with source_errors(self.url, "looking for its binary logs"), connect(self.url) as connection:
            if not catalog.list_tables(connection, self.wanted):
                raise SourceRefused(
                    f"no table at {self.name} matches source.tables: {', '.join(self.wanted.all.patterns)}",
                    hint="create a table, grant SELECT on it, or correct the patterns",
                )
            return positions.oldest(connection, read_server(connection))

    def new_start(self, oldest: str, needed: Collection[str] | None) -> str:
        """Where the last of those goes on who need something; else now: a binary log reaches back for days."""
        if needed is None:
            return oldest
        places = list(needed)
        if not places:
            return self.current_position()
        return next((p for p in places if all(self.reached(other, p) for other in places)), oldest)

    def current_position(self) -> str:
        with source_errors(self.url, "asking for the current position"), connect(self.url) as connection:
            return positions.current_position(connection, read_server(connection))

    def reached(self, position: str, target: str) -> bool:
        return positions.reached(position, target)

    def distance(self, position: str, target: str) -> int:
        return positions.distance(position, target)

    def end_positions(self, transactions: pa.RecordBatch) -> list[str]:
        return decode.end_positions(transactions)

    def transaction_ids(self, transactions: pa.RecordBatch) -> list[str]:
        return decode.transaction_ids(transactions)

    # --- the stream

    def capture(
        self,
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        known: SourceIdentity | None = None,
        *,
        messages: bool = False,
    ) -> MysqlCapture:
        del messages  # applications write none into a binary log
        return MysqlCapture(
            self.url,
            self.server_id,
            self.wanted,
            after,
            first_offset,
            described,
            known,
            mark_seconds=self._mark_seconds,
            zero_dates=self.settings.zero_dates,
        )

    @staticmethod
    def decode(frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        return decode.decode(frames, first, last, tables)

    @staticmethod
    def messages(frames: Frames, first: int, last: int) -> Iterator[LoggedMessage]:  # noqa: ARG004 - there are none
        return iter(())

    # --- tables

    def tables(self) -> list[TableSchema]:
        with source_errors(self.url, "listing the tables"), connect(self.url) as connection:
            return list(self._described(connection, catalog.list_tables(connection, self.wanted)).schemas.values())

    def readable(self) -> list[TableSchema]:
        return self.tables()

    def facts(self, refused: Mapping[str, str] = MappingProxyType({})) -> list[TableFacts]:
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            listed = catalog.list_tables(connection, self.wanted)
            found = self._described(connection, listed)
            numbers = catalog.table_numbers(connection, read_server(connection))
        facts = []
        for table in listed:
            name = (table.schema, table.name)
            schema = found.schemas.get(name)
            trouble = found.troubles.get(name, "")
            if schema is None and trouble:
                schema = TableSchema(*name, (), relation=relation_of(*name))
            if schema is not None:
                stored = catalog.stored_as(table, schema, numbers)
                if not schema.key and not catalog.is_transactional(table):
                    trouble = trouble or NO_MOMENT.format(engine=table.engine)
                facts.append(TableFacts(schema, LOGGED, stored, table.bytes, trouble))
        return facts

    def _described(self, connection: Connection[Any], tables: Iterable[catalog.SourceTable]) -> catalog.Described:
        names = [(table.schema, table.name) for table in tables]
        return catalog.described(connection, names, self.settings.zero_dates)

    def details(self, tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
        with source_errors(self.url, "reading the catalog"), connect(self.url) as connection:
            return details.table_details(connection, tables)

    def index_statement(self, table: TableSchema, columns: Sequence[str]) -> str:
        return details.index_statement(table, columns)

    def captures(self, table: TableSchema) -> bool:
        return self.wanted.matches(table.schema, table.name)

    def absence(self, table: TableSchema) -> Absence:
        if not self.captures(table):
            return Absence("it is excluded by source.tables")
        return Absence("it was dropped or renamed at the source", is_gone=True)

    def storage_change(self, schema: TableSchema, old: StoredAs, new: StoredAs) -> StorageChange:
        if catalog.is_another(old, new):
            return StorageChange(is_rewritten=True, reason="it was made anew, swapped for another, or rewritten")
        return StorageChange()

    # --- snapshots

    def export_snapshot(self) -> AbstractContextManager[ExportedSnapshot]:
        return snapshot.export_snapshot(self.url, self.settings)

    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
        return snapshot.plan(self.url, table, chunk_bytes)

    def read_chunk(
        self, table: TableSchema, chunk: Chunk, snapshot_id: str, form: str = ""
    ) -> Iterator[pa.RecordBatch]:
        del form  # no sink has asked for MySQL's own yet
        return snapshot.read_chunk(self.url, table, chunk, snapshot_id)

    def read_where(self, table: TableSchema, chunk: Chunk, snapshot_id: str, where: str) -> Iterator[pa.RecordBatch]:
        return snapshot.read_chunk(self.url, table, chunk, snapshot_id, where)

    def read_all(self, table: TableSchema, snapshot_id: str | None = None) -> Iterator[pa.RecordBatch]:
        if snapshot_id is None:
            return snapshot.read_now(self.url, table)
        return snapshot.read_under(self.url, table, snapshot_id)

    def read_written(
        self, table: TableSchema, chunk: Chunk, snapshot_id: str, visibility: str
    ) -> Iterator[pa.RecordBatch]:
        return iter(())  # each change tells the whole row

    def seen(self, transactions: pa.RecordBatch, visibility: str) -> pa.BooleanArray:
        servers = transactions.column("server")
        found = positions.within(servers, transactions.column("number"), visibility)
        return pa.array(found, mask=np.asarray(servers.to_pylist()) == "")

    def unseen(self, changes: Changes, visibility: str) -> npt.NDArray[np.bool_]:
        told = changes.transactions
        found = positions.within(told.column("_server"), told.column("_number"), visibility)
        return ~found[changes.transaction]

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        return lookup.read_rows(self.url, table, keys)

    def reader(self, snapshot_id: str) -> AbstractContextManager[ReadRows]:
        return lookup.reader(self.url, snapshot_id)

    # --- what MySQL has not

    def publish(self, is_known: Callable[[str], bool]) -> Published:
        return Published()

    def is_founder(self, facts: TableFacts) -> bool:
        return True  # everything is in the log from the beginning

    def writers(self, facts: TableFacts) -> dict[str, str]:
        return {}

    def has_rows(self, schema: TableSchema, relations: Iterable[str]) -> bool:
        return False

    def old_values(self, table: TableSchema, added: list[str], stored: StoredAs | None) -> pa.RecordBatch | None:
        return None  # nobody knows: a table that gains a column is copied again

    def is_shown(self, transactions: Iterable[pa.RecordBatch]) -> bool:
        """A transaction is in the log before its rows are in the tables, and has executed once they are."""
        now = self.current_position()
        return all(
            bool(np.asarray(self.seen(each, now).fill_null(True)).all()) for each in transactions if each.num_rows
        )

    def drop_slot(self) -> bool:
        return False

    def drop(self) -> list[str]:
        return []
