"""Which documents changes touch: by changes written by hand, over tables in memory. Its truth is in tests/property."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.rows_in_memory import BIG, INT, TEXT, Tables, batch, keys_of, table
from tailrace.config import documents as d
from tailrace.config.conditions import Filter
from tailrace.config.conditions import Op as Compared
from tailrace.documents import touch
from tailrace.documents.build import build
from tailrace.documents.touch import are_known, resolve, touches
from tailrace.documents.tree import Tree, tree_of
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import Column, Identity, TableSchema

CITIES = table("cities", {"id": INT, "name": TEXT})
USERS = table("users", {"id": INT, "name": TEXT, "city_id": BIG})
ORDERS = table("orders", {"id": INT, "user_id": INT, "state": TEXT})
ITEMS = table("items", {"order_id": INT, "line": INT, "sku": TEXT}, ("order_id", "line"))
TAGS = table("tags", {"id": INT, "label": TEXT})
USER_TAGS = table("user_tags", {"user_id": INT, "tag_id": INT}, ("user_id", "tag_id"))
NOTES = table("notes", {"user_id": INT, "text": TEXT, "unused": INT}, (), Identity.FULL)

SHOP: dict[TableSchema, list[tuple[Any, ...]]] = {
    CITIES: [(1, "Bonn"), (2, "Köln")],
    USERS: [(1, "ann", 1), (2, "bob", 1), (3, "eve", None)],
    ORDERS: [(10, 1, "new"), (11, 1, "gone"), (12, 2, "new")],
    ITEMS: [(10, 1, "a"), (11, 1, "a"), (12, 1, "c")],
    TAGS: [(7, "new"), (8, "old")],
    USER_TAGS: [(1, 8), (2, 7)],
    NOTES: [(1, "x", 0), (2, "y", 0)],
}
FIELDS: dict[str, Any] = {
    "city": d.BelongsTo(table="cities", column=("city_id",), fields={"name": d.Keyword()}),
    "orders": d.HasMany(
        table="orders",
        foreign_key=("user_id",),
        filters=(Filter("state", Compared.NEQ, "gone"),),
        fields={"items": d.HasMany(table="items", foreign_key=("order_id",), fields={"sku": d.Keyword()})},
    ),
    "tags": d.ManyToMany(
        table="tags",
        through=d.Through(table="user_tags", left_key=("user_id",), right_key=("tag_id",)),
        fields={"label": d.Keyword()},
    ),
    "notes": d.HasMany(table="notes", foreign_key=("user_id",), fields={"text": d.Keyword()}),
}
CITY, ORDER, ITEM, USER_TAG, TAG, NOTE = range(1, 7)


class Nothing:
    """Documents that remember nothing; it notes what it is asked."""

    def __init__(self, found: Sequence[list[str]] = ()) -> None:
        self.found = list(found)
        self.terms: list[str] = []
        self.nodes: list[int] = []

    def by_rows(self, terms: pa.StringArray) -> Iterator[list[list[str]]]:
        self.terms += terms.to_pylist()
        yield self.found

    def by_node(self, node: int) -> Iterator[list[list[str]]]:
        self.nodes.append(node)
        yield self.found
        yield self.found


@pytest.fixture
def tables() -> Tables:
    return Tables(SHOP)


@pytest.fixture
def tree(tables: Tables) -> Tree:
    return tree_of("users", d.Document(table="users", fields=FIELDS), tables.schemas)


Row = tuple[Any, ...]


def changes(schema: TableSchema, *each: tuple[Op, Row | None, Row | None], unchanged: Any = None) -> Changes:
    """Each is what happened, the row after it (or what was sent of a deleted one), and what was sent of the old one."""
    nothing = (None,) * len(schema.columns)
    before = [(place, old) for place, (_, _, old) in enumerate(each) if old is not None]
    return Changes(
        schema=schema,
        op=np.array([op for op, _, _ in each], np.int8),
        offset=np.arange(len(each)),
        transaction=np.zeros(len(each), np.int64),
        transactions=NO_TRANSACTIONS,
        after=batch(schema, [row or nothing for _, row, _ in each]),
        unchanged=None if unchanged is None else np.array(unchanged, np.bool_),
        before_rows=np.array([place for place, _ in before], np.int64),
        before=batch(schema, [old for _, old in before]),
    )


def touched(tree: Tree, *args: Any, **options: Any) -> list[tuple[int, list[str] | None]]:
    rows = touches(tree, changes(*args, **options)).to_pylist()
    return [(row["node"], row["key"]) for row in rows]


def test_every_change_names_its_row_by_its_key_each_once(tree: Tree) -> None:
    assert touched(
        tree,
        ORDERS,
        (Op.INSERT, (10, 1, "new"), None),
        (Op.UPDATE, (10, 2, "new"), None),
        (Op.DELETE, (11, None, None), None),
    ) == [(ORDER, ["10"]), (ORDER, ["11"])]


def test_a_key_that_changes_is_two(tree: Tree) -> None:
    found = touched(tree, ITEMS, (Op.UPDATE, (10, 2, "a"), (10, 1, None)))
    assert sorted(found) == [(ITEM, ["10", "1"]), (ITEM, ["10", "2"])]


def test_a_key_that_was_not_sent_again_is_that_of_the_old_row(tree: Tree) -> None:
    found = touched(tree, ITEMS, (Op.UPDATE, (None, 1, "a"), (10, 1, None)), unchanged=[[True, False, False]])
    assert found == [(ITEM, ["10", "1"])]


def test_a_truncated_table_is_all_of_its_nodes(tree: Tree) -> None:
    assert touched(tree, TAGS, (Op.TRUNCATE, None, None), (Op.INSERT, (9, "x"), None)) == [(TAG, None), (TAG, ["9"])]
    assert touched(tree, USERS, (Op.TRUNCATE, None, None)) == [(0, None)]


def test_rows_without_a_key_are_named_by_what_they_point_to(tree: Tree) -> None:
    assert touched(
        tree,
        NOTES,
        (Op.UPDATE, (2, "x", 0), (1, "x", 0)),
        (Op.DELETE, (3, "z", 0), None),
        (Op.INSERT, (None, "z", 0), None),
    ) == [(-NOTE, ["2"]), (-NOTE, ["3"]), (-NOTE, ["1"])]


def test_an_update_of_columns_that_no_document_has_touches_none(tree: Tree) -> None:
    assert touched(tree, NOTES, (Op.UPDATE, (1, "x", 5), (1, "x", 0)), (Op.UPDATE, (1, None, 6), (1, None, 5))) == []
    assert touched(tree, NOTES, (Op.UPDATE, (1, None, 0), (1, "x", 0))) == [(-NOTE, ["1"])]
    not_sent = [[False, True, False]]
    assert touched(tree, NOTES, (Op.UPDATE, (1, None, 5), (1, "x", 0)), unchanged=not_sent) == []


def test_a_list_stands_for_what_is_made_of_its_rows() -> None:
    """Also for columns that only the sum looks at."""
    users, rows = (
        table("users", {"id": INT}),
        table("rows", {"id": INT, "owner": INT, "n": INT, "x": INT}, (), Identity.FULL),
    )
    aggregated: dict[str, Any] = {"table": "rows", "foreign_key": ("owner",)}
    some = (Filter("n", Compared.GT, 0),)
    fields: dict[str, Any] = {
        "some": d.Sum(**aggregated, column="n", filters=some),
        "rows": d.HasMany(**aggregated, fields={"id": d.Long()}),
        "count": d.Count(**aggregated),
    }
    tree = tree_of("users", d.Document(table="users", fields=fields), {users.table: users, rows.table: rows})
    assert [node.is_covered for node in tree.nodes] == [False, True, False, True]
    assert touched(tree, rows, (Op.UPDATE, (1, 1, 5, 0), (1, 1, 4, 0))) == [(-2, ["1"])]
    assert touched(tree, rows, (Op.UPDATE, (1, 1, 5, 1), (1, 1, 5, 0))) == []
    alone = {"some": fields["some"], "first": d.HasMany(**aggregated, limit=1, fields={"id": d.Long()})}
    tree = tree_of("users", d.Document(table="users", fields=alone), {users.table: users, rows.table: rows})
    assert [node.is_covered for node in tree.nodes] == [False, False, False]


def test_a_table_that_no_document_has_touches_none(tree: Tree) -> None:
    other = table("others", {"id": INT})
    assert touched(tree, other, (Op.INSERT, (1,), None)) == []


def test_old_rows_that_were_named_by_another_key_may_be_of_any_document(tree: Tree) -> None:
    """The source has sent `label` of them, and not the key by which documents remember rows."""
    other = TableSchema(TAGS.schema, TAGS.name, TAGS.columns, ("label",), Identity.INDEX)
    assert touched(tree, other, (Op.DELETE, (None, "x"), None)) == [(TAG, None)]
    assert touched(tree, other, (Op.UPDATE, (9, "x"), None)) == [(TAG, None), (TAG, ["9"])]
    assert touched(tree, other, (Op.INSERT, (9, "x"), None)) == [(TAG, ["9"])]


def test_links_that_were_not_sent_of_rows_without_a_key_may_be_of_any_document(tree: Tree) -> None:
    keyed = TableSchema(NOTES.schema, NOTES.name, NOTES.columns, ("text",))
    assert touched(tree, keyed, (Op.DELETE, (None, "x", None), None)) == [(NOTE, None)]


def test_columns_are_known_by_their_names_and_numbers(tree: Tree) -> None:
    assert are_known(tree, TAGS)
    assert are_known(tree, table("tags", {"id": INT, "label": TEXT, "more": INT}))
    assert not are_known(tree, table("tags", {"id": INT, "name": TEXT}))
    assert are_known(tree, table("strangers", {"id": INT}))


def test_a_column_whose_name_another_has_for_a_time_is_not_known(tables: Tables) -> None:
    numbered = [Column("id", INT, 1), Column("name", TEXT, 2), Column("city_id", BIG, 3), Column("nick", TEXT, 4)]
    swapped = [Column("id", INT, 1), Column("nick", TEXT, 2), Column("city_id", BIG, 3), Column("name", TEXT, 4)]
    users, others = (TableSchema("public", "users", tuple(each), ("id",)) for each in (numbered, swapped))
    tree = tree_of("users", d.Document(table="users", fields={"name": d.Keyword()}), {"public.users": users})
    assert are_known(tree, users)
    assert not are_known(tree, others)


def found(tree: Tree, tables: Tables, rows: list[tuple[int, list[str] | None]], remembered: Any = None) -> list[str]:
    given = pa.RecordBatch.from_pylist([{"node": n, "key": k} for n, k in rows], schema=touch.TOUCHES)
    return [
        key for keys in resolve(tree, given, tables, remembered or Nothing()) for key in keys.column("id").to_pylist()
    ]


def test_a_row_leads_up_to_the_documents_that_would_have_it(tree: Tree, tables: Tables) -> None:
    assert found(tree, tables, [(ITEM, ["12", "1"])]) == ["2"]
    assert found(tree, tables, [(ORDER, ["10"])]) == ["1"]
    assert found(tree, tables, [(TAG, ["8"])]) == ["1"]
    assert sorted(found(tree, tables, [(CITY, ["1"])])) == ["1", "2"]
    assert found(tree, tables, [(USER_TAG, ["5", "7"])]) == ["5"]  # also one that is gone
    assert found(tree, tables, [(0, ["3"])]) == ["3"]
    assert found(tree, tables, [(-NOTE, ["2"])]) == ["2"]
    assert found(tree, tables, [(ITEM, ["99", "1"]), (ORDER, ["99"])]) == []


def test_what_does_not_pass_leads_nowhere(tree: Tree, tables: Tables) -> None:
    assert found(tree, tables, [(ORDER, ["11"])]) == []
    assert found(tree, tables, [(ITEM, ["11", "1"])]) == []


def test_documents_that_remember_a_row_are_found_by_it(tree: Tree, tables: Tables) -> None:
    remembered = Nothing([["7"], ["8"]])
    rows = [(ITEM, ["10", "1"]), (CITY, ["4"]), (0, ["7"]), (-NOTE, ["9"])]
    assert sorted(found(tree, tables, rows, remembered)) == ["1", "7", "8", "9"]
    assert sorted(remembered.terms) == ["1:4", "3:10:1"]


def test_all_that_remember_a_node_are_found_once(tree: Tree, tables: Tables) -> None:
    remembered = Nothing([["1"], ["2"]])
    assert found(tree, tables, [(TAG, None), (TAG, ["8"]), (TAG, ["8"]), (0, None)], remembered) == ["1", "2"]
    assert sorted(remembered.nodes) == [0, TAG]


def test_hops_are_one_query_however_many_rows(tree: Tree, tables: Tables) -> None:
    rows = [(ITEM, [str(order), "1"]) for order in (10, 11, 12)] + [(TAG, ["7"]), (TAG, ["8"]), (CITY, ["1"])]
    assert sorted(found(tree, tables, rows)) == ["1", "2"]
    assert sorted(tables.queries) == [
        ("public.orders", ("id",), 3),
        ("public.user_tags", ("tag_id",), 2),
        ("public.users", ("city_id",), 1),
    ]


def test_very_many_are_asked_for_and_handed_out_in_pieces(
    tree: Tree, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touch, "AT_ONCE", 2)
    rows = [(ORDER, [str(order)]) for order in (10, 12, 13, 14)] + [(0, [str(user)]) for user in range(5)]
    given = pa.RecordBatch.from_pylist([{"node": n, "key": k} for n, k in rows], schema=touch.TOUCHES)
    sizes = [keys.num_rows for keys in resolve(tree, given, tables, Nothing())]
    assert (max(sizes), sum(sizes)) == (2, 5)
    assert [count for _, _, count in tables.queries] == [2, 2]


def test_rows_of_a_table_that_is_its_own_parent_touch_those_above_and_below() -> None:
    people = table("people", {"id": INT, "name": TEXT, "boss_id": INT})
    tables = Tables({people: [(1, "ann", None), (2, "bob", 1), (3, "eve", 2)]})
    fields: dict[str, Any] = {
        "boss": d.BelongsTo(table="people", column=("boss_id",), fields={"name": d.Keyword()}),
        "team": d.HasMany(table="people", foreign_key=("boss_id",), fields={"name": d.Keyword()}),
    }
    tree = tree_of("people", d.Document(table="people", fields=fields), tables.schemas)
    given = touches(tree, changes(people, (Op.UPDATE, (2, "rob", 1), None)))
    assert given.column("node").to_pylist() == [0, 1, 2]
    keys = [key for batch_ in resolve(tree, given, tables, Nothing()) for key in batch_.column("id").to_pylist()]
    assert sorted(keys) == ["1", "2", "3"]


def test_documents_named_by_other_columns_are_found_by_their_rows() -> None:
    users = table("users", {"id": INT, "name": TEXT}, identity=Identity.FULL)
    tables = Tables({users: [(1, "ann"), (2, "bob")]})
    tree = tree_of("users", d.Document(table="users", key=("name",), fields={"id": d.Long()}), tables.schemas)
    given = touches(tree, changes(users, (Op.UPDATE, (1, "ann"), (1, "old"))))
    remembered = Nothing([["old"]])
    keys = [key for batch_ in resolve(tree, given, tables, remembered) for key in batch_.column("name").to_pylist()]
    assert sorted(keys) == ["ann", "old"]
    assert remembered.terms == ["0:1"]


def test_a_document_that_is_touched_is_built_of_what_is_there_now(tree: Tree, tables: Tables) -> None:
    [keys] = resolve(
        tree, touches(tree, changes(ORDERS, (Op.DELETE, (10, None, None), None))), tables, Nothing([["1"]])
    )
    assert keys.equals(keys_of("1"))
    assert build(tree, keys, tables).documents.column("id").to_pylist() == ["1"]
