"""Chunks of a snapshot on their way: staged by tasks, each under its own name, and sent by the driver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tailrace import failpoints
from tailrace.model.lifecycle import TableStatus
from tailrace.model.rows import EncodedRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChunkMark, Rejected
from tailrace.sinks.kafka import staged
from tailrace.sinks.kafka.encoding import Encoder, row_pieces
from tailrace.sinks.kafka.fitting import Fitting, counted
from tailrace.sinks.kafka.naming import Names
from tailrace.sinks.kafka.staged import CHUNK, StagedChunk
from tailrace.state.storage import Storage


class Chunks:
    """Pickles, with the run that it is of and where its tables begin."""

    def __init__(self, storage: Storage, encoder: Encoder, names: Names, fitting: Fitting) -> None:
        self._storage, self._encoder, self._names, self._fitting = storage, encoder, names, fitting
        self.run = ""
        self._positions: dict[str, str] = {}

    def learn(self, status: TableStatus) -> None:
        """Rows of a copy have the position where the table's changes begin: none of those comes before it."""
        self._positions[status.table] = status.watermark.position

    def stage(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        """In a task. Two attempts leave files of their own, and the last one counts."""
        failpoints.reached("chunk-before-load")
        topic, position = self._names.topic(schema), self._positions.get(schema.table, "")
        name, count = self._name(mark), 0
        writer, aside = staged.Writer(self._storage, name), list[Rejected]()
        for batch in batches:
            if isinstance(batch, EncodedRows):
                raise TypeError(f"{schema.table} came encoded, and nobody asked for that")
            for rows in row_pieces(batch):
                encoded = self._encoder.reads(topic, schema, rows, position, mark.generation)
                large = self._fitting.rows(topic, schema, encoded, rows)
                writer.add(schema.table, topic, self._fitting.kept(topic, encoded), rows.num_rows - len(large))
                aside += large
                count += rows.num_rows
        counted(aside)
        writer.close()
        self._storage.create()
        staged.publish_chunk(
            self._storage, name, StagedChunk(tuple(writer.files), topic, count - len(aside), tuple(aside))
        )
        failpoints.reached("chunk-staged")
        return count

    def find(self, mark: ChunkMark) -> StagedChunk | None:
        return staged.find_chunk(self._storage, self._name(mark))

    def remove(self, mark: ChunkMark, chunk: StagedChunk) -> None:
        staged.remove(self._storage, [self._name(mark), *chunk.files])

    def _name(self, mark: ChunkMark) -> str:
        own = hashlib.sha256(f"{self.run} {mark.table}".encode()).hexdigest()[:16]
        return f"{own}-{mark.generation}-{mark.number}{CHUNK}"
