"""What an index is made with: mappings of every field, the analysis they need, and documents of tables as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config import documents as d
from tailrace.documents import analysis
from tailrace.documents.flat import flat_document
from tailrace.documents.mapping import mapping_of
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

MONEY = ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2)
LARGE = ColumnType(Kind.DECIMAL, "numeric(30,2)", 30, 2)


def table(called: str, key: tuple[str, ...] = ("id",), /, **columns: ColumnType | Kind) -> TableSchema:
    found = {"id": Kind.INT64, **columns}
    types = {name: kind if isinstance(kind, ColumnType) else ColumnType(kind) for name, kind in found.items()}
    return TableSchema("public", called, tuple(Column(each, type_) for each, type_ in types.items()), key)


SCHEMAS = {
    each.table: each
    for each in (
        table("things", price=MONEY, worth=LARGE, prices=ColumnType(Kind.ARRAY, element=MONEY), about=Kind.JSON),
        table("parts", price=MONEY, size=Kind.INT32, weight=Kind.FLOAT32, name=Kind.TEXT, made=Kind.DATE),
        table("pairs", ("a", "b"), a=Kind.INT32, b=Kind.INT32),
    )
}


def mapped(field: Any, name: str = "it") -> dict[str, Any]:
    whole = mapping_of(d.Document(table="things", fields={name: field}), SCHEMAS)
    found: dict[str, Any] = whole["mappings"]["properties"][name]
    return found


LOWERCASE = {"type": "keyword", "normalizer": "tailrace_lowercase", "ignore_above": 256}
SUBFIELDS = {"keyword": {"type": "keyword", "ignore_above": 256}, "lowercase": LOWERCASE}
KEYWORD = {"type": "keyword", "ignore_above": 8191}
IDENTIFIER = {"analyzer": "tailrace_identifier", "search_analyzer": "tailrace_identifier_search"}
PARTS: Any = {"table": "parts", "foreign_key": ("thing_id",)}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (d.Text(), {"type": "text", "analyzer": "tailrace_text", "fields": SUBFIELDS}),
        (d.Identifier(), {"type": "text", **IDENTIFIER, "fields": SUBFIELDS}),
        (d.Keyword(), {**KEYWORD, "fields": {"lowercase": LOWERCASE}}),
        (d.Enum(), KEYWORD),
        (d.Uuid(), KEYWORD),
        (d.Boolean(), {"type": "boolean"}),
        (d.Short(), {"type": "short"}),
        (d.Integer(), {"type": "integer"}),
        (d.Long(), {"type": "long"}),
        (d.Float(), {"type": "float"}),
        (d.Double(), {"type": "double"}),
        (d.Date(), {"type": "date"}),
        (d.Timestamp(options={"format": "epoch_second"}), {"type": "date", "format": "epoch_second"}),
        (d.Binary(), {"type": "binary"}),
        (d.Json(), {"type": "object", "enabled": False}),
        (d.Custom(opensearch="ip", options={"store": True}), {"type": "ip", "store": True}),
        (d.Geo(lat="a", lon="b"), {"type": "geo_point"}),
        (d.Map(values=d.ValueType.LONG), {"type": "object", "dynamic": "true"}),
        (d.Constant(value="a"), {**KEYWORD, "fields": {"lowercase": LOWERCASE}}),
        (d.Constant(value=[1, 2]), {"type": "long"}),
        (d.Constant(value=True), {"type": "boolean"}),
        (d.Object(fields={"a": d.Long()}), {"properties": {"a": {"type": "long"}}}),
        (d.BelongsTo(table="parts", fields={"a": d.Long()}), {"properties": {"a": {"type": "long"}}}),
        (d.HasOne(**PARTS, fields={"a": d.Long()}), {"properties": {"a": {"type": "long"}}}),
        (d.HasMany(**PARTS, fields={"a": d.Long()}), {"type": "nested", "properties": {"a": {"type": "long"}}}),
        (d.Count(**PARTS), {"type": "long"}),
        (d.Sum(**PARTS, column="size"), {"type": "long"}),
        (d.Sum(**PARTS, column="weight"), {"type": "double"}),
        (d.Sum(**PARTS, column="price"), {"type": "double", "fields": {"exact": KEYWORD}}),
        (d.Sum(**PARTS, column="size", value_type=d.ValueType.DOUBLE), {"type": "double"}),
        (d.Min(**PARTS, column="price"), {"type": "scaled_float", "scaling_factor": 100}),
        (d.Max(**PARTS, column="made"), {"type": "date"}),
        (d.Max(**PARTS, column="name"), {**KEYWORD, "fields": {"lowercase": LOWERCASE}}),
        (d.Avg(**PARTS, column="size"), {"type": "double"}),
        (d.Ids(**PARTS), {"type": "long"}),
        (d.Ids(table="pairs", foreign_key=("a",)), {**KEYWORD, "fields": {"lowercase": LOWERCASE}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_field_has_its_mapping(field: Any, expected: dict[str, Any]):
    assert mapped(field) == expected


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("price", {"type": "scaled_float", "scaling_factor": 100}),
        ("prices", {"type": "scaled_float", "scaling_factor": 100}),
        ("worth", {"type": "double", "fields": {"exact": KEYWORD}}),
        ("missing", {"type": "double", "fields": {"exact": KEYWORD}}),
    ],
)
def test_a_decimal_is_exact_where_its_column_has_few_digits(column: str, expected: dict[str, Any]):
    assert mapped(d.Decimal(column=column)) == expected


def test_an_index_is_strict_and_has_no_more_than_the_fields():
    mappings = mapping_of(d.Document(table="things", fields={"id": d.Long()}), SCHEMAS)["mappings"]
    assert mappings == {"dynamic": "strict", "properties": {"id": {"type": "long"}}}


def test_only_the_analysis_that_is_used_is_there():
    plain = mapping_of(d.Document(table="things", fields={"id": d.Long()}), SCHEMAS)
    assert plain["settings"] == {"analysis": {}}
    text = mapping_of(d.Document(table="things", fields={"id": d.Text()}), SCHEMAS)["settings"]["analysis"]
    assert set(text["analyzer"]) == {"tailrace_text"}
    assert set(text["normalizer"]) == {"tailrace_lowercase"}


def test_values_of_a_map_have_a_template_with_the_whole_path():
    labels = d.Map(values=d.ValueType.LONG)
    inner = d.HasMany(table="parts", foreign_key=("thing_id",), fields={"labels": labels})
    mappings = mapping_of(d.Document(table="things", fields={"parts": inner}), SCHEMAS)["mappings"]
    assert mappings["dynamic_templates"] == [
        {"tailrace_parts.labels.values": {"path_match": "parts.labels.*", "mapping": {"type": "long"}}}
    ]


def test_an_enum_sorts_by_the_places_of_its_variants():
    document = d.Document(table="things", fields={"it": d.Enum(variants=("low", "very high", "ä=>b"))})
    whole = mapping_of(document, SCHEMAS)
    name = whole["mappings"]["properties"]["it"]["fields"]["sort"]["normalizer"]
    rules = whole["settings"]["analysis"]["char_filter"][name]["mappings"]
    assert rules == ["low => 0", r"very\u0020high => 1", r"\u00e4\u003d\u003eb => 2"]


def test_two_orders_have_two_names():
    assert analysis.order_of(["a", "b"])[0] != analysis.order_of(["b", "a"])[0]


def test_limits_of_opensearch_are_raised_where_a_description_needs_it():
    fields: dict[str, Any] = {f"field{number}": d.Long() for number in range(1200)}
    settings = mapping_of(d.Document(table="things", fields=fields), SCHEMAS)["settings"]
    assert settings["index"] == {"mapping": {"total_fields": {"limit": 1210}}}
    deep: Any = {"id": d.Long()}
    for _ in range(25):
        deep = {"in": d.HasMany(table="parts", foreign_key=("up",), fields=deep)}
    settings = mapping_of(d.Document(table="things", fields=deep), SCHEMAS)["settings"]
    assert settings["index"] == {"mapping": {"depth": {"limit": 27}}}


def test_a_table_as_it_is_has_a_field_for_every_kind_of_column():
    kinds = {f"c_{kind}": ColumnType(kind) for kind in Kind if kind is not Kind.ARRAY}
    schema = table("all", **kinds, tags=ColumnType(Kind.ARRAY, element=ColumnType(Kind.TEXT)))
    document = flat_document(schema)
    assert document.table == "public.all"
    assert list(document.fields) == [column.name for column in schema.columns]
    assert document.fields["id"] == d.Long()
    assert document.fields["tags"] == d.Text()
    assert document.fields["c_interval"] == d.Keyword()
    assert mapping_of(document, {"public.all": schema})["mappings"]["properties"]["c_json"] == mapped(d.Json())


def test_a_text_that_is_the_key_is_found_as_a_whole():
    assert flat_document(table("t", ("code",), code=Kind.TEXT)).fields["code"] == d.Keyword()


def test_columns_with_names_that_opensearch_refuses_get_others():
    names = ["_id", "a.b", "a_b", "1st", "ä", "-"]
    schema = table("odd", **dict.fromkeys(names, Kind.INT64))
    fields = flat_document(schema).fields
    columns = {name: field.column for name, field in fields.items() if isinstance(field, d.Long)}
    assert columns == {
        "id": None,
        "id_2": "_id",
        "a_b": "a.b",
        "a_b_2": "a_b",
        "column_1st": "1st",
        "column": "ä",
        "column_2": "-",
    }
