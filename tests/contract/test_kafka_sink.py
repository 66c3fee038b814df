"""Kafka, held to the contract of sinks that take every change."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from support import kafka_reading
from support.kafka import KafkaCluster
from tailrace import config
from tailrace.errors import ConfigError, SinkRejected, SinkTaken
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChangeSink, ChunkMark
from tailrace.sinks.kafka import KafkaSink
from tailrace.sinks.kafka.naming import legal
from tailrace.testing.change_sink_contract import ChangeSinkContract, TellChanges, apply, inserts, nobody, staged
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, LOOSE, ORDERS, Inventory, chunk, status, table_of

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]
OPS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate", "r": "read"}


@pytest.fixture
def make_sink(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> MakeKafka:
    def make(pipeline: str = "under_test", **own: Any) -> KafkaSink:
        sink = config.Sink(kafka_broker.url, own={"prefix": kafka_prefix, **own})
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        return KafkaSink(config.Pipeline(pipeline, source, {"out": sink}, state=str(tmp_path / pipeline)), "out")

    return make


@pytest.fixture
def told(kafka_broker: KafkaCluster, make_sink: MakeKafka) -> TellChanges:
    names = make_sink()

    def tell(schema: TableSchema) -> list[tuple[int, str, tuple[Any, ...]]]:
        return changes_of(kafka_broker.servers, names.held_as(schema), schema)

    return tell


def changes_of(servers: str, topic: str, schema: TableSchema) -> list[tuple[int, str, tuple[Any, ...]]]:
    """The changes that the envelopes of a topic tell of: one whose key changed is in two of them."""
    found: list[tuple[int, str, tuple[Any, ...]]] = []
    for message in kafka_reading.read(servers, [topic]):
        if message.value is None or "__debezium.newkey" in message.headers:
            continue
        op = "update" if "__debezium.oldkey" in message.headers else OPS[message.value["op"]]
        row = message.value["after"] or message.value["before"] or message.key or {}
        offset = message.value["source"]["lsn"] or 0
        found.append((offset, op, tuple(row.get(column.name) for column in schema.columns)))
    return found


@pytest.fixture
def inventory(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Inventory:
    def list_all() -> list[str]:
        client = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
        topics = [name for name in client.list_topics(timeout=60).topics if kafka_prefix in name]
        return sorted([*topics, *(str(path) for path in tmp_path.rglob("*") if path.is_file())])

    return list_all


class TestKafkaSink(ChangeSinkContract):
    """All of it."""


def test_it_is_found_by_its_scheme(make_sink: MakeKafka) -> None:
    assert isinstance(make_sink(), ChangeSink)


# --- snapshots


def begun(sink: KafkaSink, schema: TableSchema = ITEMS, chunks: int = 2, generation: int = 1) -> TableStatus:
    marks = [chunk(schema, number, generation) for number in range(chunks)]
    return sink.begin_snapshot(status(schema, TableState.SNAPSHOT, 5, generation), marks, clear=True)


def staged_chunk(sink: KafkaSink, number: int, *rows: tuple[Any, ...], generation: int = 1) -> ChunkMark:
    mark = chunk(ITEMS, number, generation)
    assert pickle.loads(pickle.dumps(sink)).load_chunk(ITEMS, mark, iter([table_of(ITEMS, rows)])) == len(rows)
    return mark


def test_a_chunk_is_seen_once_it_is_delivered_and_its_mark_with_it(make_sink: MakeKafka, told: TellChanges) -> None:
    sink = make_sink()
    sink.claim("run")
    begun(sink)
    mark = staged_chunk(sink, 0, (1, "a", None), (2, "b", None))
    assert told(ITEMS) == []
    assert [sink.deliver(mark), sink.deliver(mark)] == [2, 0]
    assert told(ITEMS) == [(5, "read", (1, "a", None)), (5, "read", (2, "b", None))]
    assert [(each.is_loaded, each.rows) for each in sink.read_state().chunks[ITEMS.table]] == [(True, 2), (False, 0)]
    sink.close()


def test_a_chunk_that_nobody_staged_is_not_marked(make_sink: MakeKafka) -> None:
    sink = make_sink()
    sink.claim("run")
    begun(sink)
    assert sink.deliver(chunk(ITEMS, 1)) == 0
    assert not any(each.is_loaded for each in sink.read_state().chunks[ITEMS.table])
    sink.close()


def test_chunks_of_a_run_that_was_claimed_over_are_not_delivered(make_sink: MakeKafka, told: TellChanges) -> None:
    first, second = make_sink(), make_sink()
    first.claim("first")
    begun(first)
    mark = staged_chunk(first, 0, (1, "a", None))
    second.claim("second")
    with pytest.raises(SinkTaken):
        first.deliver(mark)
    assert second.deliver(mark) == 0
    staged_chunk(second, 0, (1, "a", None))
    assert second.deliver(mark) == 1
    assert len(told(ITEMS)) == 1
    first.close()
    second.close()


def test_a_table_that_is_copied_again_begins_with_a_truncate(make_sink: MakeKafka, told: TellChanges) -> None:
    sink = make_sink()
    sink.claim("run")
    begun(sink)
    sink.deliver(staged_chunk(sink, 0, (1, "a", None)))
    begun(sink, generation=2, chunks=1)
    assert sink.deliver(chunk(ITEMS, 0, 1)) == 0
    sink.deliver(staged_chunk(sink, 0, (2, "b", None), generation=2))
    assert [op for _, op, _ in told(ITEMS)] == ["read", "truncate", "read"]
    assert [each.generation for each in sink.read_state().chunks[ITEMS.table]] == [2]
    sink.close()


# --- topics, and what goes wrong with them


def test_tables_whose_names_would_share_a_topic_are_refused(make_sink: MakeKafka) -> None:
    sink = make_sink()
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    other = msgspec.structs.replace(ITEMS, name="items", schema="öublic")
    twin = msgspec.structs.replace(ITEMS, name="items", schema="äublic")
    apply(sink, [[inserts(other, 11, (1, "a", None))]], 20)
    with pytest.raises(SinkRejected, match="which is that of"):
        apply(sink, [[inserts(twin, 21, (1, "a", None))]], 30)
    sink.close()


def test_a_message_that_is_too_large_is_its_tables_own_trouble(make_sink: MakeKafka, told: TellChanges) -> None:
    sink = make_sink(message_max_bytes=20_000)
    apply(sink, [[inserts(ORDERS, 1, (1, 1))]], 10)
    with pytest.raises(SinkRejected, match="larger than") as refused:
        apply(sink, [[inserts(ORDERS, 11, (2, 2)), inserts(ITEMS, 12, (1, "a" * 30_000, None))]], 20)
    assert refused.value.table == ITEMS.table
    apply(sink, [[inserts(ORDERS, 11, (2, 2))]], 20)
    assert [offset for offset, _, _ in told(ORDERS)] == [1, 11]
    sink.close()


def test_a_topic_that_is_gone_is_its_tables_own_trouble(
    make_sink: MakeKafka, told: TellChanges, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink()
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    sink.close()
    admin = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
    topic = sink.held_as(ITEMS)
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be gone")
    other = make_sink()
    with pytest.raises(SinkRejected, match="is gone") as refused:
        apply(other, [[inserts(ITEMS, 11, (2, "b", None))]], 20)
    assert refused.value.table == ITEMS.table
    begun(other, generation=2)
    assert told(ITEMS) == []
    other.close()


def test_a_table_without_a_key_is_refused_for_a_compacted_topic(make_sink: MakeKafka) -> None:
    sink = make_sink(cleanup_policy="compact")
    with pytest.raises(SinkRejected, match="has no key"):
        begun(sink, LOOSE)
    sink.close()


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"topic": "all"}, "no {schema} in it"),
        ({"options": {"acks": "1"}}, "exactly once depends on it"),
        ({"format": "avro"}, "needs a schema registry"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(make_sink: MakeKafka, own: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make_sink(**own)


def test_names_that_kafka_does_not_take_are_cleaned() -> None:
    assert legal("a b/ü.c-D_1") == "a_b__.c-D_1"
    assert legal("..") == "__"
    long = legal("x" * 300)
    assert (len(long), long != legal("x" * 301)) == (249, True)


def test_what_was_remembered_is_read_anew_after_trouble_with_reading(make_sink: MakeKafka, told: TellChanges) -> None:
    """An empty memory would let a batch through that is there already."""
    sink = make_sink()
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    late = staged(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    sink._state.close()
    assert sink.commit(late, nobody) == 0
    assert len(told(ITEMS)) == 1
    sink.close()
