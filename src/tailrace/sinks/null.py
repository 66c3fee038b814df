"""A sink that keeps nothing but its place: for measuring what comes before a sink, or filling a change log only."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator

import msgspec

from tailrace import config
from tailrace.columns.net import NetChanges
from tailrace.model.lifecycle import TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.sinks.base import Atomic, Batch, ChunkMark, Evolved, Evolves, FetchRows, RowSink, SinkState, Snapshots
from tailrace.state.storage import Storage

NOTE = "note.json"
MARK = ".loaded"


class NullNote(msgspec.Struct):
    watermark: Watermark | None = None
    tables: dict[str, TableStatus] = {}
    chunks: dict[str, list[ChunkMark]] = {}


class NullPart(msgspec.Struct, frozen=True):
    count: int

    def without(self, tables: Collection[str]) -> NullPart:
        return self


class NullSink(RowSink, Snapshots, Evolves):
    """Its notes lie in the state directory, wherever that is: a sink without data has nothing to be consistent with."""

    max_parts = 64
    atomic = Atomic.BATCH
    is_local_only = False

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name = name
        self._notes = Storage(pipeline.state).folder("null").folder(name)

    def check(self) -> None:
        return

    def is_database(self, identity: SourceIdentity) -> bool:
        return False

    def read_state(self) -> SinkState:
        note, loaded = self._read(), self._notes.sizes(MARK)
        marks = {
            table: [msgspec.structs.replace(mark, is_loaded=_mark(mark) in loaded) for mark in chunks]
            for table, chunks in note.chunks.items()
        }
        return SinkState(note.watermark, note.tables, marks)

    def claim(self, run: str) -> None:
        return

    def check_claim(self) -> None:
        return

    def held_as(self, schema: TableSchema) -> str:
        return ""

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> NullPart:
        return NullPart(sum(piece.count for piece in changes))

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        note = self._read()
        for each in batch.evolved:
            note.tables.pop(each.before.table, None)
        note.tables |= {status.table: status for status in batch.tables}
        note.watermark = batch.watermark or note.watermark
        self._write(note)
        return sum(part.count for part in batch.parts if isinstance(part, NullPart))

    def takes_in_place(self, evolved: Evolved) -> bool:
        return True

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        note = self._read()
        note.tables[status.table] = status
        note.chunks[status.table] = chunks
        self._write(note)
        return status

    def chunk_form(self, schema: TableSchema) -> str:
        return ""

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        rows = sum(int(batch.num_rows) for batch in batches)
        self._notes.publish(_mark(mark), b"")
        return rows

    def finish_snapshot(self, status: TableStatus) -> None:
        pass

    def clean(self) -> None:
        return

    def forget(self) -> None:
        if self._notes.exists():
            self._notes.remove()

    def close(self) -> None:
        return

    def _read(self) -> NullNote:
        try:
            return self._notes.decode(NOTE, NullNote)
        except FileNotFoundError:
            return NullNote()

    def _write(self, note: NullNote) -> None:
        self._notes.create()
        self._notes.publish(NOTE, msgspec.json.encode(note))


def _mark(mark: ChunkMark) -> str:
    """A table's name may hold anything, and be longer than a file's."""
    table = hashlib.sha256(mark.table.encode()).hexdigest()[:32]
    return f"{table}-{mark.generation}-{mark.number}{MARK}"
