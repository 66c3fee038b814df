"""The language of documents: what is read, what it means, and what is said of a mistake."""

from __future__ import annotations

import pickle
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from tailrace.config import documents as d
from tailrace.config import json_schema, load
from tailrace.config.conditions import Direction, Filter, Nulls, Op, OrderBy, SoftDelete
from tailrace.errors import ConfigError

BEGIN = """
name: shop
source: {url: "postgresql://localhost/shop", tables: ["public.*", "sales.*", "!public.secret"]}
sinks: {found: {url: "sqlite:///shop.db"}}
"""
USERS = """
documents:
  users:
    table: users
    key: id
    soft_delete: deleted_at
    filters:
      - {column: active, op: eq, value: true}
      - {column: since, op: between, value: [2024-01-01, 2024-12-31]}
    fields:
      id: long
      email: {type: keyword, transforms: [trim, lowercase], required: true}
      level: {type: enum, variants: [low, high], default: low}
      place: {type: geo, lat: latitude, lon: longitude}
      labels: {type: map, values: keyword}
      kind: {type: constant, value: user}
      name: {type: object, fields: {first: text, last: {type: text, column: surname}}}
      shape: {type: custom, opensearch: geo_shape, options: {orientation: left}}
      company: {type: belongs_to, table: sales.companies, column: [region, company], references: [region, id],
                fields: {name: text}}
      orders:
        type: has_many
        table: orders
        foreign_key: user_id
        order_by: [{column: placed_at, direction: desc, nulls: first}, id]
        limit: 3
        filters: [{column: state, op: in, value: [paid, sent]}]
        fields:
          total: decimal
          products:
            type: many_to_many
            table: products
            through: {table: order_items, left_key: order_id, right_key: product_id}
            fields: {sku: identifier}
      last_login: {type: has_one, table: logins, foreign_key: user_id, order_by: at, fields: {at: timestamp}}
      order_count: {type: count, table: orders, foreign_key: user_id}
      spent: {type: sum, table: orders, foreign_key: user_id, column: total, value_type: decimal, default: 0}
      product_ids:
        type: ids
        table: products
        through: {table: favourites, left_key: user_id, right_key: product_id}
"""


@pytest.fixture
def read(tmp_path: Path):
    def _read(text: str) -> dict[str, d.Document]:
        path = tmp_path / "shop.yml"
        path.write_text(BEGIN + text)
        return load(path).documents

    return _read


@pytest.fixture
def fail(read, tmp_path: Path):
    """Reads a document that has one key changed; returns what is said, and the fix."""

    def _fail(text: str) -> tuple[str, str | None]:
        with pytest.raises(ConfigError) as caught:
            read(text)
        return str(caught.value).removeprefix(f"{tmp_path / 'shop.yml'}: "), caught.value.hint

    return _fail


def one(field: str) -> str:
    return f"documents: {{things: {{table: things, fields: {{it: {field}}}}}}}"


def test_a_document_is_read_whole(read):
    users = read(USERS)["users"]
    assert users.table == "public.users"
    assert users.key == ("id",)
    assert users.soft_delete == SoftDelete(column="deleted_at")
    assert users.filters[0] == Filter("active", Op.EQ, True)
    assert users.filters[1].operands == ("2024-01-01", "2024-12-31")
    fields = users.fields
    assert fields["id"] == d.Long()
    assert fields["email"] == d.Keyword(required=True, transforms=(d.TextTransform.TRIM, d.TextTransform.LOWERCASE))
    assert fields["level"] == d.Enum(variants=("low", "high"), default="low")
    assert fields["place"] == d.Geo(lat="latitude", lon="longitude")
    assert fields["labels"] == d.Map(values=d.ValueType.KEYWORD)
    assert fields["kind"] == d.Constant(value="user")
    assert fields["name"] == d.Object(fields={"first": d.Text(), "last": d.Text(column="surname")})
    assert fields["shape"] == d.Custom(opensearch="geo_shape", options={"orientation": "left"})
    assert fields["last_login"].order_by == (OrderBy("at"),)


