"""Capture on a host of its own: two processes that share nothing but an object store, killed in either order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from support.pipelines import Replica, RunningPipeline, position_of, tailrace, wait_until_same, write_pipeline
from support.stores import object_store
from tailrace.sources.postgres.positions import reached

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def store() -> Iterator[Callable[[str], str]]:
    with object_store() as address:
        yield address


def execute(url: str, *statements: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def hosts(folder: Path, url: str, state: str) -> tuple[Path, Path]:
    """The pipeline file, once for the capture and once for the run, in folders of their own."""
    here, there = folder / "beside the database", folder / "on the cluster"
    for each in (here, there):
        each.mkdir()
    sinks = {"replica": "sqlite:///replica.db"}
    file = write_pipeline(there, url, sinks, tables=["public.*"], state=state, capture="elsewhere")
    shutil.copy(file, here)
    return here / file.name, file


def capture(file: Path) -> RunningPipeline:
    return RunningPipeline(file, command="capture", folder=file.parent)


def run(file: Path) -> RunningPipeline:
    return RunningPipeline(file, folder=file.parent)


def is_capturing(process: RunningPipeline) -> Callable[[], object]:
    return lambda: process.said("progress")


def confirmed(url: str) -> str:
    [(position,)] = execute(url, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    return str(position)


def test_a_file_that_does_not_say_so_is_refused(postgres_url, tmp_path):
    file = write_pipeline(tmp_path, postgres_url, {"replica": "sqlite:///replica.db"})
    said = tailrace("capture", file)
    assert said.returncode == 2
    assert "capture: elsewhere" in said.stderr
    assert not (tmp_path / "state").exists()


def test_there_is_one_capture_at_a_time_and_a_dead_one_is_replaced(postgres_url, store, tmp_path):
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)")
    here, there = hosts(tmp_path, postgres_url, store("one-at-a-time"))
    with capture(here) as first:
        first.wait_for(is_capturing(first), "the first capture")
        second = tailrace("capture", there)
        assert second.returncode == 1
        assert (
            f"another tailrace process is using the state directory bucket/one-at-a-time: pid {first.process.pid}"
            in (second.stderr)
        )
        refused = tailrace("drop", there)
        assert refused.returncode == 1
        assert "another tailrace process is using" in refused.stderr
        first.kill()
    with capture(there) as third:
        third.wait_for(is_capturing(third), "another capture")
        assert third.stop() == 0
    dropped = tailrace("drop", there)
    assert dropped.returncode == 0, dropped
    assert execute(postgres_url, "SELECT slot_name FROM pg_replication_slots") == []


@pytest.mark.spark
def test_a_run_that_was_there_first_takes_no_changes_of_another_database_nor_of_another_publication(
    postgres_server, postgres_url, store, tmp_path
):
    other = postgres_server.create_database(f"{postgres_url.rpartition('/')[2]}_other")
    for url in (postgres_url, other):
        execute(url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    (tmp_path / "other").mkdir()
    wrong, _ = hosts(tmp_path / "other", other, store("first"))
    here, there = hosts(tmp_path, postgres_url, store("first"))
    with run(there) as running:
        running.wait_for(lambda: running.said("waiting"), "a word that nothing is captured")
        with capture(wrong) as capturing:
            assert running.ended() == 1
            assert "the source is not the database that was read before: its database is" in running.output
            assert capturing.stop() == 0
    assert tailrace("drop", wrong, folder=wrong.parent).returncode == 0

    here.write_text(here.read_text().replace("public.*", "public.*\n  publication: another"))
    with run(there) as running, capture(here) as capturing:
        assert running.ended() == 2
        assert "`tailrace capture` reads slot tailrace_under_test with the publications another and" in running.output
        assert capturing.stop() == 0


@pytest.mark.spark
def test_a_run_and_its_capture_are_killed_in_either_order(postgres_url, store, tmp_path):
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, n int)", "INSERT INTO items VALUES (0, 0)")
    here, there = hosts(tmp_path, postgres_url, store("either-order"))
    replica = there.parent / "replica.db"

    def insert(number: int) -> None:
        execute(postgres_url, f"INSERT INTO items VALUES ({number}, {number})", "UPDATE items SET n = n + 1")

    running = run(there)
    running.wait_for(lambda: running.said("waiting"), "a word that nothing is captured")
    assert "no `tailrace capture` has begun" in running.said("waiting")[0]["message"]
    capturing = capture(here)
    try:
        running.wait_until_live("public.items")
        insert(1)
        wait_until_same(running, postgres_url, replica)
        place = position_of(postgres_url)
        insert(2)
        capturing.wait_for(lambda: reached(confirmed(postgres_url), place), "the source to hear what the sink has")

        capturing.kill()
        insert(3)
        running.wait_for(lambda: _capture_word(running), "the run to notice that capture is gone")
        assert "capture is silent" in tailrace("status", there).stdout
        capturing = capture(here)
        wait_until_same(running, postgres_url, replica)

        running.kill()
        insert(4)
        kept = confirmed(postgres_url)
        running = run(there)
        running.wait_for(lambda: running.said("running"), "the second run")
        capturing.kill()
        insert(5)
        capturing = capture(here)
        wait_until_same(running, postgres_url, replica)
        assert reached(confirmed(postgres_url), kept)
        assert Replica(there).is_live()
        assert running.copies("public.items") == 0, "nothing had to be copied again"

        assert capturing.stop() == 0
        running.wait_for(lambda: "was stopped" in _capture_word(running), "the run to hear that capture was stopped")
        assert running.stop() == 0
    finally:
        for each in (running, capturing):
            each.__exit__(None, None, None)


def _capture_word(running: RunningPipeline) -> str:
    """What the run says at last of a capture that is in trouble."""
    return str(running.said("progress")[-1].get("capture", "")) if running.said("progress") else ""
