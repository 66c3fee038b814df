"""Consecutive net changes put together have the effect of all of them."""

from __future__ import annotations

from collections import Counter

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.columns.net import NetChanges
from tailrace.model.schema import Column
from tailrace.sinks.sql.pieces import compose, composed
from tailrace.testing.sink_changes import INT, ITEMS, LOOSE, ORDERS, PAIRS, net, partial

KEYS = st.integers(0, 5)


def rows_of(batch: pa.RecordBatch) -> list[tuple]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def apply(table: dict, change: NetChanges) -> None:
    """As a sink does it, to a dictionary by key."""
    if change.truncate:
        table.clear()
    for row in change.deletes.to_pylist():
        table.pop(tuple(row[name] for name in change.schema.key), None)
    for row in change.upserts.to_pylist():
        table[tuple(row[name] for name in change.schema.key)] = row


@st.composite
def changes(draw: st.DrawFn) -> NetChanges:
    keys = draw(st.lists(st.tuples(KEYS, KEYS), unique=True, max_size=6))
    cut = draw(st.integers(0, len(keys)))
    upserts = [(draw(st.text(max_size=2)), a, None, b) for b, a in keys[cut:]]
    return net(PAIRS, upserts, deletes=keys[:cut], truncate=draw(st.integers(0, 9)) == 0)


@given(st.lists(changes(), max_size=12))
def test_the_effect_is_that_of_all_pieces_one_after_the_other(pieces):
    start = {(b, a): {"v": "old", "a": a, "w": "old", "b": b} for a in range(4) for b in range(4)}
    wanted, found = dict(start), dict(start)
    for piece in pieces:
        apply(wanted, piece)
    together = list(composed(pieces))
    for piece in together:
        keys = rows_of(piece.deletes) + [(row["b"], row["a"]) for row in piece.upserts.to_pylist()]
        assert len(set(keys)) == len(keys)
        apply(found, piece)
    assert found == wanted
    assert len(together) <= 1


def test_tables_do_not_disturb_each_other():
    pieces = [net(ITEMS, [(1, "a", None)]), net(ORDERS, [(1, 1)]), net(ITEMS, deletes=[(1,)]), net(ORDERS, [(2, 2)])]
    items, orders = composed(pieces)
    assert (rows_of(items.upserts), rows_of(items.deletes)) == ([], [(1,)])
    assert rows_of(orders.upserts) == [(1, 1), (2, 2)]


def test_another_version_of_the_table_begins_a_new_piece():
    wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", INT)))
    first, second = composed([net(ITEMS, [(1, "a", None)]), net(wider, [(1, "b", None, 5)])])
    assert (first.schema, second.schema) == (ITEMS, wider)


def test_partial_rows_stay_where_they_are():
    rest = partial(ITEMS, ("notes",), [(1, "b", None)])
    pieces = [net(ITEMS, [(1, "a", "x")]), net(ITEMS, partials=[rest]), net(ITEMS, [(1, "c", None)])]
    found = list(composed(pieces))
    assert [piece.partials for piece in found] == [(), (rest,), ()]


def test_a_truncate_makes_the_pieces_before_it_needless():
    found = compose([net(ITEMS, [(1, "a", None)]), net(ITEMS, truncate=True), net(ITEMS, [(2, "b", None)])])
    assert (found.truncate, rows_of(found.upserts)) == (True, [(2, "b", None)])


def test_inserts_without_a_key_are_put_together_and_deletes_are_not():
    inserts = [net(LOOSE, [(1, "a")]), net(LOOSE, [(1, "a"), (2, "b")])]
    (found,) = composed(inserts)
    assert Counter(rows_of(found.upserts)) == {(1, "a"): 2, (2, "b"): 1}
    kept = list(composed([*inserts, net(LOOSE, deletes=[(1, "a")], copies=[2]), net(LOOSE, [(3, "c")])]))
    assert [len(rows_of(piece.deletes)) for piece in kept] == [0, 1, 0]


@pytest.mark.parametrize("most", [0, 1, 200])
def test_no_more_is_held_back_than_allowed(most):
    pieces = [net(ITEMS, [(n, "x" * 50, None)]) for n in range(10)]
    found = list(composed(pieces, most))
    assert len(found) >= 4
    assert [row for piece in found for row in rows_of(piece.upserts)] == [(n, "x" * 50, None) for n in range(10)]


def test_a_large_piece_goes_alone_and_is_not_copied():
    large = net(ITEMS, [(5, "x" * 5000, None)])
    pieces = [net(ITEMS, [(1, "a", None)]), net(ITEMS, [(2, "b", None)]), large, net(ITEMS, [(6, "c", None)])]
    found = list(composed(pieces, 1000))
    assert [piece.count for piece in found] == [2, 1, 1]
    assert found[1].upserts is large.upserts


def test_a_large_piece_is_given_out_before_the_next_is_made():
    made = []

    def pieces():
        for number in range(3):
            made.append(number)
            yield net(ITEMS, [(number, "x" * 2_000_000, None)])

    for number, piece in enumerate(composed(pieces())):
        assert made == list(range(number + 1))
        assert piece.count == 1
