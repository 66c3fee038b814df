"""The messages of a topic as they come, for somebody who looks on. Nothing is committed, no group is left behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import ConfigError
from tailrace.sinks.kafka.client import SECONDS, Address, common, explained
from tailrace.sinks.kafka.settings import KafkaSettings

_DOING = "reading topics"


class Message(msgspec.Struct, frozen=True):
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


class Tail:
    """A consumer of committed messages of one topic."""

    def __init__(self, url: str, settings: KafkaSettings) -> None:
        own = common(Address.parse(url, "tail"), settings)
        reading = {"group.id": f"tailrace-tail-{uuid.uuid4().hex}", "isolation.level": "read_committed"}
        never = {"enable.auto.commit": False, "allow.auto.create.topics": False, "enable.partition.eof": False}
        self._consumer = Consumer(own | reading | never)

    def topic_of(self, table: str) -> str:
        """The topic that is called so, or else the one whose name ends so."""
        topics = self._topics()
        if table in topics:
            return table
        found = sorted(topic for topic in topics if topic.endswith(f".{table}"))
        if not found:
            raise ConfigError(f"there is no topic of {table}", hint="name the table as schema.table, or the topic")
        if len(found) > 1:
            raise ConfigError(f"several topics are of {table}: {', '.join(found[:5])}", hint="name the topic")
        return found[0]

    def messages(self, topic: str, *, from_beginning: bool) -> Iterator[Message | None]:
        """For ever; None where nothing came for a while. Messages of one partition are in their order."""
        start = OFFSET_BEGINNING if from_beginning else OFFSET_END
        partitions = self._topics(topic)[topic]
        self._consumer.assign([TopicPartition(topic, number, start) for number in partitions])
        while True:
            found = self._consumer.poll(0.5)
            if found is None:
                yield None
                continue
            if (error := found.error()) is not None:
                if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    continue  # the client connects again by itself
                raise explained(KafkaException(error), "tail", _DOING)
            at_ms = found.timestamp()[1]
            yield Message(found.partition() or 0, found.offset() or 0, at_ms, found.key(), found.value())

    def close(self) -> None:
        self._consumer.close()

    def _topics(self, topic: str | None = None) -> dict[str, list[int]]:
        try:
            listed = self._consumer.list_topics(topic, timeout=SECONDS)
        except KafkaException as error:
            raise explained(error, "tail", _DOING) from error
        return {name: sorted(each.partitions) for name, each in listed.topics.items()}
