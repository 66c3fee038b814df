"""flusso's end-to-end tests, by name and on real servers, and what its own documentation lists as its limits.

One pipeline lives through all of them: each test has tables and documents of its own. `flusso:` names the test of the
seed that a test answers; `flusso's limit:` what the seed can not do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.opensearch import OpenSearchServer
from support.pipelines import RunningPipeline, states, tailrace, write_pipeline
from tailrace.testing import PostgresServer
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

KEYS = {
    "uuid": ("uuid", "'{:08d}-0000-4000-8000-000000000000'", "{:08d}-0000-4000-8000-000000000000"),
    "int": ("integer", "{}", "{}"),
    "bigint": ("bigint", "{}000000000", "{}000000000"),
    "text": ("text", "'key {}'", "key {}"),
}
OPERATORS: dict[str, tuple[dict[str, Any], set[int]]] = {
    "is_null": ({"column": "note"}, {4}),
    "is_not_null": ({"column": "note"}, {1, 2, 3}),
    "eq": ({"column": "n", "value": 2}, {2}),
    "neq": ({"column": "n", "value": 2}, {1, 3, 4}),
    "lt": ({"column": "price", "value": "10.5"}, {1}),
    "lte": ({"column": "price", "value": "10.50"}, {1, 2}),
    "gt": ({"column": "made", "value": "2026-01-02"}, {3, 4}),
    "gte": ({"column": "made", "value": "2026-01-02"}, {2, 3, 4}),
    "like": ({"column": "note", "value": "a%"}, {1}),
    "ilike": ({"column": "note", "value": "a%"}, {1, 2}),
    "in": ({"column": "mood", "value": ["happy", "sad"]}, {1, 2}),
    "not_in": ({"column": "n", "value": [1, 4]}, {2, 3}),
    "between": ({"column": "at", "value": ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]}, {2, 3}),
}


def keyed(kind: str) -> dict[str, Any]:
    return {"table": f"keyed_{kind}", "fields": {"name": "keyword"}}


DOCUMENTS: dict[str, Any] = {
    **{f"keyed_{kind}": keyed(kind) for kind in KEYS},
    "keyed_composite": {
        "table": "keyed_composite",
        "fields": {
            "name": "keyword",
            "lines": {
                "type": "has_many",
                "table": "composite_lines",
                "foreign_key": ["shop", "number"],
                "order_by": ["line"],
                "fields": {"what": "keyword"},
            },
        },
    },
    "flagged": {"table": "flagged", "soft_delete": "is_deleted", "fields": {"name": "keyword"}},
    "stamped": {"table": "stamped", "soft_delete": "deleted_at", "fields": {"name": "keyword"}},
    "people": {
        "table": "people",
        "fields": {
            "name": {"type": "text", "required": True},
            "email": {"type": "keyword", "transforms": ["trim", "lowercase"]},
            "nick": {"type": "keyword", "default": "nobody"},
            "town": {
                "type": "belongs_to",
                "table": "towns",
                "column": "town_id",
                "fields": {
                    "name": "keyword",
                    "country": {
                        "type": "belongs_to",
                        "table": "countries",
                        "column": "country_id",
                        "fields": {"name": "keyword"},
                    },
                },
            },
            "manager": {"type": "belongs_to", "table": "people", "column": "manager_id", "fields": {"name": "keyword"}},
            "profile": {
                "type": "has_one",
                "table": "profiles",
                "foreign_key": "person_id",
                "fields": {"motto": "text"},
            },
            "orders": {
                "type": "has_many",
                "table": "orders",
                "foreign_key": "person_id",
                "order_by": ["id"],
                "fields": {
                    "id": "long",
                    "items": {
                        "type": "has_many",
                        "table": "items",
                        "foreign_key": "order_id",
                        "order_by": ["id"],
                        "fields": {"id": "long", "what": "keyword", "price": "decimal"},
                    },
                },
            },
            "tags": {
                "type": "many_to_many",
                "table": "tags",
                "through": {"table": "people_tags", "left_key": "person_id", "right_key": "tag_id"},
                "order_by": ["label"],
                "fields": {"label": "keyword"},
            },
            "order_count": {"type": "count", "table": "orders", "foreign_key": "person_id"},
            "spent": {"type": "sum", "table": "orders", "foreign_key": "person_id", "column": "total"},
            "least": {"type": "min", "table": "orders", "foreign_key": "person_id", "column": "total"},
            "most": {"type": "max", "table": "orders", "foreign_key": "person_id", "column": "total"},
            "mean": {"type": "avg", "table": "orders", "foreign_key": "person_id", "column": "total"},
            "order_ids": {"type": "ids", "table": "orders", "foreign_key": "person_id"},
            "tag_count": {
                "type": "count",
                "table": "tags",
                "through": {"table": "people_tags", "left_key": "person_id", "right_key": "tag_id"},
            },
        },
    },
    "adults": {
        "table": "members",
        "filters": [{"column": "age", "op": "gte", "value": 18}],
        "fields": {"age": "integer"},
    },
    **{
        f"filtered_{op}": {"table": "filtered", "filters": [{"op": op, **rule}], "fields": {"n": "integer"}}
        for op, (rule, _) in OPERATORS.items()
    },
    "typed": {
        "table": "typed",
        "fields": {
            "a_bool": "boolean",
            "a_short": "short",
            "an_int": "integer",
            "a_long": "long",
            "a_float": "float",
            "a_double": "double",
            "a_decimal": "decimal",
            "a_date": "date",
            "a_time": "timestamp",
            "a_uuid": "uuid",
            "some_bytes": "binary",
            "a_json": "json",
            "a_mood": {"type": "enum", "variants": ["sad", "ok", "happy"]},
            "place": {"type": "geo", "lat": "lat", "lon": "lon"},
            "kind": {"type": "constant", "value": "typed"},
            "labels": {"type": "map", "values": "keyword"},
            "both": {"type": "object", "fields": {"again": {"type": "integer", "column": "an_int"}}},
        },
    },
}

TABLES = (
    *(f"CREATE TABLE keyed_{kind} (id {type_} PRIMARY KEY, name text)" for kind, (type_, _, _) in KEYS.items()),
    "CREATE TABLE keyed_composite (shop text, number int, name text, PRIMARY KEY (shop, number))",
    "CREATE TABLE composite_lines (line serial PRIMARY KEY, shop text, number int, what text)",
    "CREATE TABLE flagged (id int PRIMARY KEY, name text, is_deleted boolean)",
    "CREATE TABLE stamped (id int PRIMARY KEY, name text, deleted_at timestamptz)",
    "CREATE TABLE countries (id int PRIMARY KEY, name text)",
    "CREATE TABLE towns (id int PRIMARY KEY, name text, country_id int)",
    "CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, email text, nick text, town_id int, manager_id int)",
    "CREATE TABLE profiles (id int PRIMARY KEY, person_id int, motto text)",
    "CREATE TABLE orders (id int PRIMARY KEY, person_id int, total numeric(10,2))",
    "CREATE TABLE items (id int PRIMARY KEY, order_id int, what text, price numeric(10,2))",
    "CREATE TABLE tags (id int PRIMARY KEY, label text)",
    "CREATE TABLE people_tags (person_id int, tag_id int, PRIMARY KEY (person_id, tag_id))",
    "CREATE TABLE members (id int PRIMARY KEY, age int)",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE TABLE filtered (id int PRIMARY KEY, n int, note text, price numeric, made date, at timestamptz, mood mood)",
    (
        "CREATE TABLE typed (id int PRIMARY KEY, a_bool boolean, a_short int2, an_int int4, a_long int8, a_float real,"
        " a_double float8, a_decimal numeric(30, 10), a_date date, a_time timestamptz, a_uuid uuid, some_bytes bytea,"
        " a_json jsonb, a_mood mood, lat float8, lon float8, labels jsonb)"
    ),
)
ROWS = (
    "INSERT INTO flagged VALUES (1, 'here', false), (2, 'gone', true), (3, 'unknown', NULL)",
    "INSERT INTO stamped VALUES (1, 'here', NULL), (2, 'gone', now())",
    (
        "INSERT INTO filtered VALUES (1, 1, 'abc', 10.4, '2026-01-01', '2026-01-01Z', 'happy'),"
        " (2, 2, 'Abc', 10.5, '2026-01-02', '2026-01-02Z', 'sad'),"
        " (3, 3, 'xyz', 11, '2026-01-03', '2026-01-03Z', 'ok'),"
        " (4, 4, NULL, 100, '2026-01-04', '2026-01-04Z', 'ok')"
    ),
    "INSERT INTO countries VALUES (1, 'Utopia')",
    "INSERT INTO towns VALUES (1, 'Amaurot', 1)",
    "INSERT INTO people VALUES (1, 'Ada', ' Ada@X.org ', NULL, 1, NULL)",
)


class Search:
    """A running pipeline, its source, and what its index has."""

    def __init__(self, running: RunningPipeline, url: str, file: Path, server: OpenSearchServer, prefix: str) -> None:
        self.running, self.url, self.file, self._server, self._prefix = running, url, file, server, prefix

    def ask(self, path: str, method: str = "GET") -> Any:
        return self._server.ask(method, f"{self._prefix}{path}")

    def ids(self, index: str) -> set[str]:
        self.ask(f"{index}/_refresh", "POST")
        return {hit["_id"] for hit in self.ask(f"{index}/_search?size=1000&_source=false")["hits"]["hits"]}

    def find(self, index: str, id_: str) -> Any:
        """The document; None if there is none."""
        hits = self.ask(f"{index}/_search?size=1000")["hits"]["hits"]
        return next((hit["_source"] for hit in hits if hit["_id"] == id_), None)

    def run(self, *statements: str) -> None:
        execute(self.url, *statements)

    def wait(self, index: str, id_: str, **expected: Any) -> None:
        """Until a document is there and has these fields."""

        def is_so() -> bool:
            self.ids(index)
            found = self.find(index, id_)
            return found is not None and {name: found.get(name) for name in expected} == expected

        self.running.wait_for(is_so, f"{index} {id_} to have {expected}, and it is {self.find(index, id_)}")

    def wait_until_gone(self, index: str, id_: str) -> None:
        self.running.wait_for(lambda: id_ not in self.ids(index), f"{index} {id_} to be gone")


@pytest.fixture(scope="module")
def search(
    postgres_server: PostgresServer, opensearch_server: OpenSearchServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Search]:
    folder = tmp_path_factory.mktemp("flusso")
    prefix, name = f"flusso{os.getpid()}-", f"flusso_{os.getpid()}"
    url = postgres_server.create_database(name)
    execute(url, *TABLES, *ROWS)
    sink = {"url": opensearch_server.url, "prefix": prefix, "refresh_interval": "200ms", "replicas": 0}
    file = write_pipeline(folder, url, {"search": sink}, documents=DOCUMENTS, state=str(folder / "state"))
    with RunningPipeline(file) as running:
        running.wait_until_live(*(f"document.{name}" for name in DOCUMENTS))
        yield Search(running, url, file, opensearch_server, prefix)
        assert running.stop() == 0
    compared = tailrace("verify", file)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    postgres_server.drop_database(name)


@pytest.mark.parametrize("kind", KEYS)
def test_live_crud_round_trips_across_key_types(search: Search, kind: str) -> None:
    """flusso: live_crud_round_trips_across_key_types"""
    _, literal, id_ = KEYS[kind]
    index, row, key = f"keyed_{kind}", literal.format(7), id_.format(7)
    search.run(f"INSERT INTO {index} VALUES ({row}, 'first')")
    search.wait(index, key, name="first")
    search.run(f"UPDATE {index} SET name = 'second' WHERE id = {row}")
    search.wait(index, key, name="second")
    search.run(f"UPDATE {index} SET id = {literal.format(8)}")
    search.wait(index, id_.format(8), name="second")
    search.wait_until_gone(index, key)
    search.run(f"DELETE FROM {index}")
    search.wait_until_gone(index, id_.format(8))


def test_composite_keys_are_ids_and_join(search: Search) -> None:
    """flusso's limit: composite keys."""
    search.run(
        "INSERT INTO keyed_composite VALUES ('a:b', 1, 'one'), ('a', 2, 'two')",
        "INSERT INTO composite_lines (shop, number, what) VALUES ('a:b', 1, 'x'), ('a', 2, 'y'), ('a', 1, 'nobody')",
    )
    search.wait("keyed_composite", r"a\:b:1", name="one", lines=[{"what": "x"}])
    search.wait("keyed_composite", "a:2", name="two", lines=[{"what": "y"}])
    search.run("UPDATE composite_lines SET number = 2, shop = 'a' WHERE what = 'x'")
    search.wait("keyed_composite", r"a\:b:1", lines=[])
    search.wait("keyed_composite", "a:2", lines=[{"what": "x"}, {"what": "y"}])


