"""Capture beside a slow sink, an idle publication and its own death; and what can be asked of a pipeline that runs.

One pipeline serves most tests. Its change log is tiny, and its server soon gives up on a reader that does not answer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import hot
from support.hot import HotWorkload
from support.hot_tables import TABLES as HOT_TABLES
from support.pipelines import Replica, RunningPipeline, position_of, tailrace, write_pipeline
from tailrace.log.reader import LogReader
from tailrace.model.names import table_name
from tailrace.state.storage import Storage
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOT = "tailrace_under_test"
TIMEOUT_SECONDS = 5
LOG_BYTES, SEGMENT_BYTES = 256 << 10, 64 << 10
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text);
CREATE TABLE heap (n int, v text); ALTER TABLE heap REPLICA IDENTITY FULL;
CREATE SCHEMA unpublished; CREATE TABLE unpublished.busy (n int, v text);
"""


@dataclass(frozen=True)
class Running:
    """A live pipeline and its server. Every test finds it current, and leaves it so."""

    server: PostgresServer
    pipeline: RunningPipeline
    file: Path
    connection: psycopg.Connection[Any]

    @property
    def replica(self) -> Path:
        return self.file.parent / "replica.db"

    @property
    def log(self) -> LogReader:
        return LogReader(Storage(str(self.file.parent / "state" / "log")))

    @property
    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.file.parent / "state" / "log").glob("*") if path.exists())

    def ask(self, query: str, *parameters: object) -> Any:
        row = self.connection.execute(query.encode(), parameters).fetchone()
        assert row is not None
        return row[0]

    def wait_until_current(self) -> None:
        end, replica = position_of(self.server.url), Replica(self.file)
        self.pipeline.wait_for(lambda: replica.has_reached(end), "the replica to be current")

    def assert_equal(self, *tables: str) -> None:
        content.assert_same(content.sqlite_differences(self.server.url, self.replica, tables))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("capture")
    settings = FAST | {"wal_sender_timeout": f"{TIMEOUT_SECONDS}s"}
    with requires(PostgresServer.start, settings=settings) as server:
        hot.create(server.url)
        hot.run(server.url, seed=51, transactions=100)
        file = write_pipeline(
            folder,
            server.url,
            {"replica": f"sqlite:///{folder}/replica.db"},
            tables=["*.*", "!unpublished.*"],
            log={"max_bytes": LOG_BYTES, "segment_bytes": SEGMENT_BYTES},
        )
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(TABLES.encode())
            with RunningPipeline(file) as pipeline:
                running = Running(server, pipeline, file, connection)
                running.wait_until_current()
                yield running
                assert pipeline.stop() == 0, pipeline.output


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else writes to the replica for as long as the context lasts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        yield


def test_a_full_log_holds_capture_back_and_keeps_its_connection(running: Running) -> None:
    sender = running.ask("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", SLOT)
    restarts = len(running.pipeline.said("capture-restart"))
    insert = "INSERT INTO items SELECT %s, string_agg(md5(random()::text), '') FROM generate_series(1, 100)"
    with locked(running.replica):
        for number in range(800):  # some 2.5 MB of random digits: ten times what the log may hold
            running.connection.execute(insert, [number])
        began = running.ask("SELECT clock_timestamp()")
        running.pipeline.wait_for(lambda: running.log_bytes >= LOG_BYTES, "the log to be full")
        long = f"SELECT clock_timestamp() > %s + interval '{3 * TIMEOUT_SECONDS} seconds'"
        running.pipeline.wait_for(lambda: running.ask(long, began), "three times the server's patience")
        assert running.log_bytes < LOG_BYTES + 3 * SEGMENT_BYTES
        assert running.ask("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", SLOT) == sender
    running.wait_until_current()
    assert running.ask("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", SLOT) == sender
    assert len(running.pipeline.said("capture-restart")) == restarts
    running.assert_equal("public.items")


