"""The sink contract: staged means seen by nobody, committed means all of it, once; and what the sink remembers."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.errors import SinkChanged, SinkTaken, SinkUnavailable
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Batch, DatabaseSink
from tailrace.testing.sink_changes import (
    ITEMS,
    LOOSE,
    ODD,
    ORDERS,
    Inventory,
    MakeSink,
    ReadRows,
    SourceRows,
    apply,
    chunk,
    net,
    partial,
    same,
    status,
    table_of,
    watermark,
)
from tailrace.testing.sink_process import Commit, kill_at, stopped_at


class CommitsContract:
    """Processes are killed and stopped for real."""

    # --- once and only once ------------------------------------------------------------------------------------------

    def test_a_repeated_batch_changes_nothing(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(LOOSE, [(1, "a")])], 10)
        assert apply(sink, [net(ITEMS, [(1, "b", None)]), net(LOOSE, [(1, "a")])], 10) == 0
        assert (rows(ITEMS), rows(LOOSE)) == ([(1, "a", None)], [(1, "a")])

    def test_a_batch_that_did_not_start_where_the_sink_is_changes_nothing(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        apply(sink, [net(LOOSE, [(1, "a")])], 10)
        apply(sink, [net(LOOSE, [(2, "b")])], 20)
        for before in (None, watermark(10)):
            part = sink.stage("batch", 0, [net(LOOSE, [(1, "a")])])
            with pytest.raises(SinkChanged, match="offset 20"):
                sink.commit(Batch((part,), watermark(15), before=before), SourceRows(LOOSE))
        assert same(rows(LOOSE), [(1, "a"), (2, "b")])
        assert sink.read_state().watermark == watermark(20)

    # --- one run at a time -------------------------------------------------------------------------------------------

    def test_a_run_writes_nothing_after_the_claim_of_another(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        sink.claim("first")
        apply(sink, [net(LOOSE, [(1, "a")])], 10)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        staged = sink.stage("batch", 0, [net(LOOSE, [(2, "late")])])
        other = make_sink()
        other.claim("second")
        late: list[Callable[[], object]] = [
            lambda: sink.commit(Batch((staged,), watermark(20), before=watermark(10)), SourceRows(LOOSE)),
            lambda: sink.commit(Batch(tables=(status(LOOSE),)), SourceRows(LOOSE)),
            lambda: sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [], clear=True),
            lambda: sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, [(1, "late", None)])])),
            lambda: sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT)),
        ]
        for work in late:
            with pytest.raises(SinkTaken, match="another run"):
                work()
        apply(other, [net(LOOSE, [(3, "c")])], 15)
        other.close()
        assert same(rows(LOOSE), [(1, "a"), (3, "c")])
        assert (rows(ITEMS), sink.read_state().watermark) == ([], watermark(15))

    def test_a_claim_travels_with_the_sink(self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows) -> None:
        sink.claim("first")
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        task = pickle.loads(pickle.dumps(sink))
        assert task.load_chunk(LOOSE, chunk(LOOSE), iter([table_of(LOOSE, [(1, "a")])])) == 1
        task.close()
        other = make_sink()
        other.claim("first")  # a run that was interrupted while it claimed may claim again
        apply(other, [net(LOOSE, [(2, "b")])], 10)
        other.close()
        assert same(rows(LOOSE), [(1, "a"), (2, "b")])

    def test_a_claim_does_not_wait_for_ever_for_a_run_that_was_stopped(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows, tmp_path: Path
    ) -> None:
        """In the midst of its commit. Where it can not be broken off, the sink says that it is busy."""
        sink.claim("first")
        apply(sink, [net(LOOSE, [(1, "a")])], 10)
        late = Commit(sink, [net(LOOSE, [(2, "late")])], watermark(20))
        other = make_sink()
        with stopped_at("sink-before-commit", late, tmp_path, may_fail=True):
            try:
                other.claim("second")
            except SinkUnavailable:
                return
            apply(other, [net(LOOSE, [(3, "c")])], 15)
        other.close()
        assert same(rows(LOOSE), [(1, "a"), (3, "c")])

    def test_a_claim_does_not_wait_for_ever_for_a_chunk_that_was_stopped(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        """In the midst of its load. What it has loaded so far is gone, and it loads no more."""
        sink.claim("first")
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        has_begun, is_over = threading.Event(), threading.Event()

        def stopping() -> Iterator[pa.RecordBatch]:
            yield table_of(LOOSE, [(1, "late")])
            has_begun.set()
            is_over.wait(60)
            yield table_of(LOOSE, [(2, "late")])

        other = make_sink()
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(sink.load_chunk, LOOSE, chunk(LOOSE), stopping())
            assert has_begun.wait(30)
            try:
                other.claim("second")
            finally:
                is_over.set()
            assert isinstance(loading.exception(), SinkTaken | SinkUnavailable)
        apply(other, [net(LOOSE, [(3, "c")])], 15)
        other.close()
        assert rows(LOOSE) == [(3, "c")]

    def test_a_commit_whose_answer_was_lost_may_be_repeated(self, sink: DatabaseSink, rows: ReadRows) -> None:
        part = sink.stage("batch", 0, [net(LOOSE, [(1, "a")])])
        batch = Batch((part,), watermark(10), (status(LOOSE),))
        assert sink.commit(batch, SourceRows(LOOSE)) == 1
        assert sink.commit(batch, SourceRows(LOOSE)) == 0
        assert rows(LOOSE) == [(1, "a")]

    def test_another_process_may_repeat_a_commit(self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")])], 10)
        other = make_sink()
        assert apply(other, [net(LOOSE, [(1, "a")])], 10) == 0
        other.close()
        assert rows(LOOSE) == [(1, "a")]

    def test_a_batch_of_a_log_that_was_made_anew_is_not_taken_for_an_old_one(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        apply(sink, [net(LOOSE, [(1, "a")])], 500)
        part = sink.stage("batch", 0, [net(LOOSE, [(2, "b")])])
        sink.commit(Batch((part,), watermark(3, "another log"), before=watermark(500)), SourceRows(LOOSE))
        assert same(rows(LOOSE), [(1, "a"), (2, "b")])
        assert sink.read_state().watermark == watermark(3, "another log")

    def test_a_step_of_a_tables_catch_up_is_applied_once(self, sink: DatabaseSink, rows: ReadRows) -> None:
        step = status(LOOSE, TableState.CATCH_UP, 10)
        for _ in range(2):
            part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
            sink.commit(Batch((part,), None, (step,)), SourceRows(LOOSE))
        assert rows(LOOSE) == [(1, "a")]
        state = sink.read_state()
        assert (state.watermark, state.tables) == (None, {LOOSE.table: step})

    def test_a_step_that_did_not_start_where_the_table_is_changes_nothing(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        """As after a commit whose answer was lost, or where the sink was put back from a backup."""
        first, second = (status(LOOSE, TableState.CATCH_UP, offset) for offset in (10, 20))
        part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
        sink.commit(Batch((part,), None, (first,)), SourceRows(LOOSE))
        part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a"), (2, "b")])])
        with pytest.raises(SinkChanged, match="loose"):
            sink.commit(Batch((part,), None, (second,), places={LOOSE.table: watermark(0)}), SourceRows(LOOSE))
        assert (rows(LOOSE), sink.read_state().tables) == ([(1, "a")], {LOOSE.table: first})

    def test_a_place_of_the_sink_does_not_stand_for_the_tables_of_a_batch(self, sink: DatabaseSink) -> None:
        """The sink's own place may have been written together with another table."""
        sink.commit(Batch((), watermark(10), (status(ORDERS, offset=10),)), SourceRows(ORDERS))
        part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
        with pytest.raises(SinkChanged):
            sink.commit(Batch((part,), watermark(10), (status(LOOSE, offset=10),)), SourceRows(LOOSE))
        assert sink.read_state().tables.keys() == {ORDERS.table}

    def test_the_last_step_of_a_catch_up_moves_the_table_on(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.commit(Batch((), None, (status(LOOSE, TableState.CATCH_UP, 10),)), SourceRows(LOOSE))
        part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
        sink.commit(Batch((part,), None, (status(LOOSE, TableState.LIVE, 10),)), SourceRows(LOOSE))
        assert (rows(LOOSE), sink.read_state().tables[LOOSE.table].state) == ([(1, "a")], TableState.LIVE)

    # --- staged ------------------------------------------------------------------------------------------------------

    def test_what_is_staged_is_seen_by_nobody(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.stage("batch-2", 0, [net(ITEMS, [(2, "b", None)], truncate=True)])
        assert rows(ITEMS) == [(1, "a", None)]
        assert sink.read_state().watermark == watermark(10)

    def test_what_was_staged_and_never_committed_leaves_no_trace(
        self, sink: DatabaseSink, rows: ReadRows, inventory: Inventory
    ) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.clean()
        before = inventory()
        for number in range(3):
            sink.stage("batch-2", number, [net(ITEMS, [(2, "b", None)]), net(ORDERS, [(1, 1)])])
        sink.clean()
        assert inventory() == before
        assert rows(ITEMS) == [(1, "a", None)]

    def test_a_committed_batch_leaves_nothing_staged(self, sink: DatabaseSink, inventory: Inventory) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.clean()
        before = inventory()
        apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
        sink.clean()
        assert inventory() == before

    def test_a_part_may_be_staged_again_after_a_task_was_lost(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.stage("batch-1", 0, [net(LOOSE, [(1, "lost")])])
        part = sink.stage("batch-1", 0, [net(LOOSE, [(1, "a")])])
        sink.commit(Batch((part,), watermark(10)), SourceRows(LOOSE))
        assert rows(LOOSE) == [(1, "a")]

    def test_receipts_and_sinks_travel_between_processes(self, sink: DatabaseSink, rows: ReadRows) -> None:
        task = pickle.loads(pickle.dumps(sink))
        part = pickle.loads(pickle.dumps(task.stage("batch-1", 0, [net(ITEMS, [(1, "a", None)])])))
        task.close()
        sink.commit(Batch((part,), watermark(10)), SourceRows(ITEMS))
        assert rows(ITEMS) == [(1, "a", None)]

    def test_a_batch_without_changes_moves_the_watermark(self, sink: DatabaseSink) -> None:
        sink.commit(Batch((), watermark(10)), SourceRows(ITEMS))
        assert sink.read_state().watermark == watermark(10)

    def test_a_commit_that_fails_changes_nothing(self, sink: DatabaseSink, rows: ReadRows) -> None:
        def unavailable(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
            raise ConnectionError("the source is gone")

        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        rest = partial(ITEMS, ("notes",), [(7, "b", None)])
        part = sink.stage("batch-2", 0, [net(ITEMS, [(1, "changed", None)], partials=[rest])])
        with pytest.raises(ConnectionError):
            sink.commit(Batch((part,), watermark(20), (status(ITEMS),), watermark(10)), unavailable)
        assert rows(ITEMS) == [(1, "a", "x")]
        assert (sink.read_state().watermark, sink.read_state().tables) == (watermark(10), {})
        apply(sink, [net(ITEMS, [(1, "changed", None)])], 20)
        assert rows(ITEMS) == [(1, "changed", None)]

    # --- all or nothing ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("failpoint", "is_done"), [("sink-before-commit", False), ("sink-committed", True)])
    def test_a_process_killed_around_its_commit_has_done_all_or_nothing(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows, tmp_path: Path, failpoint: str, is_done: bool
    ) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")]), net(LOOSE, [(1, "a")])], 10)
        changes = [net(ITEMS, [(1, "a2", None), (3, "c", None)], deletes=[(2,)]), net(LOOSE, [(1, "a")])]
        old = ([(1, "a", "x"), (2, "b", "y")], [(1, "a")], watermark(10), None)
        new = ([(1, "a2", None), (3, "c", None)], [(1, "a")] * 2, watermark(20), status(ITEMS, offset=20))
        kill_at(failpoint, Commit(sink, changes, watermark(20), (status(ITEMS, offset=20),)), tmp_path)

        def content() -> tuple[Any, ...]:
            state = restarted.read_state()
            return sorted(rows(ITEMS)), rows(LOOSE), state.watermark, state.tables.get(ITEMS.table)

        restarted = make_sink()
        assert content() == (new if is_done else old)
        restarted.clean()
        part = restarted.stage("batch-20", 0, changes)
        restarted.commit(Batch((part,), watermark(20), (status(ITEMS, offset=20),), watermark(10)), SourceRows(ITEMS))
        assert content() == new
        restarted.close()

    def test_a_reader_sees_a_whole_batch_or_nothing_of_it(
        self, sink: DatabaseSink, rows: ReadRows, tmp_path: Path
    ) -> None:
        apply(sink, [net(ITEMS, [(n, "old", None) for n in range(100)]), net(ORDERS, [(1, 1)])], 10)
        changes = [
            net(ITEMS, [(n, "new", None) for n in range(50)], deletes=[(n,) for n in range(50, 100)]),
            net(ORDERS, [(2, 2)], truncate=True),
        ]
        with stopped_at("sink-before-commit", Commit(sink, changes, watermark(20)), tmp_path):
            assert {(len(rows(ITEMS)), name) for _, name, _ in rows(ITEMS)} == {(100, "old")}
            assert rows(ORDERS) == [(1, 1)]
        assert {(len(rows(ITEMS)), name) for _, name, _ in rows(ITEMS)} == {(50, "new")}
        assert rows(ORDERS) == [(2, 2)]

    # --- what the sink remembers -------------------------------------------------------------------------------------

    def test_a_fresh_sink_remembers_nothing(self, sink: DatabaseSink) -> None:
        state = sink.read_state()
        assert (state.watermark, state.tables, state.chunks) == (None, {}, {})

    def test_watermark_and_table_statuses_survive_a_restart(self, sink: DatabaseSink, make_sink: MakeSink) -> None:
        items = msgspec.structs.replace(status(ITEMS, offset=5), visibility="1:2:", snapshot_end="0/AB", rows=7)
        odd = status(ODD, TableState.FAILED)
        sink.commit(Batch((), watermark(10), (items, odd)), SourceRows(ITEMS))
        sink.close()
        restarted = make_sink()
        state = restarted.read_state()
        restarted.close()
        assert (state.watermark, state.tables) == (watermark(10), {ITEMS.table: items, ODD.table: odd})

    def test_the_newest_status_of_a_table_counts(self, sink: DatabaseSink) -> None:
        for offset, state in ((10, TableState.CATCH_UP), (20, TableState.LIVE)):
            before = sink.read_state().watermark
            sink.commit(Batch((), watermark(offset), (status(ITEMS, state),), before), SourceRows(ITEMS))
        assert sink.read_state().tables[ITEMS.table].state is TableState.LIVE

    def test_a_forgotten_pipeline_leaves_its_tables(self, sink: DatabaseSink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ORDERS, TableState.SNAPSHOT), [chunk(ORDERS)], clear=True)
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.forget()
        state = sink.read_state()
        assert (state.watermark, state.tables, state.chunks) == (None, {}, {})
        assert rows(ITEMS) == [(1, "a", None)]

    def test_two_pipelines_in_one_database_do_not_disturb_each_other(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        other = make_sink("another")
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        apply(other, [net(ORDERS, [(1, 1)])], 5)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        staged = other.stage("batch-6", 0, [net(ORDERS, [(2, 2)])])
        sink.clean()
        other.commit(Batch((staged,), watermark(6), before=watermark(5)), SourceRows(ORDERS))
        assert same(rows(ORDERS), [(1, 1), (2, 2)])
        assert (sink.read_state().watermark, other.read_state().watermark) == (watermark(10), watermark(6))
        assert (other.read_state().tables, other.read_state().chunks) == ({}, {})
        sink.forget()
        assert other.read_state().watermark == watermark(6)
        other.close()

    def test_a_sink_that_can_be_used_passes_its_check_unchanged(self, sink: DatabaseSink, inventory: Inventory) -> None:
        before = inventory()
        sink.check()
        assert inventory() == before
