"""Who the source is: another server, another database of the same name, an older state of it: refused in a sentence.

Every one of them has the table that the pipeline asks for, and takes a replication slot of the same name.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from support.pipelines import (
    Replica,
    RunningPipeline,
    captured,
    position_of,
    run_until_current,
    tailrace,
    write_pipeline,
)
from tailrace.sources.postgres.positions import reached
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute
from tailrace.testing.processes import free_port, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOT = "tailrace_under_test"
TABLE = ("CREATE TABLE items (id int PRIMARY KEY, t text)", "INSERT INTO items VALUES (1, 'one'), (2, 'two')")
MOVE = "INSERT INTO items SELECT max(id) + 1, 'to move' FROM items"
IN_STEP = {"hot_standby_feedback": True, "sync_replication_slots": True}
"""What a standby needs to have the primary's failover slots."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, version 18, with the table."""
    with requires(PostgresServer.start, settings=FAST) as started:
        execute(started.url, *TABLE)
        yield started


def pipeline_in(folder: Path, url: str) -> Path:
    return write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"})


def everything_in(folder: Path) -> list[str]:
    """All that the replica holds, our own notes included."""
    with closing(sqlite3.connect(f"{(folder / 'replica.db').as_uri()}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


def slots_of(url: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [name for (name,) in connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()]


def assert_refused(file: Path, words: str) -> None:
    """`run` ends at once with a sentence and the command that goes on, and has changed nothing in the sink."""
    before = everything_in(file.parent)
    ended = tailrace("run", file, "--until-current")
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stdout + ended.stderr
    error, hint = ended.stderr.splitlines()
    assert error.startswith("error: ")
    assert re.search(words, error), error
    assert hint.startswith("hint: ")
    assert "`tailrace " in hint
    assert everything_in(file.parent) == before


def assert_equal(url: str, folder: Path) -> None:
    content.assert_same(content.sqlite_differences(url, folder / "replica.db", ["public.items"]))


def test_another_server_and_another_database_of_the_same_name_are_refused(
    postgres_server: PostgresServer, postgres_url: str, server: PostgresServer, tmp_path: Path
) -> None:
    """With the state directory and without it: the sink remembers, too. Its own source is taken again after that."""
    execute(postgres_url, *TABLE)
    run_until_current(pipeline_in(tmp_path, postgres_url))
    execute(server.url, "INSERT INTO items VALUES (3, 'of the other server')")
    moved = pipeline_in(tmp_path, server.url)
    assert_refused(moved, "system identifier")
    (tmp_path / "state").rename(tmp_path / "kept")
    assert_refused(moved, "system identifier")
    assert slots_of(server.url) == []

    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    (tmp_path / "kept").rename(tmp_path / "state")
    execute(postgres_url, "INSERT INTO items VALUES (3, 'three')")
    file = pipeline_in(tmp_path, postgres_url)
    run_until_current(file)
    assert_equal(postgres_url, tmp_path)

    name = postgres_url.rpartition("/")[2]
    postgres_server.drop_database(name)
    postgres_server.create_database(name)
    execute(postgres_url, *TABLE, "INSERT INTO items VALUES (4, 'of the other database')")
    assert_refused(file, "database")
    shutil.rmtree(tmp_path / "state")
    assert_refused(file, "database")
    assert SLOT not in slots_of(postgres_url)


def test_a_server_restored_from_a_copy_that_is_older_than_what_was_captured_is_refused(
    server: PostgresServer, tmp_path: Path
) -> None:
    """At once, and also when it has gone on meanwhile and is past the place where we were, on another way."""
    file = pipeline_in(tmp_path, server.url)
    run_until_current(file)
    server.save(tmp_path / "backup")
    execute(
        server.url, *(f"INSERT INTO items SELECT n, 'lost' FROM generate_series({n}1, {n}9) n" for n in range(1, 5))
    )
    run_until_current(file)
    assert_equal(server.url, tmp_path)
    end = captured(file)

    server.restore(tmp_path / "backup")
    assert not reached(position_of(server.url), end)
    assert_refused(file, "restored|ends at")
    shutil.move(tmp_path / "state", tmp_path / "kept")
    assert_refused(file, "restored|ends at")

    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    shutil.move(tmp_path / "kept", tmp_path / "state")
    execute(server.url, "INSERT INTO items SELECT n, repeat('x', 100) FROM generate_series(100, 5000) n")
    assert reached(position_of(server.url), end)
    assert_refused(file, "restored|ends at|another way")
    with psycopg.connect(server.url, autocommit=True) as connection:  # by now it has had as many transactions as well
        for n in range(5001, 5050):
            connection.execute("INSERT INTO items VALUES (%s, 'of another past')", [n])
    assert_refused(file, "which was read already, is not in its log: it was restored")
    shutil.rmtree(tmp_path / "state")
    assert_refused(file, "which was read already, is not in its log: it was restored")


def has_slot(standby: PostgresServer) -> bool:
    """Whether the standby has our slot for good: one that is temporary goes with a promotion."""
    query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    with psycopg.connect(standby.url, autocommit=True) as connection:
        return connection.execute(query, [SLOT]).fetchone() is not None


def is_failover_slot(primary: PostgresServer) -> bool:
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(primary.url, autocommit=True) as connection:
        return connection.execute(query, [SLOT]).fetchone() == (True,)


def wait_for_slot(pipeline: RunningPipeline, primary: PostgresServer, standby: PostgresServer) -> None:
    """A slot comes to the standby once it has moved past what the standby was made with."""
    assert is_failover_slot(primary), "the slot is not one that standbys may have"

    def is_there() -> bool:
        execute(primary.url, MOVE, "SELECT pg_log_standby_snapshot()")
        return has_slot(standby)

    pipeline.wait_for(is_there, "the slot to be on the standby", seconds=90)


def wait_until_equal(pipeline: RunningPipeline, file: Path, server: PostgresServer) -> None:
    end, replica = position_of(server.url), Replica(file)
    pipeline.wait_for(lambda: replica.has_reached(end), "the replica to be current")
    assert_equal(server.url, file.parent)


def test_a_run_goes_on_with_a_promoted_standby_that_has_all_and_ends_at_one_that_lacks_what_was_captured(
    server: PostgresServer, tmp_path: Path
) -> None:
    port = free_port()
    with server.standby("second", IN_STEP) as second:
        hosts = f"127.0.0.1:{server.port},127.0.0.1:{second.port},127.0.0.1:{port}"
        file = pipeline_in(tmp_path, f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write")
        execute(server.url, "ALTER SYSTEM SET synchronized_standby_slots = 'second'", "SELECT pg_reload_conf()")
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            wait_for_slot(pipeline, server, second)
            server.kill()
            second.promote()
            execute(second.url, "INSERT INTO items VALUES (100001, 'on the second')", "DELETE FROM items WHERE id = 1")
            wait_until_equal(pipeline, file, second)
            assert pipeline.copies("public.items") == 1

            with second.standby("third", IN_STEP, port) as third:
                wait_for_slot(pipeline, second, third)
                lose_sight(third)
                execute(second.url, "INSERT INTO items SELECT n, 'only here' FROM generate_series(200001, 200100) n")
                wait_until_equal(pipeline, file, second)
                second.kill()
                third.promote()
                execute(third.url, "INSERT INTO items VALUES (300001, 'on the third')")
                assert pipeline.ended(90) == 1, pipeline.output
                assert re.search(r"error: .*(timeline|ends at)", pipeline.output), pipeline.output
                assert_refused(file, "timeline|ends at")


def lose_sight(standby: PostgresServer) -> None:
    """Nothing more comes from its primary."""
    execute(standby.url, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    query = "SELECT count(*) FROM pg_stat_wal_receiver"
    with psycopg.connect(standby.url, autocommit=True) as connection:
        wait_until(lambda: connection.execute(query).fetchone() == (0,), seconds=30, what="the standby to be alone")
