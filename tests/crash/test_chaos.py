"""SIGKILL of the driver in the middle of everything that pg2any's chaos tests do, into all sinks: rows are compared.

The large statements are a tenth of the real ones in `make kills`; `make chaos` runs them at full size
(TAILRACE_CHAOS_SCALE=1), the 3,600,000 rows of pgbench included.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from support.sinks import Server, SinkDatabase, assert_same_rows, sink_databases
from tailrace.testing import PostgresServer

SCALE = float(os.environ.get("TAILRACE_CHAOS_SCALE", "0.1"))
IS_FULL = SCALE >= 1
LATEST_KILL_SECONDS = 60 * SCALE
"""How long after the beginning of a large statement the driver is killed at the latest."""

CLIENTS, TRANSACTIONS, ROWS = (100, 12, 3_000) if IS_FULL else (8, 3, 300)

pytestmark = [
    pytest.mark.long,
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.timeout(4 * 3600 if IS_FULL else 1800),
]

SINKS = ("sqlite", "postgresql", "mysql", "mariadb")
COLUMNS = ("id", "val", "col1", "col2")

TABLE = """
CREATE TABLE t1 (id serial PRIMARY KEY, val int, col1 uuid, col2 uuid) PARTITION BY HASH (id);
CREATE TABLE t1_0 PARTITION OF t1 FOR VALUES WITH (MODULUS 5, REMAINDER 0);
CREATE TABLE t1_1 PARTITION OF t1 FOR VALUES WITH (MODULUS 5, REMAINDER 1);
CREATE TABLE t1_2 PARTITION OF t1 FOR VALUES WITH (MODULUS 5, REMAINDER 2);
CREATE TABLE t1_3 PARTITION OF t1 FOR VALUES WITH (MODULUS 5, REMAINDER 3);
CREATE TABLE t1_4 PARTITION OF t1 FOR VALUES WITH (MODULUS 5, REMAINDER 4);
INSERT INTO t1 (val, col1, col2) SELECT n, gen_random_uuid(), gen_random_uuid() FROM generate_series(1, 1000) n;
"""
INSERT = (
    "INSERT INTO t1 (val, col1, col2) SELECT n, gen_random_uuid(), gen_random_uuid() FROM generate_series(1, {rows}) n"
)


class Chaos:
    """A pipeline that is killed again and again, and the source that it follows. The seed is on stderr."""

    def __init__(self, server: PostgresServer, url: str, file: Path, sinks: dict[str, SinkDatabase]) -> None:
        self._server, self._url, self._file, self._sinks = server, url, file, sinks
        self._seed = int(os.environ.get("TAILRACE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
        self._random = random.Random(self._seed)
        sys.stderr.write(f"chaos with seed {self._seed}\n")

    def run(self) -> None:
        """A kill a life: in every scenario at full size, otherwise in one of those that share a life."""
        lives = [[self.inserts, self.update, self.mixed], [self.delete_most], [self.one_transaction, self.pgbench]]
        if IS_FULL:
            lives = [[scenario] for scenarios in lives for scenario in scenarios]
        for place, scenarios in enumerate(lives):
            with RunningPipeline(self._file) as pipeline:
                self._wait_for(pipeline, is_first=place == 0)
                victim = self._random.choice(scenarios)
                for scenario in scenarios:
                    scenario(pipeline.kill if scenario == victim else lambda: None)
                assert pipeline.process.returncode == -9, pipeline.output
        run_until_current(self._file)

    def _wait_for(self, pipeline: RunningPipeline, *, is_first: bool) -> None:
        """The first life is killed when its tables are live, the others while they take in what they have missed."""
        if is_first:
            pipeline.wait_for(
                lambda: {e["sink"] for e in pipeline.said("table") if e["state"] == "live"} >= self._sinks.keys(),
                "the table to be live in every sink",
            )
        else:
            pipeline.wait_for(lambda: pipeline.said("running"), "the pipeline to run")

    def inserts(self, kill: Callable[[], None]) -> None:
        """100 inserts, a transaction each; killed after one of them."""
        self._in_a_loop([INSERT.format(rows=1)] * 100, kill)

    def update(self, kill: Callable[[], None]) -> None:
        """50 inserts, then an update of all rows."""
        self._in_a_loop([*[INSERT.format(rows=1)] * 50, "UPDATE t1 SET val = val + 10000"], kill)

    def delete_most(self, kill: Callable[[], None]) -> None:
        """300,000 inserts in one statement, most of which are deleted again."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            [first] = connection.execute("SELECT max(id) FROM t1").fetchone() or (0,)
        last = first + int(250_000 * SCALE)
        self._at_some_time(kill, INSERT.format(rows=int(300_000 * SCALE)), f"DELETE FROM t1 WHERE id <= {last}")

    def mixed(self, kill: Callable[[], None]) -> None:
        one = INSERT.format(rows=1)
        update, delete = "UPDATE t1 SET val = val + 1 WHERE id % 3 = 0", "DELETE FROM t1 WHERE id % 7 = 0"
        self._in_a_loop([*[one] * 30, update, *[one] * 20, delete, *[one] * 10], kill)

    def one_transaction(self, kill: Callable[[], None]) -> None:
        """3,000,000 inserts in one transaction."""
        self._at_some_time(kill, INSERT.format(rows=int(3_000_000 * SCALE)))

    def pgbench(self, kill: Callable[[], None]) -> None:
        """Many clients at once, whose transactions interleave."""
        script = self._file.with_name("pgbench.sql")
        script.write_text(INSERT.format(rows=ROWS) + ";\n")
        command: list[str | Path] = [self._server.bin / "pgbench", "--no-vacuum", "--file", script, self._url]
        command += ["--client", str(CLIENTS), "--transactions", str(TRANSACTIONS), "--jobs", "2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as clients:
            self._wait_a_little()
            kill()
            words, _ = clients.communicate()
        assert clients.returncode == 0, words

    def _execute(self, statements: Iterable[str]) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _in_a_loop(self, statements: list[str], kill: Callable[[], None]) -> None:
        """A transaction each, back to back; the driver dies after one of them, and the rest goes on without it."""
        last = self._random.randrange(1, len(statements))
        self._execute(statements[:last])
        kill()
        self._execute(statements[last:])

    def _at_some_time(self, kill: Callable[[], None], *statements: str) -> None:
        """Killed while the statements run, or when the sinks are at it."""
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self._execute, statements)
            self._wait_a_little()
            kill()
            work.result()

    def _wait_a_little(self) -> None:
        threading.Event().wait(self._random.uniform(0, LATEST_KILL_SECONDS))


@dataclass(frozen=True)
class Outcome:
    """Source and sinks after all of it."""

    url: str
    sinks: dict[str, SinkDatabase]


@pytest.fixture(scope="module")
def outcome(
    postgres_server: PostgresServer,
    mysql_server: MySqlServer,
    mariadb_server: MariaDbServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Outcome]:
    url, folder = postgres_server.create_database("chaos"), tmp_path_factory.mktemp("chaos")
    servers: dict[str, Server] = {"postgresql": postgres_server, "mysql": mysql_server, "mariadb": mariadb_server}
    try:
        with sink_databases(servers, folder) as sinks:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(TABLE.encode())
            file = write_pipeline(folder, url, {kind: sink.url for kind, sink in sinks.items()}, name="chaos")
            Chaos(postgres_server, url, file, sinks).run()
            yield Outcome(url, sinks)
    finally:
        postgres_server.drop_database("chaos")


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_that_lived_through_the_chaos_has_the_rows_of_its_source(kind: str, outcome: Outcome) -> None:
    rows = assert_same_rows(outcome.url, outcome.sinks[kind], "t1", COLUMNS, "id")
    assert rows > 3_000_000 * SCALE + CLIENTS * TRANSACTIONS * ROWS
