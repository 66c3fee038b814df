"""What a consumer that reads what is committed gets from topics: a plain one, beside the pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tailrace.testing.processes import wait_until

SECONDS = 60.0
OPEN_SECONDS = 3.0


class Message(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: dict[str, bytes]


def read(servers: str, topics: list[str], *, committed: bool = True) -> list[Message]:
    """All messages of these topics, those of a partition in order; of a topic that is not there, none.

    A commit is answered a moment before its last message can be read, so that moment is waited for.
    """
    return list(each(servers, topics, committed=committed))


def each(servers: str, topics: list[str], *, committed: bool = True) -> Iterator[Message]:
    """As `read`, one by one: for topics that are larger than memory."""
    _wait_for_ends(servers, topics)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "a reader",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        yield from _read(consumer, topics)
    finally:
        consumer.close()


def _wait_for_ends(servers: str, topics: list[str]) -> None:
    """Until no transaction is open in these topics; one whose producer was killed stays open, and is not waited for."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    with suppress(TimeoutError):
        wait_until(lambda: not _open_partitions(admin, topics), seconds=OPEN_SECONDS, what="open transactions")


def _open_partitions(admin: AdminClient, topics: list[str]) -> list[TopicPartition]:
    present = admin.list_topics(timeout=SECONDS).topics
    places = [TopicPartition(t, p) for t in topics if t in present for p in present[t].partitions]
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = admin.list_offsets({place: OffsetSpec.latest() for place in places}, isolation_level=level)
        ends.append({(place.topic, place.partition): answer.result().offset for place, answer in asked.items()})
    return [place for place in places if len({each[place.topic, place.partition] for each in ends}) > 1]


def _read(consumer: Consumer, topics: list[str]) -> Iterator[Message]:
    present = consumer.list_topics(timeout=SECONDS).topics
    places = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics if t in present for p in present[t].partitions]
    if not places:
        return
    consumer.assign(places)
    left, until = {(place.topic, place.partition) for place in places}, time.monotonic() + SECONDS
    while left:
        assert time.monotonic() < until, f"{left} can not be read to their end"
        for message in consumer.consume(1000, timeout=1.0):
            until = time.monotonic() + SECONDS
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard((message.topic(), message.partition()))
                continue
            yield _decoded(message)


def _decoded(message: Any) -> Message:
    key, value = (None if each is None else json.loads(each) for each in (message.key(), message.value()))
    headers = {name: bytes(data) for name, data in message.headers() or []}
    return Message(message.topic(), message.partition(), message.offset(), key, value, headers)
