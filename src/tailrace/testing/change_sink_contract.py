"""The contract of sinks that take every change, as a test suite: each such sink passes it, whoever wrote the sink.

Subclass `ChangeSinkContract` in a test module and give it three fixtures:

- `make_sink`: a function of a pipeline's name that makes a sink; all sinks of a test write to one fresh place;
- `told`: a function of a table schema that reads back what the sink has of it: `(offset, op, row)` of each change;
- `inventory`: a function without arguments that lists everything there is of the sink, scratch files among it.

A gap is an override marked `xfail(strict=True)` with its reason.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tailrace.errors import SinkChanged, SinkTaken
from tailrace.model.changes import Changes, Op, Origins
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Atomic, Batch, ChangeSink, RowSink, Sink
from tailrace.testing.dying import Mortal
from tailrace.testing.sink_changes import ITEMS, LOOSE, ODD, ORDERS, Inventory, status, table_of, watermark
from tailrace.testing.source_changes import missing

MakeChangeSink = Callable[..., ChangeSink]
Row = tuple[Any, ...]
TellChanges = Callable[[TableSchema], list[tuple[int, str, Row]]]
Parts = Sequence[Sequence[Changes]]
AT_US = 1_700_000_000_000_000


def changes(schema: TableSchema, first: int, *made: tuple[Op, Row] | tuple[Op, Row, Row]) -> Changes:
    """Changes of one table from offset `first` on: each is an operation, a row, and the old row where one was sent.

    Each is a transaction of its own, whose position is the change's offset as PostgreSQL would write it.
    """
    before = [(number, each[2]) for number, each in enumerate(made) if len(each) > 2]
    offset = np.arange(first, first + len(made), dtype=np.int64)
    origins = Origins([str(1000 + each) for each in offset], [f"0/{each:X}" for each in offset], offset)
    return Changes(
        schema=schema,
        op=np.array([each[0] for each in made], np.int8),
        offset=offset,
        transaction=np.arange(len(made)),
        transactions=pa.record_batch([pa.array(offset + AT_US).cast(pa.timestamp("us", "UTC"))], ["_commit_time"]),
        after=table_of(schema, [each[1] for each in made]),
        unchanged=None,
        before_rows=np.array([number for number, _ in before], np.int64),
        before=table_of(schema, [row for _, row in before]),
        origins=origins,
    )


def inserts(schema: TableSchema, first: int, *rows: Row) -> Changes:
    return changes(schema, first, *((Op.INSERT, row) for row in rows))


def staged(sink: ChangeSink, parts: Parts, end: int) -> Batch:
    """A micro-batch up to offset `end`, from where the sink is: what a table has already is not staged again."""
    state = sink.read_state()
    places = {table: known.watermark for table, known in state.tables.items()}
    schemas = {each.schema.table: each.schema for part in parts for each in part}
    receipts = []
    for number, part in enumerate(parts):
        left = [each.keep(each.offset > _place(sink, places, each.schema.table)) for each in part]
        if wanted := [each for each in left if len(each)]:
            receipts.append(sink.stage_changes(f"batch-{end}", number, iter(wanted)))
    tables = tuple(status(schema, offset=end) for schema in schemas.values())
    known = {table: place for table, place in places.items() if table in schemas}
    return Batch(tuple(receipts), watermark(end), tables, state.watermark, known)


def _place(sink: ChangeSink, places: dict[str, Any], table: str) -> int:
    return int(places[table].offset) if sink.atomic is Atomic.TABLE and table in places else 0


def apply(sink: ChangeSink, parts: Parts, end: int) -> int:
    return sink.commit(staged(sink, parts, end), nobody)


def nobody(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError(f"{schema.table}: nothing was to be read from the source")


@dataclass(frozen=True)
class Commit:
    """To be done by another process."""

    sink: ChangeSink
    batch: Batch

    def __call__(self) -> None:
        self.sink.commit(self.batch, nobody)


class ChangeSinkContract:
    """All of it. It reads the changes back."""

    @pytest.fixture
    def sink(self, make_sink: MakeChangeSink) -> Iterator[ChangeSink]:
        sink = make_sink()
        yield sink
        sink.close()

    def test_it_takes_changes_and_nothing_is_left_to_the_protocol(self, sink: ChangeSink) -> None:
        assert isinstance(sink, ChangeSink)
        assert not isinstance(sink, RowSink)
        assert missing(type(sink), Sink) <= {"name"}
        assert (bool(sink.name), sink.max_parts >= 1) == (True, True)

    # --- what it has -------------------------------------------------------------------------------------------------

    def test_every_change_is_there_in_the_order_of_the_log(self, sink: ChangeSink, told: TellChanges) -> None:
        made = changes(
            ITEMS,
            1,
            (Op.INSERT, (1, "a", None)),
            (Op.UPDATE, (1, "b", "ü 日本 '\"\\\n")),
            (Op.UPDATE, (2, "b", None), (1, None, None)),
            (Op.DELETE, (2, None, None)),
            (Op.TRUNCATE, (None, None, None)),
        )
        apply(sink, [[made]], 10)
        assert told(ITEMS) == [
            (1, "insert", (1, "a", None)),
            (2, "update", (1, "b", "ü 日本 '\"\\\n")),
            (3, "update", (2, "b", None)),
            (4, "delete", (2, None, None)),
            (5, "truncate", (None, None, None)),
        ]

    def test_parts_are_in_their_order_and_tables_apart(self, sink: ChangeSink, told: TellChanges) -> None:
        later = [inserts(ORDERS, 5, (3, 3)), inserts(ITEMS, 6, (6, "f", None)), inserts(ORDERS, 7, (4, 4))]
        first = [inserts(ITEMS, 1, (1, "a", None), (2, "b", None)), inserts(ORDERS, 3, (1, 1), (2, 2))]
        assert sink.max_parts > 1
        apply(sink, [first, later], 10)
        apply(sink, [[inserts(ITEMS, 11, (7, "g", None))]], 20)
        assert [offset for offset, _, _ in told(ITEMS)] == [1, 2, 6, 11]
        assert [offset for offset, _, _ in told(ORDERS)] == [3, 4, 5, 7]

    def test_a_table_may_have_any_name_and_no_key(self, sink: ChangeSink, told: TellChanges) -> None:
        apply(sink, [[inserts(ODD, 1, (1, "a", "b", "c", 2, "d", "e")), inserts(LOOSE, 2, (1, "a"), (1, "a"))]], 10)
        assert told(ODD) == [(1, "insert", (1, "a", "b", "c", 2, "d", "e"))]
        assert told(LOOSE) == [(2, "insert", (1, "a")), (3, "insert", (1, "a"))]

    def test_a_table_may_get_other_columns(self, sink: ChangeSink, told: TellChanges) -> None:
        fewer = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[:2])
        apply(sink, [[inserts(fewer, 1, (1, "a")), inserts(ITEMS, 2, (2, "b", "c"))]], 10)
        assert [offset for offset, _, _ in told(ITEMS)] == [1, 2]
        assert told(ITEMS)[1] == (2, "insert", (2, "b", "c"))

    def test_what_is_held_back_of_a_part_is_not_there(self, sink: ChangeSink, told: TellChanges) -> None:
        part = sink.stage_changes("batch", 0, [inserts(ITEMS, 1, (1, "a", None)), inserts(ORDERS, 2, (1, 1))])
        tables = (status(ORDERS, offset=10),)
        sink.commit(Batch((part.without({ITEMS.table}),), watermark(10), tables), nobody)
        assert (told(ITEMS), len(told(ORDERS))) == ([], 1)

    # --- staged and committed ----------------------------------------------------------------------------------------

    def test_what_is_staged_is_seen_by_nobody(self, sink: ChangeSink, told: TellChanges) -> None:
        apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
        sink.stage_changes("batch-2", 0, [inserts(ITEMS, 11, (2, "b", None))])
        assert [offset for offset, _, _ in told(ITEMS)] == [1]
        assert sink.read_state().watermark == watermark(10)

    def test_neither_a_dead_batch_nor_a_committed_one_leaves_anything_staged(
        self, sink: ChangeSink, inventory: Inventory
    ) -> None:
        apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
        sink.clean()
        before = inventory()
        for part in range(2):
            sink.stage_changes("batch-2", part, [inserts(ITEMS, 11, (2, "b", None)), inserts(LOOSE, 12, (1, "a"))])
        sink.clean()
        assert inventory() == before
        apply(sink, [[inserts(ITEMS, 11, (2, "b", None))]], 20)
        sink.clean()
        assert inventory() == before

    def test_a_part_may_be_staged_again_after_a_task_was_lost(self, sink: ChangeSink, told: TellChanges) -> None:
        sink.stage_changes("batch-10", 0, [inserts(ITEMS, 1, (1, "a", None))])
        apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
        assert len(told(ITEMS)) == 1

    def test_receipts_and_sinks_travel_between_processes(self, sink: ChangeSink, told: TellChanges) -> None:
        sink.claim("a run")
        task = pickle.loads(pickle.dumps(sink))
        many = inserts(ITEMS, 1, *((number, "a" * 100, None) for number in range(1000)))
        data = pickle.dumps(task.stage_changes("batch-1", 0, [many]))
        assert len(data) < 10_000, "a receipt is small: the driver holds those of all tasks"
        task.check_claim()
        task.close()
        sink.commit(Batch((pickle.loads(data),), watermark(1000), (status(ITEMS, offset=1000),)), nobody)
        assert len(told(ITEMS)) == 1000

    def test_a_sink_that_can_be_used_passes_its_check_unchanged(self, sink: ChangeSink, inventory: Inventory) -> None:
        before = inventory()
        sink.check()
        assert (inventory(), sink.read_state().watermark) == (before, None)
        assert inventory() == before

    # --- once and only once ------------------------------------------------------------------------------------------

    def test_a_repeated_batch_changes_nothing(
        self, sink: ChangeSink, make_sink: MakeChangeSink, told: TellChanges
    ) -> None:
        parts = [[inserts(ITEMS, 1, (1, "a", None))], [inserts(LOOSE, 2, (1, "a"))]]
        batch = staged(sink, parts, 10)
        assert sink.commit(batch, nobody) == 2
        assert sink.commit(batch, nobody) == 0
        other = make_sink()
        assert other.commit(batch, nobody) == 0
        other.close()
        assert (len(told(ITEMS)), len(told(LOOSE))) == (1, 1)
        assert sink.read_state().watermark == watermark(10)

    def test_a_batch_that_did_not_start_where_the_sink_is_changes_nothing(
        self, sink: ChangeSink, told: TellChanges
    ) -> None:
        apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
        apply(sink, [[inserts(LOOSE, 11, (2, "b"))]], 20)
        for before in (None, watermark(10)):
            part = sink.stage_changes("late", 0, [inserts(LOOSE, 12, (3, "c"))])
            with pytest.raises(SinkChanged):
                sink.commit(Batch((part,), watermark(30), (status(LOOSE, offset=30),), before), nobody)
        assert ([offset for offset, _, _ in told(LOOSE)], sink.read_state().watermark) == ([1, 11], watermark(20))

    def test_a_step_of_a_tables_catch_up_is_applied_once_and_from_its_place(
        self, sink: ChangeSink, told: TellChanges
    ) -> None:
        step = status(LOOSE, TableState.CATCH_UP, 10)
        for _ in range(2):
            part = sink.stage_changes("catch-up", 0, [inserts(LOOSE, 1, (1, "a"))])
            sink.commit(Batch((part,), None, (step,)), nobody)
        part = sink.stage_changes("catch-up", 0, [inserts(LOOSE, 1, (1, "a"))])
        places = {LOOSE.table: watermark(5)}
        with pytest.raises(SinkChanged):
            sink.commit(Batch((part,), None, (status(LOOSE, offset=20),), places=places), nobody)
        assert (len(told(LOOSE)), sink.read_state().tables) == (1, {LOOSE.table: step})

    def test_a_batch_of_a_log_that_was_made_anew_is_not_taken_for_an_old_one(
        self, sink: ChangeSink, told: TellChanges
    ) -> None:
        apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
        part = sink.stage_changes("anew", 0, [inserts(LOOSE, 3, (2, "b"))])
        anew = msgspec.structs.replace(status(LOOSE), watermark=watermark(10, "another log"))
        sink.commit(Batch((part,), watermark(10, "another log"), (anew,), watermark(10)), nobody)
        assert (len(told(LOOSE)), sink.read_state().watermark) == (2, watermark(10, "another log"))

    def test_a_process_killed_at_any_step_of_its_commit_leaves_whole_tables_and_nothing_twice(
        self, make_sink: MakeChangeSink, told: TellChanges
    ) -> None:
        """Whoever goes on stages what each table lacks. With `Atomic.BATCH` no table is there without the others."""
        step, torn, sink = 0, 0, make_sink()
        sink.claim("run 0")
        with Mortal() as mortal:
            is_killed = True
            while is_killed:
                first, end = 10 * step + 1, 10 * step + 10
                parts = [
                    [inserts(ITEMS, first, (step, "a", None), (step, "b", None)), inserts(ORDERS, first + 2, (1, 1))],
                    [inserts(ITEMS, first + 3, (step, "c", None))],
                ]
                is_killed = mortal.dies(Commit(sink, staged(sink, parts, end)), step + 1)
                news = [sum(offset >= first for offset, _, _ in told(schema)) for schema in (ITEMS, ORDERS)]
                torn += news in ([3, 0], [0, 1])
                assert news in ([0, 0], [3, 1], [3, 0], [0, 1])
                assert news == [3, 1] or not watermark(end).is_at(sink.read_state().watermark)
                step += 1
                sink = make_sink()
                sink.claim(f"run {step}")
                sink.clean()
                if not watermark(end).is_at(sink.read_state().watermark):
                    apply(sink, parts, end)
                for schema, own in ((ITEMS, (1, 2, 4)), (ORDERS, (3,))):
                    expected = [10 * number + each for number in range(step) for each in own]
                    assert [offset for offset, _, _ in told(schema)] == expected
                assert sink.read_state().watermark == watermark(end)
        assert step > 1, "a commit has steps to die at: see `dying`"
        assert (torn > 0) == (sink.atomic is Atomic.TABLE)

    # --- one run at a time -------------------------------------------------------------------------------------------

    def test_a_run_writes_nothing_after_the_claim_of_another(
        self, sink: ChangeSink, make_sink: MakeChangeSink, told: TellChanges
    ) -> None:
        sink.claim("first")
        apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
        late = staged(sink, [[inserts(LOOSE, 11, (2, "late"))]], 20)
        sink.check_claim()
        other = make_sink()
        other.claim("second")
        with pytest.raises(SinkTaken):
            sink.check_claim()
        for batch in (late, Batch(tables=(status(ITEMS),))):
            with pytest.raises(SinkTaken):
                sink.commit(batch, nobody)
        apply(other, [[inserts(LOOSE, 11, (3, "c"))]], 15)
        other.close()
        assert [row for _, _, row in told(LOOSE)] == [(1, "a"), (3, "c")]
        assert sink.read_state().watermark == watermark(15)

    def test_commits_are_counted_from_the_claim_on(self, sink: ChangeSink) -> None:
        sink.claim("first")
        apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
        apply(sink, [[inserts(LOOSE, 11, (1, "a"))]], 20)
        assert sink.read_state().commits == 2
        with pytest.raises(SinkChanged):
            sink.commit(Batch((), watermark(30), before=watermark(20), commits=3), nobody)
        sink.claim("second")
        assert (sink.read_state().commits, sink.read_state().watermark) == (0, watermark(20))
        sink.commit(Batch((), watermark(30), before=watermark(20), commits=0), nobody)

    # --- what it remembers -------------------------------------------------------------------------------------------

    def test_a_fresh_sink_remembers_nothing_and_reading_that_makes_nothing(
        self, sink: ChangeSink, inventory: Inventory
    ) -> None:
        before = inventory()
        state = sink.read_state()
        assert (state.watermark, state.tables, state.chunks, state.commits) == (None, {}, {}, 0)
        assert inventory() == before

    def test_watermark_and_statuses_survive_a_restart(self, sink: ChangeSink, make_sink: MakeChangeSink) -> None:
        items = msgspec.structs.replace(status(ITEMS, offset=5), snapshot_end="0/AB", membership="always", reason="ü")
        odd = status(ODD, TableState.FAILED)
        sink.commit(Batch((), watermark(10), (items, odd)), nobody)
        sink.close()
        restarted = make_sink()
        state = restarted.read_state()
        restarted.close()
        assert (state.watermark, state.tables) == (watermark(10), {ITEMS.table: items, ODD.table: odd})

    def test_a_forgotten_pipeline_leaves_its_tables(self, sink: ChangeSink, told: TellChanges) -> None:
        apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
        sink.forget()
        state = sink.read_state()
        assert (state.watermark, state.tables) == (None, {})
        apply(sink, [[inserts(ITEMS, 1, (2, "b", None))]], 10)
        assert [row for _, _, row in told(ITEMS)] == [(1, "a", None), (2, "b", None)]

    def test_two_pipelines_do_not_disturb_each_other(self, sink: ChangeSink, make_sink: MakeChangeSink) -> None:
        other = make_sink("another")
        sink.claim("one")
        other.claim("two")
        apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
        apply(other, [[inserts(ORDERS, 1, (1, 1))]], 5)
        assert (sink.read_state().watermark, other.read_state().watermark) == (watermark(10), watermark(5))
        assert [list(each.read_state().tables) for each in (sink, other)] == [[ITEMS.table], [ORDERS.table]]
        sink.forget()
        assert other.read_state().watermark == watermark(5)
        other.close()
