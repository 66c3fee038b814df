"""The builder over tables in memory: what is asked of them, and what comes of it. Its truth is in tests/property."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from support.rows_in_memory import BIG, DOUBLE, INT, MONEY, NUMERIC, TEXT, Tables, keys_of, table
from tailrace.config import documents as d
from tailrace.config.conditions import Direction, Filter, Nulls, Op, OrderBy
from tailrace.documents.apart import Refused, build_apart
from tailrace.documents.build import Built, build
from tailrace.documents.tree import tree_of
from tailrace.errors import ConfigError, SourceRefused, ValueRefused
from tailrace.model.schema import Identity
from tailrace.model.types import ColumnType, Kind

CITIES = table("cities", {"id": INT, "name": TEXT})
USERS = table("users", {"id": INT, "name": TEXT, "city_id": BIG, "boss_id": INT})
ORDERS = table("orders", {"id": INT, "user_id": INT, "total": MONEY})
ITEMS = table("items", {"order_id": INT, "line": INT, "sku": TEXT}, ("order_id", "line"))
TAGS = table("tags", {"id": INT, "label": TEXT})
USER_TAGS = table("user_tags", {"user_id": INT, "tag_id": INT}, (), Identity.FULL)
NOTES = table("notes", {"user_id": INT, "text": TEXT}, (), Identity.FULL)

SHOP = {
    CITIES: [(1, "Bonn"), (2, "Köln")],
    USERS: [(1, "ann", 1, None), (2, "bob", 1, 1), (3, "eve", None, 2), (4, "joe", 9, 4)],
    ORDERS: [(10, 1, Decimal("1.50")), (11, 1, Decimal("2.25")), (12, 2, None), (13, None, Decimal(1))],
    ITEMS: [(10, 2, "b"), (10, 1, "a"), (11, 1, "a"), (12, 1, "c")],
    TAGS: [(7, "new"), (8, "old")],
    USER_TAGS: [(1, 8), (1, 7), (1, 8), (2, 9), (2, 7)],
    NOTES: [(1, "x"), (1, "x"), (2, "y")],
}


def has_items() -> d.HasMany:
    return d.HasMany(table="items", foreign_key=("order_id",), fields={"sku": d.Keyword()})


FIELDS: dict[str, Any] = {
    "name": d.Text(),
    "city": d.BelongsTo(table="cities", column=("city_id",), fields={"name": d.Keyword()}),
    "boss": d.BelongsTo(table="users", column=("boss_id",), fields={"name": d.Keyword()}),
    "orders": d.HasMany(table="orders", foreign_key=("user_id",), fields={"id": d.Long(), "items": has_items()}),
    "tags": d.ManyToMany(
        table="tags",
        through=d.Through(table="user_tags", left_key=("user_id",), right_key=("tag_id",)),
        fields={"label": d.Keyword()},
    ),
    "notes": d.HasMany(table="notes", foreign_key=("user_id",), fields={"text": d.Keyword()}),
    "spent": d.Sum(table="orders", foreign_key=("user_id",), column="total"),
}


def shop(fields: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Tables]:
    tables = Tables(SHOP)
    return tree_of("users", d.Document(table="users", fields=fields or FIELDS, **options), tables.schemas), tables


def test_documents_have_all_that_belongs_to_them() -> None:
    tree, tables = shop()
    built = build(tree, keys_of("1", "2", "4", "5"), tables)
    assert [json.loads(text, parse_float=Decimal) for text in built.documents.column("document").to_pylist()] == [
        {
            "name": "ann",
            "city": {"name": "Bonn"},
            "boss": None,
            "orders": [{"id": 10, "items": [{"sku": "a"}, {"sku": "b"}]}, {"id": 11, "items": [{"sku": "a"}]}],
            "tags": [{"label": "new"}, {"label": "old"}],
            "notes": [{"text": "x"}, {"text": "x"}],
            "spent": Decimal("3.75"),
        },
        {
            "name": "bob",
            "city": {"name": "Bonn"},
            "boss": {"name": "ann"},
            "orders": [{"id": 12, "items": [{"sku": "c"}]}],
            "tags": [{"label": "new"}],
            "notes": [{"text": "y"}],
            "spent": None,
        },
        {"name": "joe", "city": None, "boss": {"name": "joe"}, "orders": [], "tags": [], "notes": [], "spent": None},
    ]
    assert built.documents.column("id").to_pylist() == ["1", "2", "4"]
    assert built.documents.column("key").to_pylist() == [["1"], ["2"], ["4"]]
    assert built.absent.to_pylist() == ["5"]


def test_documents_remember_every_row_that_has_a_key() -> None:
    tree, tables = shop()
    built = build(tree, keys_of("1", "4"), tables)
    places = {node.number: node.schema.name for node in tree.nodes}
    assert places == {
        0: "users",
        1: "cities",
        2: "users",
        3: "orders",
        4: "items",
        5: "user_tags",
        6: "tags",
        7: "notes",
        8: "orders",
    }
    ann = [
        "1:1",
        "3:10",
        "3:11",
        "4:10:1",
        "4:10:2",
        "4:11:1",
        "5:1",
        "6:7",
        "6:8",
        "7:1",
    ]  # no second time for their sum
    assert [sorted(rows) for rows in built.documents.column("rows").to_pylist()] == [ann, ["2:4"]]


def test_each_node_is_one_query_however_many_documents() -> None:
    tree, tables = shop()
    build(tree, keys_of("1"), tables)
    few = len(tables.queries)
    tables.queries.clear()
    build(tree, keys_of("1", "2", "3", "4"), tables)
    assert len(tables.queries) == few == len(tree.nodes) - 1  # the sum of the orders is made of the same rows
    assert [name for name, _, _ in tables.queries].count("public.orders") == 1
    assert ("public.cities", ("id",), 2) in tables.queries  # 1 and 9: a target is asked for once


def test_very_many_links_are_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, tables = shop()
    whole = build(tree, keys_of("1", "2", "3", "4"), tables)
    monkeypatch.setattr("tailrace.documents.build.AT_ONCE", 1)
    assert build(tree, keys_of("1", "2", "3", "4"), tables).documents.equals(whole.documents)


def test_rows_of_the_root_can_be_given() -> None:
    tree, tables = shop(filters=(Filter("name", Op.NEQ, "bob"),))
    given = build(tree, keys_of(), tables, tables.rows["public.users"])
    assert given.documents.column("id").to_pylist() == ["1", "3", "4"]
    assert given.absent.to_pylist() == ["2"]
    assert given.documents.equals(build(tree, keys_of("1", "2", "3", "4"), tables).documents)
    assert "public.users" not in [name for name, by, _ in tables.queries[:1]]


def test_no_keys_are_no_documents() -> None:
    tree, tables = shop()
    built = build(tree, keys_of(), tables)
    assert (built.documents.num_rows, len(built.absent)) == (0, 0)


def test_what_is_cut_by_a_limit_is_not_remembered() -> None:
    field = d.HasMany(
        table="orders", foreign_key=("user_id",), order_by=(OrderBy("total"),), limit=1, fields={"items": has_items()}
    )
    tree, tables = shop({"orders": field})
    built = build(tree, keys_of("1"), tables)
    assert built.documents.column("document").to_pylist() == ['{"orders":[{"items":[{"sku":"a"},{"sku":"b"}]}]}']
    assert sorted(built.documents.column("rows")[0].as_py()) == ["1:10", "2:10:1", "2:10:2"]
    assert ("public.items", ("order_id",), 1) in tables.queries


def test_a_target_that_is_required_has_to_be_there() -> None:
    city = d.BelongsTo(table="cities", column=("city_id",), required=True, fields={"name": d.Keyword()})
    tree, tables = shop({"city": city})
    assert build(tree, keys_of("1"), tables).documents.num_rows == 1
    with pytest.raises(ValueRefused, match=r"documents\.users\.fields\.city is required"):
        build(tree, keys_of("1", "3"), tables)


def test_a_tree_travels() -> None:
    tree, tables = shop()
    assert tree.tables == {schema.table for schema in SHOP}
    other = pickle.loads(pickle.dumps(tree))
    assert other == tree
    assert build(other, keys_of("1"), tables).documents.equals(build(tree, keys_of("1"), tables).documents)
    assert tree.columns_used("public.users") == {"id", "name", "city_id", "boss_id"}
    assert tree.columns_used("public.orders") == {"id", "user_id", "total"}


def test_sums_are_exact_whatever_their_size() -> None:
    rows = table("rows", {"id": INT, "owner": INT, "big": BIG, "x": NUMERIC, "f": DOUBLE})
    owners = table("owners", {"id": INT})
    tables = Tables(
        {
            owners: [(1,), (2,), (3,)],
            rows: [
                (1, 1, 2**63 - 1, "0.1", 0.5),
                (2, 1, 2**63 - 1, "1" + "0" * 40, 0.25),
                (3, 2, -5, "-0.30", None),
                (4, 2, None, "0.1", None),
            ],
        }
    )
    aggregated: dict[str, Any] = {"table": "rows", "foreign_key": ("owner",)}
    fields: dict[str, Any] = {
        "big": d.Sum(**aggregated, column="big"),
        "x": d.Sum(**aggregated, column="x"),
        "f": d.Sum(**aggregated, column="f", default=0),
        "mean": d.Avg(**aggregated, column="x"),
        "largest": d.Max(**aggregated, column="x"),
        "ids": d.Ids(**aggregated),
        "count": d.Count(**aggregated, filters=(Filter("big", Op.GT, 0),)),
    }
    tree = tree_of("owners", d.Document(table="owners", fields=fields), tables.schemas)
    assert build(tree, keys_of("1", "2", "3"), tables).documents.column("document").to_pylist() == [
        f'{{"big":{2**64 - 2},"x":"1{"0" * 40}.1","f":0.75,"mean":5e+39,"largest":1{"0" * 40},"ids":[1,2],"count":2}}',
        '{"big":-5,"x":-0.2,"f":0,"mean":-0.1,"largest":0.1,"ids":[3,4],"count":0}',
        '{"big":null,"x":null,"f":0,"mean":null,"largest":null,"ids":[],"count":0}',
    ]


def test_a_value_without_a_sum_is_refused() -> None:
    rows, owners = table("rows", {"id": INT, "owner": INT, "x": NUMERIC}), table("owners", {"id": INT})
    tables = Tables({owners: [(1,)], rows: [(1, 1, "NaN")]})
    field = d.Sum(table="rows", foreign_key=("owner",), column="x")
    tree = tree_of("owners", d.Document(table="owners", fields={"x": field}), tables.schemas)
    with pytest.raises(ValueRefused, match=r"public\.rows\.x \(numeric\): NaN"):
        build(tree, keys_of("1"), tables)


def test_documents_named_by_other_columns_remember_the_row_that_they_are_of() -> None:
    users = table("users", {"id": INT, "name": TEXT}, identity=Identity.FULL)
    tables = Tables({users: [(1, "ann"), (2, "bob"), (3, "bob")]})
    document = d.Document(table="users", key=("name",), fields={"id": d.Long()})
    tree = tree_of("users", document, tables.schemas)
    built = build(tree, keys_of("ann", "joe", names=("name",)), tables)
    assert built.documents.to_pylist() == [{"id": "ann", "document": '{"id":1}', "rows": ["0:1"], "key": ["ann"]}]
    assert built.absent.to_pylist() == ["joe"]
    with pytest.raises(SourceRefused, match=r"name is null in a row of public\.users, or the same in two"):
        build(tree, keys_of("bob", names=("name",)), tables)


def test_only_what_is_equal_to_the_letter_is_linked() -> None:
    """A source may find more: its text may not care for case."""
    users = table("users", {"id": TEXT})
    rows = table("rows", {"id": INT, "owner": TEXT})

    class Careless(Tables):
        def __call__(self, schema: Any, by: Any, values: pa.RecordBatch, columns: Any) -> pa.RecordBatch:
            return self.rows[schema.table].select(list(dict.fromkeys((*columns, *by))))

    tables = Careless({users: [("a",), ("A",)], rows: [(1, "a"), (2, "A")]})
    field = d.Ids(table="rows", foreign_key=("owner",))
    tree = tree_of("users", d.Document(table="users", fields={"rows": field}), tables.schemas)
    built = build(tree, keys_of("a"), tables)
    assert built.documents.column("document").to_pylist() == ['{"rows":[1]}']


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"nam": d.Text()}, r"documents\.users\.fields\.nam"),
        ({"x": d.HasMany(table="ordrs", foreign_key=("user_id",), fields={"id": d.Long()})}, r"fields\.x\.table"),
        (
            {"x": d.HasMany(table="orders", foreign_key=("user",), fields={"id": d.Long()})},
            r"documents\.users\.fields\.x",
        ),
        ({"x": d.Object(fields={"y": d.Keyword(column="z")})}, r"documents\.users\.fields\.x\.fields\.y"),
    ],
)
def test_what_is_not_there_is_named_with_its_place_and_a_fix(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=place) as caught:
        shop(fields)
    assert caught.value.hint


def test_ties_are_in_the_order_of_the_key_and_nulls_where_they_are_told_to_be() -> None:
    kind = ColumnType(Kind.ENUM, "mood", labels=("1:1:sad", "2:1:ok"))
    rows = table("rows", {"id": INT, "owner": INT, "m": kind})
    owners = table("owners", {"id": INT})
    tables = Tables({owners: [(1,)], rows: [(4, 1, "sad"), (3, 1, "ok"), (2, 1, None), (1, 1, "ok"), (5, 2, "ok")]})

    def listed(**order: Any) -> list[int]:
        field = d.HasMany(
            table="rows", foreign_key=("owner",), order_by=(OrderBy("m", **order),), fields={"id": d.Long()}
        )
        tree = tree_of("owners", d.Document(table="owners", fields={"rows": field}), tables.schemas)
        [text] = build(tree, keys_of("1"), tables).documents.column("document").to_pylist()
        return [row["id"] for row in json.loads(text)["rows"]]

    assert listed() == [4, 1, 3, 2]
    assert listed(direction=Direction.DESC) == [1, 3, 4, 2]
    assert listed(nulls=Nulls.FIRST) == [2, 4, 1, 3]
    assert listed(direction=Direction.DESC, nulls=Nulls.FIRST) == [2, 1, 3, 4]


def test_a_document_is_the_same_whatever_it_is_built_with() -> None:
    rows = table("rows", {"id": INT, "owner": INT, "x": NUMERIC})
    owners = table("owners", {"id": INT})
    given = [(1, 1, "0.1"), (2, 1, "0.20"), (3, 2, "0.00000000000000000001"), (4, 2, "9" * 30), (5, 3, "7")]
    tables = Tables({owners: [(1,), (2,), (3,)], rows: given})
    aggregated: dict[str, Any] = {"table": "rows", "foreign_key": ("owner",), "column": "x"}
    fields = {"sum": d.Sum(**aggregated), "avg": d.Avg(**aggregated), "max": d.Max(**aggregated)}
    tree = tree_of("owners", d.Document(table="owners", fields=fields), tables.schemas)
    together = build(tree, keys_of("1", "2", "3"), tables).documents
    alone = [build(tree, keys_of(key), tables).documents for key in ("1", "2", "3")]
    assert pa.concat_batches(alone).equals(together)


def test_a_document_that_can_not_be_built_is_told_apart_from_the_others() -> None:
    rows, owners = table("rows", {"id": INT, "owner": INT, "x": NUMERIC}), table("owners", {"id": INT})
    tables = Tables({owners: [(n,) for n in range(1, 6)], rows: [(1, 2, "NaN"), (2, 3, "1"), (3, 5, "NaN")]})
    field = d.Sum(table="rows", foreign_key=("owner",), column="x")
    tree = tree_of("owners", d.Document(table="owners", fields={"x": field}), tables.schemas)
    found = list(build_apart(tree, keys_of("1", "2", "3", "4", "5", "6"), tables))
    assert [each.id for each in found if isinstance(each, Refused)] == ["2", "5"]
    assert all("public.rows.x (numeric): NaN" in each.reason for each in found if isinstance(each, Refused))
    built = [each for each in found if isinstance(each, Built)]
    assert [id_ for each in built for id_ in each.documents.column("id").to_pylist()] == ["1", "3", "4"]
    assert [id_ for each in built for id_ in each.absent.to_pylist()] == ["6"]


def test_where_too_many_documents_can_not_be_built_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.documents.apart.MOST_REFUSED", 2)
    owners = table("owners", {"id": INT, "x": NUMERIC})
    tables = Tables({owners: [(n, "NaN") for n in range(3)]})
    tree = tree_of("owners", d.Document(table="owners", fields={"x": d.Decimal()}), tables.schemas)
    with pytest.raises(ValueRefused, match="NaN"):
        list(build_apart(tree, keys_of("0", "1", "2"), tables))


def test_documents_that_are_too_large_together_are_built_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that many show is in each of them: they came to more than an array holds, and no document was built."""
    monkeypatch.setattr("tailrace.documents.build.LARGEST", 2500)
    shops = table("shops", {"id": INT, "about": TEXT})
    users, friends = table("users", {"id": INT, "shop": INT}), table("friends", {"id": INT, "a": INT, "b": INT})
    pairs = [(n, a, b) for n, (a, b) in enumerate((a, b) for a in range(8) for b in range(8))]
    rows = {shops: [(1, "x" * 1000)], users: [(n, 1) for n in range(8)], friends: pairs}
    tables = Tables(rows)
    shown = {"about": d.Text()}
    shop = d.BelongsTo(table="shops", column=("shop",), fields=shown)
    tree = tree_of("users", d.Document(table="users", fields={"shop": shop}), tables.schemas)
    parts = [each for each in build_apart(tree, keys_of(*map(str, range(8))), tables) if isinstance(each, Built)]
    assert [each.documents.num_rows for each in parts] == [2, 2, 2, 2]
    through = d.Through(table="friends", left_key=("a",), right_key=("b",))
    known = d.ManyToMany(table="users", through=through, fields={"shop": shop})
    tree = tree_of("users", d.Document(table="users", fields={"known": known}), tables.schemas)
    (refused,) = build_apart(tree, keys_of("3"), tables)  # one that is too large by itself
    assert isinstance(refused, Refused)
    assert (refused.id, refused.key) == ("3", ("3",))
    assert "documents.users.fields.known" in refused.reason


def test_more_than_an_array_holds_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflown(*_: Any) -> Any:
        raise pa.ArrowInvalid("Take operation overflowed binary array capacity")

    monkeypatch.setattr("tailrace.documents.build.Assembly.objects", overflown)
    owners = table("owners", {"id": INT})
    tree = tree_of("owners", d.Document(table="owners", fields={"id": d.Integer()}), Tables({owners: []}).schemas)
    with pytest.raises(ValueRefused, match=r"documents\.owners has more than"):
        build(tree, keys_of("1"), Tables({owners: [(1,)]}))
