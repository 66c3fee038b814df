"""What a task does for a copy: reads chunks from the source and loads them into the sink, each with its mark."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tailrace.errors import SinkTaken, TailraceError
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChunkMark, Snapshots
from tailrace.sources.base import Source, TableLocked, TableRewritten

TASK_BYTES = 128 << 20
"""What a task should have to read if there is enough of it: starting one costs as much as reading some megabytes."""
CHUNK_COST_BYTES = 65_536
"""What a chunk costs besides its bytes."""


class ChunkWork(msgspec.Struct, frozen=True):
    schema: TableSchema
    mark: ChunkMark


class Loaded(msgspec.Struct, frozen=True):
    """What became of a chunk. `error` is the table's own trouble, which is nobody else's."""

    table: str
    rows: int
    is_rewritten: bool = False
    error: TailraceError | None = None


def load_all(source: Source, sink: Snapshots, snapshot: str, group: Sequence[ChunkWork]) -> Iterator[Loaded]:
    """One after the other; a table that failed once is not tried again."""
    failed: set[str] = set()
    for item in group:
        if item.schema.table in failed:
            continue
        loaded = _load(source, sink, snapshot, item)
        if loaded.error is not None:
            failed.add(loaded.table)
        yield loaded


def _load(source: Source, sink: Snapshots, snapshot: str, item: ChunkWork) -> Loaded:
    def read() -> Iterator[Rows]:
        return source.read_chunk(item.schema, item.mark.chunk, snapshot, sink.chunk_form(item.schema))

    return load(sink, item.schema, item.mark, read)


def load(sink: Snapshots, schema: TableSchema, mark: ChunkMark, read: Callable[[], Iterator[Rows]]) -> Loaded:
    """Load what is read, and say what became of it."""
    chunk = mark.chunk
    try:
        rows = sink.load_chunk(schema, mark, read())
    except TableRewritten:
        return Loaded(chunk.table, 0, is_rewritten=True)
    except TableLocked:  # its copy goes on another time, that of others now
        return Loaded(chunk.table, 0)
    except TailraceError as error:
        if error.retry or isinstance(error, SinkTaken):
            raise
        return Loaded(chunk.table, 0, error=error)
    return Loaded(chunk.table, rows)


def grouped(work: Sequence[ChunkWork], slots: int) -> list[list[ChunkWork]]:
    """The chunks of each task, of nearly equal size: one task for every slot, and more only where there is much."""
    total = sum(_cost(item) for item in work)
    groups: list[list[ChunkWork]] = [[] for _ in range(min(len(work), max(slots, total // TASK_BYTES)))]
    sizes = [(0, number) for number in range(len(groups))]
    for item in sorted(work, key=_cost, reverse=True):
        size, number = sizes[0]
        groups[number].append(item)
        heapq.heapreplace(sizes, (size + _cost(item), number))
    return groups


def _cost(item: ChunkWork) -> int:
    return item.mark.chunk.bytes + CHUNK_COST_BYTES
