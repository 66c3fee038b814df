"""Topics: made before anything is sent to them, or found and used as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types do not say that it exports them
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tailrace.errors import SinkUnavailable
from tailrace.sinks.kafka.client import SECONDS, explained, gone, shared
from tailrace.sinks.kafka.settings import KafkaSettings

POLICY = "cleanup.policy"
FIRST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # it has no types
LAST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no types


ABSENT_SECONDS = 5.0
"""How long a topic that ought to be there is looked for: brokers tell each other of a new one in a moment."""


class Found(msgspec.Struct, frozen=True):
    """A topic that is there. Its `id` is another one once it was made again; empty if brokers have none."""

    id: str
    partitions: int


class Ends(msgspec.Struct, frozen=True):
    """Where a partition begins and where what is committed of it ends."""

    first: int
    last: int


class Topics:
    """What one sink asks of the brokers about topics, and has them make. Pickles without its connection."""

    def __init__(self, client: dict[str, Any], settings: KafkaSettings, sink: str) -> None:
        self._client, self._settings, self.sink = client, settings, sink
        self._admin: AdminClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_admin": None}

    def close(self) -> None:
        self._admin = None

    def present(self, names: Iterable[str]) -> dict[str, Found]:
        """Those of these topics that are there. One that brokers do not tell of is an error, and not absent."""
        wanted = list(dict.fromkeys(names))
        answers = self._opened().describe_topics(TopicCollection(wanted), request_timeout=SECONDS) if wanted else {}
        found: dict[str, Found] = {}
        for name, answer in answers.items():
            try:
                topic = self._answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise explained(error, self.sink, f"looking for topic {name}") from error
            else:
                found[name] = Found(_id(topic.topic_id), len(topic.partitions))
        return found

    def expected(self, names: Iterable[str]) -> dict[str, Found]:
        """As `present`, of topics that ought to be there: one is absent once it was looked for for a while."""
        wanted, until = set(names), time.monotonic() + ABSENT_SECONDS
        while True:
            found = self.present(wanted)
            if len(found) == len(wanted) or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def create(self, name: str, partitions: int, config: dict[str, str], table: str | None = None) -> None:
        """Returns once the topic is there, also if somebody else was first."""
        copies = -1 if self._settings.replication is None else self._settings.replication
        topic = NewTopic(name, num_partitions=partitions, replication_factor=copies, config=config)
        doing = f"creating topic {name}"
        try:
            self._answer(self._opened().create_topics([topic], request_timeout=SECONDS)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise explained(error, self.sink, doing, table) from error
        self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        """Until the brokers have told each other of a new topic."""
        until = time.monotonic() + SECONDS
        while not self._is_there(name):
            if time.monotonic() > until:
                raise SinkUnavailable(f"sink {self.sink}: topic {name} was made, and is not there yet")
            time.sleep(0.05)

    def create_for(self, name: str, table: str) -> None:
        """The topic of a table, as the file wants it."""
        own = {key: _written(value) for key, value in self._settings.topic_settings.items()}
        own = {POLICY: self._settings.cleanup_policy} | own
        self.create(name, self._settings.partitions, own, table)

    def setting(self, name: str, key: str) -> str | None:
        """A topic's own setting, or the broker's; None if we may not know."""
        return self._settings_of([name], key).get(name)

    def message_limits(self, names: Iterable[str]) -> dict[str, int]:
        """How large a batch of messages may be that brokers take for these topics, as far as we may know."""
        there = self.present(names)
        return {name: int(value) for name, value in self._settings_of(there, "max.message.bytes").items()}

    def _settings_of(self, names: Iterable[str], key: str) -> dict[str, str]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        asked = self._opened().describe_configs(resources, request_timeout=SECONDS) if resources else {}
        known: dict[str, str] = {}
        for resource, answer in asked.items():
            try:
                found = self._answer(answer)
            except KafkaException as error:
                if error.args[0].code() in (
                    KafkaError.TOPIC_AUTHORIZATION_FAILED,
                    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
                ):
                    continue
                raise explained(error, self.sink, f"reading the settings of topic {resource.name}") from error
            if key in found:
                known[resource.name] = str(found[key].value)
        return known

    def is_compacted(self, name: str) -> bool:
        return "compact" in (self.setting(name, POLICY) or "")

    def ends(self, name: str) -> list[Ends]:
        """Of each partition, for those who read what is committed."""
        there = self.expected([name]).get(name)
        count = 0 if there is None else there.partitions
        first, last = self._offsets(name, count, FIRST), self._offsets(name, count, LAST)
        return [Ends(low, high) for low, high in zip(first, last, strict=True)]

    def summed_ends(self, names: Iterable[str]) -> dict[str, int]:
        """Of those of these topics that are there, where what is committed of them ends, summed over partitions."""
        there = self.present(names)
        places = [TopicPartition(name, number) for name in there for number in range(there[name].partitions)]
        found = dict.fromkeys(there, 0)
        for place, offset in self._asked(places, LAST, "asking for the ends of topics").items():
            found[place[0]] += offset
        return found

    def committed_end(self, name: str) -> int:
        """The end of what is committed of a topic's first partition."""
        return self._offsets(name, 1, LAST)[0]

    def delete(self, names: Iterable[str]) -> None:
        for name, answer in self._opened().delete_topics(list(names), request_timeout=SECONDS).items():
            try:
                self._answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise explained(error, self.sink, f"deleting topic {name}") from error

    def _offsets(self, name: str, count: int, spec: Any) -> list[int]:
        places = [TopicPartition(name, number) for number in range(count)]
        found = self._asked(places, spec, f"asking for the end of topic {name}")
        return [found[name, number] for number in range(count)]

    def _asked(self, places: list[TopicPartition], spec: Any, doing: str) -> dict[tuple[str, int], int]:
        """By topic and partition, for those who read what is committed."""
        if not places:
            return {}
        level, wanted = IsolationLevel.READ_COMMITTED, dict.fromkeys(places, spec)
        answers = self._opened().list_offsets(wanted, isolation_level=level, request_timeout=SECONDS)
        try:
            return {
                (place.topic, place.partition): int(self._answer(answer).offset) for place, answer in answers.items()
            }
        except KafkaException as error:
            raise explained(error, self.sink, doing) from error

    def _is_there(self, name: str) -> bool:
        """As the broker that we ask knows by now."""
        found = self.present([name]).get(name)
        return found is not None and found.partitions > 0

    def _answer(self, future: Any) -> Any:
        return future.result(timeout=SECONDS * 2)

    def _opened(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._client)
        return self._admin


