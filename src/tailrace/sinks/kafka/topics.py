"""Topics: made before anything is sent to them, or found and used as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types do not say that it exports them
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tailrace.errors import SinkError, SinkUnavailable
from tailrace.sinks.kafka.client import FORBIDDEN, SECONDS, Right, explained, gone, shared
from tailrace.sinks.kafka.reaching import Reaching
from tailrace.sinks.kafka.settings import KafkaSettings

POLICY = "cleanup.policy"
_OPERATIONS = {each: each.name.title().replace("_", "") for each in AclOperation}
FIRST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # it has no types
LAST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no types


ABSENT_SECONDS = 5.0
"""How long a topic that ought to be there is looked for: brokers tell each other of a new one in a moment."""


OBSTACLE_SECONDS = 10.0
"""How long it is asked why nothing is delivered, before it is that no broker answers."""


class Found(msgspec.Struct, frozen=True):
    """A topic that is there. Its `id` is another one once it was made again; empty if brokers have none."""

    id: str
    partitions: int
    replicas: int = 1
    allowed: frozenset[str] = frozenset()  # to us, if that was asked for: Write, Read, ...


class Ends(msgspec.Struct, frozen=True):
    """Where a partition begins and where what is committed of it ends."""

    first: int
    last: int


class Topics:
    """What one sink asks of the brokers about topics, and has them make. Pickles without its connection."""

    def __init__(self, client: dict[str, Any], settings: KafkaSettings, sink: str) -> None:
        self._settings, self.sink = settings, sink
        self._reaching = Reaching(client, settings, sink)
        self._admin: AdminClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_admin": None}

    def close(self) -> None:
        self._admin = None

    def present(
        self, names: Iterable[str], tables: Mapping[str, str] | None = None, *, with_rights: bool = False
    ) -> dict[str, Found]:
        """Those of these topics that are there. One that brokers do not tell of is an error, and not absent.

        `tables` are those of topics: an error that is about one topic is its table's own.
        """
        found: dict[str, Found] = {}
        for name, answer in self._described(names, with_rights=with_rights).items():
            try:
                found[name] = _found(self._answer(answer))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    table = (tables or {}).get(name)
                    raise self._explained(error, f"looking for topic {name}", table, Right("Describe", name)) from error
        return found

    def _described(self, names: Iterable[str], *, with_rights: bool, seconds: float = SECONDS) -> dict[str, Any]:
        wanted = TopicCollection(list(dict.fromkeys(names)))
        if not wanted.topic_names:
            return {}
        admin = self._opened()
        return admin.describe_topics(wanted, include_authorized_operations=with_rights, request_timeout=seconds)

    def obstacle(self, names: Iterable[str]) -> tuple[str, KafkaError] | None:
        """One of these topics that can not be written to: it is gone, or we may not. None if all is well with them.

        Raises SinkUnavailable where no broker answers.
        """
        for name, answer in self._described(names, with_rights=True, seconds=OBSTACLE_SECONDS).items():
            try:
                allowed = _found(self._answer(answer)).allowed
            except KafkaException as error:
                if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                    return name, error.args[0]
                raise self._explained(error, f"writing to topic {name}") from error
            if allowed and "Write" not in allowed:
                return name, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return None

    def seen(self, names: Iterable[str]) -> tuple[dict[str, Found], set[str]]:
        """Those that are there, with our rights on them; and those of which brokers do not tell us."""
        found: dict[str, Found] = {}
        hidden: set[str] = set()
        for name, answer in self._described(names, with_rights=True).items():
            try:
                found[name] = _found(self._answer(answer))
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    hidden.add(name)
                elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._explained(error, f"looking for topic {name}") from error
        return found, hidden

    def not_creatable(self, wanted: Mapping[str, tuple[int, str]]) -> dict[str, KafkaError]:
        """Why topics could not be made, by name, of these partitions and cleanup policies. None is made."""
        if not wanted:
            return {}
        copies, own = self._copies, self._own_settings()
        topics = [
            NewTopic(name, num_partitions=partitions, replication_factor=copies, config=own | {POLICY: policy})
            for name, (partitions, policy) in wanted.items()
        ]
        refused: dict[str, KafkaError] = {}
        answers = self._opened().create_topics(topics, request_timeout=SECONDS, validate_only=True)
        for name, answer in answers.items():
            try:
                self._answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    refused[name] = error.args[0]
        return refused

    def settings_of(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, of those that we may know."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        return self._configured(resources)

    def broker_settings(self) -> dict[str, str]:
        """Those of one of the brokers; empty if we may not know."""
        number = min(self._opened().list_topics(" ", timeout=SECONDS).brokers)
        return self._configured([ConfigResource(ResourceType.BROKER, str(number))]).get(str(number), {})

    def _configured(self, resources: list[ConfigResource]) -> dict[str, dict[str, str]]:
        answers = self._opened().describe_configs(resources, request_timeout=SECONDS) if resources else {}
        found: dict[str, dict[str, str]] = {}
        for resource, answer in answers.items():
            try:
                entries = self._answer(answer).values()
            except KafkaException as error:
                if error.args[0].code() not in FORBIDDEN:
                    raise self._explained(error, f"reading the settings of {resource.name}") from error
            else:
                found[resource.name] = {entry.name: str(entry.value) for entry in entries if entry.value is not None}
        return found

    def allowed_on_group(self, name: str) -> frozenset[str] | None:
        """Our rights on a group; None if brokers do not tell."""
        asked = self._opened().describe_consumer_groups(
            [name], include_authorized_operations=True, request_timeout=SECONDS
        )
        try:
            told = self._answer(asked[name]).authorized_operations
        except KafkaException as error:
            code = error.args[0].code()
            return frozenset() if code == KafkaError.GROUP_AUTHORIZATION_FAILED else None
        return None if told is None else frozenset(_OPERATIONS[each] for each in told)

    def expected(self, names: Iterable[str], tables: Mapping[str, str] | None = None) -> dict[str, Found]:
        """As `present`, of topics that ought to be there: one is absent once it was looked for for a while."""
        wanted, until = set(names), time.monotonic() + ABSENT_SECONDS
        while True:
            found = self.present(wanted, tables)
            if len(found) == len(wanted) or time.monotonic() > until:
                return found
            time.sleep(0.2)

    def create(self, name: str, partitions: int, config: dict[str, str], table: str | None = None) -> None:
        """Returns once the topic is there, also if somebody else was first."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=self._copies, config=config)
        doing = f"creating topic {name}"
        try:
            self._answer(self._opened().create_topics([topic], request_timeout=SECONDS)[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._explained(error, doing, table, Right("Create", name)) from error
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
        own = {POLICY: self._settings.cleanup_policy} | self._own_settings()
        self.create(name, self._settings.partitions, own, table)

    @property
    def _copies(self) -> int:
        return -1 if self._settings.replication is None else self._settings.replication

    def _own_settings(self) -> dict[str, str]:
        return {key: _written(value) for key, value in self._settings.topic_settings.items()}

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
                if error.args[0].code() in FORBIDDEN:
                    continue
                raise self._explained(error, f"reading the settings of topic {resource.name}") from error
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
                    raise self._explained(error, f"deleting topic {name}", right=Right("Delete", name)) from error

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
            raise self._explained(error, doing, right=Right("Describe", places[0].topic)) from error

    def _is_there(self, name: str) -> bool:
        """As the broker that we ask knows by now."""
        found = self.present([name]).get(name)
        return found is not None and found.partitions > 0

    def _answer(self, future: Any) -> Any:
        try:
            found = future.result(timeout=SECONDS * 2)
        except TimeoutError as error:  # the client gives up before that, unless the machine is very busy
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        self._reaching.answered()
        return found

    def _explained(
        self, error: Exception, doing: str, table: str | None = None, right: Right | None = None
    ) -> SinkError:
        found = explained(error, self.sink, doing, table, right)
        if isinstance(found, SinkUnavailable) and self._admin is not None:
            return self._reaching.judged(self._admin, found)
        return found

    def _opened(self) -> AdminClient:
        if self._admin is None:
            self._admin = self._reaching.opened()
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
        look = self._topics.present if is_new else self._topics.expected
        if topic not in look([topic], {topic: table}):
            if not is_new:
                raise gone(topic, table, self._topics.sink)
            self._topics.create_for(topic, table)
        self._owners[topic] = table


def _found(topic: Any) -> Found:
    replicas = min((len(partition.replicas) for partition in topic.partitions), default=0)
    allowed = (topic.authorized_operations or []) if hasattr(topic, "authorized_operations") else []
    return Found(_id(topic.topic_id), len(topic.partitions), replicas, frozenset(_OPERATIONS[each] for each in allowed))


def _id(uuid: Any) -> str:
    bits = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits()) if uuid is not None else (0, 0)
    return "{:x}-{:x}".format(*(each % (1 << 64) for each in bits)) if any(bits) else ""


def _written(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