def test_joins_and_aggregates_have_full_names_of_tables_and_lists_of_columns(read):
    fields = read(USERS)["users"].fields
    company, orders = fields["company"], fields["orders"]
    assert company.table == "sales.companies"
    assert (company.column, company.references) == (("region", "company"), ("region", "id"))
    assert (orders.table, orders.foreign_key, orders.limit) == ("public.orders", ("user_id",), 3)
    assert orders.order_by == (OrderBy("placed_at", Direction.DESC, Nulls.FIRST), OrderBy("id"))
    assert orders.fields["products"].through == d.Through(
        table="public.order_items", left_key=("order_id",), right_key=("product_id",)
    )
    assert fields["order_count"] == d.Count(table="public.orders", foreign_key=("user_id",))
    assert fields["spent"].value_type is d.ValueType.DECIMAL
    assert fields["product_ids"].through.table == "public.favourites"


def test_a_description_travels(read):
    users = read(USERS)["users"]
    assert pickle.loads(pickle.dumps(users)) == users
    assert msgspec.json.decode(msgspec.json.encode(users), type=d.Document) == users


def test_what_nobody_wrote_is_no_part_of_the_encoding(read):
    document = read(one("long"))["things"]
    assert msgspec.json.encode(document) == b'{"table":"public.things","fields":{"it":{"type":"long"}}}'


def test_a_document_may_have_a_file_of_its_own(read, tmp_path: Path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "users.yml").write_text(yaml.safe_dump(yaml.safe_load(USERS)["documents"]["users"]))
    assert read("documents: {users: parts/users.yml}") == read(USERS)


def test_a_mistake_in_an_included_file_names_both(fail, tmp_path: Path):
    (tmp_path / "users.yml").write_text("table: users\nfields: {name: txt}\n")
    message, hint = fail("documents: {users: users.yml}")
    assert message == "documents.users: users.yml: fields.name.type: no such type"
    assert hint == "did you mean `text`?"


def test_an_included_file_has_to_exist(fail):
    assert fail("documents: {users: users.yml}") == (
        "documents.users: users.yml: no such file",
        "the path is relative to the pipeline file",
    )


IT = "documents.things.fields.it"
NO_VALUE = "the value of `{}` is not what it can compare with"
JOIN = "{{type: has_many, table: parts, foreign_key: thing_id, {}, fields: {{id: long}}}}"

