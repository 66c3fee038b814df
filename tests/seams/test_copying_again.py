"""A table that is copied again stays whole under its readers; a change that can be taken in place copies nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from support.moved_rows import SLOW_COPY
from support.pipelines import RunningPipeline, tailrace, write_pipeline
from support.sinks import SinkDatabase, assert_same_rows, wait_until_current
from support.watching import Watcher
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROWS = 20_000

ALTERED = (
    "ALTER TABLE evolving ADD COLUMN c int DEFAULT 7",
    "ALTER TABLE evolving ADD COLUMN d text NOT NULL DEFAULT 'ever the same'",
    "ALTER TABLE evolving ALTER COLUMN s TYPE varchar(20)",
    "INSERT INTO evolving (id, s, m, old) VALUES (101, 'twenty characters ..', 1.50, 'x')",
    "ALTER TABLE evolving ALTER COLUMN s TYPE text",
    "ALTER TABLE evolving ALTER COLUMN m TYPE numeric(12, 2)",
    "INSERT INTO evolving (id, s, m, old) VALUES (102, repeat('long ', 100), 9999999999.99, 'y')",
    "ALTER TABLE evolving RENAME COLUMN old TO new",
    "UPDATE evolving SET new = 'changed' WHERE id = 1",
    "ALTER TABLE widened ALTER COLUMN n TYPE bigint USING n * 100",
    "INSERT INTO widened VALUES (3, 9000000000)",
    "ALTER TABLE called_so RENAME TO called_otherwise",
    "INSERT INTO called_otherwise VALUES (3, 3)",
)
COLUMNS = {
    "watched": ("id", "n"),
    "evolving": ("id", "s", "m", "new", "c", "d"),
    "widened": ("id", "n"),
    "called_otherwise": ("id", "n"),
}


class Reader(Watcher):
    """Counts a table's rows all the time, in a thread. They only ever get more; `faults` says where that was not so."""

    def __init__(self, sink: SinkDatabase, table: str) -> None:
        super().__init__()
        self._sink, self._query = sink, f"SELECT count(*) FROM {table}"
        self.reads, self.most = 0, 0
        self.faults: list[str] = []

    def _watch(self) -> None:
        with self._sink.connect() as connection, closing(connection.cursor()) as cursor:
            if not self._sink.is_server:
                cursor.execute("PRAGMA busy_timeout = 60000")
            while not self._done.wait(0.005):
                self._look(cursor)

    def _look(self, cursor: object) -> None:
        try:
            cursor.execute(self._query)  # type: ignore[attr-defined]
            [(count,)] = cursor.fetchall()  # type: ignore[attr-defined]
        except Exception as error:
            self.faults.append(f"{self._sink.kind}: {error}")
            return
        self.reads += 1
        if count < self.most:
            self.faults.append(f"{self._sink.kind}: {count} rows after {self.most}")
        self.most = max(self.most, count)


def copies_into(pipeline: RunningPipeline, sinks: dict[str, SinkDatabase], table: str) -> dict[str, int]:
    return {sink: pipeline.copies(table, sink) for sink in sinks}


def times_live(pipeline: RunningPipeline, sink: str, table: str) -> int:
    said = [each for each in pipeline.said("table") if (each["sink"], each["table"]) == (sink, table)]
    return sum(each["state"] == "live" for each in said)


def assert_equal(url: str, sinks: dict[str, SinkDatabase], *tables: str) -> None:
    for table in tables:
        for sink in sinks.values():
            assert_same_rows(url, sink, table, COLUMNS[table], "id")


def test_a_second_copy_is_not_seen_by_readers_and_what_can_be_taken_in_place_is_not_copied(
    postgres_url: str, sinks: dict[str, SinkDatabase], tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE watched (id int PRIMARY KEY, n int)",
        f"INSERT INTO watched SELECT n, n FROM generate_series(1, {ROWS}) n",
        "CREATE TABLE evolving (id int PRIMARY KEY, s varchar(10), m numeric(8, 2), old text)",
        "INSERT INTO evolving SELECT n, n, n + 0.25, n FROM generate_series(1, 100) n",
        "CREATE TABLE widened (id int PRIMARY KEY, n int)",
        "INSERT INTO widened VALUES (1, 1), (2, 2)",
        "CREATE TABLE called_so (id int PRIMARY KEY, n int)",
        "INSERT INTO called_so VALUES (1, 1), (2, 2)",
    )
    urls = {name: sink.url for name, sink in sinks.items()}
    file = write_pipeline(
        tmp_path, postgres_url, urls, tables=["public.*"], source={"snapshot": {"chunk_bytes": 131_072}}
    )
    with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
        pipeline.wait_until_live("public.watched", "public.evolving", "public.widened", "public.called_so")
        wait_until_current(pipeline, file, postgres_url, sinks)
        sinks["postgresql"].query("CREATE VIEW of_the_user AS SELECT max(id) AS last, count(*) AS rows FROM watched")
        sinks["postgresql"].query("GRANT SELECT ON watched TO pg_monitor")

        with (
            Reader(sinks["postgresql"], "watched") as postgresql,
            Reader(sinks["mysql"], "watched") as mysql,
            Reader(sinks["sqlite"], "watched") as sqlite,
        ):
            asked = tailrace("snapshot", "public.watched", file)
            assert asked.returncode == 0, asked
            execute(postgres_url, "INSERT INTO watched SELECT n, n FROM generate_series(100001, 100010) n")
            for sink in sinks:
                pipeline.wait_for(
                    lambda sink=sink: times_live(pipeline, sink, "public.watched") > 1, f"the second copy into {sink}"
                )
            wait_until_current(pipeline, file, postgres_url, sinks)
        for reader in (postgresql, mysql, sqlite):
            assert reader.faults == []
            assert reader.reads
        assert copies_into(pipeline, sinks, "public.watched") == dict.fromkeys(sinks, 2)
        assert_equal(postgres_url, sinks, "watched")
        assert sinks["postgresql"].query("SELECT last, rows FROM of_the_user") == [(100010, ROWS + 10)]
        assert sinks["postgresql"].query("SELECT has_table_privilege('pg_monitor', 'watched', 'SELECT')") == [(True,)]

        execute(postgres_url, *ALTERED)
        wait_until_current(pipeline, file, postgres_url, sinks)
        pipeline.wait_for(lambda: _is_equal(postgres_url, sinks), "all tables to be the same", 60)
        # the server rewrites a table for a larger integer, and nothing tells that from `USING n * 100`
        for table, copies in {"evolving": 1, "widened": 2, "called_so": 1, "called_otherwise": 0}.items():
            said = [str(each.get("reason")) for each in pipeline.said("table") if each["table"] == f"public.{table}"]
            assert copies_into(pipeline, sinks, f"public.{table}") == dict.fromkeys(sinks, copies), said
        assert pipeline.stop() == 0, pipeline.output
    assert_equal(postgres_url, sinks, *COLUMNS)


def _is_equal(url: str, sinks: dict[str, SinkDatabase]) -> bool:
    try:
        assert_equal(url, sinks, *COLUMNS)
    except Exception:  # not yet the same rows, columns, or name
        return False
    return True
