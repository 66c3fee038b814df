"""`verify` of topics is itself verified: one message more, another one or one less, and its key is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.kafka import KafkaCluster
from support.registry import SchemaRegistry
from tailrace import config
from tailrace.errors import SinkRejected, ValueRefused
from tailrace.model.changes import Op
from tailrace.model.schema import Column, TableSchema
from tailrace.pipeline import verify
from tailrace.sinks import replayed
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, changes, inserts
from tailrace.testing.plugin import requires
from tailrace.testing.sample_values import SAMPLES
from tailrace.testing.sink_changes import INT, ITEMS, LOOSE, ORDERS, table_of

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]
ROWS = [(number, f"name {number}", None if number % 3 else "note") for number in range(40)]
SHAPES: dict[str, dict[str, Any]] = {
    "debezium": {},
    "with schemas": {"format": "json-schemas"},
    "flat": {"shape": "flat"},
    "flat with schemas": {"shape": "flat", "format": "json-schemas"},
    "cloudevents": {"shape": "cloudevents"},
}


@pytest.fixture
def make_sink(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made = []

    def make(tables: dict[str, str] | None = None, **own: Any) -> KafkaSink:
        sink = config.Sink(kafka_broker.url, tables=tables or {}, own={"prefix": kafka_prefix, "partitions": 3, **own})
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        pipeline = config.Pipeline("under_test", source, {"out": sink}, state=str(tmp_path / "state"))
        made.append(KafkaSink(pipeline, "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with requires(SchemaRegistry.start) as server:
        yield server


class Source:
    """Stands for the source: it has these rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def read_all(self, schema: TableSchema, snapshot: str) -> Iterator[pa.RecordBatch]:
        half = self._batch.num_rows // 2
        yield self._batch.slice(0, half)
        yield self._batch.slice(half)


def compared(sink: KafkaSink, schema: TableSchema, rows: Any) -> verify.Comparison:
    return verify._compare("out", schema, Source(table_of(schema, rows)), sink, "", "")  # type: ignore[arg-type]


def differing(sink: KafkaSink, rows: Any, schema: TableSchema = ITEMS) -> tuple[str, ...]:
    found = compared(sink, schema, rows)
    assert found.is_equal == (not found.differing)
    return found.differing


def send(broker: KafkaCluster, topic: str, key: bytes | None, value: bytes | None, **where: int) -> None:
    """What somebody else writes."""
    producer = Producer({"bootstrap.servers": broker.servers, "partitioner": "murmur2_random", "log_level": 0})
    producer.produce(topic, value, key, **where)
    assert producer.flush(60) == 0


