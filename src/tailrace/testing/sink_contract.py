"""The sink contract as a test suite: every sink of a SQL database passes it, whoever wrote the sink.

Subclass `SinkContract` in a test module and give it four fixtures:

- `make_sink`: a function of a pipeline's name that makes a sink; all sinks of a test write to one fresh database;
- `rows`: a function of a table schema that reads the table back through a connection of its own;
- `inventory`: a function without arguments that lists everything there is of the sink, tables and scratch files alike;
- `expected_values`: what the documented mapping makes of `sample_values.SAMPLES`, by name, as `rows` reads them.

A gap is an override marked `xfail(strict=True)` with its reason.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch, Sink
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    ORDERS,
    PAIRS,
    TEXT,
    SourceRows,
    apply,
    chunk,
    net,
    partial,
    status,
    table_of,
    watermark,
)
from tailrace.testing.sink_process import Commit, LoadChunk, kill_at, stopped_at

MakeSink = Callable[..., Sink]
ReadRows = Callable[[TableSchema], list[tuple[Any, ...]]]
Inventory = Callable[[], list[str]]

KEY_SAMPLES = ("boolean", "int16", "int32", "decimal", "uuid", "date", "timestamptz", "time", "enum")
ODD = TableSchema(
    "Wörter",
    'or"der; DROP TABLE x --',
    (
        Column('Grö"ße', INT, nullable=False),
        Column("select", TEXT),
        Column("a b", TEXT),
        Column("c'd", TEXT),
        Column("日本", INT, nullable=False),
        Column("%s", TEXT),
        Column("c0", TEXT),
    ),
    ("日本", 'Grö"ße'),
)


class SinkContract:
    """What staged and committed mean, read back from the database."""

    @pytest.fixture
    def sink(self, make_sink: MakeSink) -> Iterator[Sink]:
        sink = make_sink()
        yield sink
        sink.close()

    # --- rows --------------------------------------------------------------------------------------------------------

    def test_inserted_rows_are_read_back(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None), (2, "", "x")])], 10)
        assert same(rows(ITEMS), [(1, "a", None), (2, "", "x")])

    def test_an_upsert_of_a_row_that_is_there_replaces_it_whole(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(1, "a2", None), (3, "c", "z")])], 20)
        assert same(rows(ITEMS), [(1, "a2", None), (2, "b", "y"), (3, "c", "z")])

    def test_deleted_rows_are_gone_and_a_delete_of_nothing_does_nothing(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, deletes=[(2,), (99,)])], 20)
        assert same(rows(ITEMS), [(1, "a", "x")])

    def test_a_changed_key_is_the_row_under_its_new_key(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(2, "a", "x"), (3, "b", "y")], deletes=[(1,)])], 20)
        assert same(rows(ITEMS), [(2, "a", "x"), (3, "b", "y")])

    def test_a_composite_key_is_matched_whole(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(PAIRS, [("v1", 1, "w", 2), ("v2", 2, "w", 1), ("v3", 1, "w", 1)])], 10)
        apply(sink, [net(PAIRS, [("v3+", 1, "w+", 1)], deletes=[(2, 1)])], 20)
        assert same(rows(PAIRS), [("v2", 2, "w", 1), ("v3+", 1, "w+", 1)])

    def test_a_table_that_is_nothing_but_its_key_takes_inserts_twice_and_deletes(
        self, sink: Sink, rows: ReadRows
    ) -> None:
        keys = TableSchema("public", "keys", (Column("a", INT), Column("b", INT)), ("a", "b"))
        apply(sink, [net(keys, [(1, 1), (1, 2)])], 10)
        apply(sink, [net(keys, [(1, 1), (2, 1)], deletes=[(1, 2)])], 20)
        assert same(rows(keys), [(1, 1), (2, 1)])

    def test_a_truncate_empties_the_table_before_anything_else(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")]), net(ORDERS, [(1, 1)])], 10)
        apply(sink, [net(ITEMS, [(1, "new", None)], truncate=True)], 20)
        assert (rows(ITEMS), rows(ORDERS)) == ([(1, "new", None)], [(1, 1)])
        apply(sink, [net(ITEMS, truncate=True)], 30)
        assert rows(ITEMS) == []

    def test_changes_are_applied_in_order_within_a_part_and_across_parts(self, sink: Sink, rows: ReadRows) -> None:
        first = sink.stage("batch-1", 0, [net(ITEMS, [(1, "a", None)]), net(ITEMS, deletes=[(1,)])])
        second = sink.stage("batch-1", 1, [net(ITEMS, [(1, "b", None), (2, "b", None)])])
        third = sink.stage("batch-1", 2, [net(ITEMS, [(2, "c", None)])])
        sink.commit(Batch((first, second, third), watermark(10)), SourceRows(ITEMS))
        assert same(rows(ITEMS), [(1, "b", None), (2, "c", None)])

    def test_a_commit_says_how_many_rows_it_touched(self, sink: Sink) -> None:
        assert apply(sink, [net(ITEMS, [(1, "a", None), (2, "b", None)]), net(ORDERS, [(1, 1)])], 10) == 3
        assert apply(sink, [net(ITEMS, [(3, "c", None)], deletes=[(1,)])], 20) == 2

    # --- partial rows ------------------------------------------------------------------------------------------------

    def test_a_partial_row_leaves_what_was_not_sent_as_it_is(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "long"), (2, "b", None), (3, "c", "z")])], 10)
        changes = partial(ITEMS, ("notes",), [(1, "a2", None), (2, None, None)])
        apply(sink, [net(ITEMS, partials=[changes, partial(ITEMS, ("name", "notes"), [(3, None, None)])])], 20)
        assert same(rows(ITEMS), [(1, "a2", "long"), (2, None, None), (3, "c", "z")])

    def test_partial_rows_come_after_the_whole_rows_of_their_batch(self, sink: Sink, rows: ReadRows) -> None:
        whole, rest = [(1, "a", "long")], partial(ITEMS, ("notes",), [(1, "a2", None)])
        apply(sink, [net(ITEMS, whole, partials=[rest])], 10)
        assert rows(ITEMS) == [(1, "a2", "long")]

    def test_a_partial_row_that_the_sink_does_not_have_is_read_from_the_source(
        self, sink: Sink, rows: ReadRows
    ) -> None:
        source = SourceRows(ITEMS, [(2, "of the source", "its notes")])
        apply(sink, [net(ITEMS, [(1, "a", "long")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(1, "a2", None), (2, "b", None)])])], 20, source)
        assert source.asked == [("2",)]
        assert same(rows(ITEMS), [(1, "a2", "long"), (2, "of the source", "its notes")])

    def test_a_partial_row_that_the_source_does_not_have_either_is_left_out(self, sink: Sink, rows: ReadRows) -> None:
        source = SourceRows(ITEMS)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(2, "b", None)])])], 10, source)
        assert (source.asked, rows(ITEMS)) == ([("2",)], [])

    def test_the_source_is_asked_with_the_key_in_the_keys_own_order(self, sink: Sink, rows: ReadRows) -> None:
        source = SourceRows(PAIRS, [("v", 7, "w", 8)])
        apply(sink, [net(PAIRS, partials=[partial(PAIRS, ("w",), [("v", 7, None, 8)])])], 10, source)
        assert (source.asked, rows(PAIRS)) == ([("8", "7")], [("v", 7, "w", 8)])

    def test_a_partial_row_may_move(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "long"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "a2", None)], [(1,)])])], 20)
        assert same(rows(ITEMS), [(9, "a2", "long"), (2, "b", "y")])

    def test_a_partial_row_of_a_composite_key_may_move(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(PAIRS, [("v", 1, "long", 2), ("other", 2, "w", 1)])], 10)
        apply(sink, [net(PAIRS, partials=[partial(PAIRS, ("w",), [("v2", 1, None, 3)], [(2, 1)])])], 20)
        assert same(rows(PAIRS), [("v2", 1, "long", 3), ("other", 2, "w", 1)])

    def test_a_partial_row_may_move_to_where_it_is(self, sink: Sink, rows: ReadRows) -> None:
        """The server sends the old key of an unchanged one that lies in TOAST."""
        apply(sink, [net(ITEMS, [(1, "a", "long")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(1, "a2", None)], [(1,)])])], 20)
        assert rows(ITEMS) == [(1, "a2", "long")]

    def test_a_partial_row_that_moves_and_is_not_there_is_read_under_its_new_key(
        self, sink: Sink, rows: ReadRows
    ) -> None:
        source = SourceRows(ITEMS, [(9, "of the source", "notes")])
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "a", None)], [(1,)])])], 10, source)
        assert (source.asked, rows(ITEMS)) == ([("9",)], [(9, "of the source", "notes")])

    # --- tables without a key ----------------------------------------------------------------------------------------

    def test_equal_rows_of_a_table_without_a_key_are_all_kept(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a"), (1, "a"), (None, None), (None, None)])], 10)
        apply(sink, [net(LOOSE, [(1, "a")])], 20)
        assert same(rows(LOOSE), [(1, "a")] * 3 + [(None, None)] * 2)

    def test_exactly_as_many_equal_rows_go_as_were_deleted(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")] * 5 + [(2, None)] * 3 + [(None, "a")] * 2 + [(None, None)])], 10)
        apply(sink, [net(LOOSE, deletes=[(1, "a"), (2, None), (None, None)], copies=[3, 1, 1])], 20)
        assert same(rows(LOOSE), [(1, "a")] * 2 + [(2, None)] * 2 + [(None, "a")] * 2)

    def test_an_update_of_one_of_equal_rows_changes_one(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")] * 3)], 10)
        apply(sink, [net(LOOSE, [(1, "b")], deletes=[(1, "a")], copies=[1])], 20)
        assert same(rows(LOOSE), [(1, "a"), (1, "a"), (1, "b")])

    @pytest.mark.parametrize("name", SAMPLES)
    def test_a_row_of_any_type_can_be_found_by_its_value(self, sink: Sink, rows: ReadRows, name: str) -> None:
        schema = TableSchema("public", "one", (Column("v", SAMPLES[name].type),), (), Identity.FULL)
        batch = pa.RecordBatch.from_arrays([SAMPLES[name].values], schema=schema.arrow)
        apply(sink, [net(schema, batch), net(schema, batch)], 10)
        before = rows(schema)
        assert len(before) == 2 * batch.num_rows
        apply(sink, [net(schema, deletes=batch, copies=[1] * batch.num_rows)], 20)
        assert same(rows(schema) * 2, before)

    # --- names -------------------------------------------------------------------------------------------------------

    def test_names_may_hold_quotes_spaces_and_any_script(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ODD, [(1, "a", "b", "c", 1, "d", "e"), (2, "a", "b", "c", 1, "d", "e")])], 10)
        moved = partial(ODD, ("a b",), [(3, "A", None, "C", 1, "D", "E")], [(1, 2)])
        apply(sink, [net(ODD, deletes=[(1, 1)]), net(ODD, partials=[moved])], 20)
        assert rows(ODD) == [(3, "A", "b", "C", 1, "D", "E")]
        assert sink.read_state().tables == {}

    def test_two_schemas_may_have_a_table_of_one_name(self, sink: Sink, rows: ReadRows) -> None:
        other = msgspec.structs.replace(ITEMS, schema="archive")
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(other, [(2, "b", None)])], 10)
        assert (rows(ITEMS), rows(other)) == ([(1, "a", None)], [(2, "b", None)])

    # --- values ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", SAMPLES)
    def test_values_come_back_exactly(
        self, sink: Sink, rows: ReadRows, expected_values: dict[str, list[Any]], name: str
    ) -> None:
        schema = TableSchema("public", "typed", (Column("id", INT), Column("v", SAMPLES[name].type)), ("id",))
        values = SAMPLES[name].values
        batch = pa.RecordBatch.from_arrays([pa.array(range(len(values)), pa.int64()), values], schema=schema.arrow)
        apply(sink, [net(schema, batch)], 10)
        found = [value for _, value in sorted(rows(schema))]
        assert list(map(repr, found)) == list(map(repr, expected_values[name]))
        read = [row for part in sink.read_table(schema) for row in part]
        assert same(read, sink.expected_rows(schema, batch))

    @pytest.mark.parametrize("name", SAMPLES)
    def test_values_of_a_chunk_come_back_as_those_of_a_batch(self, sink: Sink, rows: ReadRows, name: str) -> None:
        one, two = (
            TableSchema("public", table, (Column("id", INT), Column("v", SAMPLES[name].type)), ("id",))
            for table in ("one", "two")
        )
        values = SAMPLES[name].values
        arrays = [pa.array(range(len(values)), pa.int64()), values]
        apply(sink, [net(one, pa.RecordBatch.from_arrays(arrays, schema=one.arrow))], 10)
        sink.begin_snapshot(status(two, TableState.SNAPSHOT), [chunk(two)], clear=True)
        sink.load_chunk(two, chunk(two), iter([pa.RecordBatch.from_arrays(arrays, schema=two.arrow)]))
        assert same(rows(two), rows(one))

    @pytest.mark.parametrize("name", KEY_SAMPLES)
    def test_values_can_be_keys(self, sink: Sink, rows: ReadRows, name: str) -> None:
        schema = TableSchema("public", "by_value", (Column("n", INT), Column("k", SAMPLES[name].type)), ("k",))
        keys = SAMPLES[name].values.drop_null()
        ones, twos = (
            pa.RecordBatch.from_arrays([pa.array([n] * len(keys), pa.int64()), keys], schema=schema.arrow)
            for n in (1, 2)
        )
        apply(sink, [net(schema, ones)], 10)
        apply(sink, [net(schema, twos)], 20)
        assert [row[0] for row in rows(schema)] == [2] * len(keys)
        apply(sink, [net(schema, deletes=ones.select(["k"]))], 30)
        assert rows(schema) == []

    def test_negative_zero_keeps_its_sign(self, sink: Sink, rows: ReadRows) -> None:
        schema = TableSchema("public", "zero", (Column("x", ColumnType(Kind.FLOAT64, "double precision")),))
        apply(sink, [net(schema, [(-0.0,)])], 10)
        ((zero,),) = rows(schema)
        assert (zero, math.copysign(1, zero)) == (0.0, -1.0)

    # --- once and only once ------------------------------------------------------------------------------------------

    def test_a_repeated_batch_changes_nothing(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(LOOSE, [(1, "a")])], 10)
        apply(sink, [net(ITEMS, [(1, "b", None)])], 20)
        assert apply(sink, [net(ITEMS, [(1, "a", None)]), net(LOOSE, [(1, "a")])], 10) == 0
        assert (rows(ITEMS), rows(LOOSE)) == ([(1, "b", None)], [(1, "a")])
        assert sink.read_state().watermark == watermark(20)

    def test_a_commit_whose_answer_was_lost_may_be_repeated(self, sink: Sink, rows: ReadRows) -> None:
        part = sink.stage("batch", 0, [net(LOOSE, [(1, "a")])])
        batch = Batch((part,), watermark(10), (status(LOOSE),))
        assert sink.commit(batch, SourceRows(LOOSE)) == 1
        assert sink.commit(batch, SourceRows(LOOSE)) == 0
        assert rows(LOOSE) == [(1, "a")]

    def test_another_process_may_repeat_a_commit(self, sink: Sink, make_sink: MakeSink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")])], 10)
        other = make_sink()
        assert apply(other, [net(LOOSE, [(1, "a")])], 10) == 0
        other.close()
        assert rows(LOOSE) == [(1, "a")]

    def test_a_batch_of_a_log_that_was_made_anew_is_not_taken_for_an_old_one(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")])], 500)
        part = sink.stage("batch", 0, [net(LOOSE, [(2, "b")])])
        sink.commit(Batch((part,), watermark(3, "another log")), SourceRows(LOOSE))
        assert same(rows(LOOSE), [(1, "a"), (2, "b")])
        assert sink.read_state().watermark == watermark(3, "another log")

    def test_a_step_of_a_tables_catch_up_is_applied_once(self, sink: Sink, rows: ReadRows) -> None:
        step = status(LOOSE, TableState.CATCH_UP, 10)
        for _ in range(2):
            part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
            sink.commit(Batch((part,), None, (step,)), SourceRows(LOOSE))
        assert rows(LOOSE) == [(1, "a")]
        state = sink.read_state()
        assert (state.watermark, state.tables) == (None, {LOOSE.table: step})

    def test_the_last_step_of_a_catch_up_moves_the_table_on(self, sink: Sink, rows: ReadRows) -> None:
        sink.commit(Batch((), None, (status(LOOSE, TableState.CATCH_UP, 10),)), SourceRows(LOOSE))
        part = sink.stage("catch-up", 0, [net(LOOSE, [(1, "a")])])
        sink.commit(Batch((part,), None, (status(LOOSE, TableState.LIVE, 10),)), SourceRows(LOOSE))
        assert (rows(LOOSE), sink.read_state().tables[LOOSE.table].state) == ([(1, "a")], TableState.LIVE)

    # --- staged ------------------------------------------------------------------------------------------------------

    def test_what_is_staged_is_seen_by_nobody(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.stage("batch-2", 0, [net(ITEMS, [(2, "b", None)], truncate=True)])
        assert rows(ITEMS) == [(1, "a", None)]
        assert sink.read_state().watermark == watermark(10)

    def test_what_was_staged_and_never_committed_leaves_no_trace(
        self, sink: Sink, rows: ReadRows, inventory: Inventory
    ) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.clean()
        before = inventory()
        for number in range(3):
            sink.stage("batch-2", number, [net(ITEMS, [(2, "b", None)]), net(ORDERS, [(1, 1)])])
        sink.clean()
        assert inventory() == before
        assert rows(ITEMS) == [(1, "a", None)]

    def test_a_committed_batch_leaves_nothing_staged(self, sink: Sink, inventory: Inventory) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.clean()
        before = inventory()
        apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
        sink.clean()
        assert inventory() == before

    def test_a_part_may_be_staged_again_after_a_task_was_lost(self, sink: Sink, rows: ReadRows) -> None:
        sink.stage("batch-1", 0, [net(LOOSE, [(1, "lost")])])
        part = sink.stage("batch-1", 0, [net(LOOSE, [(1, "a")])])
        sink.commit(Batch((part,), watermark(10)), SourceRows(LOOSE))
        assert rows(LOOSE) == [(1, "a")]

    def test_receipts_and_sinks_travel_between_processes(self, sink: Sink, rows: ReadRows) -> None:
        task = pickle.loads(pickle.dumps(sink))
        part = pickle.loads(pickle.dumps(task.stage("batch-1", 0, [net(ITEMS, [(1, "a", None)])])))
        task.close()
        sink.commit(Batch((part,), watermark(10)), SourceRows(ITEMS))
        assert rows(ITEMS) == [(1, "a", None)]

    def test_a_batch_without_changes_moves_the_watermark(self, sink: Sink) -> None:
        sink.commit(Batch((), watermark(10)), SourceRows(ITEMS))
        assert sink.read_state().watermark == watermark(10)

    def test_a_commit_that_fails_changes_nothing(self, sink: Sink, rows: ReadRows) -> None:
        def unavailable(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
            raise ConnectionError("the source is gone")

        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        rest = partial(ITEMS, ("notes",), [(7, "b", None)])
        part = sink.stage("batch-2", 0, [net(ITEMS, [(1, "changed", None)], partials=[rest])])
        with pytest.raises(ConnectionError):
            sink.commit(Batch((part,), watermark(20), (status(ITEMS),)), unavailable)
        assert rows(ITEMS) == [(1, "a", "x")]
        assert (sink.read_state().watermark, sink.read_state().tables) == (watermark(10), {})
        apply(sink, [net(ITEMS, [(1, "changed", None)])], 20)
        assert rows(ITEMS) == [(1, "changed", None)]

    # --- all or nothing ----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("failpoint", "is_done"), [("sink-before-commit", False), ("sink-committed", True)])
    def test_a_process_killed_around_its_commit_has_done_all_or_nothing(
        self, sink: Sink, make_sink: MakeSink, rows: ReadRows, tmp_path: Path, failpoint: str, is_done: bool
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
        restarted.commit(Batch((part,), watermark(20), (status(ITEMS, offset=20),)), SourceRows(ITEMS))
        assert content() == new
        restarted.close()

    def test_a_reader_sees_a_whole_batch_or_nothing_of_it(self, sink: Sink, rows: ReadRows, tmp_path: Path) -> None:
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

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def test_a_chunk_is_loaded_together_with_its_mark(self, sink: Sink, rows: ReadRows) -> None:
        started = status(ITEMS, TableState.SNAPSHOT)
        sink.begin_snapshot(started, [chunk(ITEMS, 0), chunk(ITEMS, 1)], clear=True)
        batches = iter([table_of(ITEMS, [(1, "a", None)]), table_of(ITEMS, [(2, "b", "y"), (3, "c", None)])])
        assert sink.load_chunk(ITEMS, chunk(ITEMS, 1), batches) == 3
        assert same(rows(ITEMS), [(1, "a", None), (2, "b", "y"), (3, "c", None)])
        state = sink.read_state()
        assert state.tables == {ITEMS.table: started}
        done = msgspec.structs.replace(chunk(ITEMS, 1), is_loaded=True, rows=3)
        assert state.chunks == {ITEMS.table: [chunk(ITEMS, 0), done]}

    def test_a_chunk_that_is_loaded_already_loads_nothing(self, sink: Sink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        for expected in (2, 0):
            assert sink.load_chunk(LOOSE, chunk(LOOSE), iter([table_of(LOOSE, [(1, "a"), (1, "a")])])) == expected
        assert rows(LOOSE) == [(1, "a")] * 2

    def test_a_chunk_of_a_plan_that_was_given_up_loads_nothing(self, sink: Sink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, generation=2), [chunk(ITEMS, generation=2)], clear=True)
        assert sink.load_chunk(ITEMS, chunk(ITEMS, generation=1), iter([table_of(ITEMS, [(1, "a", None)])])) == 0
        assert rows(ITEMS) == []

    @pytest.mark.parametrize("batches", [[], [[]], [[], [(1, "a", None)]], [[(1, "a", None)], []]])
    def test_a_chunk_may_hold_no_rows_or_empty_batches(
        self, sink: Sink, rows: ReadRows, batches: list[list[tuple[Any, ...]]]
    ) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, batch) for batch in batches]))
        assert rows(ITEMS) == [row for batch in batches for row in batch]
        assert sink.read_state().chunks[ITEMS.table][0].is_loaded

    def test_a_chunk_whose_source_fails_in_the_middle_is_not_loaded(self, sink: Sink, rows: ReadRows) -> None:
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
        self, sink: Sink, rows: ReadRows, tmp_path: Path, failpoint: str, is_done: bool
    ) -> None:
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        content = table_of(LOOSE, [(1, "a"), (1, "a")])
        kill_at(failpoint, LoadChunk(sink, LOOSE, chunk(LOOSE), content), tmp_path)
        (mark,) = sink.read_state().chunks[LOOSE.table]
        assert (mark.is_loaded, rows(LOOSE)) == (is_done, [(1, "a")] * 2 * is_done)
        sink.clean()
        sink.load_chunk(LOOSE, chunk(LOOSE), iter([content]))
        assert rows(LOOSE) == [(1, "a")] * 2

    def test_a_snapshot_that_begins_anew_empties_its_own_table_only(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(ORDERS, [(1, 1)])], 10)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS, n) for n in range(3)], clear=True)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, generation=2), [chunk(ITEMS, generation=2)], clear=True)
        assert (rows(ITEMS), rows(ORDERS)) == ([], [(1, 1)])
        assert sink.read_state().chunks == {ITEMS.table: [chunk(ITEMS, generation=2)]}
        assert sink.read_state().watermark == watermark(10)

    def test_a_snapshot_that_begins_anew_takes_the_tables_new_columns(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        renamed = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("remarks", INT)))
        sink.begin_snapshot(status(renamed, TableState.SNAPSHOT), [chunk(renamed)], clear=True)
        sink.load_chunk(renamed, chunk(renamed), iter([table_of(renamed, [(1, "a", 5)])]))
        assert rows(renamed) == [(1, "a", 5)]

    def test_a_snapshot_may_begin_without_clearing(self, sink: Sink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=False)
        assert rows(ITEMS) == [(1, "a", None)]

    def test_an_empty_table_is_there_after_its_snapshot(self, sink: Sink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        assert rows(ITEMS) == []

    def test_a_chunk_replaces_rows_that_are_there_already(self, sink: Sink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS, 0), chunk(ITEMS, 1)], clear=True)
        sink.load_chunk(ITEMS, chunk(ITEMS, 0), iter([table_of(ITEMS, [(1, "a", None)])]))
        sink.load_chunk(ITEMS, chunk(ITEMS, 1), iter([table_of(ITEMS, [(1, "moved between pages", "x")])]))
        assert rows(ITEMS) == [(1, "moved between pages", "x")]

    # --- schema changes ----------------------------------------------------------------------------------------------

    def test_an_added_column_is_null_in_the_rows_that_were_there(self, sink: Sink, rows: ReadRows) -> None:
        wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", INT)))
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(2, "b2", "y")]), net(wider, [(3, "c", "z", 5), (2, "b3", "y", 6)])], 20)
        apply(sink, [net(wider, [(4, "d", None, None)])], 30)
        assert same(rows(wider), [(1, "a", "x", None), (2, "b3", "y", 6), (3, "c", "z", 5), (4, "d", None, None)])

    def test_a_dropped_column_keeps_its_values_and_is_null_in_new_rows(self, sink: Sink, rows: ReadRows) -> None:
        narrower = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[:2])
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(narrower, [(1, "a2"), (3, "c")], deletes=[(2,)])], 20)
        assert same(rows(ITEMS), [(1, "a2", "x"), (3, "c", None)])

    def test_columns_may_come_in_another_order(self, sink: Sink, rows: ReadRows) -> None:
        turned = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[::-1])
        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        apply(sink, [net(turned, [("y", "b", 2)])], 20)
        assert same(rows(ITEMS), [(1, "a", "x"), (2, "b", "y")])

    # --- what the sink remembers -------------------------------------------------------------------------------------

    def test_a_fresh_sink_remembers_nothing(self, sink: Sink) -> None:
        state = sink.read_state()
        assert (state.watermark, state.tables, state.chunks) == (None, {}, {})

    def test_watermark_and_table_statuses_survive_a_restart(self, sink: Sink, make_sink: MakeSink) -> None:
        items = msgspec.structs.replace(status(ITEMS, offset=5), visibility="1:2:", snapshot_end="0/AB", rows=7)
        odd = status(ODD, TableState.FAILED)
        sink.commit(Batch((), watermark(10), (items, odd)), SourceRows(ITEMS))
        sink.close()
        restarted = make_sink()
        state = restarted.read_state()
        restarted.close()
        assert (state.watermark, state.tables) == (watermark(10), {ITEMS.table: items, ODD.table: odd})

    def test_the_newest_status_of_a_table_counts(self, sink: Sink) -> None:
        for offset, state in ((10, TableState.CATCH_UP), (20, TableState.LIVE)):
            sink.commit(Batch((), watermark(offset), (status(ITEMS, state),)), SourceRows(ITEMS))
        assert sink.read_state().tables[ITEMS.table].state is TableState.LIVE

    def test_a_forgotten_pipeline_leaves_its_tables(self, sink: Sink, rows: ReadRows) -> None:
        sink.begin_snapshot(status(ORDERS, TableState.SNAPSHOT), [chunk(ORDERS)], clear=True)
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        sink.forget()
        state = sink.read_state()
        assert (state.watermark, state.tables, state.chunks) == (None, {}, {})
        assert rows(ITEMS) == [(1, "a", None)]

    def test_two_pipelines_in_one_database_do_not_disturb_each_other(
        self, sink: Sink, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        other = make_sink("another")
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        apply(other, [net(ORDERS, [(1, 1)])], 5)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        staged = other.stage("batch-6", 0, [net(ORDERS, [(2, 2)])])
        sink.clean()
        other.commit(Batch((staged,), watermark(6)), SourceRows(ORDERS))
        assert same(rows(ORDERS), [(1, 1), (2, 2)])
        assert (sink.read_state().watermark, other.read_state().watermark) == (watermark(10), watermark(6))
        assert (other.read_state().tables, other.read_state().chunks) == ({}, {})
        sink.forget()
        assert other.read_state().watermark == watermark(6)
        other.close()

    def test_a_sink_that_can_be_used_passes_its_check_unchanged(self, sink: Sink, inventory: Inventory) -> None:
        before = inventory()
        sink.check()
        assert inventory() == before


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    """Equal as multisets."""
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    return True
