"""Kills while changes flow into Kafka: whoever reads what is committed finds each change once, in the order of its key.

`TAILRACE_KAFKA_SEED` is the first seed, `TAILRACE_KAFKA_SEEDS` how many there are. Where something is wrong, the folder
of the broker is kept, and its name is told.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import kafka_witness
from support.kafka import KafkaCluster
from support.kafka_witness import TABLES, Workload, assert_exactly_once
from support.pipelines import LONGEST_SECONDS, Replica, RunningPipeline, run_until_current, write_pipeline
from tailrace import failpoints
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.timeout(5400)]

FIRST = int(os.environ.get("TAILRACE_KAFKA_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("TAILRACE_KAFKA_SEEDS", "1")))
IN_COPY = ("snapshot-planned", "chunk-before-load", "chunk-staged", "chunk-loaded", "snapshot-finished")
IN_COMMIT = ("batch-staged", "kafka-before-flush", "sink-before-commit", "sink-committed")
AFTER = ("catch-up-step-committed", "table-live")


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One of our own, to be killed. Its folder is kept where the test fails."""
    with requires(KafkaCluster.start) as cluster:
        failed = request.session.testsfailed
        yield cluster
        if request.session.testsfailed > failed:
            kept = shutil.copytree(cluster.folder, tmp_path / "broker", ignore_dangling_symlinks=True)
            print(f"the broker's folder is kept in {kept}")


@pytest.fixture
def file(postgres_url: str, broker: KafkaCluster, tmp_path: Path) -> Path:
    """Several chunks a table, several partitions a topic, several batches a second."""
    kafka_witness.create(postgres_url, rows=400)
    sink = {"url": broker.url, "partitions": 3, "max_rows": 5000, "prefix": "shop"}
    return write_pipeline(
        tmp_path, postgres_url, {"topics": sink}, tables=["public.*"], source={"snapshot": {"chunk_bytes": 16384}}
    )


@pytest.mark.long
def test_each_change_is_there_once_without_any_kill(postgres_url: str, broker: KafkaCluster, file: Path) -> None:
    workload = Workload(postgres_url, seed=1)
    workload.start()
    with RunningPipeline(file) as running:
        running.wait_until_live(*(f"public.{table}" for table in TABLES))
        count = workload.count
        running.wait_for(lambda: workload.count > count + 100, "some changes", LONGEST_SECONDS)
        workload.stop()
        assert running.stop(LONGEST_SECONDS) == 0, running.output
    run_until_current(file)
    assert_exactly_once(postgres_url, broker.servers, "shop", is_resumed=False)


def lives_of(chance: random.Random, count: int) -> list[str]:
    """How each life of a pipeline ends: at a failpoint, or at any moment."""
    kinds = [*IN_COPY, *IN_COMMIT, *AFTER, "driver", "jvm", "capture", "broker", "state"]
    return chance.sample(kinds, min(count, len(kinds)))


def live_and_die(kind: str, chance: random.Random, broker: KafkaCluster, file: Path, workload: Workload) -> None:
    """One life of the pipeline. What dies at a failpoint dies at its own time, if it comes to it."""
    if kind in failpoints.ALL:
        once = str(file.parent / f"once-{chance.random()}")
        armed = failpoints.environment(kind, nth=chance.choice([1, 1, 2, 3]), once=once)
        with RunningPipeline(file, environment=armed) as running:
            goal = workload.count + 600
            running_until(running, lambda: failpoints.fired(kind, once) or workload.count > goal)
            running.kill()
        return
    with RunningPipeline(file) as running:
        goal = workload.count + chance.randrange(300, 900)
        running_until(running, lambda: workload.count > goal)
        if kind in ("broker", "capture"):
            broker.restart() if kind == "broker" else running.kill_capture()
            goal = workload.count + 300
            running_until(running, lambda: workload.count > goal)
        running.kill_jvm() if kind == "jvm" else running.kill()
    if kind == "state":
        shutil.rmtree(file.parent / "state")


def running_until(running: RunningPipeline, is_so: Callable[[], object]) -> None:
    """Until something has come to pass, or the pipeline has died of it."""
    running.wait_for(lambda: is_so() or running.process.poll() is not None, "its end", LONGEST_SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_each_change_is_there_once_after_kills(postgres_url: str, broker: KafkaCluster, file: Path, seed: int) -> None:
    chance, workload = random.Random(seed), Workload(postgres_url, seed)
    workload.start()
    kinds = lives_of(chance, int(os.environ.get("TAILRACE_KAFKA_LIVES", "8")))
    print(f"seed {seed}: {kinds}")
    for kind in kinds:
        live_and_die(kind, chance, broker, file, workload)
    workload.stop()
    run_until_current(file)
    assert Replica(file, "topics").is_live()
    assert_exactly_once(postgres_url, broker.servers, "shop", is_resumed=True)


def test_a_copy_that_dies_between_its_messages_and_their_commit_sends_them_once(
    postgres_url: str, broker: KafkaCluster, file: Path
) -> None:
    for kind, nth in (("sink-before-commit", 3), ("chunk-loaded", 2)):
        once = str(file.parent / kind)
        with RunningPipeline(file, environment=failpoints.environment(kind, nth=nth, once=once)) as running:
            running_until(running, lambda kind=kind, once=once: failpoints.fired(kind, once))
            running.ended()
    run_until_current(file)
    assert_exactly_once(postgres_url, broker.servers, "shop", is_resumed=True)