def message(sink: KafkaSink, row: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """As the sink itself would send it."""
    encoded = sink._encoder.reads(sink.held_as(ITEMS), ITEMS, table_of(ITEMS, [row]), "0/1", 1)
    return encoded.keys[0].as_py(), encoded.values[0].as_py()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_last_message_of_a_key_is_its_row_and_others_are_named(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, shape: str
) -> None:
    sink = make_sink(**SHAPES[shape])
    apply(sink, [[inserts(ITEMS, 1, *ROWS, (100, "gone", None))]], 100)
    moved = (Op.UPDATE, (101, "moved", None), (7, None, None))
    made = changes(ITEMS, 101, (Op.UPDATE, (3, "other", "x")), (Op.DELETE, (100, None, None)), moved)
    apply(sink, [[made]], 200)
    now = [(3, "other", "x") if row[0] == 3 else (101, "moved", None) if row[0] == 7 else row for row in ROWS]
    assert differing(sink, now) == ()
    assert differing(sink, [*now[1:], (200, "missing in the topic", None)]) == ("0", "200")
    send(kafka_broker, sink.held_as(ITEMS), *message(sink, ROWS[3]))  # an old message, once more
    assert differing(sink, now) == ("3",)
    send(kafka_broker, sink.held_as(ITEMS), *message(sink, now[3]))
    assert differing(sink, now) == ()
    send(kafka_broker, sink.held_as(ITEMS), message(sink, ROWS[5])[0], None)  # a tombstone: the row is lost
    found = compared(sink, ITEMS, now)
    assert (found.differing, found.source_rows, found.sink_rows) == (("5",), 40, 39)


@pytest.mark.parametrize(("format_", "shape"), [("avro", "debezium"), ("avro", "flat"), ("jsonschema", "debezium")])
def test_formats_with_a_registry_are_compared(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, registry: SchemaRegistry, format_: str, shape: str
) -> None:
    sink = make_sink(shape=shape, format=format_, registry={"url": registry.url})
    apply(sink, [[inserts(ITEMS, 1, *ROWS, (100, "gone", None))]], 100)
    made = changes(ITEMS, 101, (Op.UPDATE, (3, "other", None)), (Op.DELETE, (100, None, None)))
    unsent = np.array([[False, False, True], [False] * 3])
    apply(sink, [[replace(made, unchanged=unsent)]], 200)
    now = [(3, "other", "note") if row[0] == 3 else row for row in ROWS]
    assert differing(sink, now) == ()
    send(kafka_broker, sink.held_as(ITEMS), *message(sink, (5, "older", None)))
    assert differing(sink, now) == ("5",)


def test_a_key_in_two_partitions_is_a_difference(make_sink: MakeKafka, kafka_broker: KafkaCluster) -> None:
    sink = make_sink()
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    for partition in range(3):
        send(kafka_broker, sink.held_as(ITEMS), *message(sink, ROWS[9]), partition=partition)
    assert differing(sink, ROWS) == ("9",)


def test_what_came_before_a_truncate_does_not_count(make_sink: MakeKafka) -> None:
    sink = make_sink()
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    made = changes(ITEMS, 101, (Op.TRUNCATE, (None, None, None)), (Op.INSERT, (1, "after", None)))
    apply(sink, [[made]], 200)
    assert differing(sink, [(1, "after", None)]) == ()
    assert len(differing(sink, ROWS)) == verify.NAMED_KEYS


def test_what_an_update_did_not_send_is_as_messages_before_it_had_it(make_sink: MakeKafka) -> None:
    for shape in ("debezium", "flat"):
        sink = make_sink(shape=shape, topic=f"{shape}.{{schema}}.{{table}}", state_topic=f"{shape}-state")
        apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
        updates = [(Op.UPDATE, (3, f"name {number}", None)) for number in range(replayed.KEPT * 2)]
        made = changes(ITEMS, 101, *updates)
        unsent = np.zeros((len(made), 3), np.bool_)
        unsent[:, 2] = True
        apply(sink, [[replace(made, unchanged=unsent)]], 300)
        now = [(3, f"name {replayed.KEPT * 2 - 1}", "note") if row[0] == 3 else row for row in ROWS]
        assert differing(sink, now) == ()
        apply(sink, [[replace(changes(ITEMS, 301, (Op.INSERT, (99, "half", None))), unchanged=unsent[:1])]], 400)
        assert differing(sink, [*now, (99, "half", "never sent")]) == ("99",)


def test_values_of_every_type_are_compared(make_sink: MakeKafka) -> None:
    sink, refused = make_sink(decimals="string", partitions=1), []
    for number, (name, sample) in enumerate(SAMPLES.items()):
        schema = TableSchema("public", f"t{number}", (Column("id", INT), Column("v", sample.type)), ("id",))
        ids = pa.array(range(len(sample.values)), pa.int64())
        batch, shorter = schema.rows([ids, sample.values]), schema.rows([ids[:-1], sample.values[:-1]])
        made = replace(inserts(schema, number * 100 + 1, *((row, None) for row in range(len(ids)))), after=batch)
        try:
            apply(sink, [[made]], number * 100 + 100)
        except ValueRefused:
            refused.append(name)
            continue
        assert (name, differing(sink, batch, schema)) == (name, ())
        assert (name, differing(sink, shorter, schema)) == (name, (str(len(ids) - 1),))
    assert len(refused) < len(SAMPLES) // 4, refused


def test_tables_that_topics_can_not_tell_the_rows_of_are_named(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink({"public.items": "both", "public.orders": "both"}, keys={"public.pairs": ["b"]})
    pairs = msgspec.structs.replace(ITEMS, name="pairs", columns=(*ITEMS.columns, Column("b", INT)), key=("id", "b"))
    apply(sink, [[inserts(LOOSE, 1, (1, "a"))]], 10)
    for schema, said in (
        (LOOSE, "public.loose has no key"),
        (ORDERS, "public.orders shares topic both with public.items"),
        (pairs, "messages of public.pairs have a key of several rows"),
    ):
        with pytest.raises(SinkRejected, match=said):
            compared(sink, schema, [])


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"hello"), (b'{"id":1}', b"hello"), (b'{"id":1}', b'{"a":1}')],
    ids=["bare", "text", "json"],
)
def test_a_message_that_is_nobodys_is_told_of(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, key: bytes | None, value: bytes
) -> None:
    sink = make_sink()
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    send(kafka_broker, sink.held_as(ITEMS), key, value, partition=1)
    with pytest.raises(SinkRejected, match=r"has a message that is none of this sink's, at 1:\d+"):
        compared(sink, ITEMS, ROWS)


def test_a_topic_whose_oldest_messages_have_expired_is_not_compared(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink(partitions=1)
    apply(sink, [[inserts(ITEMS, 1, *ROWS)]], 100)
    admin = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
    for answer in admin.delete_records([TopicPartition(sink.held_as(ITEMS), 0, 10)]).values():
        answer.result(60)
    with pytest.raises(SinkRejected, match=r"have expired: it has not all rows of public\.items"):
        compared(sink, ITEMS, ROWS)
    apply(sink, [[changes(ITEMS, 101, (Op.TRUNCATE, (None, None, None)), (Op.INSERT, (1, "a", None)))]], 200)
    assert differing(sink, [(1, "a", None)]) == ()
