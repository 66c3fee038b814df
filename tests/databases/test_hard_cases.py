"""What has broken replicas before, all in one run of one pipeline: a schema a case, compared by content at the end."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest

from support.pipelines import Replica, RunningPipeline, position_of, tailrace, write_pipeline
from tailrace.testing import PostgresServer, content
from tailrace.testing.rendering import tables_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

MIB = 1 << 20
MANY = 2_000_000 if os.environ.get("TAILRACE_LARGE") else 400_000  # `make large`


def read_cases(path: Path) -> dict[str, list[str]]:
    """The SQL of each case: what there is before the pipeline starts, and then a transaction an entry."""
    _, *cases = re.split(r"^-- case: (.*)$", path.read_text(), flags=re.MULTILINE)
    return {name: sql.split("-- round") for name, sql in zip(cases[::2], cases[1::2], strict=True)}


CASES = read_cases(Path(__file__).with_name("hard_cases.sql"))


@dataclass(frozen=True)
class Outcome:
    """Source and replica after everything has happened and the pipeline has been stopped."""

    url: str
    file: Path
    path: Path


def run_in(connection: psycopg.Connection[tuple[object, ...]], schema: str, statements: str) -> None:
    """One transaction, in the case's own schema."""
    quoted = '"' + schema + '"'
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path = {quoted}; {statements}".encode())


def tables_in(url: str, schema: str) -> list[str]:
    return [table for table in tables_of(url) if table.startswith(f"{schema}.")]


@pytest.fixture(scope="module")
def outcome(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    url, folder = postgres_server.create_database("hard_cases"), tmp_path_factory.mktemp("hard_cases")
    file = write_pipeline(folder, url, {"replica": f"sqlite:///{folder}/replica.db"})
    found = Outcome(url, file, folder / "replica.db")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for schema, (before, *_) in CASES.items():
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'.encode())
                run_in(connection, schema, before)
            with RunningPipeline(file) as pipeline:
                live_through(found, pipeline, connection)
                assert pipeline.stop() == 0, pipeline.output
        yield found
    finally:
        postgres_server.drop_database("hard_cases")


def live_through(found: Outcome, pipeline: RunningPipeline, connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Round by round, each a micro-batch of its own at least; then wait until nothing differs any more.

    What still differs after a long time is the tests' business, not ours.
    """
    replica = Replica(found.file)
    for number in range(1, max(map(len, CASES.values()))):
        pipeline.wait_for(partial(replica.has_reached, position_of(found.url)), f"being current before round {number}")
        for schema, rounds in CASES.items():
            if number < len(rounds):
                run_in(connection, schema, rounds[number])
    deadline = time.monotonic() + 60
    waiting = list(CASES)
    while waiting and time.monotonic() < deadline and pipeline.process.poll() is None:
        waiting = [schema for schema in waiting if differences(found, schema)]
        time.sleep(0.5)


def differences(found: Outcome, schema: str) -> list[content.Difference]:
    return content.sqlite_differences(found.url, found.path, tables_in(found.url, schema))


@pytest.mark.parametrize("case", CASES)
def test_a_hard_case_ends_equal_to_its_source(case: str, outcome: Outcome) -> None:
    assert tables_in(outcome.url, case)
    content.assert_same(differences(outcome, case))


def test_text_is_stored_as_text_and_booleans_are_not(outcome: Outcome) -> None:
    with closing(sqlite3.connect(outcome.path)) as connection:
        rows = connection.execute("SELECT id, t, b FROM text_t_and_f_flags ORDER BY id").fetchall()
    assert rows[:3] == [(1, "f", 1), (2, "f", 0), (3, "true", 1)]


def test_verify_calls_every_one_of_them_equal(outcome: Outcome) -> None:
    ended = tailrace("verify", outcome.file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def peak_of(process: psutil.Process) -> int:
    """The most memory that a process has held, in bytes, as Linux counts it (VmHWM)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024


@pytest.mark.slow
def test_a_transaction_of_very_many_rows_goes_through_in_bounded_memory(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE big (id bigint PRIMARY KEY, n int, t text); INSERT INTO big VALUES (0, 0, 'old')"
        )
        file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"}, name="big")
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.big")
            driver, capture = psutil.Process(pipeline.process.pid), pipeline.capture_process()
            small = peak_of(driver)
            connection.execute("INSERT INTO big SELECT n, n %% 1000, 'row ' || n FROM generate_series(1, %s) n", [MANY])
            end = position_of(postgres_url)
            pipeline.wait_for(lambda: Replica(file).has_reached(end), "the replica to have it", seconds=900)
            assert not pipeline.said("capture-restart"), pipeline.output
            assert peak_of(capture) < 300 * MIB
            assert peak_of(driver) < small + 200 * MIB
            assert pipeline.stop() == 0, pipeline.output
    ended = tailrace("verify", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{MANY + 1:,}" in ended.stdout
