"""Chunks of a snapshot on their way: staged by tasks, each with a note of its files, and committed by the driver."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from tailrace import failpoints
from tailrace.model.rows import EncodedRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.model.stored import from_json
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.files.encoding import as_read
from tailrace.sinks.files.staging import StagedFile, Staging

NOTE = ".chunk"


class Chunks:
    """Pickles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stage(
        self, staging: Staging, schema: TableSchema, mark: ChunkMark, run: str, position: str, batches: Iterator[Rows]
    ) -> int:
        """In a task. Two attempts leave files of their own, and the last one counts. Returns the rows."""
        with staging as files:
            for batch in batches:
                if isinstance(batch, EncodedRows):
                    raise TypeError(f"{schema.table} came encoded, and nobody asked for that")
                if batch.num_rows:
                    files.add(*as_read(schema, batch, position, mark.generation))
        note = self._folder / self.name_of(mark, run)
        beside = self._folder / f"{staging.id}{NOTE}"
        beside.write_bytes(msgspec.json.encode(files.files))
        os.replace(beside, note)  # it is not synced: what a crash takes is staged again
        failpoints.reached("chunk-staged")
        return sum(file.rows for file in files.files)

    def find(self, mark: ChunkMark, run: str) -> tuple[StagedFile, ...] | None:
        """What there is of a chunk; None if nobody of this run has staged it."""
        try:
            found: tuple[StagedFile, ...] = from_json(
                (self._folder / self.name_of(mark, run)).read_bytes(), tuple[StagedFile, ...]
            )
        except FileNotFoundError:
            return None
        return found

    def remove(self, mark: ChunkMark, run: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._folder / self.name_of(mark, run))

    def name_of(self, mark: ChunkMark, run: str) -> str:
        own = hashlib.sha256(f"{run} {mark.table}".encode()).hexdigest()[:16]
        return f"{own}-{mark.generation}-{mark.number}{NOTE}"