def test_a_table_of_a_document_that_is_dropped_and_made_again_is_captured_again(search: Search) -> None:
    """flusso's limit: schema changes. Until the table is back the document says why it is not followed."""
    search.run("INSERT INTO keyed_composite VALUES ('dropped', 1, 'x')", "DROP TABLE composite_lines")
    search.running.wait_for(
        lambda: states(search.file)["search", "document.keyed_composite"][0] == "failed", "a document that failed"
    )
    search.run(
        "CREATE TABLE composite_lines (line serial PRIMARY KEY, shop text, number int, what text)",
        "INSERT INTO composite_lines (shop, number, what) VALUES ('dropped', 1, 'again')",
    )
    search.wait("keyed_composite", "dropped:1", lines=[{"what": "again"}])


@pytest.mark.parametrize(
    ("index", "deleted", "restored"),
    [
        ("flagged", "is_deleted = true", "is_deleted = false"),
        ("stamped", "deleted_at = now()", "deleted_at = NULL"),
    ],
)
def test_soft_delete_tombstones_when_set_and_restores_when_unset(
    search: Search, index: str, deleted: str, restored: str
) -> None:
    """flusso: soft_delete_tombstones_when_set_and_restores_when_unset"""
    search.run(f"UPDATE {index} SET {deleted} WHERE id = 1")
    search.wait_until_gone(index, "1")
    search.run(f"UPDATE {index} SET {restored} WHERE id = 1")
    search.wait(index, "1", name="here")


