"""What is told beside the changes, as Debezium does: transactions, schema changes, heartbeats. Each has its own topic.

They are sent in the transaction of the batch that they are about, so they are there as often as it is: once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from tailrace.codecs.base import Record
from tailrace.codecs.control import Alteration, ControlCodec, columns_told
from tailrace.codecs.settings import StreamName
from tailrace.model.changes import Changes
from tailrace.model.lifecycle import TableStatus
from tailrace.sinks.kafka.naming import legal
from tailrace.sinks.kafka.producer import Transaction
from tailrace.sinks.kafka.settings import KafkaSettings
from tailrace.sinks.kafka.staged import Version
from tailrace.sinks.kafka.topics import Topics
from tailrace.sinks.kafka.transactions import Finished

SETTINGS: dict[str, str] = {}


def version_of(changes: Changes) -> Version:
    """The version that some changes are of, and where they begin."""
    row = int(changes.transaction[0])
    at_us = changes.transactions.column("_commit_time")[row].cast("int64").as_py() or 0
    if changes.origins is None:
        return Version(changes.schema, "", at_us, "")
    return Version(changes.schema, changes.origins.positions[row], at_us, changes.origins.ids[row])


def distinct(versions: Iterable[Version]) -> tuple[Version, ...]:
    """Without those of a table that tell nothing which the one before did not."""
    last: dict[str, Any] = {}
    found: list[Version] = []
    for each in versions:
        told = columns_told(each.schema)
        if last.get(each.schema.table) != told:
            found.append(each)
        last[each.schema.table] = told
    return tuple(found)


class Controls:
    """What of it the file asks for. Pickles."""

    def __init__(self, settings: KafkaSettings, stream: StreamName, topics: Topics) -> None:
        self._settings, self._stream, self._topics = settings, stream, topics
        self._ready: set[str] = set()
        self._beaten_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ready": set()}

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are asked for."""
        codec, settings = self._codec(), self._settings
        asked = {
            codec.transaction_topic: settings.transactions,
            codec.schema_topic: settings.schema_changes,
            codec.heartbeat_topic: bool(settings.heartbeat_ms),
        }
        return tuple(legal(name) for name, is_asked in asked.items() if is_asked)

    def forget(self) -> None:
        """Look for the topics anew: one may be gone."""
        self._ready.clear()

    def prepare(self) -> None:
        """Before a transaction: the topics are there. Their order is that of what they tell, so they have one
        partition; one that is there is used as it is."""
        for name in self.names:
            if name not in self._ready:
                if name not in self._topics.present([name]):
                    self._topics.create(name, 1, SETTINGS)
                self._ready.add(name)

    def tell_transactions(self, transaction: Transaction, told: Iterable[Finished]) -> None:
        codec = self._codec()
        topic = legal(codec.transaction_topic)
        for each in told:
            if each.counts:
                begin = codec.begin(each.id, each.position, each.at_us)
                end = codec.end(each.id, each.position, each.at_us, each.counts)
                transaction.send_control(topic, [begin, end])

    def tell_schemas(
        self,
        transaction: Transaction,
        known: Mapping[str, TableStatus],
        versions: Iterable[Version],
        statuses: Iterable[TableStatus],
    ) -> None:
        """Those of `versions`, and then of `statuses`, that are new to readers, who know of what is `known`."""
        if not self._settings.schema_changes:
            return
        told = {table: status.schema for table, status in known.items()}
        now_us = time.time_ns() // 1000
        last = [Version(each.schema, each.watermark.position, now_us, "") for each in statuses]
        records: list[Record] = []
        for version in (*versions, *last):
            before, schema = told.get(version.schema.table), version.schema
            if before is None or columns_told(before) != columns_told(schema):
                kind = Alteration.CREATE if before is None else Alteration.ALTER
                own = self._codec().schema_change(schema, kind, version.position, version.at_us, version.transaction)
                records.append(own)
            told[schema.table] = schema
        transaction.send_control(legal(self._codec().schema_topic), records, partition=0)

    def beat_if_due(self, transaction: Transaction) -> None:
        if self.is_due:
            transaction.send_control(legal(self._codec().heartbeat_topic), [self._codec().heartbeat()])
            self._beaten_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """It is time for a heartbeat."""
        every = self._settings.heartbeat_ms / 1000
        return bool(every) and time.monotonic() >= self._beaten_at + every

    def _codec(self) -> ControlCodec:
        return ControlCodec(self._settings.codec(), self._stream)
