"""A Kafka sink whose user may do this and not that: each missing right is one sentence, before a run and in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

from support import kafka_reading
from support.kafka import KafkaCluster
from support.kafka_security import PASSWORD, USER, Grant, allow, needed, take_away
from tailrace import config
from tailrace.errors import SinkRejected
from tailrace.sinks.base import Concern
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, inserts
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, LOOSE, ORDERS

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]
STATE_RIGHTS = {
    "Write on topic": (ResourceType.TOPIC, AclOperation.WRITE),
    "Read on topic": (ResourceType.TOPIC, AclOperation.READ),
    "Read on group": (ResourceType.GROUP, AclOperation.READ),
    "Write on transactional id": (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
}


@pytest.fixture
def make_sink(guarded_broker: KafkaCluster, guarded_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made: list[KafkaSink] = []

    def make(**own: Any) -> KafkaSink:
        url = f"kafka://{USER}:{quote(PASSWORD, safe='')}@{guarded_broker.servers_of('SASL')}"
        sinks = {"out": config.Sink(url, own={"prefix": guarded_prefix, **own})}
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        made.append(KafkaSink(config.Pipeline("guarded", source, sinks, state=str(tmp_path)), "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(make_sink: MakeKafka, guard: AdminClient, guarded_prefix: str) -> KafkaSink:
    """One that has all the rights that docs/kafka.md lists, and has used them."""
    sink = make_sink()
    allow(guard, *needed(f"{guarded_prefix}.", sink._state.name))
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None)), inserts(ORDERS, 2, (1, 1))]], 10)
    assert not [each for each in sink.examine([ITEMS, ORDERS, LOOSE]) if each.is_failing]
    return sink


def lacking(concerns: list[Concern]) -> list[tuple[str, str]]:
    """The rights that are missing, each with its table."""
    failing = [each for each in concerns if each.is_failing]
    return [(each.message.partition("lacks ")[2].partition(":")[0], each.table) for each in failing]


def refused(sink: KafkaSink, *changes: Any) -> SinkRejected:
    """What a new run says that begins now, and commits these changes."""

    def is_refused() -> bool:  # brokers hear of a right in a moment
        sink.close()
        try:
            sink.check()
            sink.claim("another")
            end = (sink.read_state().watermark.offset or 0) + 10
            apply(sink, [list(changes)], end)
        except SinkRejected as error:
            found.append(error)
        return bool(found)

    found: list[SinkRejected] = []
    wait_until(is_refused, seconds=60, what="a refusal")
    assert str(found[0].hint).startswith("kafka-acls --add")
    return found[0]


@pytest.mark.parametrize("right", STATE_RIGHTS)
def test_what_the_state_topic_needs_is_named(sink: KafkaSink, guard: AdminClient, right: str) -> None:
    name = sink._state.name
    kind, operation = STATE_RIGHTS[right]
    take_away(guard, Grant(kind, name, operation))
    error = refused(sink, inserts(ITEMS, 11, (2, "b", None)))
    assert str(error).endswith(f"our user lacks {right} {name}")
    assert error.table is None
    if kind is not ResourceType.TRANSACTIONAL_ID:  # to ask for it is to fence whoever has it
        assert lacking(sink.examine([])) == [(f"{right} {name}", "")]


def test_a_topic_that_may_not_be_written_is_its_tables_own_trouble(
    sink: KafkaSink, guard: AdminClient, guarded_broker: KafkaCluster, guarded_prefix: str
) -> None:
    write, describe = AclOperation.WRITE, AclOperation.DESCRIBE
    items, orders = sink.held_as(ITEMS), sink.held_as(ORDERS)
    allow(guard, Grant(ResourceType.TOPIC, items, describe), Grant(ResourceType.TOPIC, orders, write))
    take_away(guard, Grant(ResourceType.TOPIC, f"{guarded_prefix}.", write, by_prefix=True))
    both = (inserts(ORDERS, 21, (2, 2)), inserts(ITEMS, 22, (3, "c", None)))
    error = refused(sink, *both)
    assert (str(error).endswith(f"our user lacks Write on topic {items}"), error.table) == (True, ITEMS.table)
    assert lacking(sink.examine([ITEMS, ORDERS])) == [(f"Write on topic {items}", ITEMS.table)]
    place = sink.read_state().watermark
    assert place is not None
    apply(sink, [[inserts(ORDERS, 31, (2, 2))]], place.offset + 20)  # the others go on
    take_away(guard, Grant(ResourceType.TOPIC, items, describe))
    error = refused(sink, *both)
    assert (str(error).endswith(f"our user lacks Describe on topic {items}"), error.table) == (True, ITEMS.table)
    assert lacking(sink.examine([ITEMS, ORDERS])) == [(f"Describe on topic {items}", ITEMS.table)]
    found = kafka_reading.read(guarded_broker.servers, [orders])
    assert [each.value["after"]["id"] for each in found][-1] == 2


def test_a_topic_that_may_not_be_made_is_its_tables_own_trouble(
    sink: KafkaSink, guard: AdminClient, guarded_prefix: str
) -> None:
    take_away(guard, Grant(ResourceType.TOPIC, f"{guarded_prefix}.", AclOperation.CREATE, by_prefix=True))
    loose = sink.held_as(LOOSE)
    error = refused(sink, inserts(LOOSE, 11, (1, "a")))
    assert (str(error).endswith(f"our user lacks Create on topic {loose}"), error.table) == (True, LOOSE.table)
    assert lacking(sink.examine([ITEMS, LOOSE])) == [(f"Create on topic {loose}", LOOSE.table)]
    topic = NewTopic(loose, num_partitions=1)
    guard.create_topics([topic])[loose].result(60)
    sink.close()
    sink.claim("a third")
    place = sink.read_state().watermark
    assert place is not None
    apply(sink, [[inserts(LOOSE, place.offset + 1, (1, "a"))]], place.offset + 10)


def test_a_sink_that_may_not_make_its_state_topic_says_so(make_sink: MakeKafka, guard: AdminClient) -> None:
    sink = make_sink()
    name = sink._state.name
    with pytest.raises(SinkRejected, match=f"lacks Describe on topic {name}"):
        sink.check()
    allow(guard, *(grant for grant in needed("nothing", name, creating=False)))
    wait_until(lambda: lacking(sink.examine([])) == [(f"Create on topic {name}", "")], seconds=60, what="its rights")
    with pytest.raises(SinkRejected, match=f"lacks Create on topic {name}"):
        sink.claim("run")
