"""A capture that is down, or waits for room, is in `status`, and nobody calls it current."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from support.pipelines import Replica, RunningPipeline, position_of, tailrace, write_pipeline
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.server]


def status_of(file: Path) -> str:
    shown = tailrace("status", file)
    assert shown.returncode == 0, shown
    return shown.stdout


def lags_of(file: Path) -> set[float | None]:
    return {line["lag_seconds"] for line in json.loads(tailrace("status", "--json", file).stdout)}


def test_a_capture_that_is_down_or_waits_for_room_is_in_status_and_not_current(tmp_path: Path) -> None:
    with requires(PostgresServer.start, settings=FAST) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, t text); INSERT INTO items VALUES (1, 'one')")
        sinks = {"replica": f"sqlite:///{tmp_path}/replica.db"}
        file = write_pipeline(tmp_path, server.url, sinks, log={"max_bytes": "64 KiB", "segment_bytes": "16 KiB"})
        with RunningPipeline(file) as pipeline:
            pipeline.wait_until_live("public.items")
            wait_until(lambda: lags_of(file) == {0.0}, seconds=60, what="a lag of nothing")
            assert "capture is" not in status_of(file)

            server.kill()
            wait_until(lambda: "capture is down since" in status_of(file), seconds=120, what="the capture to be down")
            assert lags_of(file) == {None}
            pipeline.wait_for(
                lambda: any("capture is down" in p.get("capture", "") for p in pipeline.said("progress")),
                "a word of it among the figures",
            )
            server.restart()
            wait_until(lambda: "capture is" not in status_of(file), seconds=120, what="the capture to be back")

            frozen = pipeline.capture_process()
            frozen.suspend()
            wait_until(lambda: "capture is silent since" in status_of(file), seconds=60, what="the silence")
            assert lags_of(file) == {None}
            frozen.resume()
            wait_until(lambda: "capture is" not in status_of(file), seconds=60, what="the capture to be heard")
            wait_until(lambda: lags_of(file) == {0.0}, seconds=60, what="a lag of nothing again")

            with closing(sqlite3.connect(tmp_path / "replica.db", isolation_level=None)) as somebody:
                somebody.execute("BEGIN IMMEDIATE")
                with psycopg.connect(server.url, autocommit=True) as connection:
                    for number in range(2, 40):
                        connection.execute(
                            "INSERT INTO items SELECT %s * 1000 + n, md5(n::text) FROM generate_series(1, 200) n",
                            [number],
                        )
                wait_until(
                    lambda: "the log is full (64 KiB)" in status_of(file), seconds=120, what="the log to be full"
                )
                assert all(lag is not None and lag > 0 for lag in lags_of(file))  # of what is in the log already
                somebody.execute("ROLLBACK")
            end = position_of(server.url)
            pipeline.wait_for(lambda: Replica(file).has_reached(end), "what was written meanwhile")
            wait_until(lambda: "capture is" not in status_of(file), seconds=60, what="room in the log")
            assert pipeline.stop() == 0, pipeline.output
        content.assert_same(content.sqlite_differences(server.url, tmp_path / "replica.db"))
