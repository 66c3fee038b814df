"""A description beside a catalog: every mistake that can be told before a document is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.config import documents as d
from tailrace.config.conditions import Filter, Op, OrderBy, SoftDelete
from tailrace.documents.checking import check
from tailrace.documents.judging import Remark
from tailrace.model.details import Index, TableDetails
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind

MOOD = ColumnType(Kind.ENUM, "mood", labels=("16400:731:sad", "glad"))
TAGS = ColumnType(Kind.ARRAY, "text[]", element=ColumnType(Kind.TEXT, "text"))


def table(
    called: str, /, *, key: tuple[str, ...] = ("id",), identity: Identity = Identity.DEFAULT, **columns: Any
) -> TableSchema:
    types = {name: type_ if isinstance(type_, ColumnType) else ColumnType(type_) for name, type_ in columns.items()}
    found = tuple(Column(name, type_) for name, type_ in {"id": ColumnType(Kind.INT64), **types}.items())
    return TableSchema("public", called, found, key, identity)


USERS = table(
    "users",
    name=Kind.TEXT,
    mood=MOOD,
    tags=TAGS,
    born=Kind.DATE,
    company_id=Kind.INT32,
    about=Kind.JSON,
    active=Kind.BOOLEAN,
    deleted_at=Kind.TIMESTAMPTZ,
    lat=Kind.FLOAT64,
    lon=Kind.FLOAT64,
)
ORDERS = table("orders", user_id=Kind.INT64, total=ColumnType(Kind.DECIMAL, "numeric(10,2)", 10, 2), code=Kind.TEXT)
PAIRS = table("pairs", key=("left", "right"), left=Kind.INT64, right=Kind.INT32)
NOTES = table("notes", key=(), user_id=Kind.INT64)
FULL = table("full_notes", key=(), identity=Identity.FULL, user_id=Kind.INT64)
COMPANIES = table("companies", name=Kind.TEXT)
SCHEMAS = {each.table: each for each in (USERS, ORDERS, PAIRS, NOTES, FULL, COMPANIES)}


def indexed(*columns: tuple[str, ...]) -> TableDetails:
    return TableDetails(frozenset({"id", "name"}), (Index(("id",), True), *(Index(each) for each in columns)))


DETAILS = {
    "public.users": indexed(("company_id",)),
    "public.orders": indexed(("user_id", "code")),
    "public.pairs": indexed(("left", "right"), ("right",)),
    "public.notes": indexed(("user_id",)),
    "public.full_notes": indexed(("user_id",)),
    "public.companies": indexed(),
}


def create(schema: TableSchema, columns: Sequence[str]) -> str:
    return f"INDEX {schema.name} {','.join(columns)}"


def remarks(field: Any = None, **more: Any) -> list[Remark]:
    fields = {"it": field if field is not None else d.Long(column="id")}
    return check("users", d.Document(**{"table": "users", "fields": fields, **more}), SCHEMAS, DETAILS, create)


def only(found: list[Remark]) -> Remark:
    assert len(found) == 1, found
    return found[0]


ORDER_LINK: Any = {"table": "orders", "foreign_key": ("user_id",)}
ID: Any = {"id": d.Long()}


def test_a_sound_description_has_no_remarks():
    fields: dict[str, Any] = {
        "name": d.Text(required=True, transforms=(d.TextTransform.TRIM,)),
        "tags": d.Keyword(),
        "mood": d.Enum(variants=("sad", "glad"), default="sad"),
        "about": d.Map(values=d.ValueType.KEYWORD),
        "place": d.Geo(lat="lat", lon="lon"),
        "nested": d.Object(fields={"born": d.Date()}),
        "company": d.BelongsTo(table="companies", column=("company_id",), fields={"name": d.Text()}),
        "orders": d.HasMany(**ORDER_LINK, order_by=(OrderBy("total"),), fields={"total": d.Decimal()}),
        "friends": d.ManyToMany(
            table="users", through=d.Through(table="pairs", left_key=("left",), right_key=("right",)), fields=ID
        ),
        "notes": d.HasMany(table="full_notes", foreign_key=("user_id",), fields=ID),
        "spent": d.Sum(**ORDER_LINK, column="total"),
        "kind": d.Constant(value=1),
    }
    filters = (Filter("born", Op.GTE, "2000-01-01"), Filter("mood", Op.IN, ["sad"]), Filter("active", Op.EQ, True))
    soft = SoftDelete(column="deleted_at")
    assert remarks(fields=fields, filters=filters, soft_delete=soft, key=("id",)) == []


@pytest.mark.parametrize(
    ("field", "message", "fix"),
    [
        (d.Text(column="nmae"), "public.users has no column nmae that is captured", "did you mean `name`?"),
        (d.Text(column="zzz"), "public.users has no column zzz that is captured", "it has id, name, mood"),
        (d.Long(column="name"), "public.users.name: a column of type text does not fit a field of type long", "choose"),
        (d.Integer(column="id"), "public.users.id: a column of type int64 does not fit a field of type", "choose"),
        (d.Boolean(column="tags"), "public.users.tags: a column of type text[] does not fit", "choose"),
        (d.Map(values=d.ValueType.LONG, column="name"), "public.users.name: a column of type text", "choose"),
        (d.Keyword(column="id", transforms=(d.TextTransform.TRIM,)), "public.users.id: `transforms` are", "choose"),
        (d.Long(column="id", default="x"), "public.users.id: `default` is no value of type int64", "choose"),
        (d.Enum(column="mood", default="mad"), "public.users.mood: `default` is no value of type mood", "choose"),
        (d.Geo(lat="name", lon="lon"), "public.users.name: a column of type text has no sum", "choose"),
        (d.Object(fields={"a": d.Text(column="b")}), "public.users has no column b that is captured", "it has"),
    ],
)
def test_a_field_that_does_not_fit_its_column_can_not_be_built(field: Any, message: str, fix: str):
    found = only(remarks(field))
    assert found.is_failing
    assert found.message.startswith(message)
    assert found.fix.startswith(fix)
    assert found.place.startswith("documents.users.fields.it")


@pytest.mark.parametrize(
    ("filter_", "message"),
    [
        (Filter("x", Op.IS_NULL), "public.users has no column x that is captured"),
        (Filter("about", Op.EQ, "a"), "public.users.about: a column of type json can only be compared by `is_null`"),
        (Filter("id", Op.LIKE, "1%"), "public.users.id: `like` is for text, and the column is int64"),
        (Filter("id", Op.EQ, "one"), "public.users.id: the value of `eq` is no value of type int64"),
        (Filter("id", Op.IN, [1, True]), "public.users.id: the value of `in` is no value of type int64"),
        (Filter("born", Op.BETWEEN, ["2020-01-01", "x"]), "public.users.born: the value of `between` is no value"),
        (Filter("mood", Op.EQ, "mad"), "public.users.mood: the value of `eq` is no value of type mood"),
        (Filter("active", Op.LT, True), "public.users.active: `lt` is not for true and false"),
    ],
)
def test_a_filter_that_does_not_fit_its_column_says_so_and_where(filter_: Filter, message: str):
    assert only(remarks(filters=(Filter("id", Op.IS_NOT_NULL), filter_))).message.startswith(message)
    assert only(remarks(filters=(Filter("id", Op.IS_NOT_NULL), filter_))).place == "documents.users.filters[1]"
    soft = SoftDelete(when=(filter_,))
    assert only(remarks(soft_delete=soft)).place == "documents.users.soft_delete.when[0]"


MISSING = d.Through(table="nowhere", left_key=("a",), right_key=("b",))


@pytest.mark.parametrize(
    ("field", "message", "place"),
    [
        (d.HasMany(table="ordres", foreign_key=("a",), fields=ID), "the source has no table public.ordres", ".table"),
        (d.Count(table="orders", through=MISSING), "the source has no table public.nowhere", ".through.table"),
        (d.HasMany(table="orders", foreign_key=("user",), fields=ID), "public.orders has no column user", ""),
        (d.HasMany(table="orders", foreign_key=("user_id", "id"), fields=ID), "public.users (id) and public.ord", ""),
        (d.HasMany(table="orders", foreign_key=("code",), fields=ID), "public.users (id) and public.orders (code)", ""),
        (d.HasMany(table="notes", foreign_key=("user_id",), fields=ID), "public.notes has no key, and the", ".table"),
        (d.HasMany(**ORDER_LINK, order_by=(OrderBy("x"),), fields=ID), "public.orders has no column x", ".order_by[0]"),
        (d.HasOne(**ORDER_LINK, filters=(Filter("x", Op.IS_NULL),), fields=ID), "public.orders has", ".filters[0]"),
        (d.BelongsTo(table="full_notes", column=("id",), fields=ID), "public.full_notes has no key that rows", ""),
        (d.Sum(**ORDER_LINK, column="code"), "public.orders.code: a column of type text has no sum", ""),
        (d.Max(**ORDER_LINK, column="x"), "public.orders has no column x", ""),
        (d.Ids(table="full_notes", foreign_key=("user_id",)), "public.full_notes has no key", ""),
        (d.HasMany(**ORDER_LINK, fields={"a": d.Long(column="x")}), "public.orders has no column x", ".fields.a"),
    ],
)
def test_a_join_that_does_not_fit_says_so_and_where(field: Any, message: str, place: str):
    found = only([remark for remark in remarks(field) if remark.is_failing])
    assert found.message.startswith(message)
    assert found.place == f"documents.users.fields.it{place}"


WRONG_TYPES = "what it comes to does not fit `value_type: {}`"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (d.Sum(**ORDER_LINK, column="total", value_type=d.ValueType.LONG), WRONG_TYPES.format("long")),
        (d.Sum(**ORDER_LINK, column="total", value_type=d.ValueType.KEYWORD), WRONG_TYPES.format("keyword")),
        (d.Max(**ORDER_LINK, column="code", value_type=d.ValueType.DATE), WRONG_TYPES.format("date")),
        (d.Ids(**ORDER_LINK, value_type=d.ValueType.BOOLEAN), WRONG_TYPES.format("boolean")),
        (d.Sum(**ORDER_LINK, column="total", default="none"), "`default` is no value of type numeric(10,2)"),
        (d.Geo(column="born"), "a column of type date is no point"),
    ],
)
def test_what_an_aggregate_comes_to_has_to_fit(field: Any, message: str):
    assert only(remarks(field)).message.endswith(message)


@pytest.mark.parametrize(
    "field",
    [
        d.Sum(**ORDER_LINK, column="total", value_type=d.ValueType.DOUBLE, default=0),
        d.Sum(**ORDER_LINK, column="user_id", value_type=d.ValueType.LONG),
        d.Avg(**ORDER_LINK, column="user_id", default=0.5),
        d.Max(**ORDER_LINK, column="code", value_type=d.ValueType.TEXT, default="none"),
        d.Ids(**ORDER_LINK, value_type=d.ValueType.KEYWORD),
        d.Ids(**ORDER_LINK, column="code"),
        d.Ids(table="pairs", foreign_key=("right",), value_type=d.ValueType.KEYWORD),
    ],
)
def test_an_aggregate_that_fits_is_not_remarked(field: Any):
    assert remarks(field) == []


def test_ids_of_several_columns_are_texts():
    field = d.Ids(table="pairs", foreign_key=("right",), value_type=d.ValueType.LONG)
    assert only(remarks(field)).message == "the key of public.pairs has 2 columns, so each id is a text"


def test_a_missing_root_table_is_all_that_is_said():
    found = only(remarks(table="usres"))
    assert (found.place, found.fix) == ("documents.users.table", "did you mean public.users?")


def test_a_root_needs_a_key():
    assert (
        only(remarks(table="full_notes")).message == "public.full_notes has no key, so its documents would have no id"
    )


def test_another_key_than_the_tables_has_to_be_told_with_changes_and_unique():
    not_told, not_unique = remarks(key=("name",))  # which is never null
    assert not_told.message == "changes of public.users name their rows by (id), and not by this key"
    assert not_unique.message == "(name) is not unique in public.users, so documents would share an id"


def test_a_key_that_may_be_null_is_a_warning():
    assert remarks(key=("born",))[0].message == "public.users.born may be null, and a row without a key stops the build"


@pytest.mark.parametrize(
    "field",
    [
        d.Date(column="born", required=True),
        d.Geo(lat="lat", lon="id", required=True),
        d.BelongsTo(table="companies", column=("company_id",), required=True, fields=ID),
    ],
)
def test_a_required_field_of_a_column_that_may_be_null_is_a_warning(field: Any):
    found = only(remarks(field))
    assert "may be null, and the field is required" in found.message
    assert not found.is_failing


def test_a_default_answers_for_nulls():
    assert remarks(d.Date(column="born", required=True, default="2000-01-01")) == []


def test_labels_of_the_source_that_are_no_variants_are_a_warning():
    found = only(remarks(d.Enum(column="mood", variants=("glad",))))
    assert found.message == "public.users.mood has values that are no variants: sad"
    assert not found.is_failing


def test_a_look_up_without_an_index_is_named_with_the_statement_that_helps():
    through = d.Through(table="orders", left_key=("total",), right_key=("user_id",))
    assert only(remarks(d.Count(table="companies", through=through))) == Remark(
        "documents.users.fields.it",
        "public.orders has no index on (total), by which its rows are read to build documents",
        "INDEX orders total",
        is_failing=False,
        is_index=True,
    )


def test_the_way_up_needs_an_index_too():
    company = d.BelongsTo(table="companies", column=("user_id",), fields={"name": d.Text()})
    assert remarks(company, table="orders") == []
    details = DETAILS | {"public.orders": indexed(("code", "user_id"))}
    document = d.Document(table="orders", fields={"company": company})
    found = only(check("orders", document, SCHEMAS, details, create))
    assert found.fix == "INDEX orders user_id"
    assert found.message.endswith("to find the documents that a change of public.companies touches")


def test_an_index_that_has_the_columns_in_another_order_helps():
    pairs = d.BelongsTo(table="pairs", column=("id", "company_id"), references=("right", "left"), fields=ID)
    assert [remark.fix for remark in remarks(pairs)] == ["INDEX users id,company_id"]


def test_indexes_are_not_asked_for_while_something_is_failing():
    assert only(remarks(d.Count(table="companies", foreign_key=("name",)))).is_failing


def test_without_details_nothing_is_said_of_nulls_and_indexes():
    document = d.Document(
        table="users",
        fields={"born": d.Date(required=True), "n": d.Count(table="orders", foreign_key=("total",))},
    )
    assert check("users", document, SCHEMAS, {}, create) == []
