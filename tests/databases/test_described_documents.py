"""Descriptions beside a real catalog: `tailrace check`, `tailrace documents` and `tailrace reindex`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from support.opensearch import OpenSearchServer
from tailrace import config, registry
from tailrace.cli.main import main
from tailrace.errors import ConfigError
from tailrace.model.details import Index
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import Watermark
from tailrace.pipeline.preview import preview
from tailrace.sinks.base import Batch, Verifies
from tailrace.sinks.sql.sqlite.dialect import SqliteSink
from tailrace.sources.base import Finding, Level
from tailrace.state import requests

SHOP = """
CREATE TYPE level AS ENUM ('low', 'high');
CREATE TABLE companies (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE users (id bigint PRIMARY KEY, company_id int, name text NOT NULL, level level, deleted_at timestamptz);
CREATE TABLE orders (id uuid PRIMARY KEY, user_id bigint, total numeric(12,2), placed_at timestamptz);
CREATE INDEX ON orders (user_id) WHERE total > 0;
CREATE INDEX ON orders (lower(user_id::text), user_id);
CREATE UNIQUE INDEX ON orders (placed_at) INCLUDE (user_id);
CREATE TABLE products (sku text PRIMARY KEY, tags text[]);
CREATE TABLE order_items (order_id uuid, "Product" text, PRIMARY KEY (order_id, "Product"));
"""
PIPELINE = """
name: shop
source: {{url: "{url}", tables: ["public.*"]}}
sinks: {{replica: {{url: "sqlite:///replica.db"}}, search: {{url: "{search}", prefix: "{prefix}"{more}}}}}
documents:
  users:
    table: users
    soft_delete: deleted_at
    fields:
      id: long
      name: {{type: text, required: true}}
      level: {{type: enum, variants: [low, high]}}
      company: {{type: belongs_to, table: companies, column: company_id, fields: {{name: text}}}}
      orders:
        type: has_many
        table: orders
        foreign_key: user_id
        order_by: {{column: placed_at, direction: desc}}
        limit: 10
        fields:
          total: decimal
          products:
            type: many_to_many
            table: products
            through: {{table: order_items, left_key: order_id, right_key: Product}}
            filters: [{{column: sku, op: like, value: "A%"}}]
            fields: {{sku: identifier, tags: keyword}}
      numbers: {{type: object, fields: {{spent: {{type: sum, table: orders, foreign_key: user_id, column: total}}}}}}
"""
INDEXES = [
    'CREATE INDEX CONCURRENTLY ON "public"."users" ("company_id");',
    'CREATE INDEX CONCURRENTLY ON "public"."orders" ("user_id");',
    'CREATE INDEX CONCURRENTLY ON "public"."order_items" ("Product");',
]

pytestmark = pytest.mark.server


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def write(postgres_url: str, opensearch_server: OpenSearchServer, opensearch_prefix: str, tmp_path: Path):
    """Write the pipeline's file, with `more` in the section of its OpenSearch."""
    execute(postgres_url, SHOP)

    def write(more: str = "") -> Path:
        path = tmp_path / "pipeline.yml"
        search = opensearch_server.url
        path.write_text(PIPELINE.format(url=postgres_url, search=search, prefix=opensearch_prefix, more=more))
        return path

    return write


@pytest.fixture
def file(write: Callable[..., Path]) -> Path:
    return write()


def findings(file: Path) -> list[Finding]:
    from tailrace.pipeline import preflight

    return list(preflight.document_findings(config.load(file)))


def test_the_catalog_tells_of_nulls_and_of_indexes_that_hold_every_row(file: Path):
    source = registry.make_source(config.load(file))
    schemas = {schema.table: schema for schema in source.readable()}
    details = source.details(schemas.values())
    assert details.keys() == schemas.keys()
    assert details["public.users"].required == {"id", "name"}
    assert set(details["public.orders"].indexes) == {Index(("id",), True), Index(("placed_at",), True)}
    assert details["public.order_items"].indexes == (Index(("order_id", "Product"), True),)


def test_the_statements_that_are_given_are_all_that_was_missing(file: Path, postgres_url: str):
    found = findings(file)
    assert {finding.level for finding in found} == {Level.WARN}
    assert [finding.fix for finding in found] == INDEXES
    execute(postgres_url, *INDEXES)
    after = findings(file)
    assert [(finding.subject, finding.level) for finding in after] == [("documents.users", Level.OK)]
    assert after[0].message == "made of 5 tables, which have all that it needs"


def test_what_changed_at_the_source_is_found(file: Path, postgres_url: str):
    execute(postgres_url, "ALTER TABLE orders RENAME total TO sum", "ALTER TABLE users ALTER name TYPE bytea USING 'a'")
    failing = {finding.subject: finding for finding in findings(file) if finding.level is Level.FAIL}
    assert failing.keys() == {
        "documents.users.fields.name",
        "documents.users.fields.orders.fields.total",
        "documents.users.fields.numbers.fields.spent",
    }
    assert "a column of type bytea does not fit a field of type text" in failing["documents.users.fields.name"].message


def test_a_document_that_no_sink_holds_is_named(write: Callable[..., Path]):
    found = [finding for finding in findings(write(", documents: []")) if finding.subject == "documents.users"]
    assert [(finding.level, finding.message) for finding in found] == [(Level.WARN, "no sink of the pipeline holds it")]


def test_a_flat_table_without_a_key_is_named(file: Path, postgres_url: str):
    execute(postgres_url, "CREATE TABLE notes (note text)")
    (found,) = [finding for finding in findings(file) if finding.subject == "public.notes"]
    assert (found.level, found.message[:13]) == (Level.WARN, "it has no key")
    with pytest.raises(
        ConfigError, match=r"documents\.notes: public\.notes has no key, so its documents would have no id"
    ):
        preview(config.load(file), "notes")


def test_a_flat_table_can_be_explained_and_previewed(file: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]):
    execute(postgres_url, "CREATE TABLE notes (id int PRIMARY KEY, note text)", "INSERT INTO notes VALUES (1, 'a')")
    assert main(["documents", "explain", "notes", str(file)]) == 0
    assert capsys.readouterr().out == "notes  one for each row of public.notes, by id\n"
    assert main(["documents", "preview", "notes", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["document"] == {"id": 1, "note": "a"}


def test_a_sink_that_is_down_does_not_keep_check_from_looking_at_documents(file: Path):
    from tailrace.pipeline import preflight

    url = config.load(file).sinks["search"].url
    file.write_text(file.read_text().replace(url, "opensearch://127.0.0.1:1"))
    found = {finding.subject: finding.level for finding in preflight.check(config.load(file))}
    assert found["sink search"] is Level.FAIL
    assert found["documents.users.fields.company"] is Level.WARN


def test_check_prints_what_documents_lack(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(file)]) == 0
    assert INDEXES[0] in capsys.readouterr().out


def test_explain_draws_the_tables_and_the_indexes_that_help(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "explain", "users", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "users  one for each row of public.users, by id, without deleted ones"
    assert "├── company  belongs to public.companies, users.company_id (no index) = companies.id" in out
    assert "└── numbers.spent  sum of total in public.orders, users.id = orders.user_id (no index)" in out
    assert (
        "products  many to many public.products, orders.id = order_items.order_id and"
        " order_items.Product (no index) = products.sku, sku like A%"
    ) in out
    assert out.endswith("\n".join(["indexes that look-ups lack:", *(f"  {each}" for each in INDEXES), ""]))


def test_explain_ends_with_1_where_the_document_can_not_be_built(
    file: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
):
    execute(postgres_url, "DROP TABLE companies")
    assert main(["documents", "explain", "users", str(file)]) == 1
    assert "error: documents.users.fields.company.table: the source has no table public.companies" in (
        capsys.readouterr().out
    )


def test_a_document_that_nobody_described_is_named(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "explain", "people", str(file)]) == 2
    assert capsys.readouterr().err == "error: the pipeline has no document people\nhint: it has users\n"


ROWS = """
INSERT INTO companies VALUES (1, 'Acme');
INSERT INTO users VALUES (1, 1, 'Ann', 'high', NULL), (2, NULL, 'Bob', 'low', now());
INSERT INTO orders SELECT gen_random_uuid(), 1, n * 1.50, to_timestamp(n) FROM generate_series(1, 2) n;
INSERT INTO products VALUES ('A-1', '{x,y}'), ('B-2', NULL);
INSERT INTO order_items SELECT id, sku FROM orders, products;
"""


def test_preview_builds_the_document_as_it_is_now(file: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]):
    execute(postgres_url, ROWS)
    assert main(["documents", "preview", "users", str(file), "--key", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    product = {"sku": "A-1", "tags": ["x", "y"]}
    assert found["document"] == {
        "id": 1,
        "name": "Ann",
        "level": "high",
        "company": {"name": "Acme"},
        "orders": [{"total": 3.0, "products": [product]}, {"total": 1.5, "products": [product]}],
        "numbers": {"spent": 4.5},
    }
    assert found["made_of"] == {
        "public.users": 1,
        "public.companies": 1,
        "public.orders": 2,
        "public.order_items": 2,
        "public.products": 1,
    }
    assert {query["table"] for query in found["queries"]} == found["made_of"].keys()
    assert found["mapping"]["mappings"]["properties"]["orders"]["type"] == "nested"


def test_preview_prints_all_digits_and_the_queries(file: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]):
    execute(postgres_url, ROWS)
    assert main(["documents", "preview", "users", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\ndocument users, id 1\n{")
    assert '"spent": 4.50' in out
    assert "SELECT id, user_id, placed_at, total FROM public.orders WHERE user_id IN (1 value)" in out
    assert "made of 7 rows" in out


@pytest.mark.parametrize("key", ["2", "3", "x"])
def test_preview_says_that_there_is_no_such_document(
    file: Path, postgres_url: str, key: str, capsys: pytest.CaptureFixture[str]
):
    execute(postgres_url, ROWS)
    assert main(["documents", "preview", "users", str(file), "--key", key]) == 1
    assert f"there is no document users with the id {key}" in capsys.readouterr().out


def test_preview_wants_a_value_for_each_column_of_the_key(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "preview", "users", str(file), "--key", "1", "--key", "2"]) == 2
    assert "the key of document users has 1 column, and 2 values are given" in capsys.readouterr().err


def test_preview_of_no_rows_says_so(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "preview", "users", str(file)]) == 2
    assert "public.users has no rows to show a document of" in capsys.readouterr().err


def test_list_shows_what_is_described_before_anything_ran(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "list", str(file)]) == 0
    assert "users" in capsys.readouterr().out
    assert main(["documents", "list", "--json", str(file)]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["tables"] == [
        "public.users",
        "public.companies",
        "public.orders",
        "public.products",
        "public.order_items",
    ]
    assert (line["document"], line["sink"], line["state"]) == ("users", "", "not built yet")


def test_a_document_that_has_no_index_yet_counts_none(file: Path):
    """Or nobody could look at a pipeline while it builds its first index."""
    sink = registry.make_sink(config.load(file), "search")
    assert isinstance(sink, Verifies)
    assert sink.count_rows(TableSchema("document", "users", ()), 5.0) is None
    sink.close()


def test_reindex_asks_for_nothing_that_no_sink_has(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reindex", "users", str(file)]) == 2
    assert "no sink of the pipeline has a document users" in capsys.readouterr().err


@pytest.fixture
def built(file: Path) -> Path:
    """A pipeline of which a sink has a live document; that it is a database makes no difference here."""
    sink = SqliteSink(config.load(file), "replica")
    schema = TableSchema("document", "users", (Column("id", ColumnType(Kind.TEXT)),), ("id",))
    status = TableStatus(schema.table, TableState.LIVE, Watermark("log", 7, "0/10"), schema, 1, rows=5)
    sink.begin_snapshot(status, [], clear=True)
    sink.commit(Batch(watermark=Watermark("log", 9, "0/20")), fetch=None)
    sink.close()
    return file


def test_list_shows_the_state_in_each_sink(built: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["documents", "list", str(built)]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split() == [
        *("users", "public.users,", "public.companies,", "public.orders,", "public.products,", "public.order_items"),
        *("replica", "live", "0", "5"),
    ]


def test_list_says_why_a_document_is_set_aside(file: Path, capsys: pytest.CaptureFixture[str]):
    sink = SqliteSink(config.load(file), "replica")
    schema = TableSchema("document", "notes", (Column("id", ColumnType(Kind.TEXT)),), ("id",))
    place = Watermark("log", 7, "0/10")
    failed = TableStatus(schema.table, TableState.FAILED, place, schema, 1, reason="it has no key")
    sink.begin_snapshot(failed, [], clear=True)
    sink.close()
    assert main(["documents", "list", str(file)]) == 0
    assert "notes in sink replica is failed: it has no key" in capsys.readouterr().out


def test_reindex_asks_the_run_for_a_copy(built: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reindex", "users", str(built)]) == 0
    assert capsys.readouterr().out == "document users will be built anew in sink replica\n"
    asked = requests.waiting(config.load(built).state, "replica")
    assert [request.table for request in asked.values()] == ["document.users"]
