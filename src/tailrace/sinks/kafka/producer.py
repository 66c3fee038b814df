"""The one transactional producer of a sink. It is made by whoever commits, and everything goes through it.

Making one fences all earlier ones of the same transactional id and waits for what they had under way: what they had
begun to commit is there afterwards, what they had not is not. So whoever has made one reads the truth.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tailrace import failpoints
from tailrace.codecs.base import Record
from tailrace.errors import SinkError, SinkRejected, SinkUnavailable
from tailrace.sinks.kafka.client import SECONDS, Right, explained, gone
from tailrace.sinks.kafka.settings import KafkaSettings
from tailrace.sinks.kafka.staged import Messages
from tailrace.sinks.kafka.state import Pairs

INIT_SECONDS = 60.0
STUCK_SECONDS = 3
"""So long nothing is delivered before it is asked why: the client waits for minutes for a topic that is gone."""
PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
PARTITION_UA = -1  # where the key says
QUEUE_MESSAGES, QUEUE_KBYTES = 500_000, 128 * 1024


Look = Callable[[Iterable[str]], "tuple[str, KafkaError] | None"]
"""One of these topics that can not be written to, and why."""


class Transaction:
    """What is sent in it is committed with it, or never seen."""

    def __init__(self, producer: Producer, look: Look, failures: list[tuple[KafkaError, str]]) -> None:
        self._producer, self._look, self._failures = producer, look, failures
        self.tables: dict[str, str] = {}
        self.controls: set[str] = set()

    def send(self, messages: Messages) -> int:
        """Returns of how many changes they are."""
        self.tables[messages.topic] = messages.table
        headers = messages.headers()
        keys, values = messages.rows.column("key").to_pylist(), messages.rows.column("value").to_pylist()
        produce, topic = self._producer.produce, messages.topic
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            own = headers.get(row) if headers else None
            try:
                if own is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, headers=own)
            except BufferError:
                self._put(topic, value, key, **({"headers": own} if own else {}))
            except KafkaException as error:  # it is too large, for one
                self._failures.append((error.args[0], topic))
                raise
        self._producer.poll(0)
        return messages.changes

    def send_everywhere(self, messages: Messages, partitions: int) -> int:
        """To each of a topic's partitions: they are about all keys."""
        values = messages.rows.column("value").to_pylist()
        self.send_records(messages.topic, messages.table, partitions, [Record(None, value) for value in values])
        return messages.changes

    def _put(self, topic: str, value: Any, key: Any, **how: Any) -> None:
        """As soon as there is room for it."""
        stuck_at = time.monotonic() + STUCK_SECONDS
        while True:
            try:
                self._producer.produce(topic, value, key, **how)
                return
            except BufferError:
                self._producer.poll(0.05)
                if time.monotonic() > stuck_at:
                    self._look_why()
                    stuck_at = time.monotonic() + STUCK_SECONDS
                if self._failures:
                    raise KafkaException(self._failures[0][0]) from None

    def send_records(self, topic: str, table: str, partitions: int, records: list[Record]) -> None:
        """To each of its partitions: they are about all keys."""
        self.tables[topic] = table
        for partition, record in ((each, record) for each in range(partitions) for record in records):
            self._put(topic, record.value, record.key, partition=partition, headers=dict(record.headers))

    def send_all(self, table: str, topic: str, records: list[Record]) -> None:
        """Where their keys say."""
        self.tables[topic] = table
        for record in records:
            self._put(topic, record.value, record.key)

    def send_control(self, topic: str, records: list[Record], partition: int = PARTITION_UA) -> None:
        """What is told beside the changes; a record goes where its key does, unless it is told where."""
        self.controls.add(topic)
        for record in records:
            self._put(topic, record.value, record.key, partition=partition)

    def remember(self, topic: str, records: Pairs) -> None:
        for key, value in records:
            self._put(topic, value, key, partition=0)

    def flush(self) -> None:
        """Until the brokers have everything; what can not be delivered breaks off the transaction."""
        left, stuck = len(self._producer), 0
        while (now := self._producer.flush(1.0)) and not self._failures:
            left, stuck = now, (stuck + 1 if now == left else 0)
            if stuck and stuck % STUCK_SECONDS == 0:
                self._look_why()
        if self._failures:
            raise KafkaException(self._failures[0][0])

    def _look_why(self) -> None:
        """Nothing moves: where that is because of a topic, it is this one's failure."""
        found = self._look((*self.tables, *self.controls))
        if found is not None:
            self._failures.append((found[1], found[0]))


