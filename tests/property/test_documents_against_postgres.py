"""Documents against PostgreSQL: random trees of tables, where plain SQL says what every document is.

Each seed is a world of its own: `pytest -k 'seed-17'` makes it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from support.document_memory import Memory, news
from support.document_worlds import FUNCTIONS, World, canonical, documents_query, learn_keys, parsed
from tailrace import config
from tailrace.documents.build import build
from tailrace.documents.touch import TOUCHES, resolve, touches
from tailrace.documents.tree import Tree, tree_of
from tailrace.sources.postgres.source import PostgresSource

pytestmark = [pytest.mark.server]

FIRST, COUNT = (
    int(os.environ.get(f"TAILRACE_DOCUMENT_{name}", usual)) for name, usual in (("FIRST", "0"), ("SEEDS", "12"))
)
FOUND = {343: "a truncated table without a key"}
"""Seeds that have found something."""
seeds = pytest.mark.parametrize(
    "seed", [pytest.param(seed, id=f"seed-{seed}") for seed in dict.fromkeys([*range(FIRST, FIRST + COUNT), *FOUND])]
)

ROUNDS = 12
Documents = dict[tuple[str, ...], Any]


def by_sql(connection: psycopg.Connection[Any], world: World, tree: Tree) -> Documents:
    rows = connection.execute(documents_query(world.document, tree.key).encode()).fetchall()
    return {tuple(trimmed(part) for part in key): canonical(parsed(text)) for text, *key in rows}


def trimmed(text: str) -> str:
    """The one numeric key that has a zero to lose."""
    return "3.5" if text == "3.50" else text


def opened(documents: pa.RecordBatch) -> Documents:
    rows = zip(documents.column("key").to_pylist(), documents.column("document").to_pylist(), strict=True)
    return {tuple(key): canonical(parsed(text)) for key, text in rows}


def all_keys(connection: psycopg.Connection[Any], world: World, tree: Tree) -> pa.RecordBatch:
    names = ", ".join(f"{name}::text" for name in tree.key)
    rows = connection.execute(f"SELECT {names} FROM {world.root.name}".encode()).fetchall()
    columns = [pa.array([trimmed(row[place]) for row in rows], pa.string()) for place in range(len(tree.key))]
    return pa.RecordBatch.from_arrays(columns, names=list(tree.key))


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as opened_connection:
        opened_connection.execute(FUNCTIONS.encode())
        yield opened_connection


@seeds
def test_every_document_is_the_one_that_sql_builds(
    postgres_url: str, connection: psycopg.Connection[Any], seed: int
) -> None:
    world = World(seed)
    world.create(connection)
    learn_keys(world)
    source = PostgresSource(config.Pipeline("under_test", config.Source(postgres_url, ("public.*",)), {}))
    tree = tree_of("things", world.document, {schema.table: schema for schema in source.readable()})
    expected = by_sql(connection, world, tree)
    with source.export_snapshot() as snapshot, source.reader(snapshot.id) as read:
        keys = all_keys(connection, world, tree)
        built = build(tree, keys, read)
        whole = build(tree, keys, read, next(iter(source.read_all(tree.root.schema, snapshot.id))))
    assert opened(built.documents) == expected
    assert len(built.absent) == keys.num_rows - len(expected)
    assert opened(whole.documents) == expected
    assert sorted(whole.absent.to_pylist()) == sorted(built.absent.to_pylist())


@seeds
def test_what_changes_touch_is_enough_to_keep_every_document_right(
    postgres_url: str, connection: psycopg.Connection[Any], seed: int
) -> None:
    world = World(seed)
    world.create(connection)
    learn_keys(world)
    source = PostgresSource(config.Pipeline("under_test", config.Source(postgres_url, ("public.*",)), {}))
    start = source.prepare()
    tree = tree_of("things", world.document, {schema.table: schema for schema in source.tables()})
    memory, nothing = Memory(), pa.RecordBatch.from_pylist([], schema=TOUCHES)
    with source.export_snapshot() as snapshot, source.reader(snapshot.id) as read:
        memory.apply(build(tree, all_keys(connection, world, tree), read))
    with closing(source.capture(start, 0, {}, source.identify())) as stream:
        for number in range(ROUNDS):
            for _ in range(world.chance.choice([1, 2, 5])):
                transaction(connection, world)
            touched = pa.concat_batches([nothing, *(touches(tree, each) for each in news(source, stream, tree))])
            with source.export_snapshot() as snapshot, source.reader(snapshot.id) as read:
                for keys in resolve(tree, touched, read, memory):
                    memory.apply(build(tree, keys, read))
            assert memory.opened() == by_sql(connection, world, tree), f"round {number}"
    source.drop()


def transaction(connection: psycopg.Connection[Any], world: World) -> None:
    try:
        with connection.transaction():
            for _ in range(world.chance.choice([1, 1, 3])):
                connection.execute(world.change().encode())
    except psycopg.errors.UniqueViolation:
        return
