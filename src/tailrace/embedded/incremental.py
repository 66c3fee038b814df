"""Snapshots on demand, while the stream flows: a chunk at a time, each put into the stream where it belongs.

As in DBLog, but without a mark in the source's log, and exact. A chunk is read under a snapshot that sees nothing that
ends after position P, and everything that was delivered before. It is handed out between two batches, once the stream
has passed P: then all that the chunk saw was delivered before it. Of what was delivered and the chunk did not see, the
keys are known; the chunk's rows of these keys are older than what the consumer has, and are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from tailrace import failpoints
from tailrace.embedded.content import Stretch
from tailrace.embedded.copying import ReadChunk
from tailrace.embedded.events import is_news
from tailrace.embedded.ledger import Ledger
from tailrace.embedded.newer import Newer, Partial
from tailrace.embedded.reads import Reads
from tailrace.errors import SourceUnavailable
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.sources.base import ExportedSnapshot, Source, TableRewritten

LOOK_SECONDS = 0.2
"""How often those are looked for who have to end before a table can be read."""


class Waiting:
    """A chunk that was read, and what was delivered since that it has not seen."""

    def __init__(self, copy: TableCopy, chunk: Chunk, rows: list[pa.RecordBatch], seen: ExportedSnapshot) -> None:
        self.copy, self.chunk, self.rows, self.seen = copy, chunk, rows, seen
        self.newer = Newer(copy.schema)

    def observe(self, source: Source, stretch: Stretch) -> None:
        """Transactions that are handed out before the chunk is."""
        for changes in stretch.of_table(self.copy.schema.table):
            self.newer.learn(changes.keep(source.unseen(changes, self.seen.visibility)))

    def left(self) -> tuple[pa.RecordBatch, ...]:
        """The rows that nobody has delivered a newer state of."""
        return tuple(left for rows in self.rows for left in self.newer.left(rows))


class Incremental:
    """Used by the thread that polls."""

    def __init__(self, source: Source, chunk_bytes: int, ledger: Ledger) -> None:
        self._source, self._chunk_bytes, self._ledger = source, chunk_bytes, ledger
        self._reading: tuple[TableCopy, Partial] | None = None  # the copy under way, and rows delivered in part since
        self._waiting: Waiting | None = None
        self._unshown: list[pa.RecordBatch] = []  # transactions that were delivered, and that some may not see yet
        self._settled: dict[tuple[str, int], set[str]] = {}  # snapshots, and for whose end they wait
        self._looked_at = 0.0

    def observe(self, stretch: Stretch) -> None:
        """To be told of every stretch before it is handed out."""
        self._unshown += [part.piece.transactions for part in stretch.parts]
        if self._waiting is not None:
            self._waiting.observe(self._source, stretch)
        if self._reading is not None:
            copy, partial = self._reading
            for changes in stretch.of_table(copy.schema.table):
                partial.learn(changes)
            if partial:
                self._ledger.mark_partial(copy.schema.table)

    def next(self, checkpoint: Checkpoint, border: str) -> ReadChunk | None:
        """A chunk to be handed out now that the stream is at `border`; None if there is none, or not yet."""
        copy = next((each for each in checkpoint.copies if not each.visibility and not each.is_paused), None)
        if copy is None:
            self._waiting = self._reading = None
            self._unshown.clear()
            return None
        if self._must_begin_again(copy):
            self._begin_again(copy)
            return None
        try:
            self._read_ahead(copy)
        except TableRewritten:
            self._begin_again(copy)
        except SourceUnavailable:
            return None
        return self._due(border, checkpoint.tables)

    def _must_begin_again(self, copy: TableCopy) -> bool:
        """Rows were delivered in part that this process knows nothing of; or a chunk has columns that are no more."""
        is_ours = self._reading is not None and _is_same(self._reading[0], copy)
        return (copy.is_partial and not is_ours) or (self._waiting is not None and self._waiting.newer.is_altered)

    def _begin_again(self, copy: TableCopy) -> None:
        self._waiting = self._reading = None
        again = {"left": (), "chunks": 0, "generation": copy.generation + 1, "is_partial": False}
        self._ledger.save_copy(msgspec.structs.replace(copy, **again))

    def _due(self, border: str, known: Mapping[str, str]) -> ReadChunk | None:
        waiting = self._waiting
        if waiting is None or not self._source.reached(border, waiting.seen.position):
            return None
        self._waiting, copy = None, waiting.copy
        reads = Reads(
            schema=copy.schema,
            rows=waiting.left(),
            position=waiting.seen.position,
            generation=copy.generation,
            transactions=self._source.transaction_columns,
            is_first=len(copy.left) == copy.chunks,
            is_last=len(copy.left) == 1,
            is_news=is_news(dict(known), copy.schema),
        )
        return ReadChunk(copy, waiting.chunk, reads)

    def _read_ahead(self, copy: TableCopy) -> None:
        """Read the next chunk of a copy, unless it was; not before everybody sees all that was delivered."""
        if self._is_waiting_for(copy):
            return
        self._waiting = None
        if not self._is_settled(copy) or not self._is_shown():
            return
        if not copy.chunks:
            copy = self._planned(copy)
        if self._reading is None or not _is_same(self._reading[0], copy):
            self._reading = copy, Partial(copy.schema)
        partial = self._reading[1]
        with self._source.export_snapshot() as snapshot:
            chunk = copy.left[0]
            rows = self._rows(copy, chunk, snapshot.id)
            if len(copy.left) == 1 and not copy.where:
                rows += partial.read(self._source.read_rows)
            self._waiting = Waiting(copy, chunk, rows, snapshot)
        failpoints.reached("embedded-chunk-waits")

    def _is_waiting_for(self, copy: TableCopy) -> bool:
        waiting = self._waiting
        return waiting is not None and copy.left[:1] == (waiting.chunk,) and _is_same(waiting.copy, copy)

    def _rows(self, copy: TableCopy, chunk: Chunk, snapshot: str) -> list[pa.RecordBatch]:
        if copy.where:
            return list(self._source.read_where(copy.schema, chunk, snapshot, copy.where))
        found = self._source.read_chunk(copy.schema, chunk, snapshot)
        return [rows for rows in found if isinstance(rows, pa.RecordBatch)]

    def _planned(self, copy: TableCopy) -> TableCopy:
        with self._source.export_snapshot():
            facts = self._facts_of(copy)
            chunks = tuple(self._source.plan_snapshot(facts, self._chunk_bytes))
        planned = msgspec.structs.replace(copy, schema=facts, left=chunks, chunks=len(chunks))
        self._ledger.save_copy(planned)
        return planned

    def _facts_of(self, copy: TableCopy) -> TableSchema:
        found = (each for each in self._source.tables() if each.table == copy.schema.table)
        return next(found, copy.schema)

    def _is_settled(self, copy: TableCopy) -> bool:
        """Whether everybody has ended who wrote to the table when it was first looked at in this run.

        What they have committed may have been delivered before, and still not be seen: a commit that waits for a
        synchronous standby is in the stream long before.
        """
        place = (copy.schema.table, copy.generation)
        if self._settled.get(place) == set():
            return True
        if place in self._settled and time.monotonic() - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = time.monotonic()
        facts = next((each for each in self._source.facts() if each.schema.table == copy.schema.table), None)
        now = set() if facts is None else set(self._source.writers(facts))
        self._settled[place] = now & self._settled.get(place, now)
        return not self._settled[place]

    def _is_shown(self) -> bool:
        if self._unshown and not self._source.is_shown(self._unshown):
            return False
        self._unshown.clear()
        return True


def _is_same(one: TableCopy, other: TableCopy) -> bool:
    return (one.schema.table, one.generation) == (other.schema.table, other.generation)
