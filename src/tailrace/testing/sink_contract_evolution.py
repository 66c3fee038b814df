"""The sink contract: tables that are copied again under their readers' eyes, and tables that change in place."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch, DatabaseSink, Evolved
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    TEXT,
    Inventory,
    ReadRows,
    Rows,
    SourceRows,
    apply,
    live,
    load,
    net,
    partial,
    same,
    status,
    watermark,
)
from tailrace.testing.sink_process import Commit, kill_at

NUMBERED = msgspec.structs.replace(
    ITEMS, columns=tuple(msgspec.structs.replace(column, number=n) for n, column in enumerate(ITEMS.columns, 1))
)
ID, NAME, NOTES = NUMBERED.columns
NOTHING = pa.RecordBatch.from_arrays([], [])


def version(*columns: Column, **fields: Any) -> TableSchema:
    return msgspec.structs.replace(NUMBERED, columns=columns, **fields)


def evolved(before: TableSchema, after: TableSchema, fills: pa.RecordBatch = NOTHING) -> Evolved:
    return Evolved(before, after, fills)


def take_in(sink: Any, change: Evolved, pieces: Sequence[Any], offset: int) -> None:
    """A micro-batch in which a table changes in place."""
    part = sink.stage(f"batch-{offset}", 0, pieces)
    before = sink.read_state().watermark
    sink.commit(
        Batch((part,), watermark(offset), (status(change.schema),), before, evolved=(change,)),
        SourceRows(change.schema),
    )


class EvolutionContract:
    """Copies beside the table that readers see, and changes in place."""

    # --- a second copy -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("schema", [ITEMS, LOOSE], ids=["key", "no key"])
    def test_readers_see_the_rows_of_before_until_a_second_copy_is_live(
        self, sink: DatabaseSink, rows: ReadRows, inventory: Inventory, schema: TableSchema
    ) -> None:
        first = [(n, "old", None)[: len(schema.columns)] for n in range(5)]
        second = [(n, "new" if n % 2 else "old", None)[: len(schema.columns)] for n in range(2, 9)]
        live(sink, load(sink, schema, first), schema)
        there = inventory()
        begun = load(sink, schema, second, generation=2)
        assert begun.is_beside
        assert sorted(rows(schema)) == sorted(first)
        live(sink, begun, schema)
        assert sorted(rows(schema)) == sorted(second)
        assert sink.read_state().tables[schema.table].is_beside is False
        assert inventory() == there

    def test_changes_of_a_table_that_catches_up_go_into_its_copy(self, sink: DatabaseSink, rows: ReadRows) -> None:
        live(sink, load(sink, ITEMS, [(1, "old", None), (2, "old", None)]), ITEMS)
        begun = load(sink, ITEMS, [(1, "new", None), (2, "new", None)], generation=2)
        part = sink.stage("catch-up", 0, [net(ITEMS, [(3, "caught up", None)], deletes=[(1,)])])
        sink.commit(Batch((part,), tables=(at(begun, TableState.CATCH_UP),)), SourceRows(ITEMS))
        assert same(rows(ITEMS), [(1, "old", None), (2, "old", None)])
        part = sink.stage("last", 0, [net(ITEMS, [(4, "caught up", None)])])
        done = msgspec.structs.replace(at(begun, TableState.LIVE), is_beside=False)
        sink.commit(Batch((part,), tables=(done,)), SourceRows(ITEMS))
        assert same(rows(ITEMS), [(2, "new", None), (3, "caught up", None), (4, "caught up", None)])

    @pytest.mark.parametrize(
        ("changed", "content"),
        [
            (msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("notes", INT))), [(1, "a", 5)]),
            (msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("more", INT))), [(1, "a", 5)]),
            (msgspec.structs.replace(ITEMS, key=(), identity=Identity.FULL), [(1, "a", None)] * 2),
            (msgspec.structs.replace(ITEMS, key=("name",)), [(1, "a", None), (1, "b", None)]),
        ],
        ids=["another type", "another column", "no key", "another key"],
    )
    def test_a_second_copy_may_have_another_shape(
        self, sink: DatabaseSink, rows: ReadRows, changed: TableSchema, content: Rows
    ) -> None:
        live(sink, load(sink, ITEMS, [(1, "old", None)]), ITEMS)
        begun = load(sink, changed, content, generation=2)
        assert rows(ITEMS) == [(1, "old", None)]
        live(sink, begun, changed)
        assert same(rows(changed), list(content))
        apply(sink, [net(changed, [(7, "z", None)])], 10)
        assert same(rows(changed), [*content, (7, "z", None)])

    def test_a_second_copy_that_is_begun_again_or_given_up_leaves_nothing(
        self, sink: DatabaseSink, rows: ReadRows, inventory: Inventory
    ) -> None:
        live(sink, load(sink, ITEMS, [(1, "old", None)]), ITEMS)
        there = inventory()
        load(sink, ITEMS, [(1, "given up", None), (2, "given up", None)], generation=2)
        begun = load(sink, ITEMS, [(1, "new", None)], generation=3)
        live(sink, begun, ITEMS)
        assert rows(ITEMS) == [(1, "new", None)]
        begun = load(sink, ITEMS, [(1, "given up", None)], generation=4)
        sink.commit(Batch(tables=(begun.aside(TableState.FAILED, "for a reason"),)), SourceRows(ITEMS))
        sink.clean()
        assert (rows(ITEMS), inventory()) == ([(1, "new", None)], there)

    def test_a_first_copy_that_is_begun_again_is_not_kept(self, sink: DatabaseSink, rows: ReadRows) -> None:
        begun = load(sink, ITEMS, [(1, "half", None)])
        begun = msgspec.structs.replace(begun, visibility="1:1:")
        sink.commit(Batch(tables=(begun,)), SourceRows(ITEMS))
        again = load(sink, ITEMS, [(2, "new", None)], generation=2)
        assert not again.is_beside
        assert rows(ITEMS) == [(2, "new", None)]

    @pytest.mark.parametrize("failpoint", ["sink-before-commit", "sink-committed"])
    @pytest.mark.parametrize("column", [NOTES, Column("notes", INT)], ids=["same shape", "another shape"])
    def test_a_process_killed_while_a_copy_takes_its_place_has_put_it_there_or_not(
        self, sink: DatabaseSink, make_sink: Any, rows: ReadRows, tmp_path: Path, failpoint: str, column: Column
    ) -> None:
        live(sink, load(sink, ITEMS, [(1, "old", None)]), ITEMS)
        changed = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], column))
        begun = load(sink, changed, [(2, "new", None)], generation=2)
        done = msgspec.structs.replace(at(begun, TableState.LIVE), is_beside=False)
        kill_at(failpoint, Commit(sink, [net(changed, [(3, "newer", None)])], watermark(10), (done,)), tmp_path)
        assert rows(changed) in ([(1, "old", None)], [(2, "new", None), (3, "newer", None)])
        again = make_sink()
        again.clean()
        if again.read_state().watermark is None:
            part = again.stage("batch", 0, [net(changed, [(3, "newer", None)])])
            again.commit(Batch((part,), watermark(10), (done,)), SourceRows(changed))
        apply(again, [net(changed, [(4, "newest", None)])], 20)
        assert same(rows(changed), [(2, "new", None), (3, "newer", None), (4, "newest", None)])
        assert again.read_state().tables[ITEMS.table].is_beside is False
        again.close()

    # --- changes in place --------------------------------------------------------------------------------------------

    @pytest.fixture
    def begun(self, sink: DatabaseSink) -> DatabaseSink:
        live(sink, load(sink, NUMBERED, [(1, "a", "x"), (2, "b", "y")]), NUMBERED)
        apply(sink, [net(NUMBERED, [(2, "b", "z")])], 10)
        return sink

    def test_a_column_that_came_with_a_value_has_it_in_all_rows_of_before(
        self, begun: DatabaseSink, rows: ReadRows
    ) -> None:
        wider = version(*NUMBERED.columns, Column("n", INT, number=4), Column("t", TEXT, number=5))
        change = evolved(NUMBERED, wider, pa.RecordBatch.from_pydict({"n": [7], "t": ["it's a \\ 'default'"]}))
        assert begun.takes_in_place(change)
        pieces = [net(NUMBERED, [(1, "a2", "x"), (3, "c", "old version")]), net(wider, [(4, "d", "x", None, None)])]
        take_in(begun, change, pieces, 20)
        filled = (7, "it's a \\ 'default'")
        expected = [(1, "a2", "x", *filled), (2, "b", "z", *filled), (3, "c", "old version", *filled)]
        assert same(rows(wider), [*expected, (4, "d", "x", None, None)])

    def test_a_renamed_column_keeps_its_values_and_takes_those_of_either_name(
        self, begun: DatabaseSink, rows: ReadRows
    ) -> None:
        renamed = version(ID, NAME, Column("remarks", TEXT, number=3))
        change = evolved(NUMBERED, renamed)
        assert begun.takes_in_place(change)
        old = net(NUMBERED, [(3, "c", "old version")], partials=[partial(NUMBERED, ("notes",), [(1, "A", None)])])
        take_in(begun, change, [old, net(renamed, [(4, "d", "new version")], deletes=[(2,)])], 20)
        assert same(rows(renamed), [(1, "A", "x"), (3, "c", "old version"), (4, "d", "new version")])

    @pytest.mark.parametrize("last", ["remarks", "comments", "notes"], ids=["the same", "another", "back"])
    def test_a_process_killed_while_a_column_is_renamed_loses_no_values(
        self, begun: DatabaseSink, make_sink: Any, rows: ReadRows, tmp_path: Path, last: str
    ) -> None:
        """Whatever the column is called when the next run looks at it."""
        first, final = renamed_to("remarks"), renamed_to(last)
        work = Commit(begun, [], watermark(20), (status(first),), evolved=(evolved(NUMBERED, first),))
        kill_at("sink-before-commit", work, tmp_path)
        again = make_sink()
        assert last == "notes" or again.takes_in_place(evolved(NUMBERED, final))
        changes = () if last == "notes" else (evolved(NUMBERED, final),)
        part = again.stage("batch", 0, [net(final, [(1, "a2", "new")])])
        statuses = tuple(status(change.schema) for change in changes)
        again.commit(Batch((part,), watermark(30), statuses, watermark(10), evolved=changes), SourceRows(final))
        assert same(rows(final), [(1, "a2", "new"), (2, "b", "z")])
        again.close()

    @pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "given up"])
    def test_a_process_killed_while_a_table_changes_has_changed_it_or_not(
        self,
        begun: DatabaseSink,
        make_sink: Any,
        rows: ReadRows,
        inventory: Inventory,
        tmp_path: Path,
        is_repeated: bool,
    ) -> None:
        there = len(inventory())
        wider = version(ID, NAME, NOTES, Column("n", INT, number=4), name="things")
        change = evolved(NUMBERED, wider, pa.RecordBatch.from_pydict({"n": [7]}))
        kill_at("sink-before-commit", Commit(begun, [], watermark(20), (status(wider),), evolved=(change,)), tmp_path)
        again = make_sink()
        changes, schema, rest = ((change,), wider, (7,)) if is_repeated else ((), NUMBERED, ())
        assert all(map(again.takes_in_place, changes))
        part = again.stage("batch", 0, [net(schema, [(3, "c", None, *rest)])])
        statuses = tuple(status(each.schema) for each in changes)
        again.commit(Batch((part,), watermark(30), statuses, watermark(10), evolved=changes), SourceRows(schema))
        assert same(rows(schema), [(1, "a", "x", *rest), (2, "b", "z", *rest), (3, "c", None, *rest)])
        assert len(inventory()) == there
        again.close()

    def test_a_renamed_key_is_still_the_key(self, begun: DatabaseSink, rows: ReadRows) -> None:
        renamed = version(Column("number", INT, number=1), NAME, NOTES, key=("number",))
        change = evolved(NUMBERED, renamed)
        assert begun.takes_in_place(change)
        take_in(begun, change, [net(NUMBERED, deletes=[(2,)]), net(renamed, [(1, "a2", "x"), (3, "c", None)])], 20)
        assert same(rows(renamed), [(1, "a2", "x"), (3, "c", None)])

    def test_names_that_are_taken_are_not_taken_in(self, begun: DatabaseSink) -> None:
        swapped = version(ID, Column("notes", TEXT, number=2), Column("name", TEXT, number=3))
        assert not begun.takes_in_place(evolved(NUMBERED, swapped))
        back = version(ID, NAME, Column("notes", TEXT, number=4))
        fills = pa.RecordBatch.from_pydict({"notes": ["the sink has such a column"]})
        assert not begun.takes_in_place(evolved(NUMBERED, back, fills))
        assert not begun.takes_in_place(evolved(version(ID, NAME), back))  # with values, and a default, of before

    def test_a_table_gets_another_name(self, begun: DatabaseSink, rows: ReadRows, inventory: Inventory) -> None:
        count = len(inventory())
        moved = msgspec.structs.replace(NUMBERED, name="things")
        change = evolved(NUMBERED, moved)
        assert begun.takes_in_place(change)
        begun.commit(Batch(tables=(status(moved),), evolved=(change,)), SourceRows(moved))
        assert begun.read_state().tables.keys() == {moved.table}
        apply(begun, [net(moved, [(3, "c", None)])], 20)
        assert same(rows(moved), [(1, "a", "x"), (2, "b", "z"), (3, "c", None)])
        assert len(inventory()) == count

    def test_a_table_that_is_ahead_is_so_under_its_other_name(self, begun: DatabaseSink, rows: ReadRows) -> None:
        change = partial(NUMBERED, ("notes",), [(5, "e", None)])
        apply(begun, [net(NUMBERED, partials=[change])], 20, SourceRows(NUMBERED, [(5, "later", "of its own")]))
        renamed = msgspec.structs.replace(NUMBERED, name="things")
        source = SourceRows(renamed, [(9, "f", "right")])
        moves = net(renamed, partials=[partial(renamed, ("notes",), [(9, "f", None)], [(5,)])])
        part, before = begun.stage("renamed", 0, [moves]), begun.read_state().watermark
        renaming = Batch((part,), watermark(30), (status(renamed),), before, evolved=(evolved(NUMBERED, renamed),))
        begun.commit(renaming, source)
        assert source.asked == [("9",)]
        ahead: dict[str, str] = {}
        begun.tend_ahead(ahead.setdefault)
        assert ahead == {renamed.table: ""}
        assert same(rows(renamed), [(1, "a", "x"), (2, "b", "z"), (9, "f", "right")])

    def test_a_table_does_not_take_the_name_of_another(self, begun: DatabaseSink) -> None:
        apply(begun, [net(LOOSE, [(1, "a")])], 20)
        assert not begun.takes_in_place(evolved(NUMBERED, msgspec.structs.replace(NUMBERED, name="loose")))

    def test_deletes_that_differ_in_a_column_that_went_delete_as_many_copies(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        before = msgspec.structs.replace(LOOSE, columns=(Column("x", INT, number=1), Column("y", TEXT, number=2)))
        after = msgspec.structs.replace(before, columns=before.columns[:1])
        live(sink, load(sink, before, [(1, "a"), (1, "b"), (1, "c"), (1, "d"), (1, None), (2, "a")]), before)
        assert sink.takes_in_place(evolved(before, after))
        gone = net(before, deletes=[(1, "a"), (1, "b"), (1, None)], copies=[1, 1, 1])
        take_in(sink, evolved(before, after), [gone, net(after, [(9,)])], 10)
        assert same(rows(after), [(1,), (1,), (2,), (9,)])

    def test_longer_texts_and_numbers_are_taken_where_shorter_ones_were(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        def table(text: ColumnType, number: ColumnType) -> TableSchema:
            return version(ID, Column("t", text, number=2), Column("m", number, number=3))

        narrow = table(ColumnType(Kind.TEXT, "character varying(3)"), decimal(5))
        wide = table(ColumnType(Kind.TEXT, "text"), decimal(12))
        live(sink, load(sink, narrow, [(1, "abc", Decimal("123.45"))]), narrow)
        assert sink.takes_in_place(evolved(narrow, wide))
        pieces = [net(narrow, [(2, "def", Decimal("1.00"))]), net(wide, [(3, "x" * 5000, Decimal("1234567890.12"))])]
        take_in(sink, evolved(narrow, wide), pieces, 10)
        found = {key: (text, str(number)) for key, text, number in rows(wide)}
        assert found == {1: ("abc", "123.45"), 2: ("def", "1.00"), 3: ("x" * 5000, "1234567890.12")}

    def test_a_filled_column_is_what_its_rows_would_be(self, sink: DatabaseSink, rows: ReadRows) -> None:
        """Each value of each type that can be filled in is the same as one that is written."""
        before = version(ID)
        live(sink, load(sink, before, [(1,)]), before)
        values = [(s.type, s.values[place : place + 1]) for s in SAMPLES.values() for place in range(len(s.values) - 1)]
        columns = {
            Column(f"v{place}", type_, number=place + 2): value
            for place, (type_, value) in enumerate(values)
            if sink.takes_in_place(filled(before, {Column("v", type_, number=2): value}))
        }
        change = filled(before, columns)
        sink.commit(Batch(tables=(status(change.schema),), evolved=(change,)), SourceRows(before))
        written = pa.RecordBatch.from_arrays([pa.array([2]), *columns.values()], ["id", *change.fills.schema.names])
        apply(sink, [net(change.schema, written)], 10)
        (_, *found), (_, *expected) = sorted(rows(change.schema), key=lambda row: row[0])
        differing = [
            (column.name, column.type.name)
            for column, one, other in zip(columns, found, expected, strict=True)
            if repr(one) != repr(other)
        ]
        assert differing == []
        assert len(columns) > len(SAMPLES)


def renamed_to(name: str) -> TableSchema:
    return version(ID, NAME, msgspec.structs.replace(NOTES, name=name))


def filled(before: TableSchema, columns: dict[Column, pa.Array]) -> Evolved:
    """Columns come, each with a value."""
    fills = pa.RecordBatch.from_arrays(list(columns.values()), [column.name for column in columns])
    return Evolved(before, msgspec.structs.replace(before, columns=(*before.columns, *columns)), fills)


def at(begun: TableStatus, state: TableState) -> TableStatus:
    return msgspec.structs.replace(begun, state=state)


def decimal(precision: int) -> ColumnType:
    return ColumnType(Kind.DECIMAL, f"numeric({precision},2)", precision=precision, scale=2)
