"""Kafka as a sink: tasks encode and stage, and one producer on the driver sends what was staged, in the log's order.

A commit is one transaction of Kafka: the messages and what the sink remembers. Before anything is decided, a producer
is there that has fenced all others, and the state topic is read to its end: so a commit whose answer was lost is found,
and a run that was claimed over writes nothing. Tasks ask no broker.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from tailrace import config, failpoints
from tailrace.codecs.base import Record
from tailrace.codecs.opening import check_codec
from tailrace.config.patterns import by_table
from tailrace.errors import ConfigError, SinkRejected, SinkTaken, SinkUnavailable, StateUnavailable
from tailrace.model.changes import Changes, Op
from tailrace.model.lifecycle import ASIDE, COPYING, TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import (
    Atomic,
    Batch,
    Beats,
    ChangeSink,
    ChunkMark,
    Concern,
    Delivers,
    Evolved,
    Evolves,
    Examines,
    FetchRows,
    HasTopics,
    Numbered,
    Quarantined,
    Quarantines,
    Rejected,
    SinkState,
    TopicEnd,
    Verifies,
)
from tailrace.sinks.kafka import staged, state
from tailrace.sinks.kafka.chunks import Chunks
from tailrace.sinks.kafka.client import Address, common, gone, shared
from tailrace.sinks.kafka.controls import Controls, distinct, version_of
from tailrace.sinks.kafka.encoding import Encoder
from tailrace.sinks.kafka.examining import Examination, Wanted, wanted_of
from tailrace.sinks.kafka.fitting import Fitting, counted
from tailrace.sinks.kafka.heart import Heart
from tailrace.sinks.kafka.naming import Names, legal
from tailrace.sinks.kafka.producer import Transaction, TransactionalProducer
from tailrace.sinks.kafka.quarantine import Quarantine, keys_of, replayable
from tailrace.sinks.kafka.settings import KafkaSettings
from tailrace.sinks.kafka.staged import Staged, Version
from tailrace.sinks.kafka.state import Held, Known, Note, Pairs, StateTopic
from tailrace.sinks.kafka.topics import KnownTopics, Topics
from tailrace.sinks.kafka.transactions import CountWriter, finished
from tailrace.sinks.kafka.verifying import TopicView
from tailrace.sinks.simple import SimpleSink, outstanding
from tailrace.state.layout import STAGED
from tailrace.state.storage import Storage

CLAIM_TRIES = 5
CLOSE_SECONDS = 5.0


class KafkaSink(SimpleSink, ChangeSink, Numbered, Beats, Delivers, Evolves, Examines, Verifies, HasTopics, Quarantines):
    """Picklable: connections are made where they are used. Several threads may use it at once."""

    settings_type = KafkaSettings
    max_parts = 64
    atomic = Atomic.BATCH

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name, section = name, pipeline.sinks[name]
        self.settings = pipeline.sink_settings(name, KafkaSettings)
        _refuse_unbuilt(section, name)
        client = common(Address.parse(section.url, name), self.settings)
        prefix = self.settings.prefix or pipeline.name
        remembered = self.settings.state_topic or legal(f"tailrace-state.{prefix}.{pipeline.name}.{name}")
        quarantine = self.settings.quarantine_topic or legal(f"tailrace-quarantine.{prefix}.{pipeline.name}.{name}")
        self._names = Names(prefix, self.settings.topic, by_table(section.tables), section.schemas, remembered)
        self._topics = Topics(client, self.settings, name)
        self._state = StateTopic(remembered, client, self._topics, name)
        self._producer = TransactionalProducer(remembered, client, self.settings, name, self._topics.obstacle)
        self._encoder = Encoder(pipeline, self.settings, prefix)
        self._controls = Controls(self.settings, self._encoder.stream, self._topics)
        self._known = KnownTopics(self._topics, self._names.is_routed, (remembered, *self._controls.names, quarantine))
        self._view = TopicView(client, self.settings, self._names, self._encoder, self._topics)
        self.wants_table_numbers = self.settings.transactions
        self._storage = Storage(pipeline.state).folder(STAGED).folder(name)
        is_fatal = section.on_error is config.OnError.STOP
        self._fitting = Fitting(self._encoder, self.settings.largest_message, is_fatal=is_fatal)
        self._sets_aside = not is_fatal
        self._quarantine = Quarantine(quarantine, client, self._topics, name, remembered)
        self._chunks = Chunks(self._storage, self._encoder, self._names, self._fitting)
        self._run, self._owner = "", f"{pipeline.name}/{name}"
        self._lock, self._heart = threading.RLock(), Heart(self._beat)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_heart": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.RLock(), "_heart": Heart(self._beat)}

    # --- what it is, and remembers

    def check(self) -> None:
        """That brokers answer, what was remembered can be read, and a registry answers where there is one."""
        check_codec(self.settings.codec())
        with self._lock:
            self._read()

    def examine(self, tables: Sequence[TableSchema]) -> list[Concern]:
        encoder, state_topic = self._encoder, self._state.name
        wanted = [Wanted(state_topic, 1, "compact", rights=("Read", "Write"))]
        wanted += [Wanted(name, 1, "delete") for name in self._controls.names]
        for schema in tables:
            topic, is_keyless = self._names.topic(schema), encoder.is_keyless(schema)
            wanted.append(wanted_of(schema, topic, self.settings, is_keyless=is_keyless))
        with self._lock:
            return list(Examination(self._topics, self.settings, state_topic).concerns(wanted))

    def read_state(self) -> SinkState:
        with self._lock:
            known = self._read()
            if self._run and self._run == known.note.run and not self._producer.is_open:
                self._producer.open()  # an answer was lost: what it was about is settled first
                known = self._read()
            for status in (status for status in known.tables.values() if status.state in COPYING):
                self._chunks.learn(status)
            return known.sink_state()

    def _read(self, *, is_made: bool = False) -> Known:
        """Of a sink that this run has claimed, there is something to read. Refuses what is another sink's."""
        known = self._state.read(is_made=is_made or bool(self._run))
        if known.note.owner not in ("", self._owner):
            raise SinkRejected(
                f"topic {self._state.name} has what sink {known.note.owner} remembers, and not {self._owner}",
                hint="name another one in state_topic",
            )
        return known

    def claim(self, run: str) -> None:
        """Whoever claims at the same time may fence us before our claim is written: then it is ours to do again."""
        with self._lock:
            self._run = ""
            for left in reversed(range(CLAIM_TRIES)):
                try:
                    self._claim(run)
                except SinkTaken:
                    if not left:
                        raise
                else:
                    return

    def _claim(self, run: str) -> None:
        self._state.create()
        self._read(is_made=True)  # nobody is fenced whose topic it is
        self._producer.close()
        self._producer.open()
        known = self._read(is_made=True)
        note = msgspec.structs.replace(known.note, run=run, commits=0, owner=self._owner)
        records = state.note_record(note)
        with self._producer.transaction() as transaction:
            transaction.remember(self._state.name, records)
        self._state.wait_for(*records[-1])
        self._learn_limits(held.topic for held in known.topics.values())
        self._run = self._chunks.run = run

    def check_claim(self) -> None:
        with self._lock:
            self._refuse_taken(self._read())

    def _refuse_taken(self, known: Known) -> None:
        if known.note.run != self._run:
            raise SinkTaken(f"another run writes to sink {self.name} now; this one must not any more")

    def held_as(self, schema: TableSchema) -> str:
        """A topic, and the key where the file chooses one."""
        topic, chosen = self._names.topic(schema), self.settings.keys.get(schema.table)
        return topic if chosen is None else f"{topic} by {', '.join(chosen)}"

    def takes_in_place(self, evolved: Evolved) -> bool:
        """A message has the columns of its moment. In another topic or with another key, rows are others to readers."""
        before, schema = evolved.before, evolved.schema
        is_same_key = self._encoder.key_of(before) == self._encoder.key_of(schema)
        return is_same_key and self._names.topic(before) == self._names.topic(schema)

    def clean(self) -> None:
        staged.clean(self._storage)

    def forget(self) -> None:
        with self._lock:
            self._producer.close()
            self._run = self._chunks.run = ""
            self._quarantine.close()
            if self._state.exists():
                self._read()
                self._producer.open()  # nobody else writes to it meanwhile
                self._producer.close()
                self._state.remove()
            self._known.forget()

    def close(self) -> None:
        self._heart.stop(CLOSE_SECONDS)
        with self._lock:
            self._producer.close()
            self._state.close()
            self._quarantine.close()
            self._topics.close()

    # --- batches

    def stage_changes(self, batch: str, part: int, changes: Iterable[Changes]) -> Staged:
        writer = staged.Writer(self._storage, f"{batch}-{part}")
        counts = CountWriter(self._storage, f"{batch}-{part}")
        versions: list[Version] = []
        aside: list[Rejected] = []
        for each in changes:
            topic = self._names.topic(each.schema)
            if self.settings.transactions:
                counts.add(each)
            if self.settings.schema_changes:
                versions.append(version_of(each))
            for encoded, piece in self._fitting.changes(topic, each, aside):
                everywhere = bool(piece.op[0] == Op.TRUNCATE)
                writer.add(each.schema.table, topic, encoded, len(piece), everywhere=everywhere)
            if any(rejected.table == each.schema.table for rejected in aside):
                writer.topics[each.schema.table] = topic  # it is there, also if nothing fits into it
        writer.close()
        return Staged(tuple(writer.files), writer.topics, (), counts.close(), distinct(versions), tuple(aside))

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        parts = [part for part in batch.parts if isinstance(part, Staged)]
        touched = 0
        with self._lock:
            known = self._settled()
            if outstanding(batch, known.sink_state()) is not None:
                sent = {table: topic for part in parts for table, topic in part.sent().items()}
                for table, topic in sent.items():
                    self._ensure(topic, table, is_new=table not in known.tables)
                aside = [each for part in parts for each in part.aside if each.table not in part.held]
                counted(aside)
                if aside:
                    self._quarantine.prepare()
                with self._writing(self._news(batch, known), sent, known) as transaction:
                    for part in parts:
                        touched += self._send(transaction, part.files, part.held)
                    self._set_aside(transaction, aside, _place(batch, aside))
                    self._tell(transaction, batch, parts, known)
                failpoints.reached("sink-committed")
        staged.remove(self._storage, [name for part in parts for name in (*part.files, *part.counts)])
        return touched

    def _ensure(self, topic: str, table: str, *, is_new: bool) -> None:
        """The topic is there, and tasks that come hear how large its messages may be."""
        self._known.ensure(topic, table, is_new=is_new)
        if is_new or topic not in self._fitting.limits:
            self._learn_limits([topic])

    def _learn_limits(self, topics: Iterable[str]) -> None:
        """Where they matter: else a message that the broker refuses sets its table aside."""
        if self._sets_aside:
            self._fitting.limits |= self._topics.message_limits(topics)

    def _set_aside(self, transaction: Transaction, aside: Sequence[Rejected], place: Watermark) -> None:
        if aside:
            self._quarantine.write(transaction, aside, place)

    def _tell(self, transaction: Transaction, batch: Batch, parts: Sequence[Staged], known: Known) -> None:
        """What is told beside the changes of a batch."""
        if self.settings.transactions:
            told = finished(self._storage, ((part.counts, part.held) for part in parts))
            self._controls.tell_transactions(transaction, told)
        versions = [each for part in parts for each in part.versions if each.schema.table not in part.held]
        self._controls.tell_schemas(transaction, known.tables, versions, batch.tables)
        self._controls.beat_if_due(transaction)

    # --- heartbeats

    def beat(self) -> None:
        if self._controls.is_due:
            self._heart.tell()

    def _beat(self) -> None:
        """While nothing else is sent. Only by the producer that is there: a new one would fence that of another run."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._run and self._producer.is_open and self._controls.is_due:
                self._controls.prepare()
                with self._producer.transaction() as transaction:
                    self._controls.beat_if_due(transaction)
        finally:
            self._lock.release()

    def _send(self, transaction: Transaction, files: Iterable[str], held: Collection[str] = ()) -> int:
        """Returns of how many changes it was."""
        sent = 0
        for messages in staged.read(self._storage, files, held):
            if messages.everywhere:
                sent += transaction.send_everywhere(messages, self._partitions(messages.topic, messages.table))
            else:
                sent += transaction.send(messages)
        return sent

    def _partitions(self, topic: str, table: str) -> int:
        found = self._topics.expected([topic]).get(topic)
        if found is None:
            raise gone(topic, table, self.name)
        return found.partitions

    def _news(self, batch: Batch, known: Known) -> Pairs:
        """What is remembered of a batch."""
        renamed = [each.before.table for each in batch.evolved if each.before.table != each.schema.table]
        note = Note(self._run, known.note.commits + 1, batch.watermark or known.note.watermark, self._owner)
        records = [record for table in renamed for record in state.without_table(table)]
        return records + state.table_records(batch.tables) + state.note_record(note)

    def _settled(self) -> Known:
        """What is committed, and by nobody else any more. Raises SinkTaken.

        While our producer is the last one, nobody else can have written anything.
        """
        if self._producer.is_open:
            known = self._state.so_far()
        else:
            if self._run:
                self._refuse_taken(self._read())  # before the producer of a later run is fenced
            else:
                self._state.create()
            self._producer.open()
            known = self._read(is_made=True)
        self._refuse_taken(known)
        return known

    @contextmanager
    def _writing(self, records: Pairs, sent: Mapping[str, str], known: Known) -> Iterator[Transaction]:
        """A transaction that has these records at its end, and that nobody else's claim has come before.

        `sent` are the topics of the tables that it tells of, which are to be those that have what was sent before.
        Returns once what it has written can be read. A broker that broke it off may be asked again.
        """
        try:
            self._controls.prepare()
            with self._producer.transaction() as transaction:
                yield transaction
                if sent:
                    transaction.flush()
                transaction.remember(self._state.name, self._topics_kept(sent, known) + records)
            self._state.wait_for(*records[-1])
        except SinkTaken as error:
            self._refuse_taken(self._read())
            raise SinkUnavailable(f"sink {self.name}: the broker broke off a transaction") from error
        except SinkUnavailable:
            self._producer.close()  # whoever comes next asks what became of it
            self._controls.forget()
            raise
        except SinkRejected:
            self._known.forget()
            raise

    def _topics_kept(self, sent: Mapping[str, str], known: Known) -> Pairs:
        """Refuses a topic that was deleted and made again. What is to be remembered of those that nobody looked at."""
        there = self._topics.expected(sent.values(), {topic: table for table, topic in sent.items()})
        records: Pairs = []
        for table, topic in sent.items():
            held, now = known.topics.get(table), there.get(topic)
            if now is None or (held is not None and held.topic == topic and held.id not in ("", now.id)):
                raise gone(topic, table, self.name)
            if held != (this := Held(table, topic, now.id)):
                records += state.topic_record(this)
        return records

    # --- snapshots

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        with self._lock:
            known = self._settled()
            topic, table = self._names.topic(status.schema), status.table
            self._refuse_shared(topic, table, known)
            self._ensure(topic, table, is_new=True)
            self._refuse_keyless(topic, status.schema)
            anew = self._anew(topic, status) if clear and not _is_untold(known, table) else []
            former = known.chunks.get(table, {}).keys() - {mark.number for mark in chunks}
            records = state.without_marks(table, former) + state.mark_records(chunks)
            others = msgspec.structs.replace(known, topics={})  # whichever it is: it begins here
            former_aside = [each for each in self._aside() if each.rejected.table == table] if clear else []
            with self._writing(records + state.table_records([status]), {table: topic}, others) as transaction:
                if anew:
                    transaction.send_records(topic, table, self._partitions(topic, table), anew)
                self._controls.tell_schemas(transaction, known.tables, (), [status])
                self._quarantine.drop(transaction, former_aside)
            self._chunks.learn(status)
            return status

    def _anew(self, topic: str, status: TableStatus) -> list[Record]:
        """What tells readers that rows which they know of a table do not hold any more; nothing for a new topic."""
        if all(ends.last == 0 for ends in self._topics.ends(topic)):
            return []
        if self._topics.is_compacted(topic):
            raise SinkRejected(
                f"{status.table} is to be copied again, and its topic {topic} is compacted: nothing tells its readers"
                " which rows are gone",
                hint=f"delete topic {topic}: it is made anew",
                table=status.table,
            )
        return self._encoder.truncate(topic, status.schema, status.watermark.position)

    def _refuse_shared(self, topic: str, table: str, known: Known) -> None:
        """A topic that has another table already, also one that nothing was sent of in this run."""
        for other in known.tables.values():
            is_there = other.table != table and other.state not in ASIDE and other.held_as.split(" ")[0] == topic
            if is_there and not (self._names.is_routed(table) and self._names.is_routed(other.table)):
                raise shared(topic, table, other.table)

    def _refuse_keyless(self, topic: str, schema: TableSchema) -> None:
        if self._encoder.is_keyless(schema) and self._topics.is_compacted(topic):
            raise SinkRejected(
                f"{schema.table} has no key, and its topic {topic} is compacted, where each message needs one",
                hint="give it one in `keys`, or another topic in `tables`",
                table=schema.table,
            )

    def chunk_form(self, schema: TableSchema) -> str:
        return ""

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        return self._chunks.stage(schema, mark, batches)

    def deliver(self, mark: ChunkMark) -> int:
        with self._lock:
            known = self._settled()
            planned = known.chunks.get(mark.table, {}).get(mark.number)
            chunk = self._chunks.find(mark)
            if planned is None or planned.is_loaded or planned.generation != mark.generation or chunk is None:
                return 0
            self._ensure(chunk.topic, mark.table, is_new=False)
            if chunk.aside:
                self._quarantine.prepare()
            done = msgspec.structs.replace(planned, is_loaded=True, rows=chunk.rows)
            with self._writing(state.mark_records([done]), {mark.table: chunk.topic}, known) as transaction:
                sent = self._send(transaction, chunk.files)
                if sent != chunk.rows:
                    raise StateUnavailable(f"{sent} of {chunk.rows} rows of a chunk of {mark.table} are staged")
                self._set_aside(transaction, chunk.aside, known.tables[mark.table].watermark)
            failpoints.reached("chunk-loaded")
            self._chunks.remove(mark, chunk)
            return chunk.rows

    def finish_snapshot(self, status: TableStatus) -> None:
        """All that there was to do is done."""

    # --- what was too large

    def quarantined(self) -> list[Quarantined]:
        with self._lock:
            return self._quarantine.entries()

    def _aside(self) -> list[Quarantined]:
        return self._quarantine.entries() if self._sets_aside else []

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        if entries:
            with self._lock, self._taking_over() as transaction:
                self._quarantine.drop(transaction, entries)

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        """Rows are read after all others were fenced, and a run that comes back fences us: so none is older than what
        the topic has of it. A run that goes on meanwhile sends what it has yet to send after them, and ends the same.
        """
        with self._lock:
            schema = replayable(entries, self._read().tables.get(entries[0].rejected.table))
            keys, topic = keys_of(entries, schema), self._names.topic(schema)
            self._learn_limits([topic])
            fetch(schema, keys)  # whoever writes to these rows has ended before the run is kept waiting
            with self._taking_over() as transaction:
                position = self._read().tables[schema.table].watermark.position
                sent, refused = self._fitting.again(topic, schema, fetch(schema, keys), position)
                transaction.send_all(schema.table, topic, sent)
                done = [entry for entry in entries if tuple(map(str, entry.rejected.key.values())) not in refused]
                self._quarantine.drop(transaction, done)
            return len(done)

    @contextmanager
    def _taking_over(self) -> Iterator[Transaction]:
        """A transaction beside a run: that one's is broken off, and done again. Its claim stays."""
        self._producer.close()
        self._producer.open()
        try:
            with self._producer.transaction() as transaction:
                yield transaction
        except SinkTaken as error:
            raise SinkUnavailable(f"a run writes to sink {self.name} at the same moment: try again") from error
        finally:
            self._producer.close()

    # --- reading back

    def topic_ends(self, schemas: Collection[TableSchema]) -> dict[str, TopicEnd]:
        topics = {schema.table: self._names.topic(schema) for schema in schemas}
        ends = self._topics.summed_ends(topics.values())
        return {table: TopicEnd(topic, ends.get(topic)) for table, topic in topics.items()}

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        return None  # that takes a whole replay

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        return self._view.rows(schema)

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return self._view.expected(schema, batch)


def _is_untold(known: Known, table: str) -> bool:
    """Whether a copy of a table was begun, and nothing was sent of it: its topic is as that beginning left it."""
    status = known.tables.get(table)
    if status is None or status.state not in COPYING:
        return False
    marks = [mark for mark in known.chunks.get(table, {}).values() if mark.generation == status.generation]
    return bool(marks) and not any(mark.is_loaded for mark in marks)


def _place(batch: Batch, aside: Sequence[Rejected]) -> Watermark:
    """The end of a batch; of a step of a catch-up, the table's own."""
    places = {status.table: status.watermark for status in batch.tables}
    found = batch.watermark or next((places[each.table] for each in aside if each.table in places), None)
    return found or Watermark("", 0, "")


def _refuse_unbuilt(section: config.Sink, name: str) -> None:
    """What other kinds of sinks have, and this one has not."""
    if section.columns:
        raise ConfigError(f"sinks.{name}.columns: a message has the columns of the source")
    if section.misfits is not config.Misfits.REFUSE:
        raise ConfigError(
            f"sinks.{name}.misfits: a message takes every value that its shape has a form for",
            hint="leave misfits as it is; with `on_error: quarantine` changes that are too large are set aside",
        )
