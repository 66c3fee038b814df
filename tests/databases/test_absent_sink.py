"""A sink whose server is down when the run begins: the others do not wait for it, and it joins when it is there."""

from __future__ import annotations

import psycopg
import pytest

from support.pipelines import RunningPipeline, write_pipeline
from support.sinks import SinkView
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires

pytestmark = [pytest.mark.spark, pytest.mark.server]


def execute(url: str, *statements: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def test_a_sink_that_is_down_at_the_start_joins_later(postgres_url, tmp_path):
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    with requires(PostgresServer.start, settings=FAST) as server:
        sinks = {"file": f"sqlite:///{tmp_path}/replica.db", "server": server.url}
        file = write_pipeline(tmp_path, postgres_url, sinks)
        server.kill()

        with RunningPipeline(file) as pipeline:
            pipeline.wait_for(SinkView(file, "file").is_live, "the first sink to be live")
            assert {event["sink"] for event in pipeline.said("sink-retry")} == {"server"}
            [(confirmed,)] = execute(postgres_url, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
            execute(postgres_url, "INSERT INTO items VALUES (2)")
            place = execute(postgres_url, "SELECT pg_current_wal_lsn()::text")[0][0]
            pipeline.wait_for(lambda: SinkView(file, "file").has_reached(place), "the first sink to be current")
            # what the other one has is not known, so the source must not forget anything
            assert execute(postgres_url, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots") == [(confirmed,)]

            server.restart()
            pipeline.wait_for(lambda: SinkView(file, "server").has_reached(place), "the second sink to be current")
            assert execute(server.url, "SELECT id FROM items ORDER BY id") == [(1,), (2,)]
            pipeline.stop()