class KnownTopics:
    """The topics that were seen, and with whose table: two tables do not share one unless the file says so."""

    def __init__(self, topics: Topics, is_routed: Callable[[str], bool], reserved: Iterable[str] = ()) -> None:
        self._topics, self._is_routed, self._reserved = topics, is_routed, frozenset(reserved)
        self._owners: dict[str, str] = {}

    def forget(self) -> None:
        self._owners.clear()

    def ensure(self, topic: str, table: str, *, is_new: bool) -> None:
        """The topic of a table is there. It is made for a table that `is_new`; that of another one must not be gone."""
        if topic in self._reserved:
            raise shared(topic, table, f"the sink's own: {topic}")
        owner = self._owners.get(topic)
        if owner == table or (owner is not None and self._is_routed(table) and self._is_routed(owner)):
            return
        if owner is not None:
            raise shared(topic, table, owner)
        if topic not in (self._topics.present([topic]) if is_new else self._topics.expected([topic])):
            if not is_new:
                raise gone(topic, table, self._topics.sink)
            self._topics.create_for(topic, table)
        self._owners[topic] = table


def _id(uuid: Any) -> str:
    bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits()) if uuid is not None else (0, 0)
    return "{:x}-{:x}".format(*(each % (1 << 64) for each in bits)) if any(bits) else ""


def _written(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
