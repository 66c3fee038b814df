"""The sink contract: what changes do to rows, whole and partial, with and without a key."""

from __future__ import annotations

import msgspec

from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.sinks.base import Batch, DatabaseSink
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    ODD,
    ORDERS,
    PAIRS,
    TEXT,
    ReadRows,
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

ALIASES = ("excluded", "t", "s", "r", "new", "old")
SPOKEN = (*ALIASES, "place", "copies", "number", "content", "file", "c0", "c1", "n0")
"""Names that statements of sinks give to something of their own, those of tables first."""


class RowsContract:
    """Rows are read back after every kind of change."""

    # --- rows --------------------------------------------------------------------------------------------------------

    def test_inserted_rows_are_read_back(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", None), (2, "", "x")])], 10)
        assert same(rows(ITEMS), [(1, "a", None), (2, "", "x")])

    def test_an_upsert_of_a_row_that_is_there_replaces_it_whole(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(1, "a2", None), (3, "c", "z")])], 20)
        assert same(rows(ITEMS), [(1, "a2", None), (2, "b", "y"), (3, "c", "z")])

    def test_deleted_rows_are_gone_and_a_delete_of_nothing_does_nothing(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, deletes=[(2,), (99,)])], 20)
        assert same(rows(ITEMS), [(1, "a", "x")])

    def test_a_changed_key_is_the_row_under_its_new_key(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(2, "a", "x"), (3, "b", "y")], deletes=[(1,)])], 20)
        assert same(rows(ITEMS), [(2, "a", "x"), (3, "b", "y")])

    def test_a_composite_key_is_matched_whole(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(PAIRS, [("v1", 1, "w", 2), ("v2", 2, "w", 1), ("v3", 1, "w", 1)])], 10)
        apply(sink, [net(PAIRS, [("v3+", 1, "w+", 1)], deletes=[(2, 1)])], 20)
        assert same(rows(PAIRS), [("v2", 2, "w", 1), ("v3+", 1, "w+", 1)])

    def test_a_table_that_is_nothing_but_its_key_takes_inserts_twice_and_deletes(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        keys = TableSchema("public", "keys", (Column("a", INT), Column("b", INT)), ("a", "b"))
        apply(sink, [net(keys, [(1, 1), (1, 2)])], 10)
        apply(sink, [net(keys, [(1, 1), (2, 1)], deletes=[(1, 2)])], 20)
        assert same(rows(keys), [(1, 1), (2, 1)])

    def test_a_truncate_empties_the_table_before_anything_else(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")]), net(ORDERS, [(1, 1)])], 10)
        apply(sink, [net(ITEMS, [(1, "new", None)], truncate=True)], 20)
        assert (rows(ITEMS), rows(ORDERS)) == ([(1, "new", None)], [(1, 1)])
        apply(sink, [net(ITEMS, truncate=True)], 30)
        assert rows(ITEMS) == []

    def test_changes_are_applied_in_order_within_a_part_and_across_parts(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        first = sink.stage("batch-1", 0, [net(ITEMS, [(1, "a", None)]), net(ITEMS, deletes=[(1,)])])
        second = sink.stage("batch-1", 1, [net(ITEMS, [(1, "b", None), (2, "b", None)])])
        third = sink.stage("batch-1", 2, [net(ITEMS, [(2, "c", None)])])
        sink.commit(Batch((first, second, third), watermark(10)), SourceRows(ITEMS))
        assert same(rows(ITEMS), [(1, "b", None), (2, "c", None)])

    def test_a_commit_says_how_many_rows_it_touched(self, sink: DatabaseSink) -> None:
        assert apply(sink, [net(ITEMS, [(1, "a", None), (2, "b", None)]), net(ORDERS, [(1, 1)])], 10) == 3
        assert apply(sink, [net(ITEMS, [(3, "c", None)], deletes=[(1,)])], 20) == 2

    # --- partial rows ------------------------------------------------------------------------------------------------

    def test_a_partial_row_leaves_what_was_not_sent_as_it_is(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "long"), (2, "b", None), (3, "c", "z")])], 10)
        changes = partial(ITEMS, ("notes",), [(1, "a2", None), (2, None, None)])
        apply(sink, [net(ITEMS, partials=[changes, partial(ITEMS, ("name", "notes"), [(3, None, None)])])], 20)
        assert same(rows(ITEMS), [(1, "a2", "long"), (2, None, None), (3, "c", "z")])

    def test_partial_rows_come_after_the_whole_rows_of_their_batch(self, sink: DatabaseSink, rows: ReadRows) -> None:
        whole, rest = [(1, "a", "long")], partial(ITEMS, ("notes",), [(1, "a2", None)])
        apply(sink, [net(ITEMS, whole, partials=[rest])], 10)
        assert rows(ITEMS) == [(1, "a2", "long")]

    def test_a_partial_row_that_the_sink_does_not_have_is_read_from_the_source(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        source = SourceRows(ITEMS, [(2, "of the source", "its notes")])
        apply(sink, [net(ITEMS, [(1, "a", "long")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(1, "a2", None), (2, "b", None)])])], 20, source)
        assert source.asked == [("2",)]
        assert same(rows(ITEMS), [(1, "a2", "long"), (2, "of the source", "its notes")])

    def test_a_partial_row_that_the_source_does_not_have_either_is_left_out(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        source = SourceRows(ITEMS)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(2, "b", None)])])], 10, source)
        assert (source.asked, rows(ITEMS)) == ([("2",)], [])

    def test_the_source_is_asked_with_the_key_in_the_keys_own_order(self, sink: DatabaseSink, rows: ReadRows) -> None:
        source = SourceRows(PAIRS, [("v", 7, "w", 8)])
        apply(sink, [net(PAIRS, partials=[partial(PAIRS, ("w",), [("v", 7, None, 8)])])], 10, source)
        assert (source.asked, rows(PAIRS)) == ([("8", "7")], [("v", 7, "w", 8)])

    def test_a_partial_row_may_move(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ITEMS, [(1, "a", "long"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "a2", None)], [(1,)])])], 20)
        assert same(rows(ITEMS), [(9, "a2", "long"), (2, "b", "y")])

    def test_a_partial_row_of_a_composite_key_may_move(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(PAIRS, [("v", 1, "long", 2), ("other", 2, "w", 1)])], 10)
        apply(sink, [net(PAIRS, partials=[partial(PAIRS, ("w",), [("v2", 1, None, 3)], [(2, 1)])])], 20)
        assert same(rows(PAIRS), [("v2", 1, "long", 3), ("other", 2, "w", 1)])

    def test_a_partial_row_may_move_to_where_it_is(self, sink: DatabaseSink, rows: ReadRows) -> None:
        """The server sends the old key of an unchanged one that lies in TOAST."""
        apply(sink, [net(ITEMS, [(1, "a", "long")])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(1, "a2", None)], [(1,)])])], 20)
        assert rows(ITEMS) == [(1, "a2", "long")]

    def test_a_partial_row_that_moves_and_is_not_there_is_read_under_its_new_key(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        source = SourceRows(ITEMS, [(9, "of the source", "notes")])
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "a", None)], [(1,)])])], 10, source)
        assert (source.asked, rows(ITEMS)) == ([("9",)], [(9, "of the source", "notes")])

    def test_in_a_table_that_is_ahead_a_partial_row_that_moves_is_read_from_the_source(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        """What the table has under its old key may be another row, which came there later."""
        apply(sink, [net(ITEMS, [(1, "a later one", "of its own"), (9, "b", "right"), (2, "c", "y")])], 10)
        source = SourceRows(ITEMS, [(9, "of the source", "right")])
        part = sink.stage("ahead", 0, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "a", None)], [(1,)])])])
        sink.commit(Batch((part,), None, (status(ITEMS, TableState.AHEAD, 20),)), source)
        assert source.asked == [("9",)]
        assert same(rows(ITEMS), [(9, "of the source", "right"), (2, "c", "y")])

    # --- tables without a key ----------------------------------------------------------------------------------------

    def test_equal_rows_of_a_table_without_a_key_are_all_kept(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a"), (1, "a"), (None, None), (None, None)])], 10)
        apply(sink, [net(LOOSE, [(1, "a")])], 20)
        assert same(rows(LOOSE), [(1, "a")] * 3 + [(None, None)] * 2)

    def test_exactly_as_many_equal_rows_go_as_were_deleted(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")] * 5 + [(2, None)] * 3 + [(None, "a")] * 2 + [(None, None)])], 10)
        apply(sink, [net(LOOSE, deletes=[(1, "a"), (2, None), (None, None)], copies=[3, 1, 1])], 20)
        assert same(rows(LOOSE), [(1, "a")] * 2 + [(2, None)] * 2 + [(None, "a")] * 2)

    def test_rows_that_go_and_are_told_of_twice_go_as_often_as_both_say(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        """What a transform makes of different rows may be equal."""
        apply(sink, [net(LOOSE, [(1, "a")] * 6 + [(2, None)] * 3)], 10)
        apply(sink, [net(LOOSE, deletes=[(1, "a"), (2, None), (1, "a"), (2, None)], copies=[3, 1, 2, 1])], 20)
        assert same(rows(LOOSE), [(1, "a"), (2, None)])

    def test_an_update_of_one_of_equal_rows_changes_one(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(LOOSE, [(1, "a")] * 3)], 10)
        apply(sink, [net(LOOSE, [(1, "b")], deletes=[(1, "a")], copies=[1])], 20)
        assert same(rows(LOOSE), [(1, "a"), (1, "a"), (1, "b")])

    # --- names -------------------------------------------------------------------------------------------------------

    def test_names_may_hold_quotes_spaces_and_any_script(self, sink: DatabaseSink, rows: ReadRows) -> None:
        apply(sink, [net(ODD, [(1, "a", "b", "c", 1, "d", "e"), (2, "a", "b", "c", 1, "d", "e")])], 10)
        moved = partial(ODD, ("a b",), [(3, "A", None, "C", 1, "D", "E")], [(1, 2)])
        apply(sink, [net(ODD, deletes=[(1, 1)]), net(ODD, partials=[moved])], 20)
        assert rows(ODD) == [(3, "A", "b", "C", 1, "D", "E")]
        assert sink.read_state().tables == {}

    def test_two_schemas_may_have_a_table_of_one_name(self, sink: DatabaseSink, rows: ReadRows) -> None:
        other = msgspec.structs.replace(ITEMS, schema="archive")
        apply(sink, [net(ITEMS, [(1, "a", None)]), net(other, [(2, "b", None)])], 10)
        assert (rows(ITEMS), rows(other)) == ([(1, "a", None)], [(2, "b", None)])

    # --- schema changes ----------------------------------------------------------------------------------------------

    def test_an_added_column_is_null_in_the_rows_that_were_there(self, sink: DatabaseSink, rows: ReadRows) -> None:
        wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", INT)))
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(ITEMS, [(2, "b2", "y")]), net(wider, [(3, "c", "z", 5), (2, "b3", "y", 6)])], 20)
        apply(sink, [net(wider, [(4, "d", None, None)])], 30)
        assert same(rows(wider), [(1, "a", "x", None), (2, "b3", "y", 6), (3, "c", "z", 5), (4, "d", None, None)])

    def test_a_dropped_column_keeps_its_values_and_is_null_in_new_rows(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        narrower = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[:2])
        apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        apply(sink, [net(narrower, [(1, "a2"), (3, "c")], deletes=[(2,)])], 20)
        assert same(rows(ITEMS), [(1, "a2", "x"), (3, "c", None)])

    def test_columns_may_come_in_another_order(self, sink: DatabaseSink, rows: ReadRows) -> None:
        turned = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[::-1])
        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        apply(sink, [net(turned, [("y", "b", 2)])], 20)
        assert same(rows(ITEMS), [(1, "a", "x"), (2, "b", "y")])

    # --- names -------------------------------------------------------------------------------------------------------

    def test_tables_may_have_any_name_that_our_statements_use(self, sink: DatabaseSink, rows: ReadRows) -> None:
        schemas = [_spoken(name) for name in ALIASES]

        def row(number: int, text: str) -> tuple[int | str, ...]:
            return (number, *(f"{text} {place}" for place in range(len(SPOKEN) - 1)))

        for schema in schemas:
            live(sink, load(sink, schema, [row(n, "copied") for n in (1, 2, 3, 4)]), schema)
        changed = [row(1, "changed"), row(5, "new")]
        apply(sink, [net(schema, changed, deletes=[(2,)]) for schema in schemas], 10)
        partials = []
        for schema in schemas:
            others = [column.name for column in schema.columns if column.name not in schema.key]
            moved = partial(schema, (others[-1],), [row(9, "moved")], [(3,)])
            partials.append(net(schema, partials=[moved, partial(schema, tuple(others[1:]), [row(4, "sent")])]))
        apply(sink, partials, 20)
        after_move = (*row(9, "moved")[:-1], row(3, "copied")[-1])
        after_send = (*row(4, "sent")[:2], *row(4, "copied")[2:])
        for schema in schemas:
            assert same(rows(schema), [*changed, after_send, after_move]), schema.name
            again = [row(1, "again"), row(5, "new"), row(6, "came")]
            live(sink, load(sink, schema, again, generation=2), schema)
            assert same(rows(schema), again), schema.name

    def test_tables_without_a_key_may_have_any_name_that_our_statements_use(
        self, sink: DatabaseSink, rows: ReadRows
    ) -> None:
        columns = tuple(Column(other, TEXT) for other in SPOKEN)
        schemas = [TableSchema("public", name, columns, (), Identity.FULL) for name in ALIASES]
        one, two = (tuple(f"{text} {other}" for other in SPOKEN) for text in ("one", "two"))
        apply(sink, [net(schema, [one, one, one, two]) for schema in schemas], 10)
        apply(sink, [net(schema, deletes=[one, two], copies=[2, 1]) for schema in schemas], 20)
        for schema in schemas:
            assert same(rows(schema), [one]), schema.name


def _spoken(name: str) -> TableSchema:
    """A table of this name, with a key of the same and a column for each of the other names."""
    others = (Column(other, TEXT) for other in SPOKEN if other != name)
    return TableSchema("public", name, (Column(name, INT), *others), (name,))
