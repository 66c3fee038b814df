"""The parts of an embedded stream that need no server: states, health, the buffer, the spool, versions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.embedded.buffer import Buffer, Cut
from tailrace.embedded.spool import Spool
from tailrace.embedded.states import MOVES, Life, State
from tailrace.embedded.status import Health, Signs, health_of
from tailrace.embedded.versions import version_of
from tailrace.errors import Misuse
from tailrace.model.frames import PADDING, TRANSACTIONS, Frames
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import SourceIdentity

IDENTITY = SourceIdentity("1", "1", "db", "slot")


# --- states


@pytest.mark.parametrize(("one", "other"), [*itertools.product(State, State)])
def test_a_stream_moves_as_the_table_says(one: State, other: State) -> None:
    life = Life()
    life._state = one
    if other in MOVES[one]:
        life.move(other)
        assert life.state is other
    else:
        with pytest.raises(Misuse, match=f"is {one}"):
            life.move(other)


# --- health


@pytest.mark.parametrize(
    ("signs", "health", "reason"),
    [
        (Signs(State.IDLE), Health.NOT_RUNNING, ""),
        (Signs(State.STOPPED), Health.NOT_RUNNING, ""),
        (Signs(State.RUNNING), Health.IDLE, ""),
        (Signs(State.RUNNING, has_work=True), Health.HEALTHY, ""),
        (Signs(State.RUNNING, error="it is gone"), Health.STALLED, "it is gone"),
        (Signs(State.RUNNING, trouble="no route", trouble_seconds=31), Health.STALLED, "no route"),
        (Signs(State.RUNNING, trouble="no route", trouble_seconds=5), Health.IDLE, ""),
        (Signs(State.RUNNING, untold_seconds=31), Health.STALLED, "could not be told"),
        (Signs(State.RUNNING, unpolled_seconds=31, has_work=True), Health.STALLED, "nobody polls"),
        (Signs(State.RUNNING, unacknowledged_seconds=31, has_work=True), Health.STALLED, "nobody acknowledges"),
        (Signs(State.RUNNING, unacknowledged_seconds=29, has_work=True), Health.HEALTHY, ""),
    ],
)
def test_health_is_told_by_what_lasts_too_long(signs: Signs, health: Health, reason: str) -> None:
    found, why = health_of(signs, 30)
    assert found is health
    assert reason in why


# --- the buffer


class Numbered:
    """A source whose positions are the offsets of transaction ends."""

    def end_positions(self, transactions: pa.RecordBatch) -> list[str]:
        return [str(end) for end in transactions.column("end").to_pylist()]

    def transaction_ids(self, transactions: pa.RecordBatch) -> list[str]:
        return [f"t{begin}" for begin in transactions.column("begin").to_pylist()]

    def messages(self, *_: Any) -> list[Any]:
        return []


def frames(first: int, last: int, transactions: Sequence[tuple[int, int]], size: int = 100) -> Frames:
    """Messages of 100 bytes; transactions are (begin, end), of which an end may be 0."""
    count = last - first + 1
    columns = [[b for b, _ in transactions], [e for _, e in transactions], [0] * len(transactions)]
    told = pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=TRANSACTIONS)
    buffer = np.arange(count * size + PADDING, dtype=np.uint8)
    return Frames("numbered", first, buffer, np.arange(count + 1) * size, told, (), {"public.t": count})


def buffer_of(max_bytes: int = 10_000, batch_bytes: int = 1000, *, splits: bool = False) -> Buffer:
    return Buffer(Numbered(), max_bytes, batch_bytes, splits=splits, position="0")  # type: ignore[arg-type]


def add(buffer: Buffer, *args: Any) -> None:
    buffer.add(frames(*args), "", IDENTITY, "")


def taken(buffer: Buffer) -> Cut | None:
    cut = buffer.cut()
    buffer.offered = None
    return cut


def ranges(buffer: Buffer) -> list[tuple[int, int]] | None:
    cut = taken(buffer)
    return None if cut is None else [(part.first, part.last) for part in cut.parts]


def test_a_cut_ends_with_the_last_transaction_that_has_ended() -> None:
    buffer = buffer_of()
    add(buffer, 1, 5, [(1, 2), (3, 4), (5, 0)])
    cut = taken(buffer)
    assert cut is not None
    assert ([(part.first, part.last) for part in cut.parts], cut.position, cut.inside) == ([(1, 4)], "4", "")
    assert taken(buffer) is None
    add(buffer, 6, 7, [(5, 7)])
    assert ranges(buffer) == [(5, 5), (6, 7)]


def test_a_cut_comes_again_until_it_is_taken() -> None:
    buffer = buffer_of()
    add(buffer, 1, 2, [(1, 2)])
    first = buffer.cut()
    add(buffer, 3, 4, [(3, 4)])
    assert buffer.cut() is first
    assert taken(buffer) is first
    assert ranges(buffer) == [(3, 4)]


def test_a_cut_has_about_as_much_as_a_batch_should_have() -> None:
    buffer = buffer_of()
    for first in range(1, 41, 4):
        add(buffer, first, first + 3, [(first, first + 3)])
    found = [each for each in iter(lambda: ranges(buffer), None) if each is not None]
    assert [len(parts) for parts in found] == [3, 3, 3, 1]
    assert [place for parts in found for place in parts] == [(first, first + 3) for first in range(1, 41, 4)]


def test_a_transaction_that_does_not_fit_goes_into_the_spool_and_comes_back() -> None:
    buffer = buffer_of(max_bytes=1000)
    add(buffer, 1, 8, [(1, 0)])
    add(buffer, 9, 16, [(1, 0)])
    assert not buffer.is_full
    add(buffer, 17, 24, [(1, 24)])
    assert buffer.is_full
    assert (buffer.memory < 2000, buffer.spooled > 800) == (True, True)
    cut = taken(buffer)
    assert cut is not None
    assert [part.piece.in_memory for part in cut.parts] == [True, True, False]
    for part, first in zip(cut.parts, (1, 9, 17), strict=True):
        found, wanted = part.piece.kept.frames(), frames(first, first + 7, [(1, 0 if first < 17 else 24)])
        assert found.first == wanted.first
        assert (found.buffer[:800] == wanted.buffer[:800]).all()
        assert found.transactions == wanted.transactions
    buffer.release(24)
    assert (buffer.memory, buffer.spooled) == (0, 0)


def test_a_buffer_is_full_until_something_is_released() -> None:
    buffer = buffer_of(max_bytes=1000)
    add(buffer, 1, 9, [(1, 9)])
    assert not buffer.is_full
    add(buffer, 10, 30, [(10, 30)])
    assert buffer.is_full
    assert buffer.spooled == 0
    assert ranges(buffer) == [(1, 9), (10, 30)]
    assert buffer.is_full
    buffer.release(30)
    assert not buffer.is_full


def test_a_transaction_that_may_be_split_is_handed_out_as_far_as_it_has_come() -> None:
    buffer = buffer_of(splits=True)
    add(buffer, 1, 5, [(1, 0)])
    assert taken(buffer) is None
    add(buffer, 6, 12, [(1, 0)])
    cut = taken(buffer)
    assert cut is not None
    assert ([(part.first, part.last) for part in cut.parts], cut.inside) == ([(1, 5), (6, 12)], "t1")
    add(buffer, 13, 14, [(1, 14)])
    assert ranges(buffer) == [(13, 14)]


def test_what_is_sent_again_takes_the_place_of_what_was_unfinished() -> None:
    buffer = buffer_of(splits=True)
    add(buffer, 1, 2, [(1, 2)])
    add(buffer, 3, 20, [(3, 0)])
    assert ranges(buffer) == [(1, 2)]
    assert ranges(buffer) == [(3, 20)]
    assert buffer.begin_again() == 3
    add(buffer, 3, 22, [(3, 22)])
    cut = taken(buffer)
    assert cut is not None
    assert cut.is_resent
    assert [(part.first, part.last) for part in cut.parts] == [(3, 22)]


# --- the spool


def test_a_spool_has_no_name_and_is_emptied_when_nobody_needs_it(tmp_path: Any) -> None:
    spool = Spool(str(tmp_path))
    one, other = spool.write(frames(1, 5, [(1, 5)])), spool.write(frames(6, 9, [(6, 9)]))
    assert list(tmp_path.iterdir()) == []
    assert (one.frames().last, other.frames().last) == (5, 9)
    one.free()
    assert other.frames().first == 6
    other.free()
    assert spool.size == 0
    assert spool.write(frames(1, 2, [(1, 2)])).frames().last == 2


# --- versions


def test_a_version_is_of_names_types_and_key_alone() -> None:
    columns = (Column("id", ColumnType(Kind.INT64), 1), Column("n", ColumnType(Kind.TEXT), 2))
    schema = TableSchema("public", "t", columns, ("id",), relation=7)
    renumbered = TableSchema("public", "t", tuple(Column(c.name, c.type) for c in columns), ("id",), relation=8)
    assert version_of(schema) == version_of(renumbered)
    others = [
        TableSchema("public", "t", columns[:1], ("id",)),
        TableSchema("public", "t", columns, ()),
        TableSchema("public", "u", columns, ("id",)),
        TableSchema("public", "t", (columns[0], Column("n", ColumnType(Kind.INT64))), ("id",)),
    ]
    assert len({version_of(each) for each in [schema, *others]}) == 5
