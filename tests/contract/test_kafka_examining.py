"""What a Kafka sink tells of brokers and topics before a run: what will stop it, and what may lose messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.kafka import KafkaCluster
from tailrace import config
from tailrace.pipeline import preflight
from tailrace.sinks.base import Concern
from tailrace.sinks.kafka import KafkaSink
from tailrace.sources.base import Level
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, LOOSE

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]


@pytest.fixture
def pipeline(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Callable[..., config.Pipeline]:
    def make(**own: Any) -> config.Pipeline:
        sinks = {"out": config.Sink(kafka_broker.url, own={"prefix": kafka_prefix, **own})}
        source = config.Source("postgresql://127.0.0.1:1/nowhere", ("*.*",))
        return config.Pipeline("examined", source, sinks, state=str(tmp_path))

    return make


@pytest.fixture
def make_sink(pipeline: Callable[..., config.Pipeline]) -> Iterator[MakeKafka]:
    made: list[KafkaSink] = []

    def make(**own: Any) -> KafkaSink:
        made.append(KafkaSink(pipeline(**own), "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def admin(kafka_broker: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})


def make_topic(admin: AdminClient, name: str, partitions: int = 1, **settings: str) -> None:
    own = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=own)])[name].result(60)
    wait_until(lambda: name in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be there")


def about(concerns: list[Concern], words: str) -> Concern:
    [found] = [each for each in concerns if words in each.message]
    return found


def test_topics_of_one_replica_are_a_warning_and_nothing_else_is_wrong(
    make_sink: MakeKafka, admin: AdminClient, kafka_prefix: str
) -> None:
    [found] = make_sink().examine([ITEMS, LOOSE])
    assert (found.message.startswith("one replica: topics that are to be made"), found.is_failing) == (True, False)
    assert not [name for name in admin.list_topics(timeout=60).topics if kafka_prefix in name], "nothing was made"


def test_limits_of_brokers_that_are_below_ours_are_told(make_sink: MakeKafka) -> None:
    found = make_sink(transaction_timeout_seconds=1000, message_max_bytes=2_000_000).examine([])
    timeout = about(found, "brokers allow transactions of 900 s, and ours may take 1000 s")
    assert (timeout.is_failing, "set transaction_timeout_seconds to 900" in timeout.fix) == (True, True)
    assert not about(found, "brokers take messages of 1,048,588 bytes, and ours may have 2,000,000").is_failing


def test_topics_that_can_not_be_made_are_told_once(make_sink: MakeKafka) -> None:
    found = [each for each in make_sink(replication=3).examine([ITEMS, LOOSE]) if each.is_failing]
    assert [each.fix for each in found] == ["set `replication` to no more than there are brokers"]
    found = [each for each in make_sink(topic_settings={"no.such": 1}).examine([ITEMS]) if each.is_failing]
    assert "can not be made" in found[0].message


def test_topics_that_are_there_with_other_settings_are_told(make_sink: MakeKafka, admin: AdminClient) -> None:
    sink = make_sink(partitions=3)
    make_topic(admin, sink.held_as(ITEMS), 2, unclean_leader_election_enable="true")
    make_topic(admin, sink.held_as(LOOSE), 3, cleanup_policy="compact")
    found = sink.examine([ITEMS, LOOSE])
    about(found, f"topics have other partitions than the file says: {sink.held_as(ITEMS)} (2)")
    about(found, f"another cleanup.policy than the file says: {sink.held_as(LOOSE)} (compact)")
    about(found, f"unclean.leader.election.enable is true: {sink.held_as(ITEMS)}")
    keyless = about(found, "is compacted, where each message needs one")
    assert (keyless.is_failing, keyless.table) == (True, LOOSE.table)


def test_check_tells_what_a_sink_finds(pipeline: Callable[..., config.Pipeline]) -> None:
    wanted = pipeline(transaction_timeout_seconds=1000)
    found = list(preflight.sink_findings(wanted, "out", is_readable=False))
    assert [(each.subject, each.level) for each in found] == [
        ("sink out", Level.OK),
        ("sink out: brokers", Level.FAIL),
        ("sink out: topics", Level.WARN),
    ]
