"""Since when a table is published, and whether it still is: rows of before, between and after arrive all the same.

Whoever leaves a table out of the file gets none of its rows from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from support.pipelines import RunningPipeline, run_until_current, states, tailrace, wait_until_same, write_pipeline
from support.sinks import SinkDatabase
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]

PUBLICATION = "tailrace_under_test"
A_WHILE_SECONDS = 8.0
"""Longer than it takes to find a table and copy it: for what must not happen, and can not be waited for."""


def pipeline_in(folder: Path, url: str, *tables: str) -> Path:
    return write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"}, tables=list(tables))


def add_to_publication(url: str, table: str) -> None:
    """As the owner of the table does; the pipeline may have been faster, or be at it."""
    with suppress(psycopg.errors.DuplicateObject, psycopg.errors.QueryCanceled):
        execute(
            url,
            "SET statement_timeout = '10s'",
            "SET synchronous_commit = local",
            f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}",
        )


def leave_and_return(url: str, table: str) -> None:
    """What our own preflight prints, with a row in between and one after."""
    execute(
        url,
        f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table}",
        f"INSERT INTO {table} SELECT max(id) + 1, 'while away' FROM {table}",
        f"UPDATE {table} SET t = 'changed while away' WHERE id = 1",
        f"DELETE FROM {table} WHERE id = 2",
        f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}",
        f"INSERT INTO {table} SELECT max(id) + 1, 'back' FROM {table}",
    )


def is_live(pipeline: RunningPipeline, table: str) -> bool:
    return any(each["table"] == table and each["state"] == "live" for each in pipeline.said("table"))


def test_tables_that_come_go_and_return_have_all_of_their_rows_and_excluded_ones_get_no_more(
    postgres_url: str, tmp_path: Path
) -> None:
    replica, secret = tmp_path / "replica.db", SinkDatabase("sqlite", f"sqlite:///{tmp_path}/replica.db")
    for table in ("items", "returned", "restored", "secret"):
        execute(
            postgres_url,
            f"CREATE TABLE {table} (id int PRIMARY KEY, t text)",
            f"INSERT INTO {table} SELECT n, 'first' FROM generate_series(1, 10) n",
        )
    file = pipeline_in(tmp_path, postgres_url, "public.*")
    with RunningPipeline(file) as pipeline, psycopg.connect(postgres_url) as slow:
        pipeline.wait_until_live("public.items", "public.returned", "public.restored", "public.secret")

        # a transaction that is open when its table comes
        execute(postgres_url, "CREATE TABLE late (id int PRIMARY KEY, t text)")
        slow.execute("INSERT INTO late VALUES (1, 'before it was published')")
        add_to_publication(postgres_url, "late")
        with suppress(AssertionError):
            pipeline.wait_for(lambda: is_live(pipeline, "public.late"), "nothing", seconds=A_WHILE_SECONDS)
        execute(postgres_url, "INSERT INTO items VALUES (11, 'is not held up')")
        wait_until_same(pipeline, postgres_url, replica, "public.items")
        slow.execute("INSERT INTO late VALUES (2, 'after')")
        slow.commit()
        wait_until_same(pipeline, postgres_url, replica, "public.late", seconds=60)

        leave_and_return(postgres_url, "returned")
        wait_until_same(pipeline, postgres_url, replica, seconds=60)
        assert pipeline.stop() == 0, pipeline.output

    leave_and_return(postgres_url, "restored")
    pipeline_in(tmp_path, postgres_url, "public.*", "!public.secret")
    execute(postgres_url, "INSERT INTO secret VALUES (11, 'not to be told')", "UPDATE secret SET t = 'nor this'")
    run_until_current(file)
    others = [f"public.{table}" for table in ("items", "returned", "restored", "late")]
    content.assert_same(content.sqlite_differences(postgres_url, replica, others))
    assert secret.query("SELECT count(*), min(t), max(t) FROM secret") == [(10, "first", "first")]
    state, reason = states(file)["replica", "public.secret"]
    assert state == "paused"
    assert "source.tables" in reason

    pipeline_in(tmp_path, postgres_url, "public.*")
    execute(postgres_url, "DELETE FROM secret WHERE id = 3")
    run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, replica))
    assert states(file)["replica", "public.secret"] == ("live", "")


@contextmanager
def waiting_commits(server: PostgresServer, *transactions: tuple[str, ...]) -> Iterator[None]:
    """Transactions that wait for a synchronous standby which never answers: in the log already, and nobody sees them.

    At the end of this they are let go, and have ended.
    """
    execute(server.url, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with ThreadPoolExecutor(len(transactions)) as pool, psycopg.connect(server.url, autocommit=True) as connection:
        commits = [pool.submit(commit, server.url, statements) for statements in transactions]
        try:
            wait_until(
                lambda: connection.execute(waiting).fetchone() == (len(commits),), seconds=60, what="commits to wait"
            )
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
        for each in commits:
            each.result(60)


def commit(url: str, statements: tuple[str, ...]) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def changes_of(table: str) -> tuple[str, ...]:
    """Rows without their large values: some in their place, some that move to another key; and a new one."""
    return (
        f"UPDATE {table} SET n = n + 1 WHERE id <= 20",
        f"UPDATE {table} SET id = id + 1000 WHERE id <= 10",
        f"INSERT INTO {table} SELECT 500, 0, repeat(md5('500'), 300)",
        f"UPDATE {table} SET n = 1 WHERE id = 500",
        f"DELETE FROM {table} WHERE id = 20",
    )


def test_a_commit_that_waits_for_a_synchronous_standby_is_in_the_copies_that_could_not_see_it(tmp_path: Path) -> None:
    """One before its table was published, one in a live table that is copied again meanwhile."""

    def made(table: str) -> tuple[str, ...]:
        return (
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, large text)",
            f"ALTER TABLE {table} ALTER large SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT n, 0, repeat(md5(n::text), 300) FROM generate_series(1, 100) n",
        )

    with requires(PostgresServer.start, settings=FAST) as server:
        execute(server.url, *made("wide"))
        file = pipeline_in(tmp_path, server.url, "public.*")
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.wide")
            execute(server.url, *made("late"))
            with waiting_commits(server, changes_of("late"), changes_of("wide")):
                add_to_publication(server.url, "late")
                again = tailrace("snapshot", "public.wide", file)
                with suppress(AssertionError):
                    pipeline.wait_for(
                        lambda: pipeline.copies("public.wide") > 1 and is_live(pipeline, "public.late"),
                        "both copies",
                        seconds=A_WHILE_SECONDS,
                    )
            wait_until_same(pipeline, server.url, tmp_path / "replica.db", seconds=60)
            assert again.returncode == 0, again
            pipeline.wait_for(lambda: pipeline.copies("public.wide") > 1, "the second copy")
            wait_until_same(pipeline, server.url, tmp_path / "replica.db", seconds=60)
            assert pipeline.stop() == 0, pipeline.output
