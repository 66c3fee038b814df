"""The sink contract: tables that are there already. Whose they are, and whether they can take the source's rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.sinks.base import Sink
from tailrace.testing.sink_changes import INT, ITEMS, MakeSink, ReadRows, apply, live, load, net, status

Execute = Callable[..., None]
"""Somebody else runs statements on the sink's database."""

NUMBERS = TableSchema("public", ITEMS.name, (Column("id", INT),), ("id",))


class TablesContract:
    """Needs a fixture `execute`, besides those of `SinkContract`."""

    def test_rows_of_somebody_else_are_never_cleared_away(self, sink: Sink, rows: ReadRows, execute: Execute) -> None:
        execute("CREATE TABLE items (id bigint PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        with pytest.raises(SinkRejected, match="items has rows that tailrace did not write"):
            sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
        assert rows(NUMBERS) == [(1,)]

    def test_a_table_of_another_pipeline_is_refused_until_that_is_dropped(
        self, sink: Sink, make_sink: MakeSink, rows: ReadRows
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


def assert_table_is_refused(sink: Sink, words: str) -> None:
    """The table `items` that is there can take neither a copy nor changes, and the sink stays where it was."""
    for use in (
        lambda: sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True),
        lambda: apply(sink, [net(ITEMS, [(1, "a", None)])], 10),
    ):
        with pytest.raises(SinkRejected, match=words):
            use()
    assert sink.read_state().watermark is None
