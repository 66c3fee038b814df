"""A whole pipeline with its state on an object store: what it asks of it, and that every command works there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.pipelines import Replica, RunningPipeline, position_of, tailrace, wait_until_same, write_pipeline
from support.stores import object_store, requests_in
from tailrace.state import scratch
from tailrace.state.storage import Storage
from tailrace.testing.plugin import requires
from tailrace.testing.postgres import PostgresServer

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.timeout(900)]

IDLE_SECONDS, WINDOWS = 10.0, 20
BATCHES = 5


class Story:
    """One run, all tests of this module after each other."""

    def __init__(self, folder: Path, url: str, state: str, log: Path) -> None:
        self.folder, self.url, self.state, self._log = folder, url, state, log
        self.execute("CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (0)")
        sinks = {"replica": "sqlite:///replica.db"}
        self.file = write_pipeline(folder, url, sinks, tables=["public.items"], state=state)
        self.running = RunningPipeline(self.file, folder=folder)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def wait_until_current(self) -> None:
        position = position_of(self.url)
        self.running.wait_for(lambda: Replica(self.file).has_reached(position), "the sink to be current")
        wait_until_same(self.running, self.url, self.folder / "replica.db")

    def requests(self) -> list[str]:
        return requests_in(self._log)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("store")
    log = folder / "requests.log"
    with object_store(log) as address, requires(PostgresServer.start) as server:
        story = Story(folder, server.url, address("a/state"), log)
        with story.running:
            story.running.wait_until_live("public.items")
            yield story


def test_an_idle_pipeline_hardly_asks_the_store(story):
    """The server writes to its own log now and then, which makes a batch: a time without one is what counts."""
    story.wait_until_current()
    for _ in range(WINDOWS):
        before, began = len(story.requests()), time.monotonic()
        time.sleep(IDLE_SECONDS)  # the time is what is measured
        idle, seconds = story.requests()[before:], time.monotonic() - began
        if not any(".segment" in each for each in idle):
            break
    print(f"{len(idle) / seconds:.2f} requests a second: {sorted(set(idle))}")
    assert len(idle) / seconds < 2, idle


def test_a_batch_asks_the_store_a_few_times(story):
    story.wait_until_current()
    before = len(story.requests())
    for number in range(1, BATCHES + 1):
        story.execute(f"INSERT INTO items VALUES ({number})")
        story.wait_until_current()
    asked = story.requests()[before:]
    print(f"{len(asked) / BATCHES:.1f} requests a batch")
    assert len(asked) / BATCHES < 40, asked


def test_a_copy_that_is_asked_for_is_made(story):
    copies = story.running.copies("public.items")
    said = tailrace("snapshot", "public.items", story.file)
    assert said.returncode == 0, said
    story.running.wait_for(lambda: story.running.copies("public.items") > copies, "the copy")
    story.running.wait_for(Replica(story.file).is_live, "the table to be live again")


def test_verify_holds_the_run_at_one_place(story):
    said = tailrace("verify", story.file)
    assert said.returncode == 0, said
    assert Storage(story.state).sizes("hold.json") == {}, "nothing is held any more"
    story.execute("INSERT INTO items VALUES (100)")
    story.wait_until_current()


def test_status_says_that_it_runs(story):
    said = tailrace("status", story.file, "--json")
    assert said.returncode == 0, said
    assert [(line["state"], line["run"], line["capture"]) for line in json.loads(said.stdout)] == [
        ("live", "running", "")
    ]


def test_a_second_run_is_refused(story):
    second = tailrace("run", story.file)
    assert second.returncode == 1
    assert f"pid {story.running.process.pid}" in second.stderr


def test_nothing_of_a_killed_run_is_in_the_way_of_the_next(story):
    """Last: the run that the others look at ends here."""
    story.running.kill()
    story.execute("INSERT INTO items VALUES (200)")
    with RunningPipeline(story.file, "--until-current", folder=story.folder) as again:
        assert again.ended() == 0, again.output
    wait_until_same(again, story.url, story.folder / "replica.db")
    assert not scratch.folder(story.state).exists()
    said = tailrace("drop", story.file)
    assert said.returncode == 0, said
    assert not Storage(story.state).exists()
    assert not (story.folder / "state").exists()
