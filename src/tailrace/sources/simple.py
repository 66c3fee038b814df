"""A base for simple sources, with harmless answers to what only some databases have: slots, publications, storage.

Positions are growing integers, each the end of a transaction; a snapshot sees all up to one of them. A transaction is
one message of the log, whatever its bytes are, and every change tells the whole row. All that becomes of a table is in
the source's log. A source of which one of these is not true overrides what says so.

What is left to write: `identify`, `tables`, `oldest_position`, `current_position`, `transactions_after`, `decode` (with
`transactions.decode_each`), `export_snapshot` and `read_chunk`. `testing.source_contract` holds it to its word.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import config
from tailrace.config import TablePatterns
from tailrace.documents.keys import joined, key_texts
from tailrace.errors import PositionLost, SourceChanged, SourceRefused
from tailrace.model import shapes
from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.details import TableDetails
from tailrace.model.frames import Frames
from tailrace.model.lifecycle import StoredAs
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Absence, Capture, Finding, LoggedMessage, Published, Source, StorageChange, TableFacts
from tailrace.sources.readiness import readable
from tailrace.sources.transactions import TOLD, Transaction, frames_of

ALWAYS = "always"
"""The membership of a table that can not leave the stream."""


class SimpleSource(Source):
    """Holds settings only: it pickles, and every method opens what it needs."""

    transaction_columns = TOLD

    def __init__(self, pipeline: config.Pipeline) -> None:
        self.settings = pipeline.source
        self.kind = config.scheme(pipeline.source.url)  # whose decoder reads the messages: see `registry.decoder`
        self.patterns = TablePatterns(pipeline.source.tables)

    # --- to be written

    @abstractmethod
    def oldest_position(self) -> int:
        """What follows it can still be told; the present one if nothing was ever forgotten and nothing happened."""

    @abstractmethod
    def transactions_after(self, position: int) -> Sequence[Transaction]:
        """The next ones in the order of their positions, as many as fit into memory with ease; none at the end.

        The last one that there is ends at `current_position`.
        """

    # --- what it reads

    @property
    def reads_from(self) -> str:
        return f"the tables {' and '.join(self.settings.tables)}"

    def readable(self) -> list[TableSchema]:
        return self.tables()

    def details(self, tables: Iterable[TableSchema]) -> dict[str, TableDetails]:
        return {}

    def index_statement(self, table: TableSchema, columns: Sequence[str]) -> str:
        return f"CREATE INDEX ON {table.table} ({', '.join(columns)})"

    def read_where(self, table: TableSchema, chunk: Chunk, snapshot: str, where: str) -> Iterator[pa.RecordBatch]:
        raise SourceRefused(f"rows of {table.table} can not be chosen by a condition: this source has no such thing")

    def read_written(
        self, table: TableSchema, chunk: Chunk, snapshot: str, visibility: str
    ) -> Iterator[pa.RecordBatch]:
        return iter(())  # whoever lacks a row is told all of it

    @staticmethod
    def messages(frames: Frames, first: int, last: int) -> Iterator[LoggedMessage]:  # noqa: ARG004 - there are none
        return iter(())

    def transaction_ids(self, transactions: pa.RecordBatch) -> list[str]:
        return self.end_positions(transactions)

    # --- positions

    def reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)

    def distance(self, position: str, target: str) -> int:
        return max(int(target) - int(position), 0)

    def end_positions(self, transactions: pa.RecordBatch) -> list[str]:
        return [str(position) for position in transactions.column("position").to_pylist()]

    def seen(self, transactions: pa.RecordBatch, visibility: str) -> pa.BooleanArray:
        return pc.less_equal(transactions.column("position"), int(visibility))

    def unseen(self, changes: Changes, visibility: str) -> npt.NDArray[np.bool_]:
        positions = changes.transactions.column("_commit_position").to_numpy()
        is_later: npt.NDArray[np.bool_] = positions[changes.transaction] > int(visibility)
        return is_later

    # --- the stream

    def prepare(self, on_wait: Callable[[list[str]], None], on_create: Callable[[], None]) -> str:
        return str(self.oldest_position())

    def new_start(self, oldest: str, needed: Collection[str] | None) -> str:
        return oldest

    def check_same(
        self, known: SourceIdentity, position: str, on_wait: Callable[[], None] = lambda: None
    ) -> SourceIdentity:
        now = self.identify()
        if now != known:
            raise SourceChanged(f"the source is {now.database} ({now.system}), and was {known.database}")
        if not self.reached(self.current_position(), position):
            raise SourceChanged(f"{now.database} has not come as far as {position}, which was read from it")
        return now

    def capture(
        self,
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        known: SourceIdentity | None,
        *,
        messages: bool = False,
    ) -> Capture:
        identity = self.identify() if known is None else self.check_same(known, after)
        return PolledCapture(self, identity, int(after), first_offset)

    # --- tables

    def captures(self, table: TableSchema) -> bool:
        return self.patterns.matches(table.schema, table.name)

    def facts(self, refused: Mapping[str, str] = MappingProxyType({})) -> list[TableFacts]:
        return [TableFacts(schema, ALWAYS, StoredAs({}, ""), 0) for schema in self.tables()]

    def absence(self, table: TableSchema) -> Absence:
        is_wanted = self.captures(table)
        return Absence("it is gone" if is_wanted else "it is excluded by source.tables", is_gone=is_wanted)

    # --- snapshots

    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
        """One chunk: also a table without rows has one."""
        return [Chunk(table.table, 0, 0)]

    def read_all(self, table: TableSchema, snapshot: str | None = None) -> Iterator[pa.RecordBatch]:
        if snapshot is None:
            with self.export_snapshot() as exported:
                yield from self.read_all(table, exported.id)
        else:
            for chunk in self.plan_snapshot(table, self.settings.snapshot.chunk_bytes):
                yield from self.read_chunk(table, chunk, snapshot)

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        raise SourceRefused(
            f"single rows of {table.table} can not be read", hint=f"run `tailrace snapshot {table.table}`"
        )

    @contextmanager
    def reader(self, snapshot: str) -> Iterator[ReadRows]:
        """Reads whole tables and chooses; a source that can do better overrides it."""

        def read(
            table: TableSchema, by: tuple[str, ...], values: pa.RecordBatch, columns: tuple[str, ...]
        ) -> pa.RecordBatch:
            types = {column.name: column.type for column in table.columns}
            wanted = joined(values.columns).drop_null()
            told = dict.fromkeys((*columns, *by))
            found = [table.no_rows().select(told)]
            for rows in self.read_all(table, snapshot):
                texts = joined([key_texts(rows.column(name), types[name]) for name in by])
                found.append(rows.filter(pc.is_in(texts, wanted)).select(told))
            return shapes.concat_batches(found)

        yield read

    # --- what a simple source has not

    def preflight(self) -> list[Finding]:
        return []

    def publish(self, is_known: Callable[[str], bool]) -> Published:
        return Published()

    def is_founder(self, facts: TableFacts) -> bool:
        return False

    def writers(self, facts: TableFacts) -> dict[str, str]:
        return {}

    def storage_change(self, schema: TableSchema, old: StoredAs, new: StoredAs) -> StorageChange:
        return StorageChange()

    def has_rows(self, schema: TableSchema, relations: Iterable[str]) -> bool:
        return False

    def old_values(self, table: TableSchema, added: list[str], stored: StoredAs | None) -> pa.RecordBatch | None:
        return None  # nobody knows: a table that gains a column is copied again

    def is_shown(self, transactions: Iterable[pa.RecordBatch]) -> bool:
        return True

    def drop_slot(self) -> bool:
        return False

    def drop(self) -> list[str]:
        return []


class PolledCapture(Capture):
    """Asks the source for what follows, again and again."""

    def __init__(self, source: SimpleSource, identity: SourceIdentity, after: int, first_offset: int) -> None:
        oldest = source.oldest_position()
        if after < oldest:
            raise PositionLost(f"the source begins at {oldest}, and what follows {after} is needed")
        self.identity = identity
        self._source = source
        self._pending: list[Transaction] = []
        self._position, self._next = after, first_offset

    def poll(self, seconds: float, *wake: object) -> None:
        after = self._pending[-1].position if self._pending else self._position
        came = self._source.transactions_after(after)
        self._pending += came
        if not came:
            self.idle(seconds, *wake)

    def idle(self, seconds: float, *wake: Any) -> None:
        if wake:
            readable(wake, seconds)
        else:
            time.sleep(seconds)

    @property
    def pending_bytes(self) -> int:
        return sum(len(each.message) for each in self._pending)

    def take(self) -> tuple[Frames, str] | None:
        if not self._pending:
            return None
        frames = frames_of(self._source.kind, self._next, self._pending, self._source.tables())
        self._position, self._next, self._pending = self._pending[-1].position, frames.last + 1, []
        return frames, str(self._position)

    @property
    def received(self) -> str:
        return str(self._position)

    def acknowledge(self, position: str) -> None:
        return

    def remarks(self) -> list[str]:
        return []

    def close(self) -> None:
        return
