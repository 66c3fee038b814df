"""Copies of tables that come before the stream: all their chunks, and then the changes that they have not seen.

Chunks are read in the consumer's thread, one a batch. On the first way through all are read under one exported
snapshot, so that rows and stream meet exactly. What a crash, or a lost connection, has left over is read under a later
one, and the changes are still those that the first one had not seen: some of them come though the rows have them
already, so that whoever writes rows by their key ends equal. A row that was updated in between lies elsewhere, and its
change may tell a part of it only: in the end all of the table is looked through for such rows. A table without a key
begins again, and so does one that was rewritten meanwhile: what was delivered of it is void, which a truncate tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

import msgspec
import pyarrow as pa

from tailrace import failpoints
from tailrace.embedded.events import is_news
from tailrace.embedded.reads import Reads
from tailrace.embedded.versions import version_of
from tailrace.errors import SourceUnavailable
from tailrace.model.checkpoint import Checkpoint, TableCopy
from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.sources.base import ExportedSnapshot, Source, TableRewritten


class ReadChunk(msgspec.Struct, frozen=True):
    """A chunk, read; `copy` is its table's as it is to be noted once the chunk is acknowledged."""

    copy: TableCopy
    chunk: Chunk
    reads: Reads


class TableVanished(Exception):
    """A table that was being copied is gone, or has another name by now."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


class Copying:
    """Reads the chunks of copies that have a visibility, the first that is left first."""

    def __init__(self, source: Source, chunk_bytes: int) -> None:
        self._source, self._chunk_bytes = source, chunk_bytes
        self._held = ExitStack()
        self._snapshot: ExportedSnapshot | None = None
        self._planned_under: dict[str, str] = {}  # tables, with the id of the snapshot that they were planned under
        self._moved: dict[str, tuple[Chunk, ...]] = {}  # of copies that go on: where rows may have moved to

    def plan(self, schemas: Iterable[TableSchema], generation: int, *, is_again: bool = False) -> list[TableCopy]:
        """New copies of tables, under one snapshot."""
        return [self._planned(schema, generation, is_again=is_again) for schema in schemas]

    @property
    def position(self) -> str:
        """What the snapshot that it reads under has seen ends before there."""
        return self._export().position

    def next(self, checkpoint: Checkpoint, present: Mapping[str, TableSchema]) -> ReadChunk | None:
        """The next chunk to hand out; None once all are acknowledged. `present` are the tables as they are now."""
        for copy in checkpoint.copies:
            if is_under_way(copy):
                read = self._read(copy, present.get(copy.schema.table, copy.schema))
                told = is_news(dict(checkpoint.tables), read.copy.schema)
                return msgspec.structs.replace(read, reads=replace(read.reads, is_news=told))
        self.close()
        return None

    def close(self) -> None:
        """Let go of the snapshot: what is left is read under a later one."""
        self._held.close()
        self._snapshot = None
        self._planned_under.clear()
        self._moved.clear()

    def _read(self, copy: TableCopy, present: TableSchema) -> ReadChunk:
        try:
            return self._read_first(self._fit(copy, present))
        except TableRewritten:
            self.close()  # it sees nothing of the table any more
            return self._read_again(copy, present)
        except SourceUnavailable:
            self.close()
            raise

    def _read_again(self, copy: TableCopy, present: TableSchema) -> ReadChunk:
        try:
            return self._read_first(self._again(copy, present, is_void=True))
        except TableRewritten as error:
            self.close()
            if self._source.absence(present).is_gone:
                raise TableVanished(present.table) from error
            raise SourceUnavailable(f"{present.table} is being altered while it is read: it is tried again") from error

    def _fit(self, copy: TableCopy, present: TableSchema) -> TableCopy:
        """As it was planned, if it can go on; planned anew otherwise, at no cost where nothing was acknowledged."""
        snapshot, table = self._export(), copy.schema.table
        is_begun = len(copy.left) < copy.chunks
        if self._planned_under.get(table) != snapshot.id:
            if not is_begun or not copy.schema.key or version_of(copy.schema) != version_of(present):
                return self._again(copy, present, is_void=is_begun)
            self._moved[table] = self._everywhere(copy)
            self._planned_under[table] = snapshot.id
            return msgspec.structs.replace(copy, moved=self._moved[table])
        return msgspec.structs.replace(copy, moved=self._moved[table]) if copy.left and table in self._moved else copy

    def _everywhere(self, copy: TableCopy) -> tuple[Chunk, ...]:
        """All of a table as it is now, behind the chunks of its copy."""
        chunks = self._source.plan_snapshot(copy.schema, self._chunk_bytes)
        return tuple(msgspec.structs.replace(each, number=copy.chunks + each.number) for each in chunks)

    def _again(self, copy: TableCopy, present: TableSchema, *, is_void: bool) -> TableCopy:
        return self._planned(present, copy.generation + is_void, is_again=copy.is_again or is_void)

    def _planned(self, schema: TableSchema, generation: int, *, is_again: bool = False) -> TableCopy:
        snapshot = self._export()
        chunks = tuple(self._source.plan_snapshot(schema, self._chunk_bytes))
        self._planned_under[schema.table] = snapshot.id
        return TableCopy(
            schema=schema,
            left=chunks,
            visibility=snapshot.visibility,
            until=snapshot.position,
            generation=generation,
            is_again=is_again,
            chunks=len(chunks),
        )

    def _read_first(self, copy: TableCopy) -> ReadChunk:
        snapshot, chunk = self._export(), (copy.left or copy.moved)[0]
        rows = [each for each in self._rows(copy, chunk, snapshot) if each.num_rows]
        failpoints.reached("embedded-chunk-read")
        reads = Reads(
            schema=copy.schema,
            rows=tuple(rows),
            position=snapshot.position,
            generation=copy.generation,
            transactions=self._source.transaction_columns,
            truncates=copy.is_again and len(copy.left) == copy.chunks,
            is_first=len(copy.left) == copy.chunks,
            is_last=len(copy.left) + len(copy.moved) == 1,
        )
        return ReadChunk(copy, chunk, reads)

    def _rows(self, copy: TableCopy, chunk: Chunk, snapshot: ExportedSnapshot) -> list[pa.RecordBatch]:
        if not copy.left:
            return list(self._source.read_written(copy.schema, chunk, snapshot.id, copy.visibility))
        found = self._source.read_chunk(copy.schema, chunk, snapshot.id)
        return [rows for rows in found if isinstance(rows, pa.RecordBatch)]

    def _export(self) -> ExportedSnapshot:
        if self._snapshot is None:
            self._snapshot = self._held.enter_context(self._source.export_snapshot())
        return self._snapshot


def is_under_way(copy: TableCopy) -> bool:
    """Whether a copy that comes before the stream has something left to be read."""
    return bool(copy.visibility) and bool(copy.left or copy.moved)