def test_backfill_indexes_active_rows_and_skips_soft_deleted(search: Search) -> None:
    """flusso: backfill_indexes_active_rows_and_skips_soft_deleted"""
    assert search.ids("flagged") == {"1", "3"}
    assert search.ids("stamped") == {"1"}


@pytest.mark.parametrize("op", OPERATORS)
def test_filters_every_operator(search: Search, op: str) -> None:
    """flusso: config_coverage, filters every operator, and by real type"""
    assert search.ids(f"filtered_{op}") == {str(each) for each in OPERATORS[op][1]}


def test_root_filters_are_entered_and_left(search: Search) -> None:
    """flusso: config_coverage, root filters"""
    search.run("INSERT INTO members VALUES (1, 17), (2, 18)")
    search.wait("adults", "2", age=18)
    search.run("UPDATE members SET age = 18 WHERE id = 1", "UPDATE members SET age = 3 WHERE id = 2")
    search.wait("adults", "1", age=18)
    search.wait_until_gone("adults", "2")


def test_rows_that_come_while_a_column_has_another_name_are_not_lost(search: Search) -> None:
    """flusso's limit: schema changes. Afterwards the catalog is as it was: only the stream tells of it."""
    renamed, back = "ALTER TABLE members RENAME id TO number", "ALTER TABLE members RENAME number TO id"
    search.run(f"BEGIN; {renamed}; INSERT INTO members VALUES (30, 30); {back}; COMMIT")
    search.wait("adults", "30", age=30)


