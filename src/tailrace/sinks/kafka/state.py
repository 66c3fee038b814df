"""What the sink remembers of a pipeline: records of a compacted topic, written in the transactions of what they tell.

One record has the run that claimed the sink, its commits and the watermark, one each is a table's status, and one each
a chunk's mark. Reading goes to the end of what is committed. Only the one who has the transactional id writes here, so
the order of the records is that of the transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import TableStatus
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark, SinkState
from tailrace.sinks.kafka.client import SECONDS, Right, explained
from tailrace.sinks.kafka.topics import POLICY, Found, Topics

NOTE, TABLE, CHUNK, TOPIC = b"note", b"table/", b"chunk/", b"topic/"
SETTINGS = {POLICY: "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1", "retention.ms": "-1"}
AT_ONCE = 1000
FETCH_MS = 50
"""How long a broker waits for something to answer with. What is new it answers at once; that there is nothing more, for
which reading to the end waits, only then. Asked every 10 ms it spent a tenth of a core on a sink that was idle."""

Pairs = list[tuple[bytes, bytes | None]]
"""Records of the state topic: a key, and a value or none."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str = ""
    commits: int = 0
    watermark: Watermark | None = None
    owner: str = ""  # the pipeline and the sink that it is of


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The topic that has what was sent of a table."""

    table: str
    topic: str
    id: str


class Known(msgspec.Struct, frozen=True):
    """All that is committed, at some moment."""

    note: Note
    tables: dict[str, TableStatus]
    chunks: dict[str, dict[int, ChunkMark]]
    topics: dict[str, Held] = {}

    def sink_state(self) -> SinkState:
        chunks = {table: [marks[number] for number in sorted(marks)] for table, marks in self.chunks.items()}
        return SinkState(self.note.watermark, self.tables, chunks, self.note.commits)


class StateTopic:
    """Reads on from where it was. Pickles without what it has read."""

    def __init__(self, name: str, client: dict[str, Any], topics: Topics, sink: str, group: str = "") -> None:
        self.name, self._client, self._topics, self._sink = name, client, topics, sink
        self._group = group or name
        self._consumer: Consumer | None = None
        self._records: dict[bytes, bytes] = {}
        self._next = 0
        self._is_whole = False  # it was read to its end, and nothing was forgotten since
        self._id = ""  # of the topic that was read

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_consumer": None, "_records": {}, "_next": 0, "_is_whole": False}

    @property
    def _right(self) -> Right:
        return Right("Read", self.name)

    def exists(self) -> bool:
        return self._found(self._topics.present([self.name]).get(self.name)) is not None

    def _found(self, there: Found | None) -> Found | None:
        if there is not None and there.partitions != 1:
            raise SinkRejected(
                f"topic {self.name} has {there.partitions} partitions, and what the sink remembers has to be in one",
                hint="delete it, or name another in state_topic",
            )
        return there

    def create(self) -> None:
        """Make sure that it is there, and that nobody lets it lose records."""
        if not self.exists():
            self._topics.create(self.name, 1, SETTINGS)
        self._id = ""
        policy = self._topics.setting(self.name, POLICY)
        if policy not in (None, "compact"):
            raise SinkRejected(
                f"topic {self.name} has cleanup.policy={policy}: what the sink remembers would be lost",
                hint="set its cleanup.policy to compact",
            )

    def read(self, *, is_made: bool = False) -> Known:
        """To the end of what is committed. Nothing, where the topic is not there. Makes none.

        One that `is_made` has to be there, and the same as before: an empty memory would have all be sent again.
        """
        return _known(self.records(is_made=is_made))

    def records(self, *, is_made: bool = False) -> dict[bytes, bytes]:
        """As `read`, as they are: the last one of each key."""
        look = self._topics.expected if is_made else self._topics.present
        there = self._found(look([self.name]).get(self.name))
        if is_made and (there is None or self._id not in ("", there.id)):
            self.close()
            raise SinkRejected(
                f"topic {self.name} was deleted, and with it what sink {self._sink} remembers",
                hint="start the pipeline again: all tables are copied again",
            )
        if there is None:
            self.close()
            return {}
        if self._id not in ("", there.id):
            self.close()
        self._id = there.id
        end = self._topics.committed_end(self.name)
        if end < self._next:  # it was made anew
            self.close()
        self._read_until(lambda: self._next >= end)
        self._is_whole = True
        return dict(self._records)

    def so_far(self) -> Known:
        """What was read, and what has come since without being waited for. Before that, as `read`."""
        if not self._is_whole:
            return self.read(is_made=True)
        self._take_all(0.0)
        return _known(self._records)

    def wait_for(self, key: bytes, value: bytes | None) -> None:
        """Until a record that was committed can be read: a moment after the commit was answered."""
        self._read_until(lambda: self._records.get(key) == value)

    def remove(self) -> None:
        """Returns once it is gone."""
        self.close()
        self._id = ""
        if not self.exists():
            return
        self._topics.delete([self.name])
        until = time.monotonic() + SECONDS
        while self.exists():
            if time.monotonic() > until:
                raise SinkUnavailable(f"sink {self._sink}: topic {self.name} was deleted, and is still there")
            time.sleep(0.05)

    def close(self) -> None:
        self._records, self._next, self._is_whole = {}, 0, False
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        self._opened()
        until = time.monotonic() + SECONDS
        while not is_done():
            if self._take_all(0.5):
                until = time.monotonic() + SECONDS
            elif time.monotonic() > until:
                self.close()
                raise SinkUnavailable(f"sink {self._sink} did not answer while reading topic {self.name}")

    def _take_all(self, seconds: float) -> bool:
        """What has come by now, waiting so long for the first of it; whether there was anything."""
        try:
            first = self._opened().poll(seconds)  # `consume` would wait for as many as it may take
            found = [] if first is None else [first, *self._opened().consume(AT_ONCE, timeout=0.0)]
        except KafkaException as error:
            raise explained(error, self._sink, f"reading topic {self.name}", right=self._right) from error
        for message in found:
            self._take(message)
        return bool(found)

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            self._next = max(self._next, message.offset())  # the end of a transaction has an offset, and no record
            return
        if error is not None:
            self.close()
            raise explained(KafkaException(error), self._sink, f"reading topic {self.name}", right=self._right)
        self._next = message.offset() + 1
        key, value = bytes(message.key() or b""), message.value()
        if value is None:
            self._records.pop(key, None)
        else:
            self._records[key] = bytes(value)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            own = {
                "group.id": self._group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": FETCH_MS,
                "allow.auto.create.topics": False,
            }
            self._consumer = Consumer(self._client | own)
            # by number: the client takes half a second to ask where the beginning is, and asks where that is no place
            self._consumer.assign([TopicPartition(self.name, 0, 0)])
        return self._consumer


def _known(records: dict[bytes, bytes]) -> Known:
    note = from_json(records[NOTE], Note) if NOTE in records else Note()
    tables: dict[str, TableStatus] = {}
    chunks: dict[str, dict[int, ChunkMark]] = {}
    topics: dict[str, Held] = {}
    for key, value in records.items():
        if key.startswith(TABLE):
            status = from_json(value, TableStatus)
            tables[status.table] = status
        elif key.startswith(CHUNK):
            mark = from_json(value, ChunkMark)
            chunks.setdefault(mark.table, {})[mark.number] = mark
        elif key.startswith(TOPIC):
            held = from_json(value, Held)
            topics[held.table] = held
        elif key != NOTE:
            raise SinkRejected(f"the state topic has a record of an unknown kind, of {len(key)} bytes")
    return Known(note, tables, chunks, topics)


def note_record(note: Note) -> Pairs:
    return [(NOTE, msgspec.json.encode(note))]


def table_records(statuses: Iterable[TableStatus]) -> Pairs:
    return [(_table_key(status.table), msgspec.json.encode(status)) for status in statuses]


def without_table(table: str) -> Pairs:
    return [(_table_key(table), None), (TOPIC + table.encode(), None)]


def topic_record(held: Held) -> Pairs:
    return [(TOPIC + held.table.encode(), msgspec.json.encode(held))]


def mark_records(marks: Iterable[ChunkMark]) -> Pairs:
    return [(_chunk_key(mark.table, mark.number), msgspec.json.encode(mark)) for mark in marks]


def without_marks(table: str, numbers: Iterable[int]) -> Pairs:
    return [(_chunk_key(table, number), None) for number in numbers]


def _table_key(table: str) -> bytes:
    return TABLE + table.encode()


def _chunk_key(table: str, number: int) -> bytes:
    return CHUNK + f"{number}/{table}".encode()
