"""What happens to the databases that a pipeline writes to: it outlives it or says so in a sentence, and ends equal.

The tests of this file are one story, told in their order to one pipeline with a sink of each kind, on servers of its
own. A sink in trouble never holds up the others.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.mysql_fixtures import FAST_MYSQL
from support.pipelines import RunningPipeline, tailrace, write_pipeline
from support.sinks import Server, SinkDatabase, SinkView, assert_same_rows, sink_databases, wait_until_current
from tailrace import failpoints
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

MIB = 1 << 20
SECRET = "do-not-tell"
"""Is in every row, and must be in nothing that the pipeline says."""

ONE = f"INSERT INTO items SELECT max(id) + 1, 1, '{SECRET}' FROM items"
MANY = f"INSERT INTO items SELECT 10000 + n, n, '{SECRET}' || repeat('x', 400) FROM generate_series(1, 60000) n"


@dataclass
class Story:
    url: str
    folder: Path
    servers: dict[str, Server]
    sinks: dict[str, SinkDatabase]
    file: Path
    pipeline: RunningPipeline

    def execute(self, *statements: str) -> None:
        execute(self.url, *statements)

    def begin(self, sinks: dict[str, SinkDatabase], environment: dict[str, str] | None = None) -> None:
        """Write the file with these sinks, and start."""
        self.sinks = sinks
        urls = {name: sink.url for name, sink in sinks.items()}
        settings = {"source": {"snapshot": {"chunk_bytes": 524_288}}, "log": {"keep": "256 MiB"}}
        self.file = write_pipeline(self.folder, self.url, urls, name="failures", **settings)
        self.pipeline = RunningPipeline(self.file, environment=environment)

    def end(self) -> None:
        """Stop it: that a sink was given up is told once more by the exit code, and no row's value by anything."""
        assert self.pipeline.stop() == (1 if self.pipeline.said("sink-failed") else 0), self.pipeline.output
        assert SECRET not in self.pipeline.output

    def wait_until_current(self, *sinks: str) -> None:
        wait_until_current(self.pipeline, self.file, self.url, sinks or self.sinks)

    def assert_equal(self, *sinks: str) -> None:
        """Wait until these sinks, or all of them, are current; then compare their rows."""
        self.wait_until_current(*sinks)
        for name in sinks or self.sinks:
            assert_same_rows(self.url, self.sinks[name], "items", ("id", "n", "t"), "id")

    def wait_for_words(self, words: dict[str, str], since: int = 0) -> None:
        """Until each of these sinks has said its words, of the events from `since` on."""

        def has_said(sink: str, wanted: str) -> bool:
            events = [each for each in self.pipeline.events[since:] if each.get("sink") == sink]
            return any(re.search(wanted, event.get("message") or event.get("reason") or "") for event in events)

        self.pipeline.wait_for(lambda: all(has_said(*each) for each in words.items()), f"{words} to be said")


@pytest.fixture(scope="module")
def story(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("failures")
    url = postgres_server.create_database("failures")
    with ExitStack() as stack:
        stack.callback(postgres_server.drop_database, "failures")
        servers: dict[str, Server] = {
            "postgresql": stack.enter_context(requires(PostgresServer.start, settings=FAST)),
            "mysql": stack.enter_context(requires(MySqlServer.start, settings=FAST_MYSQL)),
            "mariadb": stack.enter_context(requires(MariaDbServer.start, settings=FAST_MYSQL)),
        }
        sinks = stack.enter_context(sink_databases(servers, folder))
        made = Story(url, folder, servers, {}, Path(), None)  # type: ignore[arg-type]
        made.execute(
            "CREATE TABLE items (id int PRIMARY KEY, n int, t text)",
            f"INSERT INTO items SELECT n, n, '{SECRET}' || n FROM generate_series(1, 5000) n",
        )
        made.begin(sinks)
        stack.callback(lambda: made.pipeline.__exit__(None, None, None))
        made.assert_equal()
        yield made


def test_servers_that_are_down_or_frozen_hold_nobody_up_and_their_sinks_catch_up(story: Story) -> None:
    story.servers["postgresql"].kill()
    story.servers["mysql"].kill()
    frozen = story.servers["mariadb"].pid
    os.kill(frozen, signal.SIGSTOP)
    story.execute(ONE, "UPDATE items SET n = n + 1")
    story.assert_equal("sqlite")
    story.wait_for_words({"postgresql": "went away", "mysql": "went away"})
    story.execute(ONE)
    story.assert_equal("sqlite")

    story.servers["postgresql"].restart()
    story.servers["mysql"].restart()
    os.kill(frozen, signal.SIGCONT)
    story.assert_equal()


@pytest.mark.long
def test_a_frozen_server_does_not_keep_the_run_from_stopping(story: Story) -> None:
    frozen = story.servers["mysql"].pid
    os.kill(frozen, signal.SIGSTOP)
    try:
        story.execute(ONE)
        story.assert_equal("sqlite", "postgresql", "mariadb")
        assert story.pipeline.stop() == 0, story.pipeline.output
        assert [event["sink"] for event in story.pipeline.said("sink-abandoned")] == ["mysql"]
    finally:
        os.kill(frozen, signal.SIGCONT)
    story.begin(story.sinks)
    story.assert_equal()


def test_a_server_that_restarts_and_sessions_that_are_cut_go_unnoticed_by_the_rows(story: Story) -> None:
    for server in story.servers.values():
        server.restart()
    story.execute(ONE, "DELETE FROM items WHERE id = 3")
    story.assert_equal()
    for kind in story.servers:
        assert story.sinks[kind].cut_sessions()
    story.execute(ONE, "UPDATE items SET n = -n WHERE id < 500")
    story.assert_equal()


def test_a_sqlite_file_that_is_put_back_from_a_backup_under_the_run_gets_what_it_lacks(story: Story) -> None:
    path, backup = story.sinks["sqlite"].path, story.folder / "backup.db"
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(backup)) as copy:
        connection.backup(copy)
    story.execute(ONE, "DELETE FROM items WHERE id = 4")
    story.assert_equal()
    since = len(story.pipeline.events)
    for side in (f"{path}-wal", f"{path}-shm"):
        Path(side).unlink(missing_ok=True)
    backup.replace(path)
    story.execute(ONE)
    story.wait_for_words({"sqlite": "was replaced"}, since)
    story.assert_equal()