def test_a_table_that_somebody_has_locked_holds_up_its_own_documents_only(search: Search) -> None:
    with psycopg.connect(search.url) as locking:
        locking.execute("LOCK TABLE towns IN ACCESS EXCLUSIVE MODE")
        search.run("UPDATE people SET nick = 'waited' WHERE id = 1", "INSERT INTO members VALUES (40, 40)")
        search.wait("adults", "40", age=40)
        assert states(search.file)["search", "document.people"][0] == "catch_up"
        locking.rollback()
    search.wait("people", "1", nick="waited")
    search.run("UPDATE people SET nick = NULL WHERE id = 1")
    search.wait("people", "1", nick="nobody")


def test_transforms_and_defaults(search: Search) -> None:
    """flusso: config_coverage, transforms and defaults"""
    search.wait("people", "1", name="Ada", email="ada@x.org", nick="nobody", orders=[], tags=[], profile=None)


def test_joins_every_arity_nested_and_through(search: Search) -> None:
    """flusso: config_coverage, joins every arity nested and through; reverse resolution direct, through, nested"""
    search.run("INSERT INTO people VALUES (10, 'Bo', NULL, 'b', 1, 1)")
    search.wait("people", "10", town={"name": "Amaurot", "country": {"name": "Utopia"}}, manager={"name": "Ada"})
    search.run(
        "INSERT INTO profiles VALUES (1, 10, 'onwards')",
        "INSERT INTO orders VALUES (1, 10, 5), (2, 10, 7.25)",
        "INSERT INTO items VALUES (1, 1, 'pen', 0.10), (2, 1, 'ink', 4.90)",
        "INSERT INTO tags VALUES (1, 'old'), (2, 'bold')",
        "INSERT INTO people_tags VALUES (10, 1), (10, 2)",
    )
    items = [{"id": 1, "what": "pen", "price": "0.10"}, {"id": 2, "what": "ink", "price": "4.90"}]
    found = _wait_for_orders(search, "10", 2)
    assert [each["id"] for each in found["orders"]] == [1, 2]
    assert [item["what"] for item in found["orders"][0]["items"]] == [item["what"] for item in items]
    assert found["orders"][1]["items"] == []
    search.wait("people", "10", profile={"motto": "onwards"}, tags=[{"label": "bold"}, {"label": "old"}])


