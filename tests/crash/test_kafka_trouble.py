"""Brokers in trouble while changes flow: whatever it is, each change is there once for who reads what is committed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from support import kafka_witness
from support.kafka import KafkaCluster
from support.kafka_reading import open_partitions
from support.kafka_witness import TABLES, Workload, assert_exactly_once
from support.pipelines import RunningPipeline, position_of, write_pipeline
from support.sinks import SinkView
from tailrace import failpoints
from tailrace.config import load
from tailrace.errors import SinkUnavailable
from tailrace.registry import make_sink
from tailrace.sources.postgres.positions import reached
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long]

NAMES = [f"public.{table}" for table in TABLES]
TOPICS = [f"shop.{name}" for name in NAMES]
STATE = "tailrace-state.shop.under_test.topics"


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., KafkaCluster]]:
    """Brokers of our own, to be killed. Their folder is kept where the test fails."""
    started: list[KafkaCluster] = []

    def start(brokers: int = 1, **settings: Any) -> KafkaCluster:
        own = {key.replace("_", "."): value for key, value in settings.items()}
        started.append(requires(KafkaCluster.start, brokers, own))
        return started[-1]

    failed = request.session.testsfailed
    yield start
    for cluster in started:
        if request.session.testsfailed > failed:
            print(f"the brokers' folder is kept in {shutil.copytree(cluster.folder, tmp_path / 'brokers')}")
        cluster.stop()


def write(folder: Path, source: str, broker: KafkaCluster, *others: tuple[str, str], **own: Any) -> Path:
    kafka_witness.create(source, rows=400)
    sink = {"url": broker.url, "partitions": 3, "max_rows": 5000, "prefix": "shop", **own}
    return write_pipeline(folder, source, {"topics": sink, **dict(others)}, tables=["public.*"])


@contextmanager
def working(url: str, seed: int) -> Iterator[Workload]:
    workload = Workload(url, seed)
    workload.start()
    try:
        yield workload
    finally:
        workload.stop()


def wait_for_more(running: RunningPipeline, workload: Workload, count: int = 100) -> None:
    """Some more transactions, whatever becomes of them."""
    goal = workload.count + count
    running.wait_for(lambda: workload.count > goal, "some transactions")


def wait_until_current(running: RunningPipeline, file: Path, url: str) -> None:
    """Until the topics have all that was committed by now. One client asks, now and then."""
    place, sink = position_of(url), make_sink(load(file), "topics")

    def is_there() -> bool:
        time.sleep(0.5)
        with suppress(SinkUnavailable):
            mark = sink.read_state().watermark
            return mark is not None and bool(mark.position) and reached(mark.position, place)
        return False

    try:
        running.wait_for(is_there, "the topics to be current", seconds=400)
    finally:
        sink.close()


def admin_of(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})


def test_a_broker_that_is_killed_under_load_takes_each_change_once(
    postgres_url: str, start: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    broker = start()
    file = write(tmp_path, postgres_url, broker)
    with RunningPipeline(file) as running:
        running.wait_until_live(*NAMES)
        with working(postgres_url, seed=3) as workload:
            wait_for_more(running, workload)
            broker.kill()
            running.wait_for(lambda: running.said("sink-retry"), "word of the broker that is gone")
            wait_for_more(running, workload)
            broker.restart()
            wait_until_current(running, file, postgres_url)
            wait_for_more(running, workload)
        wait_until_current(running, file, postgres_url)
        running.wait_for(lambda: running.said("recovered"), "word that all is well")
        assert running.stop() == 0, running.output
    assert_exactly_once(postgres_url, broker.servers, is_resumed=False)


def places(cluster: KafkaCluster, topics: list[str]) -> list[tuple[int, int]]:
    """The leader of each partition, and how many brokers have all of it, as the first broker knows them."""
    known = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.nodes[0].port}", "log_level": 0})
    with suppress(KafkaException):
        found = known.list_topics(timeout=60).topics
        return [(each.leader, len(each.isrs)) for topic in topics for each in found[topic].partitions.values()]
    return []


def leaders(cluster: KafkaCluster, topics: list[str]) -> set[int]:
    return {leader for leader, _ in places(cluster, topics)}


def test_leaders_that_move_take_each_change_once(
    postgres_url: str, start: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    cluster = start(2)
    file, topics = write(tmp_path, postgres_url, cluster, replication=2), [*TOPICS, STATE]
    with RunningPipeline(file) as running, working(postgres_url, seed=5) as workload:
        running.wait_until_live(*NAMES)
        assert leaders(cluster, topics) == {1, 2}
        wait_for_more(running, workload)
        cluster.kill(2)
        running.wait_for(lambda: leaders(cluster, topics) == {1}, "other leaders")
        wait_until_current(running, file, postgres_url)
        cluster.restart(2)
        running.wait_for(lambda: {count for _, count in places(cluster, topics)} == {2}, "the broker to catch up")
        admin = admin_of(cluster)  # which has to outlive its answer
        admin.elect_leaders(ElectionType.PREFERRED).result(120)
        running.wait_for(lambda: leaders(cluster, topics) == {1, 2}, "the leaders to come back")
        wait_for_more(running, workload)
        workload.stop()
        wait_until_current(running, file, postgres_url)
        assert running.stop() == 0, running.output
    assert_exactly_once(postgres_url, cluster.servers, is_resumed=False)


def test_a_transaction_that_the_broker_breaks_off_is_sent_again_once(
    postgres_url: str, start: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """The driver is stopped with a transaction open, until the broker has had enough of it."""
    broker = start(**{"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500})
    file, admin = write(tmp_path, postgres_url, broker, transaction_timeout_seconds=10), admin_of(broker)
    once = str(tmp_path / "once")
    stopping = failpoints.environment("sink-before-commit", nth=8, action="stop", once=once)
    with RunningPipeline(file, environment=stopping) as running:
        with working(postgres_url, seed=7) as workload:
            running.wait_for(lambda: failpoints.fired("sink-before-commit", once), "its stop")
            assert open_partitions(admin, [*TOPICS, STATE])
            running.wait_for(lambda: not open_partitions(admin, [*TOPICS, STATE]), "the broker to break it off")
            os.kill(running.process.pid, signal.SIGCONT)
            running.wait_for(lambda: running.said("sink-retry"), "word of it")
            wait_for_more(running, workload)
        wait_until_current(running, file, postgres_url)
        assert running.stop() == 0, running.output
    assert_exactly_once(postgres_url, broker.servers, is_resumed=True)


def test_a_broker_that_is_not_there_at_the_start_is_waited_for(
    postgres_url: str, start: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    broker = start()
    file = write(tmp_path, postgres_url, broker, ("replica", f"sqlite:///{tmp_path}/replica.db"))
    broker.kill()
    with RunningPipeline(file) as running:
        running.wait_for(SinkView(file, "replica").is_live, "the other sink to be live")
        with working(postgres_url, seed=9) as workload:
            wait_for_more(running, workload)
            said = running.said("sink-retry")
            assert {each["sink"] for each in said} == {"topics"}
            assert all("Connection refused" in each["message"] for each in said)
            broker.restart()
            wait_until_current(running, file, postgres_url)
            wait_for_more(running, workload)
        wait_until_current(running, file, postgres_url)
        assert running.stop() == 0, running.output
    assert_exactly_once(postgres_url, broker.servers, is_resumed=False)
