"""Rows that go from PostgreSQL into PostgreSQL as they are: the same rows as those that were taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace import config, registry
from tailrace.model.lifecycle import TableState
from tailrace.model.rows import EncodedRows
from tailrace.sinks.base import ChunkMark
from tailrace.testing.postgres import PostgresServer
from tailrace.testing.sink_changes import same, status

pytestmark = pytest.mark.server

SAME = {
    "a": ("boolean", "true", "false"),
    "b": ("smallint", "-32768", "1"),
    "c": ("bigint", "9223372036854775807", "0"),
    "d": ("oid", "4294967295", "0"),
    "e": ("real", "'NaN'", "0.1"),
    "f": ("double precision", "'-Infinity'", "5e-324"),
    "g": ("numeric", "'NaN'", "1e-500"),
    "h": ("numeric(12,2)", "-9999999999.99", "0.10"),
    "i": ("numeric(40,2)", "99999999999999999999999999999999999999.99", "0"),
    "j": ("text", "'d'", "repeat('dü', 50000)"),
    "k": ("character varying(20)", "''", "'日本語'"),
    "l": ("character(5)", "'abc'", "'日本'"),
    "m": ("name", "'a_name'", "'b'"),
    "n": ("bytea", r"'\x6400'", r"decode(repeat('64000000', 9000), 'hex')"),
    "o": ("uuid", "'00000000-0000-0000-0000-000000000000'", "'6BA7B810-9DAD-11D1-80B4-00C04FD430C8'"),
    "p": ("date", "'infinity'", "'0044-03-15 BC'"),
    "q": ("time without time zone", "'24:00:00'", "'00:00:00.000001'"),
    "r": ("time with time zone", "'24:00:00-15:59:59'", "'12:00+05:30'"),
    "s": ("timestamp(3) without time zone", "'2024-02-29 23:59:59.999'", "'-infinity'"),
    "t": ("timestamp with time zone", "'294247-01-10 04:00:54+00'", "'2024-02-29 23:59:59.999999+05:30'"),
    "u": ("interval", "'1 year -1 day 30:00:00'", "'-178000000 years'"),
    "v": ("json", "'{\"a\" :  [1, 2.50]}'", "'null'"),
    "x": ("a_domain", "'q'", "''"),
    "w": ("jsonb", "'{\"a\" :  [1, 2.50]}'", "'1e400'"),
}
OTHER = ("integer[]", '"char"', "inet", "mood", "money", "point", "mood[]")


@pytest.fixture
def source_url(postgres_server: PostgresServer) -> Iterator[str]:
    yield postgres_server.create_database("encoded_source")
    postgres_server.drop_database("encoded_source")


@pytest.fixture
def pipeline(source_url: str, postgres_url: str) -> config.Pipeline:
    source = config.Source(source_url, ("*.*",))
    return config.Pipeline("encoded", source, {"sink": config.Sink(postgres_url, columns={"public.moved": {"a": "z"}})})


def copied(pipeline: config.Pipeline, source: Any, name: str, *, times: int = 1) -> tuple[list[Any], list[Any]]:
    """What the sink has of a table after its chunks were loaded as they were, and what it should have."""
    with closing(registry.make_sink(pipeline, "sink")) as sink:
        return _copied(sink, source, name, times)


def _copied(sink: Any, source: Any, name: str, times: int) -> tuple[list[Any], list[Any]]:
    schema = next(schema for schema in source.tables() if schema.name == name)
    with source.export_snapshot() as snapshot:
        for generation in range(1, times + 1):
            chunks = source.plan_snapshot(schema, 65_536)
            marks = [ChunkMark(generation, c) for c in chunks]
            sink.begin_snapshot(status(schema, TableState.SNAPSHOT), marks, clear=generation == 1)
            for chunk, mark in zip(chunks, marks, strict=True):
                rows = list(source.read_chunk(schema, chunk, snapshot.id, sink.chunk_form(schema)))
                assert all(isinstance(each, EncodedRows) for each in rows)
                assert sink.load_chunk(schema, mark, iter(rows)) == sum(each.num_rows for each in rows)
            sink.finish_snapshot(status(schema, TableState.SNAPSHOT))
        decoded = [batch for chunk in chunks for batch in source.read_chunk(schema, chunk, snapshot.id)]
    expected = pa.Table.from_batches(decoded).combine_chunks().to_batches()[0]
    return [row for part in sink.read_table(schema) for row in part], sink.expected_rows(schema, expected)


@contextmanager
def prepared(pipeline: config.Pipeline, *statements: str) -> Iterator[Any]:
    with psycopg.connect(pipeline.source.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
    source: Any = registry.make_source(pipeline)
    source.prepare()
    yield source
    source.drop()


def test_every_type_that_keeps_its_form_arrives_as_it_is(pipeline: config.Pipeline) -> None:
    columns = ", ".join(f"{name} {type_}" for name, (type_, *_) in SAME.items())
    one, other = (", ".join(values[place] for values in SAME.values()) for place in (1, 2))
    with prepared(
        pipeline,
        "CREATE DOMAIN a_domain AS text",
        f"CREATE TABLE typed (id int PRIMARY KEY, {columns})",
        f"INSERT INTO typed SELECT n, {one} FROM generate_series(1, 300) n",
        f"INSERT INTO typed SELECT n, {other} FROM generate_series(301, 320) n",
        "INSERT INTO typed (id) SELECT n FROM generate_series(321, 1500) n",
    ) as source:
        found, expected = copied(pipeline, source, "typed")
        assert len(found) == 1500
        assert same(found, expected)


def test_chunks_come_twice_and_under_other_names(pipeline: config.Pipeline) -> None:
    with prepared(
        pipeline,
        "CREATE TABLE moved (id int PRIMARY KEY, a text, gone int)",
        "INSERT INTO moved SELECT n, repeat('x', n % 300), n FROM generate_series(1, 5000) n",
        "ALTER TABLE moved DROP COLUMN gone",
    ) as source:
        found, expected = copied(pipeline, source, "moved", times=2)
        assert same(found, expected)


@pytest.mark.parametrize("type_", OTHER)
def test_a_type_that_does_not_keep_its_form_is_taken_apart(pipeline: config.Pipeline, type_: str) -> None:
    with prepared(
        pipeline,
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        f"CREATE TABLE other (id int PRIMARY KEY, v {type_})",
    ) as source:
        schema = source.tables()[0]
        assert not registry.make_sink(pipeline, "sink").chunk_form(schema)
