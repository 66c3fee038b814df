"""A table's trouble is the table's: it is FAILED with a reason, in that sink only, and holds nobody else up.

Nor does its size: small tables are live while a large one is being copied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.pipelines import LONGEST_SECONDS, RunningPipeline, states, tailrace, write_pipeline
from support.sinks import SinkDatabase, assert_same_rows
from tailrace import failpoints
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

TABLES = ("checked", "dated", "vanished", "fine")
COLUMNS = ("id", "n", "d")
SECRET = 424242


class Pipeline:
    """A running pipeline with its source and sinks: what its tables are, and whether their rows are the source's."""

    def __init__(self, running: RunningPipeline, url: str, file: Path, sinks: dict[str, SinkDatabase]) -> None:
        self.running, self._url, self._file, self._sinks = running, url, file, sinks

    def latest(self, sink: str, table: str) -> str:
        """The latest state that was said of a table."""
        said = [
            str(each["state"])
            for each in self.running.said("table")
            if (each["sink"], each["table"]) == (sink, f"public.{table}")
        ]
        return said[-1] if said else ""

    @staticmethod
    def _is_failure(event: dict[str, Any], sink: str, table: str) -> bool:
        return (event["sink"], event["table"], event["state"]) == (sink, f"public.{table}", "failed")

    def wait_for(self, state: str, sink: str, table: str) -> None:
        self.running.wait_for(lambda: self.latest(sink, table) == state, f"{table} to be {state} in {sink}", 90)

    def wait_until_same(self, table: str, sinks: Sequence[str]) -> None:
        for name in sinks:
            self.running.wait_for(lambda name=name: self._is_same(table, name), f"{table} to be the same in {name}", 90)

    def _is_same(self, table: str, sink: str) -> bool:
        try:
            assert_same_rows(self._url, self._sinks[sink], table, COLUMNS, "id")
        except (AssertionError, sqlite3.OperationalError, psycopg.Error):
            return False
        return True

    def copy_again(self, sink: str, table: str) -> None:
        """What an operator does once the cause is gone. After a while the pipeline tries by itself."""
        state, shown = states(self._file)[sink, f"public.{table}"]
        assert shown or state != "failed"
        [reason, *_] = [each["reason"] for each in self.running.said("table") if self._is_failure(each, sink, table)]
        assert reason
        assert str(SECRET) not in reason
        asked = tailrace("snapshot", f"public.{table}", self._file)
        assert asked.returncode == 0, asked
        self.wait_for("live", sink, table)
        self.wait_until_same(table, list(self._sinks))
        assert states(self._file)[sink, f"public.{table}"] == ("live", "")


def change(url: str, *more: str) -> None:
    """Something in every table, and then `more`."""
    execute(url, *(f"INSERT INTO {table} SELECT max(id) + 1, 1 FROM {table}" for table in TABLES), *more)


def test_a_table_that_can_not_be_written_fails_alone_and_is_copied_again_when_its_cause_is_gone(
    postgres_url: str, sinks: dict[str, SinkDatabase], tmp_path: Path
) -> None:
    for table in TABLES:
        execute(
            postgres_url,
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, d date DEFAULT '2024-02-29')",
            f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 10) n",
        )
    urls = {name: sink.url for name, sink in sinks.items()}
    file = write_pipeline(tmp_path, postgres_url, urls, tables=["public.*"])
    with RunningPipeline(file) as running:
        pipeline = Pipeline(running, postgres_url, file, sinks)
        for sink in sinks:
            for table in TABLES:
                pipeline.wait_for("live", sink, table)

        sinks["postgresql"].query("ALTER TABLE checked ADD CONSTRAINT of_the_user CHECK (n <> 424242)")
        with closing(sqlite3.connect(sinks["sqlite"].path, isolation_level=None, timeout=60)) as connection:
            connection.execute("DROP TABLE vanished")
        change(
            postgres_url,
            f"UPDATE checked SET n = {SECRET} WHERE id = 1",
            "UPDATE dated SET d = 'infinity' WHERE id = 1",
        )
        pipeline.wait_for("failed", "postgresql", "checked")
        pipeline.wait_for("failed", "mysql", "dated")
        pipeline.wait_for("failed", "sqlite", "vanished")
        change(postgres_url)
        pipeline.wait_until_same("fine", list(sinks))
        pipeline.wait_until_same("checked", ["mysql", "sqlite"])
        pipeline.wait_until_same("dated", ["postgresql", "sqlite"])
        pipeline.wait_until_same("vanished", ["postgresql", "mysql"])

        sinks["postgresql"].query("ALTER TABLE checked DROP CONSTRAINT of_the_user")
        pipeline.copy_again("postgresql", "checked")
        pipeline.copy_again("sqlite", "vanished")
        running.stop()

    change(postgres_url)
    with RunningPipeline(file, "--until-current") as running:
        assert running.ended(LONGEST_SECONDS) == 1, running.output
        assert "error: " in running.output
        assert "public.dated" in running.output.rpartition("error: ")[2]
        assert "Traceback" not in running.output
    for name, sink in sinks.items():
        for table in TABLES:
            if (name, table) != ("mysql", "dated"):
                assert_same_rows(postgres_url, sink, table, COLUMNS, "id")
    assert [key for key, (state, _) in states(file).items() if state == "failed"] == [("mysql", "public.dated")]


def open_to_others(*folders: Path) -> list[str]:
    """What somebody else than its owner may look into, in folders that hold rows of the source."""
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert found
    return [f"{path} {path.stat().st_mode:o}" for path in found if path.exists() and path.stat().st_mode & 0o077]


def test_small_tables_and_new_ones_are_live_while_a_large_one_is_copied(postgres_url: str, tmp_path: Path) -> None:
    """The large one takes minutes: a second for each of its pages, of which there are hundreds."""
    small = [f"small_{number}" for number in range(1, 4)]
    execute(
        postgres_url,
        "CREATE TABLE a_large_one (id int PRIMARY KEY, t text)",
        "INSERT INTO a_large_one SELECT n, repeat('x', 2000) FROM generate_series(1, 2000) n",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in small),
        *(f"INSERT INTO {table} VALUES (1), (2)" for table in small),
    )
    file = write_pipeline(
        tmp_path,
        postgres_url,
        {"replica": f"sqlite:///{tmp_path}/replica.db"},
        tables=["public.*"],
        source={"snapshot": {"chunk_bytes": 8192}},
    )
    slow = failpoints.environment("chunk-before-load", action="sleep=1")
    (tmp_path / "scratch").mkdir()
    with RunningPipeline(file, environment=slow | {"SPARK_LOCAL_DIRS": str(tmp_path / "scratch")}) as running:

        def live() -> set[str]:
            return {each["table"] for each in running.said("table") if each["state"] == "live"}

        running.wait_for(lambda: live() >= {f"public.{table}" for table in small}, "the small ones to be live", 90)
        execute(postgres_url, "CREATE TABLE new_one (id int PRIMARY KEY)", "INSERT INTO new_one VALUES (1)")
        running.wait_for(lambda: "public.new_one" in live(), "the new one to be live", 90)
        of_the_large = {each["state"] for each in running.said("table") if each["table"] == "public.a_large_one"}
        assert of_the_large <= {"new", "snapshot"}
        assert open_to_others(tmp_path / "state") == []
        assert open_to_others(*(tmp_path / "scratch").iterdir()) == []
        assert running.stop() == 0, running.output
