"""What stops a run is one sentence and an exit code, and nothing is lost. What may pass is tried again, and said."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from support import hot
from support.hot import HotWorkload
from support.pipelines import Replica, RunningPipeline, position_of, run_until_current, tailrace, write_pipeline
from tailrace import failpoints
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires, unavailable
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOT = "tailrace_under_test"
STOP_SECONDS = 45.0  # seconds on a quiet machine; this allows for a busy one, and for no timeout of ours


def pipeline_in(folder: Path, url: str, **settings: Any) -> Path:
    return write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"}, **settings)


def assert_equal(url: str, file: Path) -> None:
    content.assert_same(content.sqlite_differences(url, file.parent / "replica.db"))


def refusal(file: Path) -> tuple[str, str, str]:
    """What a run that must not succeed says: its error, its hint, and its standard output."""
    ended = tailrace("run", file, "--until-current")
    assert ended.returncode == 1, ended
    assert "Traceback" not in ended.stdout + ended.stderr
    error, hint = [*ended.stderr.splitlines(), ""][:2]
    assert len(ended.stderr.splitlines()) <= 2, ended.stderr
    assert error.startswith("error: ")
    return error, hint, ended.stdout


def slots_of(url: str) -> int:
    with psycopg.connect(url) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def url(postgres_url: str) -> str:
    """A database with one small table."""
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, v text)", "INSERT INTO items VALUES (1, 'one')")
    return postgres_url


# --- refused before anything begins ---


def test_a_wrong_password_and_a_wrong_wal_level_are_said_and_can_be_mended(tmp_path: Path) -> None:
    settings = FAST | {"wal_level": "replica"}
    with requires(PostgresServer.start, settings=settings, password="right") as server:
        execute(server.url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1), (2)")

        error, hint, _ = refusal(pipeline_in(tmp_path, server.url_of("postgres", password="wrong-secret")))
        assert f"cannot connect to PostgreSQL at 127.0.0.1:{server.port}/postgres: password authentication" in error
        assert hint == "hint: correct user, password, host or database in source.url"
        assert "wrong-secret" not in error

        file = pipeline_in(tmp_path, server.url)
        error, hint, _ = refusal(file)
        assert error == "error: wal_level is replica and must be logical"
        assert hint == "hint: ALTER SYSTEM SET wal_level = logical; then restart the server"

        server.restart({"wal_level": "logical"})
        run_until_current(file)
        assert_equal(server.url, file)


def test_a_host_that_does_not_exist_is_refused_at_once(url: str, tmp_path: Path) -> None:
    error, hint, said = refusal(pipeline_in(tmp_path, "postgresql://postgres@no-such-host.invalid/shop"))
    assert "cannot connect to PostgreSQL at no-such-host.invalid:5432/shop: " in error
    assert "host" in hint
    assert "source-retry" not in said


def test_a_server_that_does_not_answer_is_tried_again_and_then_given_up(url: str, tmp_path: Path) -> None:
    error, hint, said = refusal(pipeline_in(tmp_path, "postgresql://postgres@127.0.0.1:1/shop"))
    assert "cannot connect to PostgreSQL at 127.0.0.1:1/shop: " in error
    assert hint == "hint: see that the server runs and that host and port in source.url lead to it"
    assert said.count('"source-retry"') >= 3
    assert '"retry_seconds": 1' in said


def test_a_missing_table_is_refused_with_a_guess(url: str, tmp_path: Path) -> None:
    error, hint, _ = refusal(pipeline_in(tmp_path, url, tables=["public.itmes"]))
    assert error == "error: no table matches public.itmes"
    assert hint.startswith("hint: did you mean public.items?")
    assert slots_of(url) == 0


def test_a_sink_in_a_missing_folder_is_refused_with_the_command_that_makes_it(url: str, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "where"
    error, hint, _ = refusal(write_pipeline(tmp_path, url, {"replica": f"sqlite:///{nowhere}/replica.db"}))
    assert error == f"error: sink replica: the folder {nowhere} of the SQLite file does not exist"
    assert hint == f"hint: mkdir -p {nowhere}"
    assert slots_of(url) == 0


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Callable[[str], None]]:
    """A disk of its own in `folder`, made with the options of tmpfs; gives what changes them."""

    def mount(options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)

    folder.mkdir()
    try:
        mount(options)
    except (OSError, subprocess.CalledProcessError) as error:
        unavailable(f"a disk for the test cannot be mounted: {error}")
    try:
        yield lambda changed: mount(f"remount,{changed}")
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_read_only_state_directory_is_refused(url: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro,size=1m"):
        error, _, _ = refusal(pipeline_in(tmp_path, url, state=str(tmp_path / "disk" / "state")))
    assert f"cannot write to the state directory {tmp_path}/disk/state: " in error
    assert "read-only file system" in error.lower()
    assert slots_of(url) == 0


def test_a_file_where_the_state_directory_should_be_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    error, _, _ = refusal(pipeline_in(tmp_path, url))
    assert f"cannot write to the state directory {tmp_path}/state: " in error
    assert (tmp_path / "state").read_text() == "not a folder"
    assert slots_of(url) == 0


def test_a_slot_in_use_is_waited_for_and_then_refused_and_nothing_is_lost(url: str, tmp_path: Path) -> None:
    file = pipeline_in(tmp_path, url)
    with psycopg.connect(url, autocommit=True) as reader:
        reader.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', true)", [SLOT])
        error, hint, said = refusal(file)
        server = conninfo_to_dict(url)
        place = f"{server['host']}:{server['port']}/{server['dbname']}"
        pid = reader.info.backend_pid
        assert error == f"error: replication slot {SLOT} at {place} is in use by process {pid} of the server"
        assert hint.startswith("hint: stop the other reader, or choose another name with source.slot")
        assert said.count('"source-retry"') >= 3
        second = tailrace("drop", file)
        assert second.returncode == 1
        assert f"replication slot {SLOT} is in use by process {pid}" in second.stderr
    run_until_current(file)
    assert_equal(url, file)


def test_a_second_run_of_the_same_pipeline_is_refused_while_the_first_one_runs(url: str, tmp_path: Path) -> None:
    file = pipeline_in(tmp_path, url)
    with RunningPipeline(file) as first:
        first.wait_for(lambda: (tmp_path / "state" / "run.lock").exists(), "the lock")
        error, _, _ = refusal(file)
        assert error == f"error: another tailrace process is using the state directory {tmp_path}/state"
        assert first.stop(STOP_SECONDS) == 0, first.output  # while it is still starting


# --- tried again until it passes ---


def is_down(status: str) -> bool:
    """It is tried again now and then, and is up until it writes."""
    return "capture is down since" in status or "how capture is, is not known" in status


def test_a_full_disk_of_the_state_directory_is_said_and_waited_for(url: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=3m") as change:
        file = pipeline_in(tmp_path, url, state=str(tmp_path / "disk" / "state"))
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            execute(
                url, "INSERT INTO items SELECT n, md5(n::text) || md5((-n)::text) FROM generate_series(2, 150000) n"
            )
            pipeline.wait_for(lambda: pipeline.said("capture-restart"), "the disk to be full")
            words = f"cannot write to the state directory {tmp_path}/disk/state/log: no space left"
            assert words in pipeline.said("capture-restart")[-1]["message"]
            pipeline.wait_for(lambda: is_down(tailrace("status", file).stdout), "a status that says so")
            change("size=200m")
            end, replica = position_of(url), Replica(file)
            pipeline.wait_for(lambda: replica.has_reached(end), "all that was written")
            assert pipeline.stop() == 0, pipeline.output
        assert "Traceback" not in pipeline.output
        assert_equal(url, file)


def test_a_crashed_server_and_a_locked_replica_are_tried_again_until_they_are_back(tmp_path: Path) -> None:
    with requires(PostgresServer.start, settings=FAST) as server:
        execute(server.url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        file = pipeline_in(tmp_path, server.url)
        replica = Replica(file)
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            server.kill()
            pipeline.wait_for(lambda: len(pipeline.said("capture-restart")) >= 2, "two tries")
            first, second, *_ = pipeline.said("capture-restart")
            assert f"PostgreSQL at 127.0.0.1:{server.port}/postgres" in first["message"]
            assert first["retry_seconds"] < second["retry_seconds"]
            server.restart()
            execute(server.url, "INSERT INTO items VALUES (2)")
            end = position_of(server.url)
            pipeline.wait_for(lambda: replica.has_reached(end), "what was written after the crash")

            with closing(sqlite3.connect(tmp_path / "replica.db", isolation_level=None)) as somebody:
                somebody.execute("BEGIN IMMEDIATE")
                execute(server.url, "INSERT INTO items VALUES (3)")
                pipeline.wait_for(lambda: pipeline.said("sink-retry"), "the lock to be noticed")
                assert "database is locked" in pipeline.said("sink-retry")[-1]["message"]
                somebody.execute("ROLLBACK")
            end = position_of(server.url)
            pipeline.wait_for(lambda: replica.has_reached(end), "what was written during the lock")
            assert pipeline.stop(STOP_SECONDS) == 0, pipeline.output
        assert_equal(server.url, file)


# --- stopped by the user ---


def test_sigterm_in_a_snapshot_and_ctrl_c_when_live_end_within_seconds_and_lose_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    hot.create(postgres_url)
    hot.run(postgres_url, seed=41, transactions=200)
    file = pipeline_in(tmp_path, postgres_url, source={"snapshot": {"chunk_bytes": 8192}})
    replica = Replica(file)
    slow = failpoints.environment("chunk-before-load", action="sleep=0.5")
    with HotWorkload.start(postgres_url, rate=80, seed=42):
        with RunningPipeline(file, environment=slow) as pipeline:
            pipeline.wait_for(replica.is_copying, "the middle of a snapshot")
            began = time.monotonic()
            pipeline.process.send_signal(signal.SIGTERM)
            assert pipeline.ended(STOP_SECONDS) == 0, pipeline.output
            assert "Traceback" not in pipeline.output
            print(f"stopped by SIGTERM after {time.monotonic() - began:.1f} s")
        with RunningPipeline(file) as pipeline:
            pipeline.wait_for(replica.is_live, "all tables to be live")
            began = time.monotonic()
            os.killpg(pipeline.process.pid, signal.SIGINT)
            assert pipeline.ended(STOP_SECONDS) == 0, pipeline.output
            assert "Traceback" not in pipeline.output
            print(f"stopped by SIGINT after {time.monotonic() - began:.1f} s")
    run_until_current(file)
    assert_equal(postgres_url, file)