def _wait_for_orders(search: Search, id_: str, count: int) -> Any:
    def has_all() -> bool:
        search.ids("people")
        found = search.find("people", id_)
        return (
            len(found["orders"]) == count
            and all("items" in order for order in found["orders"])
            and (count == 0 or sum(len(order["items"]) for order in found["orders"]) >= 2)
        )

    search.running.wait_for(has_all, f"{count} orders of {id_}")
    return search.find("people", id_)


def test_aggregates_every_op_and_through(search: Search) -> None:
    """flusso: config_coverage, aggregates every op and through"""
    search.run(
        "INSERT INTO people VALUES (20, 'Cy', NULL, 'c', NULL, NULL)",
        "INSERT INTO orders VALUES (20, 20, 1.50), (21, 20, 2.75), (22, 20, NULL)",
        "INSERT INTO tags VALUES (20, 'x')",
        "INSERT INTO people_tags VALUES (20, 20)",
    )
    search.wait("people", "20", order_count=3, order_ids=[20, 21, 22], tag_count=1, mean=2.125)
    found = search.find("people", "20")
    assert [float(found[name]) for name in ("spent", "least", "most")] == [4.25, 1.5, 2.75]
    search.run("DELETE FROM orders WHERE id IN (20, 21, 22)")
    search.wait("people", "20", order_count=0, order_ids=[], spent=None, least=None, most=None, mean=None)


def test_belongs_to_assembles_and_reverse_resolves(search: Search) -> None:
    """flusso: config_coverage, belongs_to assembles and reverse resolves, over several hops; deleted and made again"""
    search.run(
        "INSERT INTO countries VALUES (30, 'Here')",
        "INSERT INTO towns VALUES (30, 'Town', 30)",
        "INSERT INTO people VALUES (30, 'Di', NULL, 'd', 30, NULL)",
    )
    search.wait("people", "30", town={"name": "Town", "country": {"name": "Here"}})
    search.run("UPDATE countries SET name = 'There' WHERE id = 30")
    search.wait("people", "30", town={"name": "Town", "country": {"name": "There"}})
    search.run("DELETE FROM towns WHERE id = 30")
    search.wait("people", "30", town=None)
    search.run("INSERT INTO towns VALUES (30, 'Again', 30)")
    search.wait("people", "30", town={"name": "Again", "country": {"name": "There"}})