def test_an_idle_publication_on_a_busy_server_holds_no_log_back(running: Running) -> None:
    confirmed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    restart = "SELECT restart_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
    begin = position_of(running.server.url)

    def write_elsewhere(query: str, position: str) -> bool:
        running.connection.execute("INSERT INTO unpublished.busy SELECT n, 'x' FROM generate_series(1, 1000) n")
        running.connection.execute("CHECKPOINT")  # the server moves a slot's restart with the marks that this writes
        return bool(running.ask(query, position, SLOT))

    running.pipeline.wait_for(lambda: write_elsewhere(restart, begin), "the slot to let go of what was")
    end = position_of(running.server.url)
    running.pipeline.wait_for(lambda: running.ask(confirmed, end, SLOT), "the slot to be told of the end")


def test_a_capture_process_killed_in_a_transaction_larger_than_the_log_appends_nothing_twice(running: Running) -> None:
    def is_amid_a_transaction() -> bool:
        names = running.log.names()
        return bool(names) and not names[-1].holds_end

    insert = "INSERT INTO heap SELECT n %% 1000, md5(n::text) FROM generate_series(1, %s) n"
    deaths = 0
    for count in (50, 150_000, 50, 150_000, 50):
        running.connection.execute(insert, [count])
        if count > 50:
            running.pipeline.wait_for(is_amid_a_transaction, "a transaction that is half in the log")
            running.pipeline.kill_capture()
            deaths += is_amid_a_transaction()
    assert deaths, "no capture process was killed in the middle of a transaction"
    running.wait_until_current()
    assert [event for event in running.pipeline.said("capture-restart") if "signal 9" in event["message"]]
    running.assert_equal("public.heap")


def test_verify_under_load_says_equal_and_names_the_keys_of_rows_that_are_not(running: Running) -> None:
    with HotWorkload.start(running.server.url, rate=100, seed=52, truncate=False) as workload:
        running.pipeline.wait_for(lambda: workload.changes > 100, "the workload to be under way")
        for _ in range(2):
            ended = tailrace("verify", running.file)
            assert ended.returncode == 0, ended.stdout + ended.stderr
    running.wait_until_current()
    running.assert_equal(*(table_name(table.schema, table.name) for table in HOT_TABLES.values()))

    with closing(sqlite3.connect(running.replica, isolation_level=None)) as tampering:
        kept = tampering.execute("SELECT id, v FROM items WHERE id IN (7, 8)").fetchall()
        tampering.execute("UPDATE items SET v = 'tampered' WHERE id = 7")
        tampering.execute("DELETE FROM items WHERE id = 8")
        tampering.execute("INSERT INTO items VALUES (-9, 'never was')")
        ended = tailrace("verify", running.file)
        tampering.execute("DELETE FROM items WHERE id = -9")
        tampering.executemany("INSERT OR REPLACE INTO items VALUES (?, ?)", kept)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    [line] = [line for line in ended.stdout.splitlines() if "public.items" in line]
    assert " no " in line
    assert all(key in line.split("no", 1)[1] for key in ("-9", "7", "8"))
    assert "tampered" not in ended.stdout
    assert all(" yes " in f"{line} " for line in ended.stdout.splitlines()[1:] if "public.items" not in line)
    assert tailrace("verify", running.file).returncode == 0


def test_two_urls_are_enough_to_run(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items VALUES (1, 'one')")
        connection.execute("CREATE SCHEMA other; CREATE TABLE other.items (id int PRIMARY KEY)")
    urls = ["--from", postgres_url, "--to", "sqlite:///replica.db"]
    ended = tailrace("run", *urls, "--until-current", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
    assert tailrace("verify", *urls, folder=tmp_path).returncode == 0
    dropped = tailrace("drop", *urls, folder=tmp_path)
    assert dropped.returncode == 0, dropped.stderr
    assert "dropped replication slot tailrace_" in dropped.stdout
