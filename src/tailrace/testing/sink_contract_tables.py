"""The sink contract: tables that are there already. Whose they are, and whether they can take the source's rows."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch, DatabaseSink, Evolved
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    ORDERS,
    MakeSink,
    ReadRows,
    SourceRows,
    apply,
    live,
    load,
    net,
    status,
)

Execute = Callable[..., None]
"""Somebody else runs statements on the sink's database."""

SHORT = ColumnType(Kind.TEXT, "character varying(20)")
NUMBERS = TableSchema("public", ITEMS.name, (Column("id", INT),), ("id",))

NAMED = TableSchema("public", ITEMS.name, (Column("id", INT), Column("name", SHORT)), ("id",))
COUNTED = msgspec.structs.replace(NAMED, columns=(NAMED.columns[0], Column("name", INT)))
OWN = TableSchema("public", "own", (Column("item", INT),))
REFERRING = (
    "CREATE TABLE own (item bigint, CONSTRAINT to_items FOREIGN KEY (item) REFERENCES items (id) ON DELETE CASCADE)"
)


class TablesContract:
    """Needs a fixture `execute`, besides those of `SinkContract`."""

    def test_rows_of_somebody_else_are_never_cleared_away(
        self, sink: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        execute("CREATE TABLE items (id bigint PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        with pytest.raises(SinkRejected, match="items has rows that tailrace did not write"):
            sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        assert rows(NUMBERS) == [(1,)]

    def test_a_table_of_another_pipeline_is_refused_until_that_is_dropped(
        self, sink: DatabaseSink, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        other = make_sink("other")
        other.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        apply(other, [net(ITEMS, [(1, "a", None)])], 10)
        with pytest.raises(SinkRejected, match="items belongs to other/replica"):
            sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        assert rows(NUMBERS) == [(1,)]
        other.forget()
        other.close()
        live(sink, load(sink, ITEMS, [(2, "b", None)]), ITEMS)
        assert rows(NUMBERS) == [(2,)]

    def test_a_column_that_somebody_renamed_is_not_made_anew(
        self, sink: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        """It would be empty in the rows that are there."""
        live(sink, load(sink, NAMED, [(1, "a"), (2, "b")]), NAMED)
        execute("ALTER TABLE items RENAME COLUMN name TO other")
        id_, name = NAMED.columns
        wider = msgspec.structs.replace(NAMED, columns=(id_, name, Column("n", INT)))
        assert not sink.takes_in_place(Evolved(NAMED, wider, pa.RecordBatch.from_arrays([], [])))
        with pytest.raises(SinkRejected, match=r"column name of table .*items is gone from the sink") as caught:
            apply(sink, [net(NAMED, [(3, "c")])], 10)
        assert caught.value.table == NAMED.table
        assert sorted(rows(msgspec.structs.replace(NAMED, columns=(id_, Column("other", SHORT))))) == [
            (1, "a"),
            (2, "b"),
        ]

    # --- foreign keys of others --------------------------------------------------------------------------------------

    @pytest.fixture
    def referred(self, sink: DatabaseSink, execute: Execute) -> DatabaseSink:
        """Rows of others refer to those of a table, and go with them."""
        live(sink, load(sink, NAMED, [(1, "a"), (2, "b"), (3, "c")]), NAMED)
        execute(REFERRING, "INSERT INTO own VALUES (1), (2)")
        return sink

    def test_rows_that_refer_to_a_table_stay_when_it_is_copied_again(
        self, referred: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        execute("CREATE UNIQUE INDEX by_name ON items (name)")
        live(referred, load(referred, NAMED, [(1, "A"), (2, "b"), (4, "a")], generation=2), NAMED)
        assert sorted(rows(NAMED)) == [(1, "A"), (2, "b"), (4, "a")]
        assert sorted(rows(OWN)) == [(1,), (2,)]


class ForeignKeysContract(TablesContract):
    """Of databases that heed foreign keys in the sink's own sessions."""

    def test_a_copy_that_can_not_spare_the_rows_that_others_refer_to_is_refused(
        self, referred: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        execute("CREATE UNIQUE INDEX by_name ON items (name)")
        begun = load(referred, NAMED, [(1, "b"), (2, "a")], generation=2)
        with pytest.raises(SinkRejected, match=r"foreign key to_items of table .*own in the sink would") as caught:
            live(referred, begun, NAMED)
        assert caught.value.table == NAMED.table
        assert (sorted(rows(NAMED)), sorted(rows(OWN))) == ([(1, "a"), (2, "b"), (3, "c")], [(1,), (2,)])

    def test_a_first_copy_that_begins_anew_does_not_clear_rows_that_others_refer_to(
        self, sink: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        begun = msgspec.structs.replace(load(sink, NAMED, [(1, "a"), (2, "b")]), visibility="1:1:")
        sink.commit(Batch(tables=(begun,)), SourceRows(NAMED))
        execute(REFERRING, "INSERT INTO own VALUES (1), (2)")
        with pytest.raises(SinkRejected, match="foreign key to_items") as caught:
            load(sink, NAMED, [(1, "a"), (2, "b")], generation=2)
        assert caught.value.table == NAMED.table
        assert sorted(rows(OWN)) == [(1,), (2,)]

    def test_a_table_that_others_refer_to_is_not_replaced(
        self, referred: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        """It is refused before anything is copied, and as that table's own trouble."""
        with pytest.raises(SinkRejected, match=r"foreign key to_items of table .*own in the sink leads to") as caught:
            load(referred, COUNTED, [(1, 5)], generation=2)
        assert caught.value.table == NAMED.table
        execute("DROP TABLE own")
        live(referred, load(referred, COUNTED, [(1, 5)], generation=3), COUNTED)
        assert rows(COUNTED) == [(1, 5)]

    def test_a_table_that_others_came_to_refer_to_is_not_replaced(
        self, sink: DatabaseSink, rows: ReadRows, execute: Execute
    ) -> None:
        live(sink, load(sink, NAMED, [(1, "a")]), NAMED)
        begun = load(sink, COUNTED, [(1, 5)], generation=2)
        execute(REFERRING, "INSERT INTO own VALUES (1)")
        with pytest.raises(SinkRejected, match="foreign key to_items") as caught:
            live(sink, begun, COUNTED)
        assert caught.value.table == NAMED.table
        assert sink.read_state().tables[NAMED.table] == begun
        assert rows(NAMED) == [(1, "a")]
        sink.commit(Batch(tables=(begun.aside(TableState.FAILED, "refused"),)), SourceRows(NAMED))
        apply(sink, [net(ORDERS, [(1, 1)])], 10)
        assert (rows(ORDERS), rows(OWN)) == ([(1, 1)], [(1,)])


def assert_table_is_refused(sink: DatabaseSink, words: str) -> None:
    """The table `items` that is there can take neither a copy nor changes, and the sink stays where it was."""
    for use in (
        lambda: sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True),
        lambda: apply(sink, [net(ITEMS, [(1, "a", None)])], 10),
    ):
        with pytest.raises(SinkRejected, match=words):
            use()
    assert sink.read_state().watermark is None
