"""A pipeline on a real Spark cluster: a standalone master with two workers, which have never heard of tailrace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cluster.conftest import PASSWORD
from support.cluster import Driver, EventLog, StandaloneCluster, worker_python
from support.pipelines import Replica, RunningPipeline, position_of, write_pipeline
from support.stores import object_store
from tailrace import failpoints
from tailrace.demo import shop
from tailrace.testing import content

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long]

SUBMIT = Path(__file__).parents[2] / "examples" / "submit.py"
SLOW_COPY = failpoints.environment("chunk-before-load", action="sleep=0.5")
MARK = "Undershot4Breastshot"
"""In a row."""
WAIT = 600.0


def executor_environment(variables: dict[str, str]) -> dict[str, str]:
    return {f"spark.executorEnv.{name}": value for name, value in variables.items()}


class Story:
    """A shop, a pipeline on the cluster, and those who may see what it does."""

    def __init__(self, cluster: StandaloneCluster, databases: tuple[str, str], folder: Path, state: str) -> None:
        self.cluster, (self.source, self.sink), self.folder = cluster, databases, folder
        self.events, self.driver = EventLog(folder / "events"), Driver()
        conf = cluster.conf | self.events.conf | self.driver.conf | executor_environment(SLOW_COPY)
        self.file = write_pipeline(
            folder / "run",
            self.source,
            {"replica": self.sink},
            source={"snapshot": {"chunk_bytes": 65_536}},
            transforms={"public.orders": {"columns": {"note": "concat(note, '')"}}},  # Catalyst sees them
            state=state,
            spark={"master": cluster.master, "conf": conf | {"spark.log.level": "INFO"}},
        )
        self.replica = Replica(self.file)

    def run(self) -> RunningPipeline:
        return RunningPipeline(self.file, environment=self.cluster.environment)

    def wait_until_current(self, pipeline: RunningPipeline) -> None:
        end = position_of(self.source)
        pipeline.wait_for(partial(self.replica.has_reached, end), "the sink to be current", WAIT)

    def busy_worker(self, pipeline: RunningPipeline) -> str:
        found: list[str] = []
        pipeline.wait_for(lambda: found.append(self.driver.busy_worker()) or found[-1], "a task on a worker", WAIT)
        return found[-1]

    def change_all_orders(self) -> None:
        """So many changes at once that a micro-batch takes its time; tried again where the shop is in the way."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            while True:
                try:
                    connection.execute("UPDATE orders SET note = %s", [MARK])
                    connection.execute("UPDATE order_items SET quantity = quantity + 1")
                    return
                except psycopg.errors.DeadlockDetected:
                    continue


@pytest.fixture(params=["folder", "store"])
def story(
    request: pytest.FixtureRequest, cluster: StandaloneCluster, databases: tuple[str, str], folder: Path
) -> Iterator[Story]:
    """With its state in a folder that all share, or in an object store whose secret is in the URL."""
    shop.create(databases[0])
    shop.load(databases[0], 40_000)
    if request.param == "folder":
        yield Story(cluster, databases, folder, str(folder / "state"))
    else:
        with object_store() as address:
            yield Story(cluster, databases, folder, address("story").replace(":secret@", f":{PASSWORD}@"))


def test_the_demo_ends_equal_though_executor_driver_worker_and_master_are_killed(story: Story) -> None:
    cluster = story.cluster
    with shop.Workload.start(story.source, rate=50) as workload:
        with story.run() as first:
            first.wait_for(story.replica.is_copying, "the copy to be under way", WAIT)
            cluster.kill_executor(next(iter(cluster.workers)))  # while all have chunks to load
            first.wait_for(story.replica.is_live, "the tables to be live", WAIT)
            first.kill()
        with story.run() as second:
            second.wait_for(lambda: second.said("running"), "the second run", WAIT)
            story.change_all_orders()
            cluster.kill_worker(story.busy_worker(second))
            story.wait_until_current(second)
            cluster.kill_master()
            cluster.start_master()
            cluster.start_worker()
            cluster.wait_for_workers(2)
            workload.stop()
            story.change_all_orders()
            story.wait_until_current(second)
            pages = story.driver.pages()
            assert second.stop() == 0, second.output
    content.assert_same(content.postgres_differences(story.source, story.sink))
    assert len(story.events.workers_of("snapshots", done=False)) == 2
    assert len(pages) > 10_000
    assert_in_none("\n".join([pages, first.output, second.output]), "the application's page, or what it said")
    assert_nobody_saw(story)


