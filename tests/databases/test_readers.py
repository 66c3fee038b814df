"""A stream of the user's beside a running pipeline: whatever it pauses for, the log waits for it, and says so.

One life of one pipeline, whose log is tiny; and one Spark session, the user's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import tailrace as library
from support.pipelines import Replica, RunningPipeline, position_of, tailrace, write_pipeline
from tailrace.log.reader import LogReader
from tailrace.spark.installed import START
from tailrace.spark.session import WORKER_PATH
from tailrace.state.storage import Storage
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import FAST, requires

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

LOG_BYTES, SEGMENT_BYTES = 256 << 10, 64 << 10
INSERT = "INSERT INTO items SELECT %s, string_agg(md5(random()::text), '') FROM generate_series(1, 100)"


@dataclass(frozen=True)
class Running:
    server: PostgresServer
    pipeline: RunningPipeline
    file: Path
    connection: psycopg.Connection[Any]

    @property
    def log(self) -> LogReader:
        return LogReader(Storage(str(self.file.parent / "state" / "log")))

    @property
    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.file.parent / "state" / "log").glob("*.seg*") if path.exists())

    def insert(self, first: int, count: int) -> None:
        """Some 3 kB of random digits a row."""
        for number in range(first, first + count):
            self.connection.execute(INSERT, [number])

    def wait_until_current(self) -> None:
        end, replica = position_of(self.server.url), Replica(self.file)
        self.pipeline.wait_for(lambda: replica.has_reached(end), "the replica to be current")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("readers")
    with requires(PostgresServer.start, settings=FAST) as server:
        file = write_pipeline(
            folder,
            server.url,
            {"replica": f"sqlite:///{folder}/replica.db"},
            log={"max_bytes": LOG_BYTES, "segment_bytes": SEGMENT_BYTES, "keep": "7 d"},
        )
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE items (id int PRIMARY KEY, v text)")
            with RunningPipeline(file) as pipeline:
                running = Running(server, pipeline, file, connection)
                running.insert(0, 1)
                running.wait_until_current()
                yield running
                assert pipeline.stop() == 0, pipeline.output


class Stream:
    """A user's streaming query, run to the end of what there is."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self.folder = folder
        self.spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.log.level", "OFF")
            .config(WORKER_PATH, str(START))  # its Python processes start sooner, and have ten seconds for it
            .getOrCreate()
        )
        library.register(self.spark)
        self.found: list[int] = []

    def run(self) -> list[int]:
        """The ids that are new."""
        self.found.clear()
        reader = self.spark.readStream.format("tailrace").option("path", str(self.folder / "state"))
        frame = reader.option("table", "public.items").option("reader", "warehouse").load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.folder / "mine"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(200)
        return sorted(self.found)

    def _take(self, frame: DataFrame, number: int) -> None:
        self.found += [row["id"] for row in frame.select("id").collect()]


@pytest.fixture(scope="module")
def stream(running: Running) -> Iterator[Stream]:
    stream = Stream(running.file.parent)
    yield stream
    stream.spark.stop()


def held_by(running: Running, reader: str) -> list[dict[str, Any]]:
    return [event for event in running.pipeline.said("log-full") if event["reader"] == reader]


def test_history_is_kept_and_goes_before_capture_has_to_wait(running: Running) -> None:
    running.insert(1, 30)
    running.wait_until_current()
    assert running.log.begin() == 0, "every sink has it, and it is kept all the same"
    for first in range(31, 231, 20):  # some 35 kB once compressed: what comes at once is one segment, however large
        running.insert(first, 20)
        running.wait_until_current()
    running.pipeline.wait_for(lambda: running.log.begin() > 0, "the oldest history to go")
    running.pipeline.wait_for(
        lambda: running.log_bytes < LOG_BYTES + SEGMENT_BYTES, "the log to be as small as it may be"
    )
    assert [event for event in running.pipeline.said("log-full") if event["reader"]] == []


def test_a_stream_that_pauses_is_not_outrun_and_a_full_log_says_whom_it_waits_for(
    running: Running, stream: Stream
) -> None:
    first = stream.run()
    assert first == list(range(first[0], 231))
    place = json.loads(tailrace("readers", "list", running.file, "--json").stdout)[0]
    assert (place["reader"], place["table"]) == ("warehouse", "public.items")

    for first in range(231, 631, 20):
        end = running.log.end()
        running.insert(first, 20)
        running.pipeline.wait_for(
            lambda end=end: running.log.end() > end or held_by(running, "warehouse"),
            "the log to take it, or to be full",
        )
    running.pipeline.wait_for(lambda: held_by(running, "warehouse"), "the log to be full")
    event = held_by(running, "warehouse")[0]
    assert "tailrace readers drop warehouse" in event["message"]
    assert "warehouse" in tailrace("status", running.file).stdout
    assert running.log.begin() <= place["offset"]
    assert running.log_bytes < LOG_BYTES + 3 * SEGMENT_BYTES

    found: list[int] = []

    def goes_on() -> bool:
        """Each time it reads what there is, the log can take more."""
        found.extend(stream.run())
        return max(found, default=0) == 630

    running.pipeline.wait_for(goes_on, "the stream to have all rows")
    assert sorted(found) == list(range(231, 631)), "every row once"
    content.assert_same(
        content.sqlite_differences(running.server.url, running.file.parent / "replica.db", ["public.items"])
    )


def test_a_reader_that_will_not_come_back_is_dropped_and_the_log_goes_on(running: Running) -> None:
    place = json.loads(tailrace("readers", "list", running.file, "--json").stdout)[0]
    running.insert(631, 400)
    dropped = tailrace("readers", "drop", "warehouse", running.file)
    assert (dropped.returncode, dropped.stdout) == (0, "dropped reader warehouse\n")
    for first in range(1031, 1231, 20):  # in small segments, so that older ones can go
        running.insert(first, 20)
        running.wait_until_current()
    running.pipeline.wait_for(lambda: running.log.begin() > place["offset"], "the log to go on without the reader")
    assert tailrace("readers", "list", running.file).stdout == "there are no named readers\n"
    again = tailrace("readers", "drop", "warehouse", running.file)
    assert (again.returncode, "there is no reader warehouse" in again.stderr) == (2, True)


def test_the_stream_then_hears_that_it_was_outrun(running: Running, stream: Stream) -> None:
    with pytest.raises(Exception, match=r"no longer holds offset \d+: it keeps \d+ to \d+; begin at what is kept"):
        stream.run()
    assert stream.found == []
