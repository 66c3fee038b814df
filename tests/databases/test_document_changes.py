"""What a change of a real database does to documents: those that must be built anew are, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from support.document_memory import Memory, news
from tailrace import config
from tailrace.config import documents as d
from tailrace.config.conditions import Filter, Op, OrderBy, SoftDelete
from tailrace.documents.build import build
from tailrace.documents.touch import TOUCHES, resolve, touches
from tailrace.documents.tree import tree_of
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing.postgres import PostgresServer

pytestmark = [pytest.mark.server]

TABLES = """
CREATE TABLE countries (code text PRIMARY KEY, name text);
CREATE TABLE cities (id int PRIMARY KEY, name text, country text);
CREATE TABLE users (id int PRIMARY KEY, name text, city_id bigint, boss_id int, deleted_at timestamptz, note text);
CREATE TABLE orders (id bigint PRIMARY KEY, user_id int, state text, total numeric);
CREATE TABLE items (order_id int, line int, sku text, PRIMARY KEY (order_id, line));
CREATE TABLE tags (id int PRIMARY KEY, label text);
CREATE TABLE user_tags (id int PRIMARY KEY, user_id int, tag_id int);
CREATE TABLE visits (user_id int, page text, ignored int);
ALTER TABLE visits REPLICA IDENTITY FULL;
ALTER TABLE users ALTER note SET STORAGE EXTERNAL;
ALTER TABLE orders ADD code text UNIQUE NOT NULL DEFAULT gen_random_uuid();
ALTER TABLE users ADD code text UNIQUE NOT NULL DEFAULT gen_random_uuid();
"""
ROWS = """
TRUNCATE countries, cities, users, orders, items, tags, user_tags, visits;
INSERT INTO countries VALUES ('de', 'Germany'), ('fr', 'France');
INSERT INTO cities VALUES (1, 'Bonn', 'de'), (2, 'Lyon', 'fr');
INSERT INTO users VALUES (1, 'ann', 1, NULL), (2, 'bob', 1, 1), (3, 'eve', 2, 2);
INSERT INTO users VALUES (4, 'joe', NULL, NULL, now());
INSERT INTO orders VALUES (10, 1, 'open', 1.5), (11, 1, 'void', 2), (12, 2, 'open', 3);
INSERT INTO items VALUES (10, 1, 'a'), (12, 1, 'b'), (12, 2, 'c');
INSERT INTO tags VALUES (7, 'new'), (8, 'old');
INSERT INTO user_tags VALUES (100, 1, 7), (101, 2, 7), (102, 3, 8);
INSERT INTO visits VALUES (1, '/'), (1, '/'), (2, '/a');
"""

DOCUMENT = d.Document(
    table="users",
    soft_delete=SoftDelete("deleted_at"),
    fields={
        "name": d.Keyword(),
        "note": d.Text(),
        "city": d.BelongsTo(
            table="cities",
            column=("city_id",),
            fields={
                "name": d.Keyword(),
                "country": d.BelongsTo(table="countries", column=("country",), fields={"name": d.Keyword()}),
            },
        ),
        "boss": d.BelongsTo(table="users", column=("boss_id",), fields={"name": d.Keyword()}),
        "orders": d.HasMany(
            table="orders",
            foreign_key=("user_id",),
            filters=(Filter("state", Op.NEQ, "void"),),
            order_by=(OrderBy("total"),),
            fields={
                "total": d.Decimal(),
                "items": d.HasMany(table="items", foreign_key=("order_id",), fields={"sku": d.Keyword()}),
            },
        ),
        "spent": d.Sum(table="orders", foreign_key=("user_id",), column="total"),
        "tags": d.ManyToMany(
            table="tags",
            through=d.Through(table="user_tags", left_key=("user_id",), right_key=("tag_id",)),
            fields={"label": d.Keyword()},
        ),
        "visits": d.HasMany(table="visits", foreign_key=("user_id",), fields={"page": d.Keyword()}),
    },
)


class Kept:
    """Documents that follow their tables."""

    def __init__(self, url: str) -> None:
        self.source = PostgresSource(config.Pipeline("under_test", config.Source(url, ("public.*",)), {}))
        start = self.source.prepare()
        schemas = {schema.table: schema for schema in self.source.tables()}
        self.tree = tree_of("users", DOCUMENT, schemas)
        self.memory = Memory()
        self.stream = self.source.capture(start, 0, {}, self.source.identify())
        self._build(pa.RecordBatch.from_arrays([pa.array(["1", "2", "3", "4"])], names=["id"]))

    def _build(self, keys: pa.RecordBatch) -> None:
        with self.source.export_snapshot() as snapshot, self.source.reader(snapshot.id) as read:
            self.memory.apply(build(self.tree, keys, read))

    def follow(self) -> set[str]:
        """Which documents were built anew, or deleted."""
        nothing = pa.RecordBatch.from_pylist([], schema=TOUCHES)
        changes = list(news(self.source, self.stream, self.tree))
        touched = pa.concat_batches([nothing, *(touches(self.tree, each) for each in changes)])
        found: set[str] = set()
        with self.source.export_snapshot() as snapshot, self.source.reader(snapshot.id) as read:
            for keys in resolve(self.tree, touched, read, self.memory):
                found.update(keys.column("id").to_pylist())
                self.memory.apply(build(self.tree, keys, read))
        return found

    def fresh(self) -> dict[Any, Any]:
        """All documents as they are built from nothing."""
        memory, self.memory = self.memory, Memory()
        self._build(pa.RecordBatch.from_arrays([pa.array([str(n) for n in range(1, 10)])], names=["id"]))
        memory, self.memory = self.memory, memory
        return memory.opened()


@pytest.fixture(scope="module")
def followed(postgres_server: PostgresServer) -> Iterator[tuple[psycopg.Connection[Any], Kept]]:
    """One database for all cases."""
    name = f"document_changes_{os.getpid()}"
    url = postgres_server.create_database(name)
    with psycopg.connect(url, autocommit=True) as opened:
        opened.execute((TABLES + ROWS).encode())
        kept = Kept(url)
        with closing(kept.stream):
            yield opened, kept
        kept.source.drop()
    postgres_server.drop_database(name)


@pytest.fixture
def connection(followed: tuple[psycopg.Connection[Any], Kept]) -> psycopg.Connection[Any]:
    return followed[0]


@pytest.fixture
def kept(followed: tuple[psycopg.Connection[Any], Kept]) -> Kept:
    """With the rows that each case begins with."""
    connection, kept = followed
    connection.execute(ROWS.encode())
    kept.follow()
    assert kept.memory.opened() == kept.fresh()
    assert sorted(kept.memory.documents) == ["1", "2", "3"]
    return kept


def by_code(table: str, statement: str) -> str:
    """A change whose old rows the server names by another key than it does before and after."""
    named, usual = f"REPLICA IDENTITY USING INDEX {table}_code_key", "REPLICA IDENTITY DEFAULT"
    return in_one(f"ALTER TABLE {table} {named}", statement, f"ALTER TABLE {table} {usual}")


def in_one(*statements: str) -> str:
    """A transaction."""
    return "; ".join(["BEGIN", *statements, "COMMIT"])


CASES: dict[str, tuple[str, set[str]]] = {
    "a row of the root": ("UPDATE users SET name = 'x' WHERE id = 3", {"3"}),
    "a row of the root that others point to": ("UPDATE users SET name = 'x' WHERE id = 1", {"1", "2"}),
    "a new row of the root": ("INSERT INTO users VALUES (5, 'new', 1)", {"5"}),
    "a deleted row of the root": ("DELETE FROM users WHERE id = 3", {"3"}),
    "the root's key": ("UPDATE users SET id = 6 WHERE id = 3", {"3", "6"}),
    "soft deletion": ("UPDATE users SET deleted_at = now() WHERE id = 3", {"3"}),
    "restored": ("UPDATE users SET deleted_at = NULL WHERE id = 4", {"4"}),
    "a child": ("UPDATE orders SET total = 9 WHERE id = 10", {"1"}),
    "a new child": ("INSERT INTO orders VALUES (13, 3, 'open', 5)", {"3"}),
    "a deleted child": ("DELETE FROM orders WHERE id = 12", {"2"}),
    "a moved child": ("UPDATE orders SET user_id = 3 WHERE id = 10", {"1", "3"}),
    "a child that leaves": ("UPDATE orders SET user_id = NULL WHERE id = 10", {"1"}),
    "a child that enters the filter": ("UPDATE orders SET state = 'open' WHERE id = 11", {"1"}),
    "a child that leaves the filter": ("UPDATE orders SET state = 'void' WHERE id = 10", {"1"}),
    "a child's key": ("UPDATE orders SET id = 20 WHERE id = 12", {"2"}),
    "a grandchild": ("UPDATE items SET sku = 'x' WHERE line = 2", {"2"}),
    "a deleted grandchild": ("DELETE FROM items WHERE line = 2", {"2"}),
    "a moved grandchild": ("UPDATE items SET order_id = 10, line = 5 WHERE line = 2", {"1", "2"}),
    "a grandchild of nobody": ("INSERT INTO items VALUES (99, 1, 'z')", set()),
    "a child of nobody": ("INSERT INTO orders VALUES (14, NULL, 'open', 1)", set()),
    "a target": ("UPDATE cities SET name = 'x' WHERE id = 1", {"1", "2"}),
    "a target's target": ("UPDATE countries SET name = 'x' WHERE code = 'fr'", {"3"}),
    "a deleted target": ("DELETE FROM cities WHERE id = 2", {"3"}),
    "a target that is made again": ("DELETE FROM cities WHERE id = 2; INSERT INTO cities VALUES (2, 'y', 'de')", {"3"}),
    "a target's key": ("UPDATE cities SET id = 5 WHERE id = 2", {"3"}),
    "a target that nobody has": ("INSERT INTO cities VALUES (9, 'z', 'de')", set()),
    "the far side of a junction": ("UPDATE tags SET label = 'x' WHERE id = 7", {"1", "2"}),
    "a deleted far side": ("DELETE FROM tags WHERE id = 8", {"3"}),
    "a new junction row": ("INSERT INTO user_tags VALUES (110, 3, 7)", {"3"}),
    "a deleted junction row": ("DELETE FROM user_tags WHERE id = 102", {"3"}),
    "a moved junction row": ("UPDATE user_tags SET user_id = 3 WHERE id = 100", {"1", "3"}),
    "a junction row of another far side": ("UPDATE user_tags SET tag_id = 8 WHERE id = 100", {"1"}),
    "a row without a key": ("UPDATE visits SET page = '/x' WHERE user_id = 2", {"2"}),
    "a deleted row without a key": ("DELETE FROM visits WHERE user_id = 2", {"2"}),
    "a moved row without a key": ("UPDATE visits SET user_id = 3 WHERE user_id = 2", {"2", "3"}),
    "a column that no document has": ("UPDATE visits SET ignored = 5", set()),
    "a truncated child": ("TRUNCATE orders", {"1", "2"}),
    "a truncated grandchild": ("TRUNCATE items", {"1", "2"}),
    "a truncated target": ("TRUNCATE countries", {"1", "2", "3"}),
    "a truncated junction": ("TRUNCATE user_tags", {"1", "2", "3"}),
    "a truncated root": ("TRUNCATE users", {"1", "2", "3"}),
    "a truncated table without a key": ("TRUNCATE visits", {"1", "2"}),
    "a deleted child that was named by another key": (
        by_code("orders", "DELETE FROM orders WHERE id = 12"),
        {"1", "2"},
    ),
    "a child's key while it was named by another": (
        by_code("orders", "UPDATE orders SET id = 20, user_id = 3 WHERE id = 12"),
        {"1", "2", "3"},
    ),
    "a deleted row of the root that was named by another key": (
        by_code("users", "DELETE FROM users WHERE id = 3"),
        {"1", "2", "3"},
    ),
    "a deleted row that had a key for a time": (
        in_one(
            "DELETE FROM visits WHERE user_id = 1",
            "ALTER TABLE visits ADD PRIMARY KEY (page), REPLICA IDENTITY DEFAULT",
            "DELETE FROM visits",
            "ALTER TABLE visits DROP CONSTRAINT visits_pkey, ALTER page DROP NOT NULL, REPLICA IDENTITY FULL",
        ),
        {"1", "2"},
    ),
    "many of one document": (
        "UPDATE items SET sku = 'x' WHERE order_id = 12; UPDATE orders SET total = 0 WHERE id = 12",
        {"2"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_touches_the_documents_that_it_changes(
    connection: psycopg.Connection[Any], kept: Kept, case: str
) -> None:
    statements, expected = CASES[case]
    before = kept.memory.opened()
    connection.execute(statements.encode())
    assert kept.follow() == expected
    now = kept.fresh()
    assert kept.memory.opened() == now
    changed = {key[0] for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    assert changed <= expected


def test_a_large_value_that_was_not_sent_again_stays(connection: psycopg.Connection[Any], kept: Kept) -> None:
    connection.execute("UPDATE users SET note = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)")
    assert kept.follow() >= {"1", "2", "3"}
    connection.execute("UPDATE users SET name = 'x' WHERE id = 3")
    assert kept.follow() == {"3"}
    assert kept.memory.opened() == kept.fresh()
    assert len(kept.memory.opened()[("3",)]["note"]) == 400 * 32