def words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return ""


def test_a_python_worker_of_spark_that_is_lost_is_not_the_end_of_its_sink(story: Story) -> None:
    children = psutil.Process(story.pipeline.process.pid).children(recursive=True)
    runners = [child for child in children if "python_streaming_source_runner" in words_of(child)]
    assert len(runners) >= len(story.sinks)
    for runner in runners:
        runner.kill()
    story.execute(ONE)
    story.wait_for_words(dict.fromkeys(story.sinks, "the streaming query of sink .* ended"))
    story.assert_equal()


@pytest.mark.long
def test_a_table_that_somebody_locks_for_longer_than_the_sink_waits_is_written_when_it_is_free(story: Story) -> None:
    since = len(story.pipeline.events)
    with ExitStack() as locks:
        for kind, statement in {
            "postgresql": "BEGIN; LOCK TABLE items IN ACCESS EXCLUSIVE MODE",
            "mysql": "LOCK TABLES items WRITE",
            "mariadb": "LOCK TABLES items WRITE",
        }.items():
            locks.enter_context(story.sinks[kind].connect()).cursor().execute(statement)
        other = locks.enter_context(closing(sqlite3.connect(story.sinks["sqlite"].path, isolation_level=None)))
        other.execute("BEGIN IMMEDIATE")
        story.execute(ONE, "UPDATE items SET n = n + 1 WHERE id % 5 = 0")
        waited = dict.fromkeys(("mysql", "mariadb"), "Lock wait timeout")
        waited |= {"postgresql": "lock timeout", "sqlite": "database is locked"}
        story.wait_for_words(waited, since)
    story.assert_equal()


def test_a_full_disk_under_sqlite_is_said_and_when_there_is_room_again_every_row_arrives(story: Story) -> None:
    """By the kernel's limit on the size of files, which needs no privileges."""
    driver = psutil.Process(story.pipeline.process.pid)
    soft, hard = driver.rlimit(resource.RLIMIT_FSIZE)
    driver.rlimit(resource.RLIMIT_FSIZE, (8 * MIB, hard))
    since = len(story.pipeline.events)
    story.execute(MANY)
    story.wait_for_words({"sqlite": "disk"}, since)
    driver.rlimit(resource.RLIMIT_FSIZE, (soft, hard))
    story.execute(ONE)
    story.assert_equal()


def stopped(pipeline: RunningPipeline) -> list[psutil.Process]:
    """The processes of a pipeline that stand still at a failpoint."""
    children = psutil.Process(pipeline.process.pid).children(recursive=True)
    return [child for child in children if _is_stopped(child)]


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.Error:  # it has ended meanwhile
        return False


def is_resumed(pipeline: RunningPipeline) -> bool:
    """Let go on what stands still."""
    for process in stopped(pipeline):
        process.resume()
    return True


def test_a_sink_that_is_added_later_is_copied_by_itself_while_the_others_stay_live(story: Story) -> None:
    before = dict(story.sinks)
    late = SinkDatabase("sqlite", f"sqlite:///{story.folder}/late.db")
    story.end()
    story.begin(before | {"late": late}, failpoints.environment("chunk-before-load", nth=1, action="stop"))
    story.pipeline.wait_for(lambda: stopped(story.pipeline), "the copy to stand still")
    story.execute(ONE, "UPDATE items SET n = 0 WHERE id < 10")
    story.assert_equal(*before)
    view = SinkView(story.file, "late")
    assert not view.is_live()

    story.pipeline.wait_for(lambda: is_resumed(story.pipeline) and view.is_live(), "the copy to end")
    story.assert_equal()


@pytest.mark.long
def test_a_table_that_somebody_dropped_is_named_and_copied_again_after_a_drop_of_the_pipeline(story: Story) -> None:
    since = len(story.pipeline.events)
    for kind in story.servers:
        story.sinks[kind].query("DROP TABLE items")
    story.execute(ONE)
    gone = "items.*(is gone|does not exist|doesn't exist)"
    story.wait_for_words(dict.fromkeys(story.servers, gone), since)
    story.assert_equal(*(story.sinks.keys() - story.servers.keys()))
    story.end()

    dropped = tailrace("drop", story.file)
    assert dropped.returncode == 0, dropped
    story.begin(story.sinks)
    story.assert_equal()
    story.end()
