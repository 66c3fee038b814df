"""The driver is killed around a sink's commit, in all databases at the same moment: it ends equal.

A failpoint holds the driver at the place, for each sink in a thread of its own; once all sinks show from outside that
they are there, the driver gets SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pymysql
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from support.sinks import Server, SinkDatabase, SinkView, assert_same_rows, sink_databases
from tailrace import failpoints
from tailrace.testing import PostgresServer
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]

ROWS = 30_000
SPARK = {"master": "local[6,4]", "conf": {"spark.default.parallelism": 2}}
"""The copies into all sinks have room beside each other."""

UNKNOWN_COLUMN = 1054  # to MySQL


@dataclass
class Setting:
    url: str
    file: Path
    sinks: dict[str, SinkDatabase]
    dead: dict[str, set[str]] = field(default_factory=dict)
    """Staging tables that killed drivers have left behind."""

    def execute(self, *statements: str) -> None:
        execute(self.url, *statements)

    def kill_at(self, failpoint: str, is_there: Callable[[SinkDatabase], bool], seconds: float = 60) -> None:
        """Hold the driver at `failpoint` until all sinks are there, and kill it."""
        environment = failpoints.environment(failpoint, action=f"sleep={seconds}")
        with RunningPipeline(self.file, environment=environment) as pipeline:
            pipeline.wait_for(lambda: all(map(is_there, self.sinks.values())), f"all sinks to be at {failpoint}")
            pipeline.kill()
        self.dead = {kind: set(sink.staging_tables()) for kind, sink in self.sinks.items()}

    def view(self, sink: SinkDatabase) -> SinkView:
        return SinkView(self.file, sink.kind)


@pytest.fixture
def setting(
    postgres_server: PostgresServer,
    mysql_server: MySqlServer,
    mariadb_server: MariaDbServer,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[Setting]:
    servers: dict[str, Server] = {"postgresql": postgres_server, "mysql": mysql_server, "mariadb": mariadb_server}
    with sink_databases(servers) as sinks:
        urls = {kind: sink.url for kind, sink in sinks.items()}
        source = {"snapshot": {"chunk_bytes": 262_144}}
        made = Setting(postgres_url, write_pipeline(tmp_path, postgres_url, urls, source=source, spark=SPARK), sinks)
        made.execute(
            "CREATE TABLE items (id int PRIMARY KEY, n int, t text)",
            f"INSERT INTO items SELECT n, 0, repeat('x', 90) || n FROM generate_series(1, {ROWS}) n",
        )
        yield made


@pytest.mark.long
def test_a_driver_killed_around_the_commit_of_every_sink_ends_equal_and_leaves_no_staging_tables(
    setting: Setting,
) -> None:
    def has_loaded(sink: SinkDatabase) -> bool:
        return setting.view(sink).chunks_loaded() > 0

    def is_live(sink: SinkDatabase) -> bool:
        return setting.view(sink).is_live()

    def has_staged(sink: SinkDatabase) -> bool:
        return bool(sink.staging_tables())

    def is_evolved(sink: SinkDatabase) -> bool:
        return sink.query("SELECT count(extra) FROM items") == [(ROWS,)]

    setting.kill_at("chunk-loaded", has_loaded, seconds=3)
    assert not any(is_live(sink) for sink in setting.sinks.values())
    setting.execute("UPDATE items SET n = n + 1 WHERE id % 2 = 0", "DELETE FROM items WHERE id = 7")
    setting.kill_at("table-live", is_live)

    setting.execute("INSERT INTO items VALUES (7, 7, 'again')", "UPDATE items SET n = n + 1")
    setting.kill_at("batch-staged", has_staged)
    staged = setting.dead
    assert all(staged.values())

    setting.execute("ALTER TABLE items ADD COLUMN extra text", "UPDATE items SET extra = 'extra ' || id")
    setting.kill_at("sink-before-commit", SinkDatabase.has_open_write)
    assert all(setting.dead.values())
    assert not any(staged[kind] & setting.dead[kind] for kind in staged)
    for kind in ("mysql", "mariadb"):  # their DDL is done, the batch is not
        assert setting.sinks[kind].query("SELECT count(extra) FROM items") == [(0,)]
    assert all(sink.query("SELECT max(n) FROM items") == [(1,)] for sink in setting.sinks.values())

    setting.kill_at("sink-committed", _quietly(is_evolved))
    assert all(setting.dead.values())

    setting.execute("UPDATE items SET id = id + 100000 WHERE id % 10 = 0", "UPDATE items SET extra = NULL WHERE n = 2")
    run_until_current(setting.file)
    for sink in setting.sinks.values():
        assert assert_same_rows(setting.url, sink, "items", ("id", "n", "t", "extra"), "id") == ROWS
        assert not sink.staging_tables()


def _quietly(look: Callable[[SinkDatabase], bool]) -> Callable[[SinkDatabase], bool]:
    """False while a table has not the column: before its DDL, or when one that was broken off is undone."""

    def is_so(sink: SinkDatabase) -> bool:
        try:
            return look(sink)
        except psycopg.errors.UndefinedColumn:
            return False
        except pymysql.err.OperationalError as error:
            if error.args[0] != UNKNOWN_COLUMN:
                raise
            return False

    return is_so
