"""Changes that were too large to be sent: small records of a compacted topic, in the transaction of their batch.

One record a change. What is listed is the last one of each row; one of a table without a key stands for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.codecs.base import Record
from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Quarantined, Rejected
from tailrace.sinks.kafka.producer import Transaction
from tailrace.sinks.kafka.state import StateTopic
from tailrace.sinks.kafka.topics import Topics


class Entry(msgspec.Struct, frozen=True):
    at: str
    rejected: Rejected
    place: Watermark


class Quarantine:
    """Pickles. Everything is written by the sink's own producer."""

    def __init__(self, name: str, client: dict[str, Any], topics: Topics, sink: str, group: str) -> None:
        self.name = name
        self._topic = StateTopic(name, client, topics, sink, group)
        self._is_there = False

    def close(self) -> None:
        self._topic.close()
        self._is_there = False

    def prepare(self) -> None:
        """Make sure that the topic is there, before a transaction that writes to it."""
        if not self._is_there:
            self._topic.create()
            self._is_there = True

    def entries(self) -> list[Quarantined]:
        found = {name.decode(): from_json(data, Entry) for name, data in self._topic.records().items()}
        listed = [Quarantined(name, entry.at, entry.rejected, entry.place) for name, entry in found.items()]
        return sorted(listed, key=lambda each: each.at)

    def write(self, transaction: Transaction, rejected: Iterable[Rejected], place: Watermark) -> None:
        at = datetime.now(UTC).isoformat()
        records = [Record(_name(each), msgspec.json.encode(Entry(at, each, place))) for each in rejected]
        transaction.send_control(self.name, records, partition=0)

    def drop(self, transaction: Transaction, entries: Iterable[Quarantined]) -> None:
        transaction.send_control(self.name, [Record(entry.id.encode(), None) for entry in entries], partition=0)


def _name(rejected: Rejected) -> bytes:
    """The record's key: that of the row, or one of its own."""
    own = rejected.key or hashlib.sha256(msgspec.json.encode(rejected)).hexdigest()[:40]
    return msgspec.json.encode({"table": rejected.table, "key": own})


def keys_of(entries: Sequence[Quarantined], schema: TableSchema) -> pa.RecordBatch:
    """As `FetchRows` takes them."""
    return pa.RecordBatch.from_pydict(
        {name: [str(entry.rejected.key[name]) for entry in entries] for name in schema.key}
    )


def replayable(entries: Sequence[Quarantined], status: TableStatus | None) -> TableSchema:
    """The table of rows that were set aside, all of one; raises SinkRejected if they can not be sent again now."""
    table = entries[0].rejected.table
    if status is None:
        problem = "is not in the sink any more"
    elif status.state is not TableState.LIVE:
        problem = f"is in the state {status.state}: wait until it is live"
    elif any(entry.rejected.key.keys() != set(status.schema.key) or not entry.rejected.key for entry in entries):
        problem = "has no key by which the rows could be found again, or another one than it had"
    else:
        return status.schema
    raise SinkRejected(f"{table} {problem}", hint="`tailrace quarantine drop` forgets its rows", table=table)
