"""How a snapshot's chunks are shared out to Spark tasks."""

from __future__ import annotations

from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChunkMark
from tailrace.tasks.load import TASK_BYTES, ChunkWork, grouped

MIB = 1 << 20


def work(*sizes: int) -> list[ChunkWork]:
    schema = TableSchema("public", "items", (), ())
    return [ChunkWork(schema, ChunkMark(1, Chunk(schema.table, number, size))) for number, size in enumerate(sizes)]


def sizes_of(groups: list[list[ChunkWork]]) -> list[int]:
    return sorted(sum(item.mark.chunk.bytes for item in group) for group in groups)


def test_few_chunks_are_shared_by_all_slots_in_equal_parts():
    assert sizes_of(grouped(work(*[16 * MIB] * 10, 2 * MIB), 2)) == [80 * MIB, 82 * MIB]


def test_small_tables_share_tasks():
    groups = grouped(work(*[8192] * 300), 2)
    assert [len(group) for group in groups] == [150, 150]


def test_a_large_table_has_tasks_enough_to_be_balanced_and_tried_again():
    groups = grouped(work(*[16 * MIB] * 640), 2)
    assert len(groups) >= 80
    assert max(sizes_of(groups)) <= 1.2 * TASK_BYTES


def test_no_task_is_empty_and_no_chunk_is_lost():
    for count in range(1, 9):
        groups = grouped(work(*range(count)), 4)
        assert all(groups)
        assert sorted(item.mark.number for group in groups for item in group) == list(range(count))
