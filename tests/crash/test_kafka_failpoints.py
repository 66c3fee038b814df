"""Every step that a pipeline into Kafka may die at, and every moment to lose its state: each change is there once.

One story each, into one set of topics, while the source is changed at random. What is told is compared with the notes
of a trigger, change by change (`support/kafka_witness.py`).
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from support import kafka_witness
from support.kafka import KafkaCluster
from support.kafka_witness import Workload, assert_exactly_once
from support.moved_rows import SLOW_COPY
from support.pipelines import LONGEST_SECONDS, Replica, RunningPipeline, run_until_current, write_pipeline
from tailrace import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long, pytest.mark.timeout(5400)]

OF_CAPTURE = (
    "log-segment-written",
    "log-segment-synced",
    "log-segment-published",
    "log-segments-merged",
    "capture-before-acknowledge",
    "capture-after-acknowledge",
)
OF_TASKS = ("chunk-before-load", "chunk-staged")
OF_THE_DRIVER = (
    ("snapshot-planned", 1),
    ("chunk-loaded", 2),
    ("snapshot-finished", 1),
    ("catch-up-step-committed", 1),
    ("table-live", 1),
    ("batch-staged", 2),
    ("kafka-before-flush", 3),
    ("sink-before-commit", 1),  # a claim
    ("sink-before-commit", 3),
    ("sink-committed", 2),
)
"""In the order of a table's life, and the how manieth time in a run it is the end."""
ELSEWHERE = ("documents-", "embedded-", "checkpoint-")
"""Beginnings of the names of those that a pipeline into Kafka does not come by."""
WITH_A_BATCH = (("batch-staged", 2), ("sink-before-commit", 3), ("sink-committed", 2))
"""A batch is staged, a transaction of Kafka is open, or its commit was not heard of."""
PHASES = {"the copy": Replica.is_copying, "the catch-up": Replica.is_catching_up, "live": Replica.is_live}


@pytest.fixture
def file(postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Path:
    """Several chunks a table, several partitions a topic, several batches a second, and history that is merged."""
    kafka_witness.create(postgres_url, rows=400)
    sink = {"url": kafka_broker.url, "partitions": 3, "max_rows": 150, "prefix": kafka_prefix}
    source = {"snapshot": {"chunk_bytes": 16384}}
    tables = ["public.*"]
    return write_pipeline(tmp_path, postgres_url, {"topics": sink}, tables=tables, source=source, log={"keep": "1 d"})


def test_every_failpoint_on_the_way_into_kafka_is_tried() -> None:
    on_the_way = {name for name in failpoints.ALL if not name.startswith(ELSEWHERE)}
    assert on_the_way == {*OF_CAPTURE, *OF_TASKS, *(name for name, _ in OF_THE_DRIVER)}


def die_at(file: Path, name: str, nth: int) -> None:
    """One life of the pipeline, which the driver ends."""
    once = str(file.with_name(f"once-{name}-{nth}"))
    with RunningPipeline(file, environment=failpoints.environment(name, nth=nth, once=once)) as running:
        assert running.ended(LONGEST_SECONDS) == -9, (name, running.output)
    assert failpoints.fired(name, once)


def lose_processes_at(file: Path, *names: str) -> None:
    """One life, in which processes that the driver replaces end at each of these steps, and then the driver does."""
    once = str(file.with_name("once"))
    armed = failpoints.together(*(failpoints.environment(name, once=once) for name in names))
    with RunningPipeline(file, environment=armed) as running:
        for name in names:
            running.wait_for(partial(failpoints.fired, name, once), f"{name} to be reached", LONGEST_SECONDS)
        running.kill()


def test_each_change_is_there_once_after_a_kill_at_every_step(
    postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, file: Path
) -> None:
    workload = Workload(postgres_url, seed=41)
    workload.start()
    die_at(file, *OF_THE_DRIVER[0])
    lose_processes_at(file, *OF_TASKS)
    for place in OF_THE_DRIVER[1:]:
        die_at(file, *place)
    lose_processes_at(file, *OF_CAPTURE)
    workload.stop()
    run_until_current(file)
    assert Replica(file, "topics").is_live()
    assert_exactly_once(postgres_url, kafka_broker.servers, kafka_prefix, is_resumed=True)


def test_each_change_is_there_once_though_the_state_is_deleted_in_every_phase(
    postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, file: Path
) -> None:
    workload, replica = Workload(postgres_url, seed=42), Replica(file, "topics")
    workload.start()
    for phase, is_reached in PHASES.items():
        with RunningPipeline(file, environment=SLOW_COPY) as running:
            running.wait_for(partial(is_reached, replica), phase, LONGEST_SECONDS)
            running.kill()
        shutil.rmtree(file.parent / "state")
    for place in WITH_A_BATCH:
        die_at(file, *place)
        shutil.rmtree(file.parent / "state")
    workload.stop()
    run_until_current(file)
    assert replica.is_live()
    assert_exactly_once(postgres_url, kafka_broker.servers, kafka_prefix, is_resumed=True)
