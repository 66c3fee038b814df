"""Rows by the values of their columns, as one snapshot sees them: the server is asked, and compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tailrace import config
from tailrace.columns.plain import rows_of
from tailrace.documents.keys import key_texts
from tailrace.errors import SourceRefused, SourceUnavailable
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema
from tailrace.sources.base import TableLocked, TableRewritten
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.server]


def source_of(url: str) -> PostgresSource:
    return PostgresSource(config.Pipeline("under_test", config.Source(url, ("public.*",)), {}))


@contextmanager
def reading(url: str) -> Iterator[tuple[ReadRows, dict[str, TableSchema]]]:
    source = source_of(url)
    with source.export_snapshot() as snapshot, source.reader(snapshot.id) as read:
        yield read, {schema.table: schema for schema in source.readable()}


def values(*columns: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(c, pa.string()) for c in columns], names=[f"v{i}" for i in range(len(columns))]
    )


TYPES = {
    "smallint": ["-32768", "0", "7"],
    "integer": ["-2147483648", "0", "7"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "7"],
    "boolean": ["true", "false"],
    "real": ["0.1", "-1.5", "NaN"],
    "double precision": ["0.1", "1e+300", "-Infinity"],
    "numeric": ["1.50", "1e40", "NaN", "0.000001"],
    "numeric(12,2)": ["1.50", "-7", "120.00", "0.05"],
    "text": ["", "a,b", "{x}", '"', "'", "\\", "\\\\\"'{}", "ü 日本 😀", "NULL", "a\nb", " x "],
    "character varying(20)": ["{", "a'b"],
    "character(6)": ["ab", "a  b"],
    "bytea": ["\\x", "\\x00ff5c", "\\x61"],
    "uuid": ["8d1d5d2f-6f0b-4c57-9d3a-0d0b9ff3f5c1", "00000000-0000-0000-0000-000000000000"],
    "date": ["2024-02-29", "0044-03-15 BC", "infinity"],
    "time": ["23:59:59.5", "24:00:00"],
    "time with time zone": ["12:00:00+05:30"],
    "timestamp": ["2024-02-29 23:59:59.123456", "0044-03-15 00:00:00 BC", "-infinity"],
    "timestamp(0)": ["2024-02-29 23:59:59"],
    "timestamptz": ["2024-02-29 23:59:59.5+02", "0044-03-15 00:00:00+00 BC"],
    "interval": ["1 day -02:00:00", "1 year"],
    "mood": ["sad", "so so", 'ha"ppy'],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1"],
    "integer[]": ["{1,2,NULL}", "{}", "{{1,2},{3,4}}"],
    "text[]": ['{"a,b","{x}",NULL}'],
    "jsonb": ['{"a": [1, "x"]}'],
    "oid": ["1", "4294967295"],
    '"char"': ["x"],
    "name": ["pg"],
    "int4range": ["[1,5)"],
}


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_finds_its_own_values_by_their_texts(postgres_url: str, type_: str) -> None:
    texts = TYPES[type_]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'so so', 'ha\"ppy', 'other')")
        connection.execute(f"CREATE TABLE t (n int PRIMARY KEY, v {type_}); INSERT INTO t VALUES (-1, NULL)".encode())
        connection.cursor().executemany(
            f"INSERT INTO t VALUES (%s, %s::text::{type_})".encode(), list(enumerate(texts))
        )
    with reading(postgres_url) as (read, tables):
        schema = tables["public.t"]
        everything = read(schema, ("n",), values([str(n) for n in range(len(texts))]), ("v",))
        keys = key_texts(everything.column("v"), schema.columns[1].type)
        assert everything.num_rows == len(texts)
        for each in keys.to_pylist():
            found = read(schema, ("v",), values([each]), ("n",))
            assert key_texts(found.column("v"), schema.columns[1].type).to_pylist() == [each]
        by_both = read(
            schema,
            ("v", "n"),
            pa.RecordBatch.from_arrays([keys, everything.column("n").cast(pa.string())], names=["a", "b"]),
            (),
        )
        assert sorted(by_both.column("n").to_pylist()) == list(range(len(texts)))


def test_many_values_are_one_question(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE t (a bigint, b text, c int, PRIMARY KEY (a, b))")
    execute(postgres_url, "INSERT INTO t SELECT n, 'k\"' || n, n % 10 FROM generate_series(1, 30000) n")
    wanted = [str(n) for n in range(-10_000, 10_000)]
    with reading(postgres_url) as (read, tables):
        table = tables["public.t"]
        assert sorted(read(table, ("a",), values(wanted), ()).column("a").to_pylist()) == list(range(1, 10_000))
        pairs = values([str(n) for n in range(20_000)], [f'k"{n}' for n in range(20_000)])
        assert read(table, ("a", "b"), pairs, ("c",)).schema.names == ["c", "a", "b"]
        assert read(table, ("a", "b"), pairs, ("c",)).num_rows == 19_999
        assert read(table, ("c",), values(["3", "3", "3"]), ("a",)).num_rows == 3000  # each row once


def test_a_value_that_the_column_can_not_have_is_of_no_row(postgres_url: str) -> None:
    execute(
        postgres_url,
        "CREATE TYPE \"My mood\" AS ENUM ('sad', 'glad')",
        'CREATE TABLE t (i smallint, u uuid, n numeric(5,2), v varchar(3), c char(3), e "My mood")',
        "INSERT INTO t VALUES (1, gen_random_uuid(), 1.24, 'abc', 'a', 'sad'), (NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    with reading(postgres_url) as (read, tables):
        table = tables["public.t"]
        for by, impossible in {
            "i": ["5000000000", "99999999999999999999", "x", "1.5", "", "9223372036854775808"],
            "u": ["x", ""],
            "n": ["1.239", "x", "1e5"],
            "v": ["abcd"],
            "c": ["abcd"],
            "e": ["", "SAD", "x' || 'y"],
        }.items():
            assert read(table, (by,), values([*impossible, None]), ("i",)).num_rows == 0
        assert read(table, ("i",), values(["5000000000", "1", None]), ()).to_pylist() == [{"i": 1}]
        assert read(table, ("i", "v"), values(["1", None], [None, "abc"]), ()).num_rows == 0
        assert read(table, ("n",), values(["1.24"]), ("i",)).num_rows == 1
        assert read(table, ("e",), values(["none", "sad"]), ("i",)).num_rows == 1
        assert read(table, ("i", "e"), values(["1", "1"], ["none", "sad"]), ()).num_rows == 1
        assert read(table, ("i",), values([]), ("u",)).schema.names == ["u", "i"]


def test_what_can_not_be_compared_is_said_without_the_value(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE t (d date)")
    with reading(postgres_url) as (read, tables), pytest.raises(SourceRefused, match=r"public\.t .* by d") as caught:
        read(tables["public.t"], ("d",), values(["secret"]), ())
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_all_answers_are_of_one_moment(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)")
    with reading(postgres_url) as (read, tables):
        execute(postgres_url, "UPDATE t SET b = 2", "INSERT INTO t VALUES (2, 2)")
        table = tables["public.t"]
        assert read(table, ("a",), values(["1", "2"]), ("b",)).to_pylist() == [{"b": 1, "a": 1}]
        execute(postgres_url, "DELETE FROM t")
        assert read(table, ("a",), values(["1", "2"]), ("b",)).to_pylist() == [{"b": 1, "a": 1}]


def test_rows_of_all_partitions_are_found_and_those_of_heirs_are_not(postgres_url: str) -> None:
    execute(
        postgres_url,
        "CREATE TABLE p (a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (a)",
        "CREATE TABLE p21 PARTITION OF p2 DEFAULT",
        "INSERT INTO p VALUES (1, 'x'), (11, 'y')",
        "CREATE TABLE mother (a int PRIMARY KEY)",
        "CREATE TABLE heir () INHERITS (mother)",
        "INSERT INTO mother VALUES (1)",
        "INSERT INTO heir VALUES (1)",
    )
    with reading(postgres_url) as (read, tables):
        found = read(tables["public.p"], ("a",), values(["1", "11", "5"]), ("b",))
        assert sorted(rows_of(found, tables["public.p"], ("b",)), key=str) == [{"b": "x"}, {"b": "y"}]
        assert read(tables["public.mother"], ("a",), values(["1"]), ()).num_rows == 1


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ALTER b TYPE bigint",
        "DROP TABLE t",
        "ALTER TABLE t DROP b",
        "ALTER TABLE t RENAME b TO c",
        "ALTER TABLE t RENAME TO x; CREATE TABLE t (LIKE x INCLUDING ALL)",
        "ALTER TABLE t RENAME b TO c; ALTER TABLE t ADD b int",
    ],
)
def test_a_table_that_is_not_as_described_any_more_is_not_read(postgres_url: str, statement: str) -> None:
    execute(postgres_url, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)")
    with reading(postgres_url) as (read, tables):
        execute(postgres_url, *statement.split(";"))
        with pytest.raises(TableRewritten, match=r"public\.t"):
            read(tables["public.t"], ("a",), values(["1"]), ("b",))


def test_a_table_that_was_truncated_since_is_read_as_it_is_now(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    with reading(postgres_url) as (read, tables):
        assert read(tables["public.t"], ("a",), values(["1", "2"]), ("b",)).num_rows == 2
        execute(postgres_url, "TRUNCATE t", "INSERT INTO t VALUES (2, 3)")
        found = read(tables["public.t"], ("a",), values(["1", "2"]), ("b",))
        assert rows_of(found, tables["public.t"], ("b",)) == [{"b": 3}]


def test_a_partition_that_was_truncated_since_is_read_as_it_is_now(postgres_url: str) -> None:
    execute(
        postgres_url,
        "CREATE TABLE p (a int PRIMARY KEY, b int) PARTITION BY RANGE (a)",
        "CREATE TABLE low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO p VALUES (1, 1), (11, 2)",
    )
    with reading(postgres_url) as (read, tables):
        execute(postgres_url, "TRUNCATE low")
        found = read(tables["public.p"], ("a",), values(["1", "11"]), ("b",))
        assert rows_of(found, tables["public.p"], ("b",)) == [{"b": 2}]


def test_between_two_questions_nobody_waits_for_us(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE t (a int PRIMARY KEY, b int)", "INSERT INTO t VALUES (1, 1)")
    with reading(postgres_url) as (read, tables), psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '5s'")
        for _ in range(2):
            read(tables["public.t"], ("a",), values(["1"]), ("b",))
            other.execute("TRUNCATE t")


def test_a_lock_of_somebody_else_is_the_table_s_own_trouble(postgres_url: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("tailrace.sources.postgres.snapshot.LOCK_SECONDS", 0.1)
    execute(postgres_url, "CREATE TABLE t (a int PRIMARY KEY)")
    with psycopg.connect(postgres_url) as other, reading(postgres_url) as (read, tables):
        other.execute("LOCK TABLE t")
        with pytest.raises(TableLocked) as caught:
            read(tables["public.t"], ("a",), values(["1"]), ())
    assert caught.value.table == "public.t"


def test_a_snapshot_that_has_ended_is_said_to_be_gone(postgres_url: str) -> None:
    source = source_of(postgres_url)
    with source.export_snapshot() as snapshot:
        pass
    with pytest.raises(SourceUnavailable, match="is gone"), source.reader(snapshot.id):
        pass
