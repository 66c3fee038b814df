"""A sink behind transforms, without Spark: what crosses over to it, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tailrace.config import Transform
from tailrace.errors import ConfigError
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import Watermark
from tailrace.pipeline import transforming
from tailrace.pipeline.transforming import TransformingSink
from tailrace.sinks.base import Batch, Evolved, FetchRows, SinkState
from tailrace.transforms.shaping import Shaping, problem

INT, TEXT = ColumnType(Kind.INT64, "bigint"), ColumnType(Kind.TEXT, "text")
COLUMNS = tuple(Column(name, TEXT if number > 1 else INT, number) for number, name in enumerate("abcde", 1))
ITEMS = TableSchema("public", "items", COLUMNS[:3], ("a",), relation=1)
OTHERS = msgspec.structs.replace(ITEMS, name="others", relation=2)
MARK = Watermark("log", 0, "0/0")


class Expressions:
    """Drops `b` of the items, and knows no version without it; or has another transform, which reads nothing."""

    def __init__(self, transform: Transform = Transform(drop=("b",))) -> None:  # noqa: B008 - it never changes
        self.transform = transform
        self.computed = tuple(Column(name, TEXT) for name in transform.columns)

    def __contains__(self, table: str) -> bool:
        return table == ITEMS.table

    def of(self, schema: TableSchema) -> Shaping:
        if (found := problem(self.transform, schema)) is not None:
            raise found
        return Shaping(schema.table, self.transform, (), pa.schema([]), self.computed)

    def held(self, schema: TableSchema) -> TableSchema:
        return self.of(schema).schema(schema) if schema.table in self else schema

    def captured(self, held: TableSchema) -> TableSchema:
        raise KeyError(held)


class KeepingSink:
    """Keeps statuses, and asks for a row of `wanted` in a commit."""

    name, max_parts, atomic, is_local_only = "keeping", 1, "batch", True

    def __init__(self, *statuses: TableStatus, wanted: TableSchema | None = None) -> None:
        self.statuses = {status.table: status for status in statuses}
        self.wanted, self.got = wanted, []

    def read_state(self) -> SinkState:
        return SinkState(None, self.statuses, {})

    def takes_in_place(self, evolved: Evolved) -> bool:
        return True

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        self.statuses |= {status.table: status for status in batch.tables}
        if self.wanted is not None:
            self.got = fetch(self.wanted, pa.RecordBatch.from_pydict({"a": ["1"]})).to_pylist()
        return 0


def behind(sink: Any) -> TransformingSink:
    return TransformingSink(sink, Expressions())


def status(schema: TableSchema, state: TableState) -> TableStatus:
    return TableStatus(schema.table, state, MARK, schema)


def test_a_table_may_wait_for_its_copy_though_its_transform_can_not_be_used() -> None:
    """That is said when the copy begins; who writes that it waits has other tables to care for."""
    without = msgspec.structs.replace(ITEMS, columns=(COLUMNS[0], COLUMNS[2]))
    sink = KeepingSink()
    waiting = status(ITEMS, TableState.FAILED).again(MARK, without)
    behind(sink).commit(Batch(tables=(waiting,)), lambda *_: None)
    assert sink.statuses[ITEMS.table].state is TableState.SNAPSHOT
    begun = msgspec.structs.replace(waiting, visibility="1:1:")
    with pytest.raises(ConfigError, match="there is no column b"):
        behind(sink).commit(Batch(tables=(begun,)), lambda *_: None)


def test_the_pipeline_is_told_which_table_has_lost_its_transform() -> None:
    held = msgspec.structs.replace(OTHERS, columns=COLUMNS[:1])
    known = msgspec.structs.replace(status(held, TableState.LIVE), captured=OTHERS)
    found = behind(KeepingSink(known)).read_state().tables[OTHERS.table]
    assert found == known


def test_rows_for_changes_from_before_a_column_went_and_another_came_are_read_as_the_newest_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newest = msgspec.structs.replace(ITEMS, columns=(*COLUMNS[:2], COLUMNS[3]))
    left = msgspec.structs.replace(ITEMS, columns=COLUMNS[:1])
    sink = KeepingSink(wanted=left)
    asked = []

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        asked.append(schema)
        return schema.rows([pa.array([1]), pa.array(["b"]), pa.array(["d"])])

    monkeypatch.setattr(transforming, "shaped_rows", lambda _, schema, rows: rows.select(["a", "d"]))
    evolved = Evolved(ITEMS, newest, pa.RecordBatch.from_arrays([], []))
    behind(sink).commit(Batch(evolved=(evolved,)), fetch)
    assert asked == [newest]
    assert sink.got == [{"a": 1}]


A, B, C, D, _ = COLUMNS
MASKED = Transform(columns={"b": "'masked'"})


def renamed(column: Column, name: str) -> Column:
    return msgspec.structs.replace(column, name=name)


@pytest.mark.parametrize(
    ("transform", "after", "is_in_place"),
    [
        (MASKED, (A, B, C, D), True),
        (MASKED, (A, B), True),
        (MASKED, (A, B, renamed(C, "d")), True),
        (MASKED, (A, renamed(B, "d"), C), False),  # the sink's `b` has what was made, and not what `d` has
        (MASKED, (A, C), False),
        (MASKED, (A, renamed(C, "b")), False),
        (Transform(drop=("b",)), (A, B, C, D), True),
        (Transform(drop=("b",)), (A, renamed(B, "e"), C, renamed(D, "b")), False),  # the sink has nothing of `e`
        (Transform(drop=("b",)), (A, renamed(C, "b"), renamed(B, "c")), False),
    ],
)
def test_a_table_is_changed_in_place_if_the_sink_has_what_its_columns_are_now(transform, after, is_in_place) -> None:
    sink: Any = TransformingSink(KeepingSink(), Expressions(transform))
    evolved = Evolved(ITEMS, msgspec.structs.replace(ITEMS, columns=after), pa.RecordBatch.from_arrays([], []))
    assert sink.takes_in_place(evolved) is is_in_place
