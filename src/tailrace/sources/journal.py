"""A base for sources that are a journal and nothing else: every row they ever had came as a change, which is kept.

There is nothing to copy, so a snapshot is empty and sees nothing. What is left to write: `identify`, `tables`,
`current_position`, `transactions_after` and `parse`; `examples/small_source.py` does it in twenty lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from tailrace.model.changes import Changes
from tailrace.model.chunk import Chunk
from tailrace.model.frames import Frames
from tailrace.model.schema import TableSchema
from tailrace.sources.base import ExportedSnapshot
from tailrace.sources.simple import SimpleSource
from tailrace.sources.transactions import RowChange, decode_each


class JournalSource(SimpleSource):
    """Nothing is ever forgotten: it begins at 0."""

    @staticmethod
    @abstractmethod
    def parse(message: bytes) -> Iterable[RowChange]:
        """The changes of one transaction's message, in order: as many as its `tables` names."""

    @classmethod
    def decode(cls, frames: Frames, first: int, last: int, tables: Collection[str] | None = None) -> Iterator[Changes]:
        return decode_each(frames, first, last, tables, cls.parse)

    def oldest_position(self) -> int:
        return 0

    @contextmanager
    def export_snapshot(self) -> Iterator[ExportedSnapshot]:
        yield ExportedSnapshot(id="", visibility="0", position="0")

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "") -> Iterator[pa.RecordBatch]:
        return iter(())