def test_a_deleted_child_leaves_its_parent(search: Search) -> None:
    """flusso's limit: a deleted child leaves the parent as it was."""
    search.run(
        "INSERT INTO people VALUES (40, 'Ed', NULL, 'e', NULL, NULL)",
        "INSERT INTO orders VALUES (40, 40, 1)",
        "INSERT INTO items VALUES (40, 40, 'a', 1), (41, 40, 'b', 1)",
    )
    search.wait("people", "40", order_count=1)
    search.run("DELETE FROM items WHERE id = 40")
    search.wait("people", "40", orders=[{"id": 40, "items": [_item(search, "40", 41)]}])
    search.run("DELETE FROM orders WHERE id = 40")
    search.wait("people", "40", orders=[], order_count=0)


def _item(search: Search, person: str, number: int) -> Any:
    """An item as the document has it."""
    search.running.wait_for(lambda: search.find("people", person) is not None, "the document")
    orders = search.find("people", person)["orders"]
    return next(item for order in orders for item in order["items"] if item["id"] == number)


def test_a_moved_child_is_in_its_new_parent_only(search: Search) -> None:
    """flusso's limit: a moved child leaves a copy behind."""
    search.run(
        "INSERT INTO people VALUES (50, 'Flo', NULL, 'f', NULL, NULL), (51, 'Gus', NULL, 'g', NULL, NULL)",
        "INSERT INTO orders VALUES (50, 50, 1), (51, 51, 1)",
        "INSERT INTO items VALUES (50, 50, 'a', 1)",
    )
    search.wait("people", "50", order_ids=[50])
    search.run("UPDATE orders SET person_id = 51 WHERE id = 50")
    search.wait("people", "50", orders=[], order_ids=[])
    search.wait("people", "51", order_ids=[50, 51])
    search.run("UPDATE items SET order_id = 51 WHERE id = 50")
    search.running.wait_for(
        lambda: [len(order["items"]) for order in _refreshed(search, "51")["orders"]] == [0, 1], "the item to move"
    )


def _refreshed(search: Search, id_: str) -> Any:
    search.ids("people")
    return search.find("people", id_)


def test_a_junction_row_that_changes_changes_both_sides(search: Search) -> None:
    search.run(
        "INSERT INTO people VALUES (60, 'Hal', NULL, 'h', NULL, NULL), (61, 'Ivy', NULL, 'i', NULL, NULL)",
        "INSERT INTO tags VALUES (60, 'p'), (61, 'q')",
        "INSERT INTO people_tags VALUES (60, 60)",
    )
    search.wait("people", "60", tags=[{"label": "p"}], tag_count=1)
    search.run("UPDATE people_tags SET person_id = 61, tag_id = 61 WHERE person_id = 60")
    search.wait("people", "60", tags=[], tag_count=0)
    search.wait("people", "61", tags=[{"label": "q"}], tag_count=1)
    search.run("UPDATE tags SET label = 'r' WHERE id = 61")
    search.wait("people", "61", tags=[{"label": "r"}])
    search.run("DELETE FROM people_tags WHERE person_id = 61")
    search.wait("people", "61", tags=[], tag_count=0)


def test_self_references_are_followed(search: Search) -> None:
    """flusso's limit: a table that refers to itself."""
    search.run(
        "INSERT INTO people VALUES (70, 'Jo', NULL, 'j', NULL, NULL), (71, 'Kim', NULL, 'k', NULL, 70)",
        "UPDATE people SET name = 'Joan' WHERE id = 70",
    )
    search.wait("people", "71", manager={"name": "Joan"})
    search.run("DELETE FROM people WHERE id = 70")
    search.wait("people", "71", manager=None)


