"""A pipeline in somebody's session, as in a notebook: it leaves the session as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from support.pipelines import write_pipeline
from tailrace.testing import content

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(1200), pytest.mark.long]

NOTEBOOK = """
import os, signal, sys, threading
from pyspark.sql import SparkSession
import tailrace
from tailrace.testing.processes import wait_until

spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.sql.streaming.numRecentProgressUpdates", "77").getOrCreate())
spark.conf.set("spark.sql.shuffle.partitions", "7")
file = sys.argv[1]

def settings():
    return sorted(spark.sparkContext.getConf().getAll()), dict(spark.conf.getAll)

def assert_as_it_was():
    assert settings() == before
    assert SparkSession.getActiveSession() is not None
    assert spark.streams.active == []
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: not tracker.getActiveJobsIds(), seconds=60, what="our jobs to be gone")
    assert spark.range(10).repartition(3).count() == 10

before = settings()
tailrace.Pipeline.load(file).run(spark, until_current=True)
assert_as_it_was()
print("ONE", flush=True)

def interrupt():
    wait_until(lambda: os.path.exists(sys.argv[2]), seconds=300, what="the word to stop")
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    tailrace.Pipeline.load(file).run(spark)
except KeyboardInterrupt:
    print("TWO", flush=True)
assert_as_it_was()

found = []
def run():
    try:
        tailrace.Pipeline.load(file).run(spark)
    except tailrace.TailraceError as error:
        found.append(error)

thread = threading.Thread(target=run)
thread.start()
wait_until(lambda: os.path.exists(sys.argv[3]), seconds=300, what="the word to end the session")
spark.stop()
thread.join(120)
assert isinstance(found[0], tailrace.EngineLost), found
print("THREE", found[0], flush=True)
"""


def test_a_session_is_as_it_was_after_a_run_and_an_interrupt_and_its_end_ends_the_run(
    postgres_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 1000) n")
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    words = [tmp_path / "interrupt", tmp_path / "end"]
    with Notebook(file, *words) as notebook:
        notebook.wait_for("ONE")
        content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
        notebook.wait_for('"running"')
        words[0].touch()
        notebook.wait_for("TWO")
        notebook.wait_for('"running"')
        words[1].touch()
        said = notebook.wait_for("THREE")
    assert "the Spark session was stopped" in said
    assert notebook.process.returncode == 0, notebook.said


class Notebook:
    """A Python process that works through `NOTEBOOK`, and shows a line for each of its steps."""

    def __init__(self, *arguments: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
        command = [sys.executable, "-c", NOTEBOOK, *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "PYSPARK_PYTHON": sys.executable},
        )
        self.said = ""

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.said += self.process.communicate(timeout=120)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_for(self, words: str) -> str:
        """The line that has them; fails with all that was said if it does not come."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise AssertionError(f"waited in vain for {words}:\n{self.said}")
