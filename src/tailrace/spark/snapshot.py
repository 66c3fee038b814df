"""The snapshot job: Spark tasks read chunks from the source and load them into the sink, each with its mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChunkMark
from tailrace.sources.base import Chunk, TableRewritten
from tailrace.spark.apply import attempt, unwrap

SMALL_BYTES = 8 << 20
"""Chunks below this size share a task: starting one costs more than reading it."""


class ChunkWork(msgspec.Struct, frozen=True):
    schema: TableSchema
    mark: ChunkMark


class Loaded(msgspec.Struct, frozen=True):
    table: str
    rows: int
    is_rewritten: bool = False


def load_chunks(spark: SparkSession, source: Any, sink: Any, snapshot: str, work: Sequence[ChunkWork]) -> list[Loaded]:
    """Load all chunks; a table that was rewritten meanwhile is reported, not raised."""
    tasks = _grouped(work)

    def run(group: list[ChunkWork]) -> Any:
        return attempt(lambda: [_load(source, sink, snapshot, item) for item in group])

    found = unwrap(spark.sparkContext.parallelize(tasks, len(tasks)).map(run).collect())
    return [loaded for group in found for loaded in group]


def _load(source: Any, sink: Any, snapshot: str, item: ChunkWork) -> Loaded:
    chunk = msgspec.convert(item.mark.chunk, Chunk)
    try:
        rows = sink.load_chunk(item.schema, item.mark, source.read_chunk(item.schema, chunk, snapshot))
    except TableRewritten:
        return Loaded(chunk.table, 0, is_rewritten=True)
    return Loaded(chunk.table, rows)


def _grouped(work: Sequence[ChunkWork]) -> list[list[ChunkWork]]:
    """Large chunks alone and first, small ones together."""
    ordered = sorted(work, key=lambda item: -int(item.mark.chunk["bytes"]))
    groups: list[list[ChunkWork]] = []
    size = SMALL_BYTES
    for item in ordered:
        size += int(item.mark.chunk["bytes"]) + 65536
        if size >= SMALL_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(item)
    return groups
