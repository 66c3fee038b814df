"""`tailrace quarantine`, for real: rows that a sink's own constraint refuses, from the first copy to their return."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from support.pipelines import run_until_current, tailrace, write_pipeline
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]

SINK_TABLE = """
CREATE TABLE articles (
    id integer PRIMARY KEY, title text CHECK (length(title) < 10), price numeric(12,2) CHECK (price >= 0)
)
"""


def execute(url: str, *statements: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def articles(url: str) -> list[tuple]:
    return execute(url, "SELECT id, title, price FROM articles ORDER BY id")


@contextmanager
def waiting_commit(url: str, statement: str) -> Iterator[None]:
    """Waits for a standby which never answers: streamed, and nobody sees it. At the end of this it has ended."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        try:
            execute(url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
            wait_until(
                lambda: execute(url, "SHOW synchronous_standby_names") == [("nobody",)], seconds=60, what="the setting"
            )
            connection.pgconn.send_query(statement.encode())
            wait_until(lambda: bool(execute(url, waits)), seconds=60, what="a commit that waits")
            yield
        finally:
            execute(url, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        wait_until(lambda: not execute(url, waits), seconds=60, what="its end")


@pytest.fixture
def sink_url(postgres_server):
    """Of the same server as the source: its commits wait for no standby."""
    url = postgres_server.create_database("quarantine_sink")
    execute(url, "ALTER DATABASE quarantine_sink SET synchronous_commit = local")
    yield url
    postgres_server.drop_database("quarantine_sink")


@pytest.fixture
def other_url(postgres_server):
    """Another database behind the same pipeline file."""
    yield postgres_server.create_database("quarantine_other")
    postgres_server.drop_database("quarantine_other")


def test_refused_rows_are_listed_replayed_and_dropped(postgres_url, sink_url, other_url, tmp_path):
    execute(
        postgres_url,
        "CREATE TABLE articles (id int PRIMARY KEY, title text, price numeric(12,2))",
        "INSERT INTO articles SELECT n, 'article', n FROM generate_series(1, 2000) n",
        "UPDATE articles SET title = 'secret, and far too long' WHERE id = 1000",
    )
    execute(sink_url, SINK_TABLE)
    file = write_pipeline(tmp_path, postgres_url, {"copy": {"url": sink_url, "on_error": "quarantine"}})
    run_until_current(file)
    assert len(articles(sink_url)) == 1999

    execute(postgres_url, "UPDATE articles SET price = -1 WHERE id = 7", "UPDATE articles SET price = 8.5 WHERE id = 8")
    with waiting_commit(postgres_url, "INSERT INTO articles VALUES (3000, 'fits', -5), (3001, 'fits', 5)"):
        run_until_current(file)
        unseen = tailrace("quarantine", "replay", file)
        assert unseen.returncode == 1
        assert "0 written or gone from the source, 3 left: process" in unseen.stdout
        assert "has not ended yet" in unseen.stdout
    assert execute(sink_url, "SELECT id, price::text FROM articles WHERE id IN (7, 8, 3000, 3001) ORDER BY id") == [
        (7, "7.00"),
        (8, "8.50"),
        (3001, "5.00"),
    ]

    listed = tailrace("quarantine", "list", file)
    assert listed.returncode == 0
    header, *lines = listed.stdout.splitlines()
    assert header.split() == ["at", "sink", "table", "operation", "key", "offset", "position", "reason"]
    assert [line.split()[4:6] for line in lines] == [["read", "id=1000"], ["upsert", "id=3000"], ["upsert", "id=7"]]
    assert all("check violation (articles_" in line for line in lines)
    assert "secret" not in listed.stdout
    as_json = [json.loads(line) for line in tailrace("quarantine", "list", file, "--json").stdout.splitlines()]
    assert [row["payload"]["price"] for row in as_json] == ["1000.00", "-5.00", "-1.00"]

    assert "sink copy has 3 rows set aside: see `tailrace quarantine list`" in tailrace("status", file).stdout

    verified = tailrace("verify", file)
    assert verified.returncode == 1
    [line] = [line for line in verified.stdout.splitlines() if "public.articles" in line]
    assert {"7", "1000", "3000"} <= {word.strip(",();") for word in line.split()}, line

    execute(postgres_url, "UPDATE articles SET price = 70 WHERE id = 7", "DELETE FROM articles WHERE id = 3000")
    execute(other_url, "CREATE TABLE articles (id int PRIMARY KEY, title text, price numeric(12,2))")
    (tmp_path / "other").mkdir()
    other = write_pipeline(tmp_path / "other", other_url, {"copy": {"url": sink_url, "on_error": "quarantine"}})
    refused = tailrace("quarantine", "replay", other)
    assert refused.returncode == 1
    assert "database" in refused.stderr
    assert execute(sink_url, "SELECT price::text FROM articles WHERE id = 7") == [("7.00",)]

    replayed = tailrace("quarantine", "replay", file)
    assert replayed.returncode == 1
    assert replayed.stdout == "copy: public.articles: 2 written or gone from the source, 1 left: refused again\n"
    assert execute(sink_url, "SELECT price::text FROM articles WHERE id = 7") == [("70.00",)]
    dropped = tailrace("quarantine", "drop", file, "--table", "public.articles")
    assert dropped.stdout == "dropped 1 rows from quarantine\n"
    assert tailrace("quarantine", "list", file).stdout == "no rows are set aside\n"

    execute(postgres_url, "UPDATE articles SET title = 'short' WHERE id = 1000")
    run_until_current(file)
    assert articles(sink_url) == articles(postgres_url)
    assert tailrace("verify", file).returncode == 0


def test_a_sink_that_is_not_there_is_said(postgres_url, tmp_path):
    file = write_pipeline(tmp_path, postgres_url, {"copy": f"sqlite:///{tmp_path}/replica.db"})
    failed = tailrace("quarantine", "list", file, "--sink", "cpoy")
    assert (failed.returncode, failed.stderr.splitlines()) == (
        2,
        ["error: the pipeline has no sink cpoy", "hint: it has copy"],
    )
