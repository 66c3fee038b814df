"""Tables that are made, made again and dropped while the pipeline runs, and a publication that is dropped under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from support.pipelines import RunningPipeline, states, tailrace, wait_until_same, write_pipeline
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]

PUBLICATION = "tailrace_under_test"
A_WHILE_SECONDS = 10.0
"""Longer than it takes to find a table: for a lock that may be waited for, or may not."""


@pytest.fixture(params=[18, pytest.param(16, marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, version=request.param, settings=FAST) as started:
        yield started


@contextmanager
def dropped_before_it_is_planned(url: str, table: str) -> Iterator[None]:
    """A published table that is locked, and dropped as soon as somebody waits for it: it was listed by then."""
    execute(url, f"CREATE TABLE {table} (id int PRIMARY KEY)")
    with suppress(psycopg.errors.DuplicateObject):
        execute(url, f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}")
    waiting = "SELECT FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
    with psycopg.connect(url) as owner:
        owner.execute(f"LOCK TABLE {table}".encode())
        with suppress(TimeoutError):
            wait_until(
                lambda: owner.execute(waiting, [table]).fetchone() is not None, seconds=A_WHILE_SECONDS, what="the plan"
            )
        owner.execute(f"DROP TABLE {table}".encode())
    yield


def test_tables_come_and_go_while_it_runs_and_a_dropped_publication_ends_it(
    server: PostgresServer, tmp_path: Path
) -> None:
    replica = tmp_path / "replica.db"
    execute(
        server.url,
        "CREATE TABLE items (id int PRIMARY KEY, t text)",
        "CREATE TABLE remade (id int PRIMARY KEY, t text)",
        "INSERT INTO items VALUES (1, 'one')",
        "INSERT INTO remade SELECT n, 'first' FROM generate_series(1, 10) n",
    )
    file = write_pipeline(tmp_path, server.url, {"replica": f"sqlite:///{replica}"}, tables=["public.*"])
    with RunningPipeline(file) as pipeline:
        pipeline.wait_until_live("public.items", "public.remade")

        execute(
            server.url,
            "CREATE TABLE made (id int PRIMARY KEY, n numeric(8, 2))",
            "INSERT INTO made VALUES (1, 1.50)",
            "DROP TABLE remade",
            "CREATE TABLE remade (id int PRIMARY KEY, t text)",
            "INSERT INTO remade SELECT n, 'second' FROM generate_series(5, 15) n",
        )
        wait_until_same(pipeline, server.url, replica, seconds=60)
        execute(server.url, "INSERT INTO made VALUES (2, 2.50)", "DELETE FROM remade WHERE id = 5")
        wait_until_same(pipeline, server.url, replica, seconds=60)
        assert {table for (_, table), (state, _) in states(file).items() if state == "live"} == {
            "public.items",
            "public.made",
            "public.remade",
        }
        verified = tailrace("verify", file)
        assert verified.returncode == 0, verified
        assert "public.made" in verified.stdout
        assert "public.remade" in verified.stdout

        with dropped_before_it_is_planned(server.url, "doomed"):
            execute(server.url, "INSERT INTO items VALUES (2, 'two')")
        wait_until_same(pipeline, server.url, replica, seconds=60)

        execute(server.url, f"DROP PUBLICATION {PUBLICATION}", "INSERT INTO items VALUES (3, 'published by nobody')")
        assert pipeline.ended(90) == 1, pipeline.output
        assert "Traceback" not in pipeline.output
        error = pipeline.output.rpartition("error: ")[2]
        assert f"publication {PUBLICATION}" in error
        assert "hint: " in error

    again = tailrace("run", file, "--until-current")
    assert again.returncode in (0, 1), again
    if again.returncode == 0:  # it has made the publication again, and copied what it may have missed
        content.assert_same(content.sqlite_differences(server.url, replica))
    else:
        assert again.stderr.startswith("error: "), again
        assert "hint: " in again.stderr
