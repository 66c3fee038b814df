"""Attempts to lose, double or falsely confirm a change in Kafka, without an error."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support import kafka_reading
from support.kafka import KafkaCluster
from tailrace import config
from tailrace.errors import SinkRejected, SinkTaken, StateUnavailable
from tailrace.model.changes import Op
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Evolved
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, changes, inserts, nobody, staged
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, LOOSE, ORDERS, chunk, status, table_of, watermark

pytestmark = [pytest.mark.server, pytest.mark.long]

MakeKafka = Callable[..., KafkaSink]


@pytest.fixture
def make_sink(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made: list[KafkaSink] = []

    def make(name: str = "out", **own: Any) -> KafkaSink:
        sinks = {name: config.Sink(kafka_broker.url, own={"prefix": kafka_prefix, **own})}
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        made.append(KafkaSink(config.Pipeline("under_attack", source, sinks, state=str(tmp_path)), name))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def admin(kafka_broker: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})


def delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be gone")


def make_again(admin: AdminClient, topic: str) -> None:
    delete(admin, topic)
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(60)
    wait_until(lambda: topic in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be there")


def ops(broker: KafkaCluster, sink: KafkaSink, schema: TableSchema) -> list[str]:
    found = kafka_reading.read(broker.servers, [sink.held_as(schema)])
    return [message.value["op"] for message in found if message.value is not None]


def begin(sink: KafkaSink, schema: TableSchema = ITEMS, generation: int = 1) -> None:
    begun = msgspec.structs.replace(status(schema, TableState.SNAPSHOT, 5, generation), held_as=sink.held_as(schema))
    sink.begin_snapshot(begun, [chunk(schema, 0, generation)], clear=True)


# --- topics


@pytest.mark.parametrize("is_same_run", [True, False])
def test_a_topic_that_was_made_again_does_not_take_the_place_of_the_first(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, admin: AdminClient, is_same_run: bool
) -> None:
    """Who reads it would never hear of the rows that were in the first one."""
    sink = make_sink()
    sink.claim("run")
    begin(sink)
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    make_again(admin, sink.held_as(ITEMS))
    if not is_same_run:
        sink = make_sink()
        sink.claim("another")
    late = staged(sink, [[inserts(ITEMS, 11, (2, "b", None)), inserts(ORDERS, 12, (1, 1))]], 20)
    for _ in range(5):  # a producer may have to be made anew first
        with pytest.raises((SinkRejected, Exception)) as refused:
            sink.commit(late, nobody)
        if isinstance(refused.value, SinkRejected):
            break
    assert isinstance(refused.value, SinkRejected)
    assert (refused.value.table, "is gone" in str(refused.value)) == (ITEMS.table, True)
    assert (ops(kafka_broker, sink, ITEMS), sink.read_state().watermark) == ([], watermark(10))
    begin(sink, generation=2)
    apply(sink, [[inserts(ITEMS, 11, (2, "b", None))]], 20)
    assert ops(kafka_broker, sink, ITEMS)[-1] == "c"


def test_a_state_topic_that_is_gone_is_not_an_empty_memory(make_sink: MakeKafka, admin: AdminClient) -> None:
    sink = make_sink()
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    delete(admin, sink._state.name)
    for ask in (sink.read_state, sink.check_claim):
        with pytest.raises(SinkRejected, match="was deleted"):
            ask()
    admin.create_topics([NewTopic(sink._state.name, num_partitions=1)])[sink._state.name].result(60)
    with pytest.raises(SinkRejected, match="was deleted"):
        sink.read_state()


def test_a_table_does_not_take_the_topic_of_another_after_a_restart(make_sink: MakeKafka) -> None:
    twins = [msgspec.structs.replace(ITEMS, schema=schema) for schema in ("öublic", "äublic")]
    sink = make_sink()
    sink.claim("run")
    begin(sink, twins[0])
    again = make_sink()
    again.claim("another")
    with pytest.raises(SinkRejected, match="which is that of"):
        begin(again, twins[1])


def test_a_truncate_is_in_every_partition_as_it_is_about_every_key(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink(partitions=3)
    rows = [(Op.INSERT, (number, "a", None)) for number in range(30)]
    apply(sink, [[changes(ITEMS, 1, *rows, (Op.TRUNCATE, (None, None, None)), *rows)]], 100)
    found = kafka_reading.read(kafka_broker.servers, [sink.held_as(ITEMS)])
    for partition in range(3):
        letters = "".join(each.value["op"] for each in found if each.partition == partition)
        assert letters.count("t") == 1
        assert letters.strip("c") == "t", "it has changes of before and of after"
    assert len(found) == 63


def test_readers_hear_of_a_new_copy_although_what_they_have_read_has_expired(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, admin: AdminClient
) -> None:
    sink = make_sink()
    sink.claim("run")
    begin(sink)
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    for answer in admin.delete_records([TopicPartition(sink.held_as(ITEMS), 0, -1)]).values():
        answer.result(60)
    begin(sink, generation=2)
    assert ops(kafka_broker, sink, ITEMS) == ["t"]


def test_rows_with_another_key_are_others_to_readers(make_sink: MakeKafka) -> None:
    sink = make_sink()
    renamed = msgspec.structs.replace(ITEMS.columns[0], name="number")
    other = msgspec.structs.replace(ITEMS, columns=(renamed, *ITEMS.columns[1:]), key=("number",))
    more = msgspec.structs.replace(ITEMS, columns=ITEMS.columns[:2])
    nothing = table_of(ITEMS, [])
    assert [sink.takes_in_place(Evolved(ITEMS, each, nothing)) for each in (other, more)] == [False, True]
    chosen = make_sink(keys={ITEMS.table: [ITEMS.columns[1].name]})
    assert chosen.held_as(ITEMS) != sink.held_as(ITEMS)


# --- who writes


def test_a_run_that_was_claimed_over_does_not_disturb_the_one_after_it(make_sink: MakeKafka) -> None:
    zombie, live = make_sink(), make_sink()
    zombie.claim("first")
    apply(zombie, [[inserts(LOOSE, 1, (1, "a"))]], 10)
    late = staged(zombie, [[inserts(LOOSE, 11, (2, "late"))]], 20)
    live.claim("second")
    for _ in range(2):
        with pytest.raises(SinkTaken):
            zombie.commit(late, nobody)
        assert zombie.read_state().watermark == watermark(10)
    apply(live, [[inserts(LOOSE, 11, (3, "c"))]], 20)


def test_two_sinks_do_not_share_a_state_topic(make_sink: MakeKafka, kafka_prefix: str) -> None:
    """One would take the watermark of the other for its own."""
    own = {"state_topic": f"{kafka_prefix}-both"}
    first, second = make_sink("one", **own), make_sink("two", **own)
    first.claim("run")
    apply(first, [[inserts(LOOSE, 1, (1, "a"))]], 10)
    for use in (second.check, second.read_state, second.forget, lambda: second.claim("run")):
        with pytest.raises(SinkRejected, match="has what sink under_attack/one remembers"):
            use()
    apply(first, [[inserts(LOOSE, 11, (1, "a"))]], 20)


# --- what is on its way


def test_a_batch_that_fills_the_producers_queue_is_committed(make_sink: MakeKafka, kafka_broker: KafkaCluster) -> None:
    sink = make_sink(options={"queue.buffering.max.messages": 20, "linger.ms": 200})
    apply(sink, [[inserts(ITEMS, 1, *((number, "a", None) for number in range(100)))]], 200)
    assert (len(ops(kafka_broker, sink, ITEMS)), sink.read_state().watermark) == (100, watermark(200))


def test_a_staged_file_that_was_cut_off_is_noticed(make_sink: MakeKafka, tmp_path: Path) -> None:
    sink = make_sink()
    late = staged(sink, [[inserts(ITEMS, 1, (1, "a", None)), inserts(ORDERS, 2, (1, 1))]], 10)
    [path] = tmp_path.rglob("*.messages")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StateUnavailable, match="cut off"):
        sink.commit(late, nobody)
    assert sink.read_state().watermark is None


def test_rows_of_a_copy_that_is_resumed_have_their_position(make_sink: MakeKafka, kafka_broker: KafkaCluster) -> None:
    first, second = make_sink(), make_sink()
    first.claim("first")
    begin(first)
    second.claim("second")
    second.read_state()
    mark = chunk(ITEMS, 0, 1)
    pickle.loads(pickle.dumps(second)).load_chunk(ITEMS, mark, iter([table_of(ITEMS, [(1, "a", None)])]))
    assert second.deliver(mark) == 1
    [message] = kafka_reading.read(kafka_broker.servers, [second.held_as(ITEMS)])
    assert message.value["source"]["lsn"] == 5
