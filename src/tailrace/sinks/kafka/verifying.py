"""Topics read back: what they amount to, key by key, for `tailrace verify`. Changes nothing, and leaves no group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.codecs.reading import MessageReader
from tailrace.codecs.registry.client import open_registry
from tailrace.codecs.settings import Format
from tailrace.errors import DecodeError, SinkRejected, SinkUnavailable
from tailrace.model.schema import TableSchema
from tailrace.sinks.envelopes import Envelopes
from tailrace.sinks.kafka.client import SECONDS, explained, gone
from tailrace.sinks.kafka.encoding import Encoder, row_pieces
from tailrace.sinks.kafka.naming import Names
from tailrace.sinks.kafka.settings import KafkaSettings
from tailrace.sinks.kafka.topics import Ends, Topics
from tailrace.sinks.replayed import Replay, foreign, rows_of

AT_ONCE = 1000


class TopicView:
    """What is committed in the topics of one sink. Pickles."""

    def __init__(
        self, client: dict[str, Any], settings: KafkaSettings, names: Names, encoder: Encoder, topics: Topics
    ) -> None:
        self._client, self._settings, self._names = client, settings, names
        self._encoder, self._topics = encoder, topics

    def expected(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        envelopes = self._envelopes(schema)
        return [row for piece in row_pieces(batch) for row in envelopes.expected(piece)]

    def rows(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        """Of each key the last row. Raises SinkRejected for a table that its topic can not tell the rows of."""
        topic, envelopes = self._names.topic(schema), self._envelopes(schema)
        with Replay(envelopes.read, f"topic {topic}") as replay:
            ends = self._topics.ends(topic)
            if not ends:
                raise gone(topic, schema.table, self._topics.sink)
            self._fill(replay, topic, ends, envelopes)
            self._refuse_expired(replay, topic, ends, schema.table)
            for tolds in replay.rows():
                yield rows_of(tolds, envelopes.columns)

    def _envelopes(self, schema: TableSchema) -> Envelopes:
        """Refuses a table whose messages can not be told apart by their keys."""
        topic, table = self._names.topic(schema), schema.table
        if others := [each for each in self._names.sharing(topic) if each != table]:
            raise SinkRejected(f"{table} shares topic {topic} with {others[0]}: their messages can not be told apart")
        own = self._encoder.keyed(schema)
        if not schema.key or not own.key:
            raise SinkRejected(f"{table} has no key: which messages are of the same row can not be told")
        if not set(schema.key) <= set(own.key):
            raise SinkRejected(f"messages of {table} have a key of several rows: which are of the same can not be told")
        if self._settings.format is Format.PROTOBUF:
            raise SinkRejected(f"messages of {table} are in protobuf, which is not read back")
        registry = self._settings.registry
        reader = MessageReader(None if registry is None else open_registry(registry))
        return Envelopes(self._encoder.codec(topic), reader, own)

    def _refuse_expired(self, replay: Replay, topic: str, ends: list[Ends], table: str) -> None:
        """Where a lane's beginning is gone, only a truncate after it would make up for that."""
        for partition, end in enumerate(ends):
            if end.first > 0 and not replay.was_truncated(partition):
                raise SinkRejected(
                    f"the oldest messages of topic {topic} have expired: it has not all rows of {table}",
                    hint="keep them (retention.ms, retention.bytes), or compact the topic, to have it compared",
                )

    def _fill(self, replay: Replay, topic: str, ends: list[Ends], envelopes: Envelopes) -> None:
        plain = self._settings.format is Format.JSON
        reader = envelopes.reader
        for partition, offset, key, value in self._messages(topic, ends):
            if key is not None:
                own = key if plain else msgspec.json.encode(reader.read(key, None).key)
                replay.add(partition, offset, own, value)
            elif self._is_truncate(envelopes, value):
                replay.truncate(partition)
            else:
                raise foreign(f"topic {topic}", partition, offset)

    def _is_truncate(self, envelopes: Envelopes, value: bytes | None) -> bool:
        try:
            return value is not None and envelopes.seen(value).op == "truncate"
        except DecodeError:
            return False

    def _messages(self, topic: str, ends: list[Ends]) -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
        """All that was committed when we were told of the ends, those of a partition in order."""
        places = [TopicPartition(topic, number, end.first) for number, end in enumerate(ends) if end.last > end.first]
        left = {place.partition for place in places}
        consumer: Any = Consumer(self._client | self._own())
        try:
            consumer.assign(places)
            until = time.monotonic() + SECONDS
            while left:
                found = consumer.consume(AT_ONCE, timeout=1.0)
                until = time.monotonic() + SECONDS if found else until
                if time.monotonic() > until:
                    raise SinkUnavailable(f"sink {self._topics.sink} did not answer while reading topic {topic}")
                for message in found:
                    if self._is_end(message, topic, ends):
                        left.discard(message.partition())
                    elif message.error() is None and message.offset() < ends[message.partition()].last:
                        yield message.partition(), message.offset(), message.key(), message.value()
        finally:
            consumer.close()

    def _is_end(self, message: Any, topic: str, ends: list[Ends]) -> bool:
        """The end of a partition: told of, or come to by somebody else's message behind it."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise explained(KafkaException(error), self._topics.sink, f"reading topic {topic}")
        return bool(message.offset() >= ends[message.partition()].last)

    def _own(self) -> dict[str, Any]:
        return {
            "group.id": self._names.state,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
