"""A MySQL or MariaDB database into SQLite, PostgreSQL and MySQL, under load and through changes of its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import mysql_workload
from support.mysql import MySqlServer
from support.mysql_sources import Logging
from support.mysql_workload import Workload
from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace.sources.mysql.connection import connect, database_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

SWAP = (
    "CREATE TABLE _plain_new LIKE plain",
    "ALTER TABLE _plain_new ADD more int DEFAULT 7",
    "INSERT INTO _plain_new (id, n, t, d, at, j, e, b) SELECT id, n, t, d, at, j, e, b FROM plain",
    "RENAME TABLE plain TO _plain_old, _plain_new TO plain",
)
"""As the tools for online schema changes do it, in short."""


def execute(url: str, *statements: str) -> None:
    with connect(url) as connection:
        for statement in statements:
            connection.query(statement)


def verify(file: Path) -> None:
    ended = tailrace("verify", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def is_live(pipeline: RunningPipeline, table: str, sinks: int) -> bool:
    """In all of the sinks, after the last thing that happened to it."""
    last = {each["sink"]: each["state"] for each in pipeline.said("table") if each["table"] == table}
    return len(last) == sinks and set(last.values()) == {"live"}


@pytest.mark.parametrize("logging", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_a_database_ends_equal_in_every_sink_through_ddl_under_load(
    logging: Logging, logged_url: str, postgres_url: str, mysql_url: str, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    database = database_of(logged_url)
    mysql_workload.create(logged_url)
    mysql_workload.run(logged_url, seed=1, transactions=150)
    sinks = {"replica": f"sqlite:///{tmp_path}/replica.db", "postgres": postgres_url, "mysql": mysql_url}
    file = write_pipeline(tmp_path, logged_url, sinks, source={"snapshot": {"chunk_bytes": 16_384}})
    with RunningPipeline(file) as pipeline:
        with Workload(logged_url, seed=2, rate=20) as workload:
            names = [f"{database}.{table}" for table in mysql_workload.TABLES]
            pipeline.wait_for(lambda: all(is_live(pipeline, name, 3) for name in names), "all tables to be live")
            seen = workload.transactions
            pipeline.wait_for(lambda: workload.transactions > seen + 20, "changes while they are live")
            execute(logged_url, "ALTER TABLE folded ADD w int NOT NULL DEFAULT 5", "TRUNCATE TABLE pair")
            execute(logged_url, "CREATE TABLE late (id int PRIMARY KEY) SELECT 1 AS id, 'ü' AS name", *SWAP)
            pipeline.wait_for(lambda: is_live(pipeline, f"{database}.late", 3), "a table that came late to be live")
            seen = workload.transactions
            pipeline.wait_for(lambda: workload.transactions > seen + 20, "changes after it")
        assert pipeline.stop(120) == 0, pipeline.output
    run_until_current(file)
    verify(file)
    execute(logged_url, "DROP TABLE late", "RENAME TABLE exact TO precise", "DELETE FROM plain WHERE id < 100")
    run_until_current(file)
    verify(file)