WRONG: list[tuple[str, str, str, str]] = [
    ("a misspelt type", one("kewyord"), f"{IT}.type: no such type", "did you mean `keyword`?"),
    ("no type", one("{column: a}"), f"{IT}: missing `type`", "add `type:`, one of text"),
    ("a number", one("3"), f"{IT}: expected a mapping (key: value), got a whole number", "what the field is"),
    ("another type's key", one("{type: long, transforms: [trim]}"), f"{IT}.transforms: unknown key", "known here"),
    (
        "a transform",
        one("{type: text, transforms: upper}"),
        f"{IT}.transforms[0]: expected text that is `lowercase` or `trim`",
        "",
    ),
    ("a name", "documents: {things: {table: t, fields: {_id: long}}}", "documents.things.fields: a key", "a letter"),
    (
        "no fields",
        "documents: {things: {table: t, fields: {}}}",
        "documents.things: `fields` is empty",
        "write at least one",
    ),
    ("a table", "documents: {t: {table: a.b.c, fields: {id: long}}}", "documents.t: `a.b.c` is not the name", "write"),
    (
        "a table that is not captured",
        one("{type: has_many, table: secret, foreign_key: a, fields: {id: long}}"),
        f"{IT}.table: public.secret is not one of source.tables",
        "add public.secret to source.tables",
    ),
    (
        "a junction that is not captured",
        one("{type: count, table: parts, through: {table: no.where, left_key: a, right_key: b}}"),
        f"{IT}.through.table: no.where is not one of source.tables",
        "add no.where",
    ),
    ("a limit", one(JOIN.format("limit: 0")), f"{IT}.limit: expected a whole number >= 1", "how many"),
    ("an operator", one(JOIN.format("filters: [{column: a, op: is}]")), f"{IT}.filters[0].op: expected text", "how"),
    (
        "a value too much",
        one(JOIN.format("filters: [{column: a, op: is_null, value: 1}]")),
        f"{IT}.filters[0]: {NO_VALUE.format('is_null')}",
        "`is_null` has no `value`",
    ),
    (
        "a null",
        one(JOIN.format("filters: [{column: a, op: eq}]")),
        f"{IT}.filters[0]: {NO_VALUE.format('eq')}",
        "`eq` has one value; for null there are `is_null` and `is_not_null`",
    ),
    (
        "half a range",
        one(JOIN.format("filters: [{column: a, op: between, value: [1]}]")),
        f"{IT}.filters[0]: {NO_VALUE.format('between')}",
        "`between` has two",
    ),
    (
        "an empty list",
        one(JOIN.format("filters: [{column: a, op: in, value: []}]")),
        f"{IT}.filters[0]: {NO_VALUE.format('in')}",
        "`in` has a list",
    ),
    (
        "raw SQL",
        one(JOIN.format("filters: [{raw: a > 1}]")),
        f"{IT}.filters[0].raw: unknown key",
        "known here: column, op, value",
    ),
    ("variants twice", one("{type: enum, variants: [a, a]}"), f"{IT}: a variant is empty, or", "write each value once"),
    ("half a point", one("{type: geo, lat: a}"), f"{IT}: a point has `lat` and `lon`, or `column`", "write {type: geo"),
    ("a point twice", one("{type: geo, lat: a, lon: b, column: c}"), f"{IT}: a point has", "write {type: geo"),
    ("a constant mapping", one("{type: constant, value: {a: 1}}"), f"{IT}: a constant is a text", "write value"),
    ("a list as default", one("{type: long, default: [1]}"), f"{IT}: `default` is one value", "write a text"),
    ("an aggregate of nothing", one("{type: count, table: parts}"), f"{IT}: an aggregate has one of", "`foreign_key`"),
    (
        "an aggregate of two",
        one("{type: count, table: parts, foreign_key: a, through: {table: t, left_key: a, right_key: b}}"),
        f"{IT}: an aggregate has one of",
        "`foreign_key`",
    ),
    (
        "keys of two lengths",
        one("{type: belongs_to, table: t, column: a, references: [b, c], fields: {id: long}}"),
        f"{IT}: `column` and `references` are not as many",
        "write them in the same order",
    ),
    (
        "a soft delete of nothing",
        "documents: {things: {table: t, soft_delete: {}, fields: {id: long}}}",
        "documents.things.soft_delete: one of `column` and `when`",
        "write soft_delete: deleted_at",
    ),
]


@pytest.mark.parametrize(
    ("text", "message", "hint"), [w[1:] for w in WRONG], ids=[w[0].replace(" ", "-") for w in WRONG]
)
def test_a_mistake_is_told_with_its_place_and_the_fix(fail, text: str, message: str, hint: str):
    said, fix = fail(text)
    assert said.startswith(message)
    assert (fix or "").startswith(hint)


def test_the_json_schema_takes_the_language_and_nothing_else():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    check = jsonschema.Draft202012Validator(json_schema())
    pipeline = yaml.safe_load((BEGIN + USERS).replace("[2024-01-01, 2024-12-31]", "['2024-01-01', '2024-12-31']"))
    pipeline["documents"]["products"] = "products.yml"
    check.validate(pipeline)
    fields = pipeline["documents"]["users"]["fields"]
    for wrong in ("txt", {"type": "txt"}, {"type": "long", "transforms": ["trim"]}, {"type": "has_many"}, 3):
        fields["id"] = wrong
        assert not check.is_valid(pipeline)
