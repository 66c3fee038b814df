"""Types that come and go under a live pipeline: a whole run, killed and behind in the middle, into two sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from support.sinks import wait_until_current
from tailrace.testing import PostgresServer, content

pytestmark = [pytest.mark.spark, pytest.mark.server]

TABLES = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TYPE pair AS (a int, b text);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN amount AS numeric(12,2) CHECK (VALUE >= 0);
CREATE TABLE live (id int PRIMARY KEY, v text);
CREATE TABLE come_and_gone (id int PRIMARY KEY, v text);
CREATE TABLE whole (n int, v text); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE typed (id int PRIMARY KEY, m mood, ms mood[], d amount);
CREATE TABLE dropped (id int PRIMARY KEY, m mood); ALTER TABLE dropped REPLICA IDENTITY FULL;
CREATE TABLE bystander (id int PRIMARY KEY, v text);
INSERT INTO live VALUES (1, 'copied'); INSERT INTO typed VALUES (1, 'ok', '{ok}', 1.5);
INSERT INTO dropped VALUES (1, 'ok'); INSERT INTO whole VALUES (1, 'copied');
"""

IN_THE_STREAM = [
    "INSERT INTO bystander VALUES (1, 'binary'); UPDATE live SET v = 'binary' WHERE id = 1",
    """INSERT INTO live VALUES (2, 'before'); ALTER TABLE live ADD c pair; INSERT INTO bystander VALUES (2, 'text');
    INSERT INTO live VALUES (3, 'same transaction', ROW(1, 'a,"b'))""",
    "INSERT INTO live VALUES (4, 'later', ROW(NULL, '')); UPDATE live SET c = ROW(9, 'z') WHERE id = 1",
    "ALTER TABLE whole ADD m money; INSERT INTO whole VALUES (2, 'rich', 1234.5); UPDATE whole SET m = 1 WHERE n = 1",
    "ALTER TABLE live ADD e vector(3), ADD f regtype; INSERT INTO live VALUES (5, 'x', NULL, '[1,2.5,3]', 'int')",
]
"""A transaction each, while the pipeline runs."""

BEHIND = [
    "INSERT INTO live VALUES (6, 'behind', ROW(6, 'x'), '[0,0,1]', 'text'); DELETE FROM live WHERE id = 2",
    "ALTER TABLE come_and_gone ADD c pair; INSERT INTO come_and_gone VALUES (1, 'x', ROW(1, 'x'))",
    "ALTER TABLE come_and_gone DROP c; INSERT INTO come_and_gone VALUES (2, 'y')",
    "INSERT INTO typed VALUES (2, 'sad', '{sad,ok}', 2.5, '(2,y)'); UPDATE typed SET m = 'sad' WHERE id = 1",
    "INSERT INTO dropped VALUES (2, 'sad'); INSERT INTO bystander VALUES (3, 'behind')",
    "DROP TABLE dropped",
    "ALTER TABLE typed ALTER m TYPE text, DROP ms, DROP p, ALTER d TYPE numeric(14,4)",
    "ALTER TABLE live DROP c",
    "DROP TYPE pair; DROP TYPE mood; DROP DOMAIN amount; CREATE TYPE mood AS ENUM ('new')",
    "ALTER TABLE typed ADD m2 mood; INSERT INTO typed VALUES (3, 'new', 3.25, 'new')",
    "INSERT INTO live VALUES (7, 'after', '[7,7,7]', 'date'); INSERT INTO bystander VALUES (4, 'after')",
]
"""A transaction each, while it is stopped."""


def commit_each(connection: psycopg.Connection[Any], transactions: list[str]) -> None:
    for statements in transactions:
        with connection.transaction():
            connection.execute(statements.encode())


@pytest.fixture
def sink_url(postgres_server: PostgresServer) -> Iterator[str]:
    yield postgres_server.create_database("changing_types_sink")
    postgres_server.drop_database("changing_types_sink")


def test_types_that_come_and_go_leave_nothing_that_can_not_be_decoded(
    postgres_url: str, sink_url: str, tmp_path: Path
) -> None:
    sinks = {"replica": f"sqlite:///{tmp_path}/replica.db", "copy": sink_url}
    file = write_pipeline(tmp_path, postgres_url, sinks)

    def assert_equal() -> None:
        content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
        content.assert_same(content.postgres_differences(postgres_url, sink_url))

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        with RunningPipeline(file) as pipeline:
            wait_until_current(pipeline, file, postgres_url, sinks)
            commit_each(connection, IN_THE_STREAM[:2])
            wait_until_current(pipeline, file, postgres_url, sinks)
            pipeline.kill_capture()
            commit_each(connection, IN_THE_STREAM[2:])
            wait_until_current(pipeline, file, postgres_url, sinks)
            assert_equal()
            [remark] = pipeline.said("capture")
            assert "public.live.c (public.pair)" in remark["message"]
            assert all("signal 9" in event["message"] for event in pipeline.said("capture-restart"))
            connection.execute("ALTER TABLE typed ADD p pair")
            assert pipeline.stop() == 0, pipeline.output
        commit_each(connection, BEHIND)
        run_until_current(file)
        assert_equal()
        connection.execute("INSERT INTO bystander VALUES (5, 'and on')")
        run_until_current(file)
        assert_equal()