def test_a_key_of_a_parent_that_changes_takes_its_document_along(search: Search) -> None:
    search.run(
        "INSERT INTO people VALUES (80, 'Lu', NULL, 'l', NULL, NULL)",
        "INSERT INTO orders VALUES (80, 81, 1)",
        "UPDATE people SET id = 81 WHERE id = 80",
    )
    search.wait("people", "81", order_ids=[80])
    search.wait_until_gone("people", "80")


def test_column_types(search: Search) -> None:
    """flusso: config_coverage, column types"""
    search.run(
        "INSERT INTO typed VALUES (1, true, 1, 2, 9007199254740993, 1.5, 2.5, 12345678901234567890.0123456789,"
        " '2026-02-28', '2026-02-28 12:00:00.123456+01', '00000000-0000-4000-8000-000000000001', '\\x00ff',"
        """ '{"a": [1, {"b": null}]}', 'happy', 52.5, 13.4, '{"en": "x", "de": "y"}')"""
    )
    search.wait("typed", "1", a_bool=True, an_int=2, a_uuid="00000000-0000-4000-8000-000000000001")
    found = search.find("typed", "1")
    assert (found["a_long"], found["some_bytes"], found["a_mood"]) == (9007199254740993, "AP8=", "happy")
    assert (found["a_json"], found["both"], found["kind"]) == ({"a": [1, {"b": None}]}, {"again": 2}, "typed")
    assert str(found["a_date"]).startswith("2026-02-28")
    assert found["labels"] == {"en": "x", "de": "y"}


@pytest.mark.parametrize("table", ["orders", "people_tags"])
def test_truncated_children_leave_their_parents(search: Search, table: str) -> None:
    """flusso's limit: TRUNCATE only logs. Documents without such rows are not written."""
    search.run(
        "INSERT INTO people VALUES (90, 'Mo', NULL, 'm', NULL, NULL) ON CONFLICT DO NOTHING",
        "INSERT INTO orders VALUES (90, 90, 1) ON CONFLICT DO NOTHING",
        "INSERT INTO tags VALUES (90, 'z') ON CONFLICT DO NOTHING",
        "INSERT INTO people_tags VALUES (90, 90) ON CONFLICT DO NOTHING",
    )
    search.wait("people", "90", order_count=1, tag_count=1)
    versions = _versions(search, "people")
    search.run(f"TRUNCATE {table}")
    search.wait("people", "90", **({"orders": [], "order_count": 0} if table == "orders" else {"tags": []}))
    assert _versions(search, "people")["1"] == versions["1"]  # it has none


def _versions(search: Search, index: str) -> dict[str, int]:
    search.ids(index)
    hits = search.ask(f"{index}/_search?size=1000&_source=false&version=true")["hits"]["hits"]
    return {hit["_id"]: hit["_version"] for hit in hits}


def test_a_truncated_root_has_no_documents(search: Search) -> None:
    search.run("INSERT INTO members VALUES (100, 50)")
    search.wait("adults", "100", age=50)
    search.run("TRUNCATE members", "INSERT INTO members VALUES (101, 51)")
    search.wait("adults", "101", age=51)
    assert search.ids("adults") == {"101"}


def test_reindex_swaps_generations_and_drops_the_old(search: Search) -> None:
    """flusso: reindex swaps generations and drops the old"""
    search.run("INSERT INTO keyed_int VALUES (5, 'kept')")
    search.wait("keyed_int", "5", name="kept")
    before = set(search.ask("keyed_int"))
    asked = tailrace("reindex", "keyed_int", search.file)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    search.running.wait_for(lambda: set(search.ask("keyed_int")) != before, "another generation")
    after = set(search.ask("keyed_int"))
    assert len(after) == 1
    assert search.ids("keyed_int") == {"5"}
    search.running.wait_for(lambda: before.isdisjoint(search.ask("*")), "the old one to be dropped")
    search.running.wait_for(lambda: states(search.file)["search", "document.keyed_int"][0] == "live", "it to be live")
    search.run("UPDATE keyed_int SET name = 'changed'")
    search.wait("keyed_int", "5", name="changed")
