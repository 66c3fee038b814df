"""Net changes, one rule a test. The property test beside it holds them all to a model."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from support.messages import delete, frames_of, insert, transaction, truncate, update
from tailrace.columns.net import NetChanges, net_changes
from tailrace.errors import SourceRefused
from tailrace.model.changes import Changes
from tailrace.model.frames import Definition
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres.pgoutput import decode

INT, TEXT = ColumnType(Kind.INT32, "integer"), ColumnType(Kind.TEXT, "text")
FLOAT = ColumnType(Kind.FLOAT64, "double precision")
ITEMS = TableSchema("public", "items", (Column("name", TEXT), Column("id", INT), Column("notes", TEXT)), ("id",))
PAIRS = TableSchema("public", "pairs", (Column("a", INT), Column("b", TEXT), Column("v", TEXT)), ("b", "a"))
LOOSE = TableSchema("public", "loose", (Column("x", FLOAT), Column("y", TEXT)), (), Identity.FULL)
EVENTS = TableSchema("public", "events", (Column("y", TEXT),), (), Identity.NOTHING)
DEFINITIONS = [Definition(number, 0, schema) for number, schema in enumerate((ITEMS, PAIRS, LOOSE, EVENTS), start=1)]


def changes(*messages: bytes) -> Changes:
    frames, _ = frames_of(transaction(*messages), DEFINITIONS)
    (found,) = decode(frames, frames.first, frames.last)
    return found


def net(*messages: bytes) -> NetChanges:
    (found,) = net_changes([changes(*messages)])
    return found


def rows(batch: pa.RecordBatch) -> list[tuple]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def test_the_last_state_of_a_key_wins():
    found = net(insert(1, "a", "1", "x"), update(1, "b", "1", "y"), update(1, "c", "1", "z"))
    assert (found.truncate, rows(found.deletes), rows(found.upserts)) == (False, [], [("c", 1, "z")])


def test_keys_come_out_once_each():
    found = net(*(insert(1, "a", str(n % 3), str(n)) for n in range(9)))
    assert sorted(rows(found.upserts)) == [("a", 0, "6"), ("a", 1, "7"), ("a", 2, "8")]


def test_a_row_that_came_and_went_is_a_delete():
    found = net(insert(1, "a", "1", "x"), delete(1, key=(None, "1", None)))
    assert (rows(found.deletes), found.upserts.num_rows, found.count) == ([(1,)], 0, 1)


def test_a_row_that_went_and_came_is_an_upsert():
    found = net(delete(1, key=(None, "1", None)), insert(1, "a", "1", "x"))
    assert (found.deletes.num_rows, rows(found.upserts)) == (0, [("a", 1, "x")])


def test_a_changed_key_is_a_delete_of_the_old_and_an_upsert_of_the_new():
    found = net(update(1, "a", "2", "x", key=(None, "1", None)))
    assert (rows(found.deletes), rows(found.upserts)) == ([(1,)], [("a", 2, "x")])


def test_keys_may_be_swapped():
    found = net(
        update(1, "one", "9", "", key=(None, "1", None)),
        update(1, "two", "1", "", key=(None, "2", None)),
        update(1, "one", "2", "", key=(None, "9", None)),
    )
    assert (rows(found.deletes), sorted(rows(found.upserts))) == ([(9,)], [("one", 2, ""), ("two", 1, "")])


def test_a_key_that_was_left_and_taken_again_is_alive():
    found = net(update(1, "a", "2", "", key=(None, "1", None)), insert(1, "b", "1", ""))
    assert (found.deletes.num_rows, sorted(rows(found.upserts))) == (0, [("a", 2, ""), ("b", 1, "")])


def test_a_composite_key_is_compared_whole_and_handed_out_in_the_keys_order():
    found = net(
        insert(2, "1", "a", "x"), insert(2, "1", "b", "y"), insert(2, "2", "a", "z"), delete(2, key=("1", "a", None))
    )
    assert found.deletes.schema.names == ["b", "a"]
    assert (rows(found.deletes), sorted(rows(found.upserts))) == ([("a", 1)], [(1, "b", "y"), (2, "a", "z")])


# --- columns that were not sent --------------------------------------------------------------------------------------


def test_an_unsent_column_is_filled_from_an_earlier_change_of_the_key():
    found = net(insert(1, "a", "1", "long"), update(1, "b", "1", ...), update(1, "c", "1", ...))
    assert (rows(found.upserts), found.partials) == ([("c", 1, "long")], ())


def test_an_unsent_column_is_filled_with_null_if_null_was_the_last_that_was_sent():
    found = net(insert(1, "a", "1", "long"), update(1, "b", "1", None), update(1, "c", "1", ...))
    assert rows(found.upserts) == [("c", 1, None)]


def test_a_column_that_was_never_sent_stays_as_the_sink_has_it():
    found = net(update(1, "b", "1", ...), update(1, ..., "2", ...), update(1, "c", "1", ...), insert(1, "d", "3", "e"))
    partials = {p.unchanged: rows(p.rows.select(["id"])) for p in found.partials}
    assert partials == {("notes",): [(1,)], ("name", "notes"): [(2,)]}
    assert rows(found.upserts) == [("d", 3, "e")]
    assert found.count == 3


def test_a_column_is_not_filled_from_a_row_that_has_left_the_key():
    found = net_changes(
        [
            changes(
                update(1, "a", "2", "old row", key=(None, "1", None)),
                update(1, "b", "3", ...),
                update(1, "c", "2", ...),
            )
        ]
    )
    (only,) = found
    assert rows(only.upserts) == [("c", 2, "old row")]
    assert [p.unchanged for p in only.partials] == [("notes",)]


def test_an_update_that_moves_a_row_without_sending_it_whole_comes_between_what_was_before_and_after():
    before, move, after = net_changes(
        [
            changes(
                update(1, "a", "1", "new notes"),
                update(1, "b", "2", ..., key=(None, "1", None)),
                update(1, "c", "2", ...),
            )
        ]
    )
    assert rows(before.upserts) == [("a", 1, "new notes")]
    (partial,) = move.partials
    assert (partial.unchanged, rows(partial.old_keys)) == (("notes",), [(1,)])
    assert (move.truncate, move.deletes.num_rows, move.upserts.num_rows) == (False, 0, 0)
    assert [p.unchanged for p in after.partials] == [("notes",)]


def test_a_move_alone_is_nothing_but_the_move():
    (move,) = net_changes([changes(update(1, "b", "2", ..., key=(None, "1", None)))])
    assert (move.count, rows(move.partials[0].old_keys)) == (1, [(1,)])


# --- truncate --------------------------------------------------------------------------------------------------------


def test_a_truncate_makes_everything_before_it_void():
    found = net(insert(1, "a", "1", ""), truncate(1), insert(1, "b", "2", ""))
    assert (found.truncate, found.deletes.num_rows, rows(found.upserts)) == (True, 0, [("b", 2, "")])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_truncate_may_be_all_there_is(number):
    found = net(truncate(number))
    assert (found.truncate, found.count) == (True, 0)


def test_a_truncate_before_a_move_is_kept():
    found = net_changes(
        [changes(truncate(1), insert(1, "a", "1", "x"), update(1, "b", "2", ..., key=(None, "1", None)))]
    )
    assert [piece.truncate for piece in found] == [True, False]


def test_a_truncate_right_before_a_move_is_kept():
    found = net_changes([changes(truncate(1), update(1, "b", "2", ..., key=(None, "1", None)))])
    assert [(piece.truncate, piece.count) for piece in found] == [(True, 0), (False, 1)]


# --- tables without a key --------------------------------------------------------------------------------------------


def eight(value: float) -> bytes:
    return np.array(value, ">f8").tobytes()


def test_equal_rows_are_counted():
    found = net(insert(3, "1", "a"), insert(3, "1", "a"), insert(3, "1", "b"), delete(3, old=("1", "a")))
    assert sorted(rows(found.upserts)) == [(1.0, "a"), (1.0, "b")]
    assert found.deletes.num_rows == 0


def test_more_deletes_than_inserts_are_counted_deletes():
    found = net(insert(3, "1", "a"), *(delete(3, old=("1", "a")) for _ in range(4)))
    assert (rows(found.deletes), found.delete_counts.tolist(), found.upserts.num_rows) == ([(1.0, "a")], [3], 0)


def test_an_update_of_a_row_without_a_key_is_one_less_and_one_more():
    found = net(update(3, "2", "b", old=("1", "a")))
    assert (rows(found.deletes), found.delete_counts.tolist(), rows(found.upserts)) == ([(1.0, "a")], [1], [(2.0, "b")])


def test_rows_with_null_nan_and_both_zeros_are_all_different():
    values = [None, eight(math.nan), eight(0.0), eight(-0.0)]
    found = net(*(insert(3, value, None) for value in values), *(insert(3, value, "") for value in values))
    assert found.upserts.num_rows == 8


def test_nan_and_null_cancel_out_with_themselves_only():
    found = net(insert(3, eight(math.nan), None), insert(3, None, None), delete(3, old=(eight(math.nan), None)))
    assert rows(found.upserts) == [(None, None)]


def test_inserts_of_a_table_without_an_identity_are_kept_as_they_came():
    found = net(insert(4, "a"), insert(4, "a"), insert(4, None))
    assert (rows(found.upserts), found.deletes.num_rows) == ([("a",), ("a",), (None,)], 0)


@pytest.mark.parametrize("change", [update(4, "b", key=("a",)), update(4, "b"), delete(4, key=("a",))])
def test_a_change_that_does_not_say_which_row_it_is_about_is_refused(change):
    with pytest.raises(SourceRefused, match=r"public\.events .* no key"):
        net(insert(4, "a"), change)


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_pieces_of_a_run_are_one_run():
    first = changes(insert(1, "a", "1", "long"))
    second = changes(update(1, "b", "1", ...), update(1, "c", "5", "x", key=(None, "4", None)))
    (found,) = net_changes([first, second])
    assert (rows(found.deletes), sorted(rows(found.upserts))) == ([(4,)], [("b", 1, "long"), ("c", 5, "x")])


def test_a_slice_of_changes_keeps_each_rows_own_before_and_unchanged():
    whole = changes(
        insert(1, "a", "1", "x"),
        update(1, "b", "2", ..., key=(None, "1", None)),
        update(1, "c", "2", "y"),
        delete(1, key=(None, "2", None)),
    )
    part = whole.slice(1, 4)
    assert part.to_arrow().to_pylist() == whole.to_arrow().to_pylist()[1:]
    assert whole.slice(2, 2).to_arrow().num_rows == 0