def test_what_spark_submit_says_counts_and_a_sink_of_the_drivers_machine_is_refused(
    cluster: StandaloneCluster, databases: tuple[str, str], folder: Path
) -> None:
    shop.create(databases[0])
    file = write_pipeline(
        folder / "run",
        databases[0],
        {"replica": f"sqlite:///{folder}/replica.db"},
        spark={"master": "local[1]", "conf": {"spark.scheduler.mode": "FAIR", "spark.executor.memory": "700m"}},
    )
    given = cluster.conf | EventLog(folder / "events").conf | {"spark.scheduler.mode": "FIFO", "spark.ui.enabled": True}
    done = submit(cluster, given, "run", str(file))
    assert done.returncode == 2, done.stdout
    assert f"the workers of {cluster.master} can not write" in done.stdout
    assert "hint: run this pipeline with the master local[*]" in done.stdout
    settings = EventLog(folder / "events").settings()
    said = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}
    assert {key: settings.get(key) for key in said} == said
    assert settings["spark.app.name"] == "theirs"
    assert settings["spark.master"] == cluster.master
    assert slots(databases[0]) == []


def test_a_worker_without_a_package_that_is_needed_is_a_sentence(
    cluster: StandaloneCluster, databases: tuple[str, str], folder: Path
) -> None:
    shop.create(databases[0])
    python = worker_python(folder / "python", without=("tailrace", "psycopg"))
    file = write_pipeline(
        folder / "run",
        databases[0],
        {"replica": databases[1]},
        spark={"master": cluster.master, "conf": cluster.conf | {"spark.pyspark.python": str(python)}},
    )
    with RunningPipeline(file, environment=cluster.environment) as pipeline:
        assert pipeline.ended(WAIT) == 2, pipeline.output
        assert "has no Python package psycopg" in pipeline.output
        assert "hint: install what tailrace needs on every worker" in pipeline.output
        assert "Traceback" not in pipeline.output


def submit(cluster: StandaloneCluster, conf: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    """`spark-submit`, as an operator types it."""
    settings = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in conf.items()]
    options = [part for setting in settings for part in ("--conf", setting)]
    script = cluster.spark_home / "bin" / "spark-submit"
    options += ["--conf", f"spark.pyspark.driver.python={sys.executable}", "--name", "theirs"]
    command = [script, "--master", cluster.master, *options, SUBMIT, *arguments]
    return subprocess.run(
        command,
        env=os.environ | cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT,
        check=False,
    )


def slots(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        return connection.execute(query).fetchall()


def assert_nobody_saw(story: Story) -> None:
    """The password, or what is in a row: not in event logs, checkpoints, nor in what Spark and its workers say."""
    looked_at = [path for path in seen_by_others(story) if path.is_file()]
    kinds = {path.name.partition("_")[0] for path in looked_at}
    own = {"spark.log", "metadata"} if (story.folder / "state").exists() else set()
    assert kinds >= {"events", "stderr", *own}, kinds
    for path in looked_at:
        assert_in_none(path.read_text(errors="replace"), str(path))


def seen_by_others(story: Story) -> Iterator[Path]:
    yield from story.events.folder.rglob("*")
    yield from story.folder.glob("state/spark*")
    yield from story.folder.glob("state/spark/**/*")
    yield from story.cluster.folder.glob("*.log")
    yield from story.cluster.folder.glob("work-*/**/std*")


def assert_in_none(text: str, where: str) -> None:
    for secret in (PASSWORD, MARK):
        assert secret not in text, f"{secret} in {where}: …{text[max(text.index(secret) - 300, 0) :][:600]}"
