"""The sink contract: what the settings of a sink in the pipeline file promise. Renames, and rows that are set aside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.sinks.base import Batch, DatabaseSink, Quarantined
from tailrace.sinks.sql import notes
from tailrace.sinks.sql.quarantine import isolation
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    PAIRS,
    TEXT,
    MakeSink,
    ReadRows,
    SourceRows,
    apply,
    chunk,
    net,
    partial,
    status,
    table_of,
    watermark,
)

Refuse = Callable[[TableSchema, str, str], None]
"""Makes a table of the sink refuse rows in which a column has a value."""
Keep = Callable[[TableSchema], Callable[[], None]]
"""Makes a table of the sink refuse to delete rows, until what it returns is called."""

RENAMES = {
    "tables": {ITEMS.table: "things"},
    "columns": {ITEMS.table: {"id": "number", "name": "title"}},
}
THINGS = TableSchema("public", "things", (Column("number", INT), Column("title", TEXT), Column("notes", TEXT)))
WORDS = TableSchema("public", "words", (Column("k", TEXT), Column("v", TEXT)), ("k",))
BAD = "bad"


class RenamesContract:
    """`tables` and `columns`."""

    def test_a_renamed_table_takes_every_kind_of_change(self, make_sink: MakeSink, rows: ReadRows) -> None:
        sink = make_sink(**RENAMES)
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        first = [(1, "a", "x"), (2, "b", "y"), (3, "c", "z"), (4, "d", None)]
        sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, first)]))
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        apply(sink, [net(ITEMS, [(1, "A", "x")], deletes=[(4,)])], 10)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(2, "B", None)])])], 20)
        apply(sink, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(30, "C", None)], [(3,)])])], 30)
        expected = [(1, "A", "x"), (2, "B", "y"), (30, "C", "z")]
        assert sorted(rows(THINGS)) == expected
        read = [row for part in sink.read_table(ITEMS) for row in part]
        assert sorted(read) == sorted(sink.expected_rows(ITEMS, table_of(ITEMS, expected)))
        assert sink.read_state().tables[ITEMS.table].schema == ITEMS
        sink.close()

    def test_a_row_that_a_renamed_table_lacks_is_read_from_the_source(
        self, make_sink: MakeSink, rows: ReadRows
    ) -> None:
        sink = make_sink(**RENAMES)
        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        part = sink.stage("batch", 0, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(2, "B", None)])])])
        sink.commit(
            Batch((part,), watermark(20), before=watermark(10)), SourceRows(ITEMS, [(2, "B", "from the source")])
        )
        assert sorted(rows(THINGS)) == [(1, "a", "x"), (2, "B", "from the source")]
        sink.close()

    def test_a_renamed_table_takes_new_columns(self, make_sink: MakeSink, rows: ReadRows) -> None:
        sink = make_sink(**RENAMES)
        apply(sink, [net(ITEMS, [(1, "a", "x")])], 10)
        wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("more", INT)))
        apply(sink, [net(wider, [(2, "b", "y", 5)])], 20)
        more = msgspec.structs.replace(THINGS, columns=(*THINGS.columns, Column("more", INT)))
        assert sorted(rows(more)) == [(1, "a", "x", None), (2, "b", "y", 5)]
        sink.close()

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"nmae": "title"}, r"renames nmae, which public\.items does not have"),
            ({"name": "notes"}, r"columns notes and notes are one name"),
        ],
        ids=["unknown", "two of one name"],
    )
    def test_a_rename_that_can_not_be_is_refused(
        self, make_sink: MakeSink, columns: dict[str, str], words: str
    ) -> None:
        sink = make_sink(columns={ITEMS.table: columns})
        with pytest.raises(SinkRejected, match=words):
            sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        sink.close()

    def test_two_tables_may_not_be_renamed_into_one(self, make_sink: MakeSink) -> None:
        sink = make_sink(tables={ITEMS.table: "loose"})
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        with pytest.raises(SinkRejected, match="would both be"):
            sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        sink.close()

    def test_a_name_that_two_tables_want_is_nobody_else_s_trouble(self, make_sink: MakeSink) -> None:
        sink = make_sink(tables={ITEMS.table: "loose"})
        for state in (TableState.SNAPSHOT, TableState.FAILED):
            sink.commit(Batch(tables=(status(LOOSE), status(ITEMS, state))), SourceRows(ITEMS))
            sink.begin_snapshot(status(PAIRS, TableState.SNAPSHOT), [chunk(PAIRS)], clear=True)
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)  # the other has nothing
        sink.close()


class QuarantineContract:
    """`on_error: quarantine`. Needs the fixtures `refuse` and `keep`, besides those of `SinkContract`."""

    @pytest.fixture
    def strict(self, make_sink: MakeSink, refuse: Refuse) -> DatabaseSink:
        """A sink whose table `items` refuses the name `bad`; what it refuses is set aside."""
        sink = make_sink(on_error="quarantine")
        sink.begin_snapshot(status(ITEMS, TableState.LIVE), [], clear=True)
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        refuse(ITEMS, "name", BAD)
        return sink

    def test_a_refused_row_is_set_aside_and_the_others_go_on(self, strict: DatabaseSink, rows: ReadRows) -> None:
        content = [(n, BAD if n in (17, 60) else "good", None) for n in range(100)]
        for _ in range(2):  # the second time it is there already
            apply(strict, [net(ITEMS, content)], 10)
        assert rows(ITEMS) == [row for row in content if row[1] != BAD]
        assert strict.read_state().watermark == watermark(10)
        entries = strict.quarantined()
        assert _told(entries) == [("upsert", "17"), ("upsert", "60")]
        for entry in entries:
            assert (entry.rejected.table, entry.place) == (ITEMS.table, watermark(10))
            assert entry.rejected.payload == {"id": entry.rejected.key["id"], "name": BAD, "notes": None}
            assert BAD not in entry.rejected.reason
        strict.close()

    def test_none_is_lost_of_rows_whose_keys_differ_in_case_only(
        self, make_sink: MakeSink, rows: ReadRows, refuse: Refuse
    ) -> None:
        sink = make_sink(on_error="quarantine")
        sink.begin_snapshot(status(WORDS, TableState.LIVE), [], clear=True)
        sink.finish_snapshot(status(WORDS, TableState.SNAPSHOT))
        refuse(WORDS, "v", BAD)
        content = [(f"{name}{n}", "good") for n in range(400) for name in ("Name", "NAME")]
        apply(sink, [net(WORDS, [*content, ("Name900", BAD), ("Aaa", BAD)])], 10)
        assert sorted(rows(WORDS)) == sorted(content)
        assert sorted(str(entry.rejected.key["k"]) for entry in sink.quarantined()) == ["Aaa", "Name900"]
        sink.close()

    def test_a_large_value_of_a_refused_row_is_set_aside_in_part(
        self, strict: DatabaseSink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(notes, "PAYLOAD_CHARACTERS", 1000)
        apply(strict, [net(ITEMS, [(1, BAD, "ü" * 5000), (2, BAD, "ü" * 500)])], 10)
        first, second = (entry.rejected.payload for entry in strict.quarantined())
        room = 1000 - len(BAD) - len(str(first["id"])) * isinstance(first["id"], str)
        assert first["notes"] == "ü" * room + "… of 5000 characters"
        assert (first["name"], second["notes"]) == (BAD, "ü" * 500)
        strict.close()

    def test_a_refused_update_leaves_the_row_as_it_was(self, strict: DatabaseSink, rows: ReadRows) -> None:
        apply(strict, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        change = partial(ITEMS, ("notes",), [(1, BAD, None), (2, "B", None)])
        apply(strict, [net(ITEMS, partials=[change])], 20)
        assert sorted(rows(ITEMS)) == [(1, "a", "x"), (2, "B", "y")]
        assert _told(strict.quarantined()) == [("update", "1")]
        strict.close()

    def test_a_partial_row_after_a_refused_one_is_read_from_the_source(
        self, strict: DatabaseSink, rows: ReadRows
    ) -> None:
        """The sink has the row as it was before the refused change, which may have sent what this one does not."""
        apply(strict, [net(ITEMS, [(1, "a", "old"), (2, "b", "y"), (3, "c", "z")])], 10)
        apply(strict, [net(ITEMS, [(1, BAD, "new")])], 20)
        source = SourceRows(ITEMS, [(1, "good", "new")])
        apply(
            strict, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(1, "good", None), (2, "B", None)])])], 30, source
        )
        assert source.asked == [("1",)]
        source = SourceRows(ITEMS, [(9, "moved", "new")])
        apply(strict, [net(ITEMS, partials=[partial(ITEMS, ("notes",), [(9, "moved", None)], [(1,)])])], 40, source)
        assert source.asked == [("9",)]
        assert sorted(rows(ITEMS)) == [(2, "B", "y"), (3, "c", "z"), (9, "moved", "new")]
        strict.close()

    def test_a_replay_makes_a_table_be_ahead_until_its_changes_have_come(
        self, strict: DatabaseSink, rows: ReadRows
    ) -> None:
        apply(strict, [net(ITEMS, [(1, BAD, "first"), (5, "b", "second")])], 10)
        assert strict.replay(strict.quarantined(), SourceRows(ITEMS, [(1, "b", "second")])) == 1  # it was 5 before
        source = SourceRows(ITEMS, [(7, "a", "first")])
        moves = [partial(ITEMS, ("notes",), [(new, "m", None)], [(old,)]) for old, new in ((1, 7), (5, 1))]
        for offset, move in enumerate(moves):
            apply(strict, [net(ITEMS, partials=[move])], 20 + offset, source)
        assert source.asked == [("7",), ("1",)]
        strict.close()

    def test_a_table_with_rows_of_the_source_is_ahead_until_its_place_is_past_them(
        self, strict: DatabaseSink, rows: ReadRows
    ) -> None:
        change = partial(ITEMS, ("notes",), [(1, "a", None)])
        apply(strict, [net(ITEMS, partials=[change])], 10, SourceRows(ITEMS, [(1, "later", "of its own")]))
        asked = []

        def tend(table: str, position: str, answer: str) -> str:
            asked.append((table, position))
            return answer

        for answer in ("0/20", "0/20"):
            strict.tend_ahead(functools.partial(tend, answer=answer))
        move = partial(ITEMS, ("notes",), [(9, "a", None)], [(1,)])
        apply(strict, [net(ITEMS, partials=[move])], 20, SourceRows(ITEMS, [(9, "a", "right")]))
        strict.tend_ahead(functools.partial(tend, answer=""))  # read again since: nobody knows yet up to where
        for answer in ("0/30", "", "0/40"):
            strict.tend_ahead(functools.partial(tend, answer=answer))
        places = ["", "0/20", "", "", "0/30"]
        assert asked == [(ITEMS.table, place) for place in places]
        back, source = partial(ITEMS, ("notes",), [(1, "a", None)], [(9,)]), SourceRows(ITEMS)
        apply(strict, [net(ITEMS, partials=[back])], 30, source)
        assert (source.asked, rows(ITEMS)) == ([], [(1, "a", "right")])
        strict.close()

    def test_a_refused_row_of_a_chunk_is_set_aside(self, make_sink: MakeSink, rows: ReadRows, refuse: Refuse) -> None:
        sink = make_sink(on_error="quarantine")
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
        refuse(ITEMS, "name", BAD)
        batches = [table_of(ITEMS, [(1, "a", None), (2, BAD, None)]), table_of(ITEMS, [(3, "c", None)])]
        sink.load_chunk(ITEMS, chunk(ITEMS), iter(batches))
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        assert sorted(rows(ITEMS)) == [(1, "a", None), (3, "c", None)]
        assert _told(sink.quarantined()) == [("read", "2")]
        assert sink.load_chunk(ITEMS, chunk(ITEMS), iter(batches)) == 0
        sink.close()

    def test_without_the_setting_a_refused_row_stops_the_sink(
        self, make_sink: MakeSink, rows: ReadRows, refuse: Refuse
    ) -> None:
        sink = make_sink()
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        refuse(ITEMS, "name", BAD)
        with pytest.raises(SinkRejected) as failure:
            apply(sink, [net(ITEMS, [(2, "b", None), (3, BAD, None)])], 20)
        assert f"'{BAD}'" not in str(failure.value)
        assert rows(ITEMS) == [(1, "a", None)]
        assert sink.read_state().watermark == watermark(10)
        assert sink.quarantined() == []
        sink.close()

    def test_too_many_refused_rows_are_another_problem(
        self, strict: DatabaseSink, rows: ReadRows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolation, "MOST_REFUSED", 3)
        with pytest.raises(SinkRejected):
            apply(strict, [net(ITEMS, [(n, BAD, None) for n in range(10)])], 10)
        assert (rows(ITEMS), strict.quarantined()) == ([], [])
        strict.close()

    def test_replay_writes_what_the_source_has_now(self, strict: DatabaseSink, rows: ReadRows) -> None:
        apply(strict, [net(ITEMS, [(n, BAD, None) for n in (1, 2, 3)])], 10)
        mended = SourceRows(ITEMS, [(1, "mended", "x"), (2, BAD, None)])  # and 3 is gone
        assert strict.replay(strict.quarantined(), mended) == 2
        assert rows(ITEMS) == [(1, "mended", "x")]
        assert _told(strict.quarantined()) == [("upsert", "2")]
        strict.drop_quarantined(strict.quarantined())
        assert strict.quarantined() == []
        strict.close()

    def test_a_refused_delete_is_set_aside_until_it_is_not_refused(
        self, make_sink: MakeSink, rows: ReadRows, keep: Keep
    ) -> None:
        sink = make_sink(on_error="quarantine")
        sink.begin_snapshot(status(ITEMS, TableState.LIVE), [], clear=True)
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        apply(sink, [net(ITEMS, [(1, "a", None), (-2, "b", None)])], 10)
        allow = keep(ITEMS)
        apply(sink, [net(ITEMS, deletes=[(-2,)])], 20)
        assert _told(sink.quarantined()) == [("delete", "-2")]
        assert sink.replay(sink.quarantined(), SourceRows(ITEMS)) == 0
        assert len(rows(ITEMS)) == 2
        allow()
        assert sink.replay(sink.quarantined(), SourceRows(ITEMS)) == 1
        assert (rows(ITEMS), sink.quarantined()) == ([(1, "a", None)], [])
        sink.close()

    def test_a_refused_move_is_made_up_for_under_both_keys(self, strict: DatabaseSink, rows: ReadRows) -> None:
        apply(strict, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
        move = partial(ITEMS, ("notes",), [(5, BAD, None)], [(1,)])
        apply(strict, [net(ITEMS, partials=[move])], 20)
        assert _told(strict.quarantined()) == [("delete", "1"), ("update", "5")]
        assert strict.replay(strict.quarantined(), SourceRows(ITEMS, [(5, "mended", "x")])) == 2
        assert sorted(rows(ITEMS)) == [(2, "b", "y"), (5, "mended", "x")]
        strict.close()

    def test_rows_without_a_key_are_set_aside_but_not_replayed(
        self, make_sink: MakeSink, rows: ReadRows, refuse: Refuse
    ) -> None:
        sink = make_sink(on_error="quarantine")
        sink.begin_snapshot(status(LOOSE, TableState.LIVE), [], clear=True)
        refuse(LOOSE, "y", BAD)
        apply(sink, [net(LOOSE, [(1, "a"), (1, BAD), (1, "a")])], 10)
        assert rows(LOOSE) == [(1, "a"), (1, "a")]
        [entry] = sink.quarantined()
        assert entry.rejected.key == {}
        with pytest.raises(SinkRejected, match=r"public\.loose has no key"):
            sink.replay([entry], SourceRows(LOOSE))
        sink.close()

    def test_a_renamed_columns_row_is_set_aside_by_the_sources_names(
        self, make_sink: MakeSink, rows: ReadRows, refuse: Refuse
    ) -> None:
        sink = make_sink(on_error="quarantine", **RENAMES)
        sink.begin_snapshot(status(ITEMS, TableState.LIVE), [], clear=True)
        sink.finish_snapshot(status(ITEMS, TableState.SNAPSHOT))
        refuse(THINGS, "title", BAD)
        apply(sink, [net(ITEMS, [(1, BAD, None), (2, "b", None)])], 10)
        assert rows(THINGS) == [(2, "b", None)]
        [entry] = sink.quarantined()
        assert (entry.rejected.key, entry.rejected.payload["name"]) == ({"id": "1"}, BAD)
        assert sink.replay([entry], SourceRows(ITEMS, [(1, "mended", None)])) == 1
        assert sorted(rows(THINGS)) == [(1, "mended", None), (2, "b", None)]
        sink.close()

    def test_a_forgotten_pipeline_has_no_quarantine(self, strict: DatabaseSink) -> None:
        apply(strict, [net(ITEMS, [(1, BAD, None)])], 10)
        strict.forget()
        assert strict.quarantined() == []
        strict.close()


def _told(entries: list[Quarantined]) -> list[tuple[str, Any]]:
    return sorted((entry.rejected.operation, entry.rejected.key["id"]) for entry in entries)
