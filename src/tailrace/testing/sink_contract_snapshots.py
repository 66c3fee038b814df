"""The sink contract: chunks of a snapshot, each loaded with its mark or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, Identity
from tailrace.sinks.base import DatabaseSink
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    ORDERS,
    ReadRows,
    apply,
    chunk,
    live,
    load,
    net,
    same,
    status,
    table_of,
    watermark,
)
from tailrace.testing.sink_process import LoadChunk, kill_at


class SnapshotsContract:
    """Chunks are loaded, repeated, interrupted and given up."""

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def test_a_chunk_is_loaded_together_with_its_mark(self, sink: DatabaseSink, rows: ReadRows) -> None:
        started = status(ITEMS, TableState.SNAPSHOT)
        sink.begin_snapshot(started, [chunk(ITEMS, 0), chunk(ITEMS, 1)], clear=True)
        batches = iter([table_of(ITEMS, [(1, "a", None)]), table_of(ITEMS, [(2, "b", "y"), (3, "c", None)])])
        assert sink.load_chunk(ITEMS, chunk(ITEMS, 1), batches) == 3
        assert same(rows(ITEMS), [(1, "a", None), (2, "b", "y"), (3, "c", None)])
        state = sink.read_state()
        assert state.tables == {ITEMS.table: started}
        done = msgspec.structs.replace(chunk(ITEMS, 1), is_loaded=True, rows=3)
        assert state.chunks == {ITEMS.table: [chunk(ITEMS, 0), done]}

    def test_a_chunk_that_is_loaded_already_loads_nothing(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        for expected in (2, 0):
            assert sink.load_chunk(LOOSE, chunk(LOOSE), iter([table_of(LOOSE, [(1, "a"), (1, "a")])])) == expected
        assert rows(LOOSE) == [(1, "a")] * 2

    def test_a_chunk_of_a_plan_that_was_given_up_loads_nothing(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, generation=2), [chunk(ITEMS, generation=2)], clear=True)
        assert sink.load_chunk(ITEMS, chunk(ITEMS, generation=1), iter([table_of(ITEMS, [(1, "a", None)])])) == 0
        assert rows(ITEMS) == []

    @pytest.mark.parametrize("batches", [[], [[]], [[], [(1, "a", None)]], [[(1, "a", None)], []]])
    def test_a_chunk_may_hold_no_rows_or_empty_batches(
        self, sink: DatabaseSink, rows: ReadRows, batches: list[list[tuple[Any, ...]]]
    ) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, batch) for batch in batches]))
        assert rows(ITEMS) == [row for batch in batches for row in batch]
        assert sink.read_state().chunks[ITEMS.table][0].is_loaded

    def test_a_chunk_whose_source_fails_in_the_middle_is_not_loaded(self, sink: DatabaseSink, rows: ReadRows) -> None:
        def broken() -> Iterator[pa.RecordBatch]:
            yield table_of(ITEMS, [(1, "a", None)])
            raise ConnectionError("the source is gone")

        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        with pytest.raises(ConnectionError):
            sink.load_chunk(ITEMS, chunk(ITEMS), broken())
        assert rows(ITEMS) == []
        assert not sink.read_state().chunks[ITEMS.table][0].is_loaded
        assert sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, [(1, "a", None)])])) == 1

    @pytest.mark.parametrize(("failpoint", "is_done"), [("chunk-before-load", False), ("chunk-loaded", True)])
    def test_a_process_killed_around_a_chunk_has_loaded_it_with_its_mark_or_not_at_all(
        self, sink: DatabaseSink, rows: ReadRows, tmp_path: Path, failpoint: str, is_done: bool
    ) -> None:
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        content = table_of(LOOSE, [(1, "a"), (1, "a")])
        kill_at(failpoint, LoadChunk(sink, LOOSE, chunk(LOOSE), content), tmp_path)
        (mark,) = sink.read_state().chunks[LOOSE.table]
        assert (mark.is_loaded, rows(LOOSE)) == (is_done, [(1, "a")] * 2 * is_done)
        sink.clean()
        sink.load_chunk(LOOSE, chunk(LOOSE), iter([content]))
        assert rows(LOOSE) == [(1, "a")] * 2

    def test_a_snapshot_that_begins_anew_replaces_its_own_table_only(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(ORDERS, [(1, 1)])], 10)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS, n) for n in range(3)], clear=True)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, generation=2), [chunk(ITEMS, generation=2)], clear=True)
        assert (rows(ITEMS), rows(ORDERS)) == ([(1, "a", None)], [(1, 1)])
        assert sink.read_state().chunks == {ITEMS.table: [chunk(ITEMS, generation=2)]}
        assert sink.read_state().watermark == watermark(10)

    def test_a_snapshot_that_begins_anew_takes_the_tables_new_columns(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        renamed = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("remarks", INT)))
        live(sink, load(sink, renamed, [(1, "a", 5)]), renamed)
        assert rows(renamed) == [(1, "a", 5)]

    def test_a_snapshot_of_a_table_that_has_lost_its_key_takes_rows_that_repeat(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        keyless = msgspec.structs.replace(ITEMS, key=(), identity=Identity.FULL)
        live(sink, load(sink, keyless, [(1, "a", None), (2, "b", None)]), keyless)
        apply(sink, [net(keyless, [(2, "a", None)], deletes=[(1, "a", None)], copies=[1])], 11)
        assert same(rows(keyless), [(2, "a", None), (2, "b", None)])

    def test_a_snapshot_may_begin_without_clearing(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=False)
        assert rows(ITEMS) == [(1, "a", None)]

    def test_an_empty_table_is_there_after_its_snapshot(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        assert rows(ITEMS) == []

    def test_a_resumed_snapshot_replaces_rows_that_are_there_already(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS, 0), chunk(ITEMS, 1)], clear=True)
        sink.load_chunk(ITEMS, chunk(ITEMS, 0), iter([table_of(ITEMS, [(1, "a", None)])]))
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))  # from here on, rows may come twice
        sink.load_chunk(ITEMS, chunk(ITEMS, 1), iter([table_of(ITEMS, [(1, "moved between pages", "x")])]))
        assert rows(ITEMS) == [(1, "moved between pages", "x")]

    def test_a_finished_snapshot_takes_changes_by_key(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, [(1, "a", None), (2, "b", None)])]))
        for _ in range(2):
            sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        apply(sink, [net(ITEMS, [(1, "changed", None)], deletes=[(2,)])], 10)
        assert rows(ITEMS) == [(1, "changed", None)]
