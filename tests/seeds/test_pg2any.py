"""pg2any's chaos tests into Kafka (tests/chaos at 5372636), answered by the names of their files.

They stop its container with SIGTERM, and count at least the inserts. Here the run is killed with SIGKILL in each
scenario, and every message is compared with what the source noted: each change once, in the order of its key. SQLite
is written to by the same runs.

Large statements are a fifteenth of theirs; TAILRACE_CHAOS_SCALE=1 is their size (`make chaos`). TAILRACE_CHAOS_SEED
repeats the moments of the kills.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from support import kafka_ledger
from support.kafka import KafkaCluster
from support.memory import Peaks
from support.pipelines import RunningPipeline, write_pipeline
from support.seeds import answered, answers
from support.sinks import SinkDatabase, assert_same_rows
from tailrace.testing import PostgresServer

SCALE = float(os.environ.get("TAILRACE_CHAOS_SCALE") or 1 / 15)
IS_FULL = SCALE >= 1
DELETED, KEPT, AT_ONCE = int(250_000 * SCALE), int(50_000 * SCALE), int(3_000_000 * SCALE)
CLIENTS, TRANSACTIONS, ROWS = (100, 12, 3_000) if IS_FULL else (8, 3, 300)
LATEST_KILL_SECONDS = max(4.0, 60 * SCALE)
LONGEST_SECONDS = 3 * 3600.0 if IS_FULL else 900.0
MIB = 1 << 20

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.timeout(4 * 3600 if IS_FULL else 1800),
]

THEIRS = {*(f"scenario{number}_input.sql" for number in range(1, 6)), "run_pgbench_chaos_test_kafka.sh"}

VALUES = "floor(random() * 1000000)::int, gen_random_uuid(), gen_random_uuid()"
LOOP = f"DO $$ BEGIN FOR i IN 1..{{rows}} LOOP INSERT INTO t1 (val, col1, col2) SELECT {VALUES}; END LOOP; END $$"
NUMBERED = f"INSERT INTO t1 SELECT i, {VALUES} FROM generate_series(1, {{rows}}) i"
SCENARIOS = {
    1: [LOOP.format(rows=100)],
    2: [LOOP.format(rows=50), "UPDATE t1 SET val = val + 10000"],
    3: [NUMBERED.format(rows=DELETED + KEPT), f"DELETE FROM t1 WHERE id <= {DELETED}"],
    4: [
        LOOP.format(rows=30),
        "UPDATE t1 SET val = 999999 WHERE val > 800000",
        LOOP.format(rows=20),
        "DELETE FROM t1 WHERE val < 100000",
        LOOP.format(rows=10),
    ],
    5: [NUMBERED.format(rows=AT_ONCE)],
}
BETWEEN, OF_PGBENCH = 0, 6
PGBENCH = f"INSERT INTO t1 (val, col1, col2) SELECT {VALUES} FROM generate_series(1, {ROWS});\n"


class Story:
    """Scenarios one after the other, each before a run that is killed in it. The seed is on stderr."""

    def __init__(self, server: PostgresServer, url: str, file: Path) -> None:
        self._server, self._url, self._file = server, url, file
        seed = int(os.environ.get("TAILRACE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
        self._random = random.Random(seed)
        sys.stderr.write(f"pg2any's scenarios with seed {seed}\n")

    def run(self, scenarios: Sequence[Callable[[], None]]) -> Peaks:
        """Returns what the last run needed, which has all that was left to do."""
        for place, scenario in enumerate(scenarios):
            with RunningPipeline(self._file) as pipeline:
                self._wait_for(pipeline, is_first=place == 0)
                with ThreadPoolExecutor(1) as pool:
                    work = pool.submit(scenario)
                    threading.Event().wait(self._random.uniform(0, LATEST_KILL_SECONDS))
                    pipeline.kill()
                    work.result()
        with RunningPipeline(self._file, "--until-current") as pipeline, Peaks(pipeline.process.pid) as peaks:
            assert pipeline.ended(LONGEST_SECONDS) == 0, pipeline.output
        return peaks

    def _wait_for(self, pipeline: RunningPipeline, *, is_first: bool) -> None:
        """The first life is killed when the table is live, others while they take in what those before have missed."""

        def is_live() -> bool:
            return {each["sink"] for each in pipeline.said("table") if each["state"] == "live"} == {"topics", "replica"}

        pipeline.wait_for(is_live if is_first else lambda: pipeline.said("running"), "the pipeline to run")

    def execute(self, *statements: str) -> None:
        """A transaction each."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def scenario(self, number: int) -> Callable[[], None]:
        return lambda: self._begin(number, "DELETE FROM t1", SCENARIOS[number])

    def _begin(self, number: int, before: str, statements: Sequence[str] = ()) -> None:
        kafka_ledger.begin(self._url, BETWEEN)
        self.execute(before)
        kafka_ledger.begin(self._url, number)
        self.execute(*statements)

    def pgbench(self) -> None:
        """Many clients at once, whose transactions interleave. The rows of the scenario before stay."""
        self._begin(OF_PGBENCH, "SELECT setval('t1_id_seq', (SELECT max(id) FROM t1))")
        script = self._file.with_name("pgbench.sql")
        script.write_text(PGBENCH)
        command: list[str | Path] = [self._server.bin / "pgbench", "--no-vacuum", "--file", script, self._url]
        command += ["--client", str(CLIENTS), "--transactions", str(TRANSACTIONS), "--jobs", "8" if IS_FULL else "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Ended:
    """Source, topic and replica after all of it."""

    def __init__(self, url: str, replica: Path, peaks: Peaks) -> None:
        self.url, self.replica, self.peaks = url, SinkDatabase("sqlite", f"sqlite:///{replica}"), peaks

    def assert_exact(self, scenario: int, expected: dict[str, int]) -> None:
        """Every message of all scenarios is what the source noted, and this one has so many."""
        assert kafka_ledger.unlike(self.url) == []
        assert kafka_ledger.told(self.url, scenario) == expected


@contextmanager
def told(
    server: PostgresServer, broker: KafkaCluster, folder: Path, scenarios: Callable[[Story], list[Callable[[], None]]]
) -> Iterator[Ended]:
    """A pipeline into Kafka and SQLite that lived through scenarios, and what its topic told."""
    name = f"pg2any_{folder.name}"
    url = server.create_database(name)
    try:
        kafka_ledger.create(url)
        topics = {"url": broker.url, "partitions": 3, "prefix": f"{name}{os.getpid()}"}
        sinks: dict[str, object] = {"topics": topics, "replica": f"sqlite:///{folder}/replica.db"}
        file = write_pipeline(folder, url, sinks, name=name, tables=["public.*"])  # type: ignore[arg-type]
        story = Story(server, url, file)
        peaks = story.run(scenarios(story))
        kafka_ledger.copy_messages(url, broker.servers, f"{topics['prefix']}.public.t1")
        yield Ended(url, folder / "replica.db", peaks)
    finally:
        server.drop_database(name)


@pytest.fixture(scope="module")
def small(
    postgres_server: PostgresServer, kafka_broker: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ended]:
    with told(
        postgres_server,
        kafka_broker,
        tmp_path_factory.mktemp("small", numbered=False),
        lambda story: [story.scenario(number) for number in (1, 2, 3, 4)],
    ) as ended:
        yield ended


@pytest.fixture(scope="module")
def large(
    postgres_server: PostgresServer, kafka_broker: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ended]:
    with told(
        postgres_server,
        kafka_broker,
        tmp_path_factory.mktemp("large", numbered=False),
        lambda story: [story.scenario(5), story.pgbench],
    ) as ended:
        yield ended


def test_all_of_theirs_are_answered() -> None:
    assert set(answered(globals())) == THEIRS


@answers("scenario1_input.sql")
def test_a_hundred_inserts_are_a_hundred_messages(small: Ended) -> None:
    small.assert_exact(1, {"c": 100})


@answers("scenario2_input.sql")
def test_fifty_inserts_and_their_updates_are_told_once(small: Ended) -> None:
    small.assert_exact(2, {"c": 50, "u": 50})
    assert kafka_ledger.rows_told(small.url, 2, "val >= 10000") == 50


@answers("scenario3_input.sql")
def test_a_large_statement_and_the_delete_of_most_of_it_are_told_once(small: Ended) -> None:
    small.assert_exact(3, {"c": DELETED + KEPT, "d": DELETED, kafka_ledger.TOMBSTONE: DELETED})
    assert kafka_ledger.rows_told(small.url, 3, "true") == KEPT


@answers("scenario4_input.sql")
def test_mixed_changes_are_told_once(small: Ended) -> None:
    """How many are updated and deleted is chance: the source noted it."""
    noted = kafka_ledger.noted(small.url, 4)
    assert noted["c"] == 60
    small.assert_exact(4, noted | {kafka_ledger.TOMBSTONE: noted["d"]})


def test_a_key_stays_in_its_partition(small: Ended) -> None:
    assert kafka_ledger.keys_in_several_partitions(small.url) == 0


def test_a_replica_that_the_same_runs_wrote_is_the_same(small: Ended) -> None:
    assert assert_same_rows(small.url, small.replica, "t1", ("id", "val", "col1", "col2"), "id") >= 30


@pytest.mark.long
@answers("scenario5_input.sql")
def test_one_large_transaction_is_told_once_in_bounded_memory(large: Ended) -> None:
    large.assert_exact(5, {"c": AT_ONCE})
    print(f"peaks with {AT_ONCE:,} rows at once: {large.peaks}")
    assert large.peaks.driver < 800 * MIB
    assert large.peaks.capture < 300 * MIB


@pytest.mark.long
@answers("run_pgbench_chaos_test_kafka.sh")
def test_the_rows_of_pgbench_are_told_once(large: Ended) -> None:
    large.assert_exact(OF_PGBENCH, {"c": CLIENTS * TRANSACTIONS * ROWS})
    rows = assert_same_rows(large.url, large.replica, "t1", ("id", "val", "col1", "col2"), "id")
    assert rows == AT_ONCE + CLIENTS * TRANSACTIONS * ROWS
