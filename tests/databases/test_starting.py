"""The first moments of a run: it says whom it waits for, stops at once, and leaves nothing behind that holds WAL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace import config
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.processes import lives, wait_until

pytestmark = [pytest.mark.server]

STOP_SECONDS = 30.0  # of a busy machine; Spark alone takes longer than that to start and stop on one


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(
        PostgresServer.start, version=request.param, settings=FAST | {"max_prepared_transactions": 5}
    ) as started:
        with psycopg.connect(started.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)")
        yield started


def slots(url: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()


def pipeline_in(folder: Path, url: str) -> Path:
    return write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"}, tables=["public.items"])


def waiting(pipeline: RunningPipeline, whom: str) -> None:
    pipeline.wait_for(lambda: any(whom in each["message"] for each in pipeline.said("waiting")), f"a word of {whom}")


class Enough(Exception):
    pass


def test_a_new_slot_names_whom_it_waits_for_and_is_given_up_at_once(server: PostgresServer) -> None:
    source = PostgresSource(config.Pipeline("given_up", config.Source(server.url, ("public.items",)), {}))
    heard: list[str] = []

    def listen(whom: list[str]) -> None:
        heard.extend(whom)
        if heard:
            raise Enough

    with psycopg.connect(server.url) as writer:
        writer.execute("INSERT INTO items VALUES (100)")
        with pytest.raises(Enough):
            source.prepare(listen)
        assert heard[0].startswith(f"process {writer.info.backend_pid} of postgres, under way since 2")
        assert slots(server.url) == []
        writer.rollback()
    assert slots(server.url) == []
    source.prepare(listen)
    settings = config.Source(server.url, ("public.items",), own={"create": False})
    assert PostgresSource(config.Pipeline("given_up", settings, {})).drop() == []  # it may be somebody else's
    assert len(source.drop()) == 3


def test_a_prepared_transaction_is_still_known_as_a_table_s_writer_after_the_server_was_restarted(
    server: PostgresServer,
) -> None:
    source = PostgresSource(config.Pipeline("prepared", config.Source(server.url, ("public.items",)), {}))
    with psycopg.connect(server.url, autocommit=True) as writer:
        source.prepare()
        [facts] = source.facts()
        assert source.writers(facts) == {}
        writer.execute("BEGIN; INSERT INTO items VALUES (200); SAVEPOINT one; INSERT INTO items VALUES (201)")
        writing = source.writers(facts)
        assert set(writing.values()) == {f"process {writer.info.backend_pid}"}
        writer.execute("PREPARE TRANSACTION 'two'")
    prepared = source.writers(facts)
    server.restart()
    restarted = source.writers(facts)
    assert set(restarted.values()) == {"a prepared transaction"}
    assert writing.keys() & prepared.keys() & restarted.keys()
    with psycopg.connect(server.url, autocommit=True) as writer:
        writer.execute("ROLLBACK PREPARED 'two'")
    assert source.writers(facts) == {}
    source.drop()


def test_a_run_that_waits_for_its_slot_says_so_and_stops_or_dies_without_one(
    server: PostgresServer, tmp_path: Path
) -> None:
    file = pipeline_in(tmp_path, server.url)
    with psycopg.connect(server.url) as writer:
        writer.execute("INSERT INTO items VALUES (200)")
        with RunningPipeline(file) as pipeline:
            waiting(pipeline, f"process {writer.info.backend_pid} of postgres")
            assert pipeline.stop(STOP_SECONDS) == 0, pipeline.output
            assert "Traceback" not in pipeline.output
        assert slots(server.url) == []
        writer.execute("PREPARE TRANSACTION 'forgotten'")
    with RunningPipeline(file) as pipeline:
        waiting(pipeline, "the prepared transaction forgotten of postgres, under way since 2")
        pipeline.kill()
    query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_create_logical%' AND state = 'active'"
    with psycopg.connect(server.url, autocommit=True) as connection:
        wait_until(lambda: connection.execute(query).fetchone() == (0,), seconds=60, what="the server to notice")
        connection.execute("ROLLBACK PREPARED 'forgotten'")
    assert slots(server.url) == []


@pytest.mark.spark
def test_a_refused_run_leaves_no_slot_and_a_killed_or_stopped_one_no_traceback(
    postgres_url: str, tmp_path: Path
) -> None:
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)")
        for words, sink, settings in (
            ("sink copy is the database that is read", postgres_url, {}),
            ("Spark did not start", "null://", {"spark": {"conf": {"spark.driver.memory": "nonsense"}}}),
        ):
            odd = write_pipeline(tmp_path, postgres_url, {"copy": sink}, **settings)
            refused = tailrace("run", odd, "--until-current")
            assert (refused.returncode, connection.execute(query).fetchone()) == (1, (0,)), refused
            assert words in refused.stderr
        file = pipeline_in(tmp_path, postgres_url)
        with RunningPipeline(file) as pipeline:
            pipeline.wait_for(lambda: (tmp_path / "state" / "log" / "log.json").exists(), "the log")
            pipeline.process.send_signal(signal.SIGTERM)  # Spark is about to start
            assert pipeline.ended(120) == 0, pipeline.output
            assert "Traceback" not in pipeline.output
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            capture: psutil.Process = pipeline.capture_process()
            pipeline.kill()
            wait_until(lambda: not lives(capture), seconds=60, what="the capture process to end")
        assert "Traceback" not in pipeline.output
        assert "BrokenPipe" not in pipeline.output

        run_until_current(file)
        connection.execute("SELECT pg_drop_replication_slot('tailrace_under_test')")
        connection.execute("INSERT INTO items VALUES (2)")
        refused = tailrace("run", file, "--until-current")
        assert refused.returncode == 1
        assert "is gone" in refused.stderr
        assert connection.execute(query).fetchone() == (0,)

        assert tailrace("drop", file).returncode == 0
        run_until_current(file)
        content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
        tailrace("drop", file)
