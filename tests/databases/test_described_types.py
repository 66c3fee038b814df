"""What capture makes of types that come, go and change under it: every byte in the log can be decoded, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.capturing import Captured
from tailrace.errors import SourceUnavailable
from tailrace.model.schema import Identity
from tailrace.model.types import Kind
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.server]

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TYPE pair AS (a int, b text); CREATE TYPE mood AS ENUM ('sad', 'ok')")
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)")
        yield connection


@pytest.fixture
def captured(postgres_url: str, connection: Connection, tmp_path: Path) -> Iterator[Captured]:
    captured = Captured(postgres_url, tmp_path)
    yield captured
    captured.source.drop()


ODD = {
    "pair": ("ROW(1, 'x')::pair", "(1,x)"),
    "money": ("12.5::money", "$12.50"),
    "pair[]": ("ARRAY[ROW(1, 'x')::pair]", ["(1,x)"]),
    "regclass": ("'t'::regclass", "t"),
}


def alter(connection: Connection, type_: str, value: str) -> None:
    """One transaction: a row, a new column, a row with a value in it."""
    with connection.transaction():
        connection.execute("INSERT INTO t VALUES (2, 'same transaction')")
        connection.execute(f"ALTER TABLE t ADD c {type_}".encode())
        connection.execute(f"INSERT INTO t VALUES (3, 'same transaction', {value})".encode())


@pytest.mark.parametrize("type_", ODD)
def test_a_column_without_a_binary_decoder_is_text_from_its_first_byte_on(
    connection: Connection, captured: Captured, type_: str
) -> None:
    value, text = ODD[type_]
    with captured.follow():
        connection.execute("INSERT INTO t VALUES (1, 'before'); INSERT INTO other VALUES (1)")
        alter(connection, type_, value)
        connection.execute(f"INSERT INTO t VALUES (4, 'after', {value})".encode())
    with captured.follow():
        connection.execute(f"INSERT INTO t VALUES (5, 'after', {value})".encode())
    rows = captured.rows()
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row.get("c") for row in rows] == [None, None, text, text, text]
    assert len(captured.remarks) == 1
    assert "public.t.c" in captured.remarks[0]


def test_a_transaction_that_is_half_in_the_log_when_its_type_comes_is_taken_again_as_text(
    connection: Connection, captured: Captured
) -> None:
    with captured.follow(segment_bytes=50_000), connection.transaction():
        connection.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 5000) n")
        connection.execute("ALTER TABLE t ADD c pair")
        connection.execute("INSERT INTO t SELECT n, 'new', ROW(n, 'y')::pair FROM generate_series(5001, 5100) n")
    assert captured.is_replaced
    rows = captured.rows()
    assert [row["id"] for row in rows] == list(range(1, 5101))
    assert rows[-1]["c"] == "(5100,y)"


def test_a_column_that_came_and_went_while_we_were_behind_does_not_stop_us(
    connection: Connection, captured: Captured
) -> None:
    connection.execute("ALTER TABLE t ADD c pair; INSERT INTO t VALUES (1, 'was there', ROW(1, 'x'))")
    connection.execute("ALTER TABLE t DROP c; INSERT INTO t VALUES (2, 'is gone')")
    with captured.follow():
        pass
    assert captured.rows() == [{"id": 1, "v": "was there", "c": "(1,x)"}, {"id": 2, "v": "is gone"}]
    with captured.follow():
        connection.execute("INSERT INTO t VALUES (3, 'binary again')")
    assert captured.rows()[-1] == {"id": 3, "v": "binary again"}
    assert len(captured.remarks) == 1


def test_columns_that_exchanged_their_names_and_took_them_back_are_not_taken_for_themselves(
    connection: Connection, captured: Captured
) -> None:
    connection.execute("ALTER TABLE t ADD w text")
    exchange = "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w"
    connection.execute(f"{exchange}; INSERT INTO t (id, v, w) VALUES (1, 'third', 'second'); {exchange}".encode())
    connection.execute("INSERT INTO t VALUES (2, 'second', 'third')")
    with captured.follow():
        pass
    away, back = (changes.schema.columns for changes in captured.changes())
    assert [(column.name, column.number) for column in away] == [("id", 1), ("w", 2), ("v", 3)]
    assert [(column.name, column.number) for column in back] == [("id", 1), ("v", 2), ("w", 3)]


DROPPED = {
    "mood": ("'ok'", "ok", Kind.OTHER, "public.mood"),
    "mood[]": ("'{ok,sad}'", "{ok,sad}", Kind.OTHER, "public._mood"),
    "pair": ("ROW(1, 'x')", "(1,x)", Kind.OTHER, "public.pair"),
    "small": ("7", 7, Kind.INT32, "integer"),
}


@pytest.mark.parametrize("type_", DROPPED)
def test_a_type_that_was_dropped_while_we_were_behind_is_text_under_its_name(
    connection: Connection, captured: Captured, type_: str
) -> None:
    value, decoded, kind, name = DROPPED[type_]
    connection.execute("CREATE DOMAIN small AS int CHECK (VALUE < 100)")
    with captured.follow():
        connection.execute(f"ALTER TABLE t ADD c {type_}".encode())
    connection.execute(f"INSERT INTO t VALUES (1, 'old', {value})".encode())
    connection.execute("ALTER TABLE t DROP c; DROP TYPE pair; DROP TYPE mood; DROP DOMAIN small")
    connection.execute("CREATE TYPE mood AS ENUM ('new'); INSERT INTO t VALUES (2, 'new')")
    with captured.follow():
        pass
    assert captured.rows() == [{"id": 1, "v": "old", "c": decoded}, {"id": 2, "v": "new"}]
    column = next(captured.changes()).schema.columns[2]
    assert (column.type.kind, column.type.name) == (kind, name)


def test_a_table_that_was_dropped_while_we_were_behind_is_described_as_it_was(
    connection: Connection, captured: Captured
) -> None:
    connection.execute("CREATE TABLE full_identity (v text, b int, a int, PRIMARY KEY (a, b), m mood)")
    connection.execute("ALTER TABLE full_identity REPLICA IDENTITY FULL")
    captured.source.prepare()
    insert = "INSERT INTO full_identity VALUES ('x', 2, 1, 'ok'); INSERT INTO t VALUES (%d, 'x')"
    with captured.follow():
        connection.execute((insert % 1).encode())
    [known] = captured.changes("public.full_identity")
    connection.execute("DELETE FROM full_identity; INSERT INTO t VALUES (2, 'x')")
    connection.execute("DROP TABLE full_identity; ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (3, 'y')")
    with captured.follow():
        pass
    assert {changes.schema for changes in captured.changes("public.full_identity")} == {known.schema}
    assert known.schema.key == ("a", "b")
    assert known.schema.identity is Identity.FULL
    versions = [changes.schema for changes in captured.changes()]
    assert [[(c.name, c.number) for c in version.columns] for version in versions] == [
        [("id", 1), ("v", 2)],
        [("id", 1), ("v", 2)],
        [("id", 1), ("w", 2)],
    ]


def wait_for_standbys(connection: Connection, names: str) -> None:
    connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = {names}".encode())
    connection.execute("SELECT pg_reload_conf()")


def test_a_transaction_that_waits_for_a_standby_is_not_described_from_a_catalog_that_does_not_show_it(
    postgres_url: str, connection: Connection, captured: Captured
) -> None:
    """The stream has its commit, and no snapshot sees it yet."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    try:
        wait_for_standbys(connection, "'nobody'")
        with closing(psycopg.connect(postgres_url, autocommit=True)) as waiting:
            waiting.pgconn.send_query(b"ALTER TABLE t ADD c mood; INSERT INTO t VALUES (1, 'x', 'ok')")
            wait_until(lambda: bool(connection.execute(waits).fetchone()), what="a commit that waits", seconds=60)
            with pytest.raises(SourceUnavailable, match="does not show yet"), captured.follow():
                pass
            wait_for_standbys(connection, "DEFAULT")
            wait_until(lambda: not connection.execute(waits).fetchone(), what="its end", seconds=60)
    finally:
        wait_for_standbys(connection, "DEFAULT")
    with captured.follow():
        pass
    assert captured.rows() == [{"id": 1, "v": "x", "c": "ok"}]
    assert next(captured.changes()).schema.columns[2].type.kind is Kind.ENUM
