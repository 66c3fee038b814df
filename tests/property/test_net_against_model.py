"""Net changes against a model: however a history is cut into runs, applying their net changes gives the same rows.

A history is made by a small source that knows its rows, so every change is one that a database could send. Cells are
indexes into pools of values that are easily confused: NaN and NULL, 0.0 and -0.0, empty and missing lists.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.columns.net import NetChanges, Partial, net_changes
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind, arrow_type

Row = tuple[int, ...]

NAN, INF = math.nan, math.inf
INTERVALS = [
    dict(zip(("months", "days", "microseconds"), parts, strict=True)) for parts in ((0, 0, 0), (1, 0, 0), (0, 30, 0))
]

POOLS: dict[str, tuple[ColumnType, list[Any]]] = {
    "integer": (ColumnType(Kind.INT64, "bigint"), [0, 1, 2, 3, -(2**63)]),
    "text": (ColumnType(Kind.TEXT, "text"), ["", "a", "A", "null", "ü", None]),
    "long": (ColumnType(Kind.TEXT, "text"), ["x" * 10, "y" * 10, "", None]),
    "float": (ColumnType(Kind.FLOAT64, "double precision"), [0.0, 1.5, NAN, -0.0, INF, -INF, None]),
    "real": (ColumnType(Kind.FLOAT32, "real"), [0.0, -0.0, NAN, None]),
    "decimal": (
        ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2),
        [Decimal("0.00"), Decimal("-1.50"), Decimal("9.99"), None],
    ),
    "bytes": (ColumnType(Kind.BYTES, "bytea"), [b"", b"\0", b"\0\0", b"\xff", None]),
    "boolean": (ColumnType(Kind.BOOLEAN, "boolean"), [True, False, None]),
    "date": (ColumnType(Kind.DATE, "date"), [0, 2**31 - 1, -(2**31), None]),
    "moment": (ColumnType(Kind.TIMESTAMPTZ, "timestamptz"), [0, 2**63 - 1, -(2**63), None]),
    "span": (ColumnType(Kind.INTERVAL, "interval"), [*INTERVALS, None]),
    "integers": (
        ColumnType(Kind.ARRAY, "integer[]", element=ColumnType(Kind.INT32, "integer")),
        [[], [None], [1], [1, None], [None, 1], [1, 1], None],
    ),
    "floats": (
        ColumnType(Kind.ARRAY, "float8[]", element=ColumnType(Kind.FLOAT64, "double precision")),
        [[], [NAN], [None], [INF], [-INF], [0.0], [-0.0], None],
    ),
    "dates": (
        ColumnType(Kind.ARRAY, "date[]", element=ColumnType(Kind.DATE, "date")),
        [[0], [2**31 - 1], [-(2**31)], [None], None],
    ),
    "spans": (
        ColumnType(Kind.ARRAY, "interval[]", element=ColumnType(Kind.INTERVAL, "interval")),
        [[INTERVALS[1]], [INTERVALS[2]], [None], [], None],
    ),
    "texts": (
        ColumnType(Kind.ARRAY, "text[]", element=ColumnType(Kind.TEXT, "text")),
        [["a,b"], ["a", "b"], [""], [], [None], ["null"], None],
    ),
}
POOL_ARRAYS = {name: pa.array(values, arrow_type(type_)) for name, (type_, values) in POOLS.items()}


def plain(array: pa.Array) -> list[Any]:
    """Values that compare as their bits do."""
    if pa.types.is_floating(array.type):
        return array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()).to_pylist()
    if pa.types.is_date32(array.type):
        return array.view(pa.int32()).to_pylist()
    if pa.types.is_timestamp(array.type):
        return array.view(pa.int64()).to_pylist()
    if pa.types.is_list(array.type):
        return [None if not array[i].is_valid else tuple(plain(array[i].values)) for i in range(len(array))]
    if pa.types.is_struct(array.type):
        return [None if value is None else tuple(value.values()) for value in array.to_pylist()]
    return array.to_pylist()


INDEX_OF = {name: {value: i for i, value in enumerate(plain(array))} for name, array in POOL_ARRAYS.items()}


@dataclass(frozen=True)
class Table:
    """`columns` are names of pools; `toast` the columns that a source may leave out."""

    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    toast: tuple[str, ...] = ()
    identity: Identity = Identity.DEFAULT

    @property
    def schema(self) -> TableSchema:
        columns = tuple(Column(name, POOLS[name][0]) for name in self.columns)
        return TableSchema("public", "t", columns, self.key, self.identity)

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.columns.index(name)] for name in self.key)

    def choices(self, name: str) -> int:
        """How many values of its pool a column takes; a key is never NULL, nor both zeros, which are equal."""
        return min(len(POOLS[name][1]) - 1, 3) if name in self.key else len(POOLS[name][1])

    def batch(self, rows: Sequence[Row | None]) -> pa.RecordBatch:
        arrays = [
            POOL_ARRAYS[name].take(pa.array([None if row is None else row[i] for row in rows], pa.int64()))
            for i, name in enumerate(self.columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        lists = [[INDEX_OF[f.name][v] for v in plain(c)] for f, c in zip(batch.schema, batch.columns, strict=True)]
        return list(zip(*lists, strict=True))


@dataclass(frozen=True)
class Change:
    op: Op
    after: Row | None
    before: Row | None = None
    unchanged: frozenset[str] = frozenset()


@dataclass
class Source:
    """A table that changes, and the changes as its database would send them."""

    table: Table
    rows: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def step(self, kind: str, pick: int, values: Row, mask: int) -> None:
        if kind == "truncate":
            self.rows.clear()
            self.changes.append(Change(Op.TRUNCATE, None))
        elif kind == "insert":
            self._insert(values)
        elif self.rows and kind == "delete":
            old = self.rows.pop(pick % len(self.rows))
            self.changes.append(Change(Op.DELETE, self._sent(old), self._sent(old)))
        elif self.rows:
            self._update(pick % len(self.rows), values, mask, moves=kind == "move")

    def _insert(self, row: Row) -> None:
        if not self._is_taken(self.table.key_of(row)):
            self.rows.append(row)
            self.changes.append(Change(Op.INSERT, row))

    def _update(self, place: int, values: Row, mask: int, *, moves: bool) -> None:
        old, columns = self.rows[place], self.table.columns
        left_out = {name for i, name in enumerate(columns) if name in self.table.toast and mask >> i & 1}
        kept = left_out if moves else left_out | set(self.table.key)
        new = tuple(old[i] if name in kept else values[i] for i, name in enumerate(columns))
        is_moved = self.table.key_of(new) != self.table.key_of(old)
        if is_moved and self._is_taken(self.table.key_of(new)):
            return
        self.rows[place] = new
        if self.table.identity is Identity.FULL:  # then the decoder takes what was left out from the old row
            self.changes.append(Change(Op.UPDATE, new, old))
            return
        shows_old = is_moved or mask >> 20 & 1  # a key that lies in TOAST is sent though it did not change
        self.changes.append(Change(Op.UPDATE, new, self._sent(old) if shows_old else None, frozenset(left_out)))

    def _sent(self, row: Row) -> Row:
        """What is sent of an old row: all of it, or its key and NULL in the other columns."""
        if self.table.identity is Identity.FULL:
            return row
        nulls = [POOLS[name][1].index(None) if name not in self.table.key else -1 for name in self.table.columns]
        return tuple(value if null < 0 else null for value, null in zip(row, nulls, strict=True))

    def _is_taken(self, key: Row) -> bool:
        return bool(self.table.key) and key in {self.table.key_of(row) for row in self.rows}


def as_changes(table: Table, run: Sequence[Change], first: int) -> Changes:
    count, schema = len(run), table.schema
    flags = np.array([[name in change.unchanged for name in table.columns] for change in run], np.bool_)
    shown = [
        None
        if c.after is None
        else tuple(-1 if n in c.unchanged else v for n, v in zip(table.columns, c.after, strict=True))
        for c in run
    ]
    blanked = [
        None if r is None else tuple(_null(n) if v == -1 else v for n, v in zip(table.columns, r, strict=True))
        for r in shown
    ]
    before_rows = [i for i, change in enumerate(run) if change.before is not None]
    zeros = np.zeros(count, np.int64)
    return Changes(
        schema=schema,
        op=np.array([change.op for change in run], np.int8),
        offset=np.arange(first, first + count),
        transaction=zeros,
        transactions=NO_TRANSACTIONS,
        after=table.batch(blanked),
        unchanged=flags if flags.any() else None,
        before_rows=np.array(before_rows, np.int64),
        before=table.batch([run[i].before for i in before_rows]),
    )


def _null(name: str) -> int:
    return POOLS[name][1].index(None)


class KeyedSink:
    """Applies net changes as their docstring says."""

    def __init__(self, table: Table, rows: Sequence[Row]) -> None:
        self.table = table
        self.rows = {table.key_of(row): row for row in rows}

    def apply(self, net: NetChanges) -> None:
        table = self.table
        assert net.deletes.schema.names == list(table.key)
        if net.truncate:
            self.rows.clear()
        for key in table.rows(net.deletes):
            self.rows.pop(key, None)
        for row in table.rows(net.upserts):
            self.rows[table.key_of(row)] = row
        for partial in net.partials:
            self._apply_partial(partial)

    def _apply_partial(self, partial: Partial) -> None:
        rows = self.table.rows(partial.rows)
        olds = (
            [self.table.key_of(row) for row in rows] if partial.old_keys is None else self.table.rows(partial.old_keys)
        )
        for row, key in zip(rows, olds, strict=True):
            present = self.rows.pop(key)
            names = zip(self.table.columns, row, present, strict=True)
            whole = tuple(old if name in partial.unchanged else new for name, new, old in names)
            self.rows[self.table.key_of(whole)] = whole

    def content(self) -> Counter[Row]:
        return Counter(self.rows.values())


class MultisetSink:
    def __init__(self, table: Table, rows: Sequence[Row]) -> None:
        self.table = table
        self.rows = Counter(rows)

    def apply(self, net: NetChanges) -> None:
        assert not net.partials
        if net.truncate:
            self.rows.clear()
        deletes = self.table.rows(net.deletes)
        assert len(set(deletes)) == len(deletes) == len(net.delete_counts)
        for row, copies in zip(deletes, net.delete_counts.tolist(), strict=True):
            assert 0 < copies <= self.rows[row]
            self.rows[row] -= copies
        self.rows.update(self.table.rows(net.upserts))

    def content(self) -> Counter[Row]:
        return +self.rows


def runs(changes: Sequence[Change], cuts: Sequence[int]) -> Iterator[tuple[int, Sequence[Change]]]:
    places = sorted({cut % (len(changes) + 1) for cut in cuts} | {0, len(changes)})
    for begin, end in itertools.pairwise(places):
        yield begin, changes[begin:end]


TABLES = {
    "integer key": Table(("text", "integer", "float", "long", "floats"), ("integer",), ("long", "floats")),
    "composite key": Table(("float", "text", "bytes", "integer", "long"), ("integer", "text"), ("long", "bytes")),
    "text key": Table(("text", "decimal", "long"), ("text",), ("long",)),
    "key of bytes": Table(("bytes", "long", "span"), ("bytes",), ("long",)),
    "key of floats": Table(("float", "long"), ("float",), ("long",)),
    "key of intervals": Table(("span", "text", "long"), ("span",), ("long",)),
    "key and full identity": Table(("integer", "text", "long"), ("integer",), ("long",), Identity.FULL),
    "only a key": Table(("integer", "text"), ("integer", "text")),
}
KEYLESS = {
    "numbers": Table(("float", "real", "decimal", "boolean"), identity=Identity.FULL),
    "texts and bytes": Table(("text", "bytes"), identity=Identity.FULL),
    "dates": Table(("date", "moment", "span"), identity=Identity.FULL),
    "lists": Table(("integers", "floats"), identity=Identity.FULL),
    "more lists": Table(("dates", "spans", "texts"), identity=Identity.FULL),
    "one column": Table(("floats",), identity=Identity.FULL),
}
KINDS = ["insert"] * 4 + ["update"] * 4 + ["move"] * 2 + ["delete"] * 2 + ["truncate"]


def histories(table: Table) -> st.SearchStrategy[tuple[list, list, list]]:
    values = st.tuples(*(st.integers(0, table.choices(name) - 1) for name in table.columns))
    steps = st.tuples(st.sampled_from(KINDS), st.integers(0, 20), values, st.integers(0, (1 << 21) - 1))
    start = st.lists(values, max_size=4)
    return st.tuples(start, st.lists(steps, min_size=1, max_size=25), st.lists(st.integers(0, 50), max_size=5))


def check(table: Table, history: tuple[list, list, list], sink_class: type) -> None:
    start, steps, cuts = history
    source = Source(table)
    for row in start:
        source.step("insert", 0, row, 0)
    sink = sink_class(table, list(source.rows))
    source.changes.clear()
    for step in steps:
        source.step(*step)
    for first, run in runs(source.changes, cuts):
        middle = len(run) // 2  # a run may come in several pieces
        pieces = [as_changes(table, part, first) for part in (run[:middle], run[middle:]) if part]
        for net in net_changes(pieces):
            sink.apply(net)
    assert sink.content() == Counter(source.rows)


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_net_changes_of_any_runs_leave_the_same_rows_as_every_change(name, data):
    check(TABLES[name], data.draw(histories(TABLES[name])), KeyedSink)


@pytest.mark.parametrize("name", KEYLESS)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_net_changes_of_a_table_without_a_key_leave_the_same_multiset(name, data):
    check(KEYLESS[name], data.draw(histories(KEYLESS[name])), MultisetSink)