class TransactionalProducer:
    """Pickles without its connection."""

    def __init__(self, name: str, client: dict[str, Any], settings: KafkaSettings, sink: str, look: Look) -> None:
        self._name, self._client, self._settings, self._sink, self._look = name, client, settings, sink, look
        self._producer: Producer | None = None
        self._failures: list[tuple[KafkaError, str]] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_producer": None, "_failures": []}

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self) -> None:
        """Fence all others and settle what they had under way, unless this one is the last one already."""
        if self._producer is not None:
            return
        producer = Producer(self._client | self._own(), logger=_unheard())
        try:
            producer.list_topics(self._name, timeout=SECONDS)  # or it takes half a second to find out who to ask
            producer.init_transactions(INIT_SECONDS)
        except KafkaException as error:
            raise explained(error, self._sink, "being claimed", right=Right("Write", self._name)) from error
        self._producer = producer

    def close(self) -> None:
        """What is under way is broken off by whoever opens the next one, or by the broker in time."""
        producer, self._producer = self._producer, None
        self._failures = []
        if producer is not None:
            with suppress(KafkaException, SystemError):
                producer.purge()
                producer.flush(0)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All that is sent inside, in one step at its end. After an error nobody knows: the next one to open does."""
        assert self._producer is not None
        producer, self._failures = self._producer, []
        transaction = Transaction(producer, self._look, self._failures)
        try:
            producer.begin_transaction()
            yield transaction
            failpoints.reached("kafka-before-flush")
            transaction.flush()
            failpoints.reached("sink-before-commit")
            producer.commit_transaction(self._settings.transaction_timeout_seconds)
        except KafkaException as error:
            failures = self._failures
            self._break_off(producer)
            raise self._explained(error, failures, transaction) from error
        except SystemError as error:
            # a fatal error, which here is that we are fenced, is set while the client calls back for each message
            self._break_off(producer)
            raise explained(KafkaException(KafkaError(KafkaError._FENCED)), self._sink, "writing a batch") from error
        except BaseException:
            self._break_off(producer)
            raise

    def _break_off(self, producer: Producer) -> None:
        with suppress(KafkaException, SystemError):
            producer.purge()
            producer.abort_transaction(SECONDS / 3)
        self.close()

    def _explained(
        self, error: KafkaException, failures: list[tuple[KafkaError, str]], transaction: Transaction
    ) -> SinkError:
        """A message that was refused says more than the transaction that it broke."""
        told = [(failure, topic) for failure, topic in failures if failure.code() not in PURGED]
        if not told and error.args[0].code() in (*PURGED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            found = self._look((*transaction.tables, *transaction.controls, self._name))
            told = [(found[1], found[0])] if found is not None else []
        for failure, topic in told:
            return self._explained_topic(failure, topic, transaction)
        return explained(error, self._sink, "writing a batch", right=Right("Write", self._name))

    def _explained_topic(self, failure: KafkaError, topic: str, transaction: Transaction) -> SinkError:
        table = transaction.tables.get(topic)
        is_gone = failure.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
        if is_gone and topic in transaction.controls:
            return SinkUnavailable(f"sink {self._sink}: topic {topic} is gone, and is made again")
        if is_gone:
            return gone(topic, table, self._sink)
        if failure.code() == KafkaError.INVALID_RECORD:
            return SinkRejected(
                f"the broker refuses a message for topic {topic}: where it is compacted, each needs a key, which a"
                " truncate and a table without one do not have",
                table=table,
            )
        right = Right("Write", topic)
        return explained(KafkaException(failure), self._sink, f"writing to topic {topic}", table, right)

    def _own(self) -> dict[str, Any]:
        settings = self._settings
        milliseconds = settings.transaction_timeout_seconds * 1000
        return {
            "transactional.id": self._name,
            "transaction.timeout.ms": milliseconds,
            "partitioner": "murmur2_random",
            "compression.type": settings.compression.value,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_bytes,
            "batch.num.messages": 100_000,
            "message.max.bytes": settings.message_max_bytes,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "delivery.report.only.error": True,
            "allow.auto.create.topics": False,  # a topic that is gone is not to come back empty
            "on_delivery": self._on_failure,
        } | settings.options

    def _on_failure(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failures.append((error, message.topic()))


def _unheard() -> logging.Logger:
    """What the client logs, even of what it calls fatal, we are told by its answers, and tell in our own words."""
    found = logging.getLogger("tailrace.sinks.kafka.client")
    found.propagate = False
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found
