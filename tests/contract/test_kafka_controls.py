"""What a Kafka sink tells beside the changes: transactions, schema changes, heartbeats, each as often as it is true."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from confluent_kafka.admin import AdminClient

from support import kafka_reading
from support.kafka import KafkaCluster
from tailrace import config
from tailrace.errors import SinkRejected, SinkTaken, SinkUnavailable
from tailrace.model.changes import Changes, Origins
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import AT_US, Commit, apply, inserts, nobody, staged
from tailrace.testing.dying import Mortal
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, ORDERS, TEXT, chunk, status

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]
WIDER = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("size", TEXT)))


@pytest.fixture
def make_sink(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made: list[KafkaSink] = []

    def make(tables: dict[str, str] | None = None, **own: Any) -> KafkaSink:
        sink = config.Sink(kafka_broker.url, tables=tables or {}, own={"prefix": kafka_prefix, **own})
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        made.append(KafkaSink(config.Pipeline("telling", source, {"out": sink}, state=str(tmp_path)), "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def read(kafka_broker: KafkaCluster, kafka_prefix: str) -> Callable[[str], list[Any]]:
    """The values of a topic, by what follows the prefix, or stands around it."""

    def read(topic: str) -> list[Any]:
        found = kafka_reading.read(kafka_broker.servers, [topic.replace("PREFIX", kafka_prefix)])
        return [message.value for message in found if message.value is not None]

    return read


def of_one(made: Changes, begin: int, table_number: int = 1, *, late: bool = False) -> Changes:
    """The same changes, as of the one transaction that begins at `begin`."""
    assert made.origins is not None
    count, last = len(made), int(made.offset[-1])
    origins = Origins([str(1000 + begin)] * count, [f"0/{begin + 100:X}"] * count, np.full(count, begin), late)
    times = made.transactions.take([0] * count)
    numbers = np.arange(table_number, table_number + count)
    assert begin <= last
    return dataclasses.replace(made, origins=origins, transactions=times, table_number=numbers)


def two_transactions() -> list[list[Changes]]:
    """The first has four changes of two tables and is in two parts; the second has one."""
    first = [of_one(inserts(ITEMS, 1, (1, "a", None), (2, "b", None)), 1), of_one(inserts(ORDERS, 3, (1, 1)), 1)]
    return [
        [*first],
        [of_one(inserts(ITEMS, 4, (3, "c", None)), 1, 3), of_one(inserts(ORDERS, 5, (2, 2)), 5)],
    ]


def told(values: list[Any]) -> list[tuple[str, str, int | None, dict[str, int] | None]]:
    def counts(each: Any) -> dict[str, int] | None:
        found = each["data_collections"]
        return None if found is None else {one["data_collection"]: one["event_count"] for one in found}

    return [(each["status"], each["id"], each["event_count"], counts(each)) for each in values]


FIRST, SECOND = "1001:101", "1005:105"
BOTH = [
    ("BEGIN", FIRST, None, None),
    ("END", FIRST, 4, {"public.items": 3, "public.orders": 1}),
    ("BEGIN", SECOND, None, None),
    ("END", SECOND, 1, {"public.orders": 1}),
]


def test_a_transaction_of_several_parts_begins_and_ends_once(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(transactions=True)
    sink.claim("run")
    batch = staged(sink, two_transactions(), 5)
    assert [sink.commit(batch, nobody), sink.commit(batch, nobody)] == [5, 0]
    assert told(read("PREFIX.transaction")) == BOTH
    places = [value["transaction"] for value in read("PREFIX.public.items")]
    assert [(each["id"], each["total_order"], each["data_collection_order"]) for each in places] == [
        (FIRST, 1, 1),
        (FIRST, 2, 2),
        (FIRST, 4, 3),
    ]
    (ended,) = [each for each in read("PREFIX.transaction") if each["status"] == "END" and each["id"] == SECOND]
    assert ended["ts_ms"] == (AT_US + 5) // 1000
    assert not sink._storage.sizes(""), "nothing is left staged"


def test_a_table_that_is_held_back_is_not_counted(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(transactions=True)
    batch = staged(sink, two_transactions(), 5)
    parts = tuple(part.without([ORDERS.table]) for part in batch.parts)
    tables = tuple(each for each in batch.tables if each.table == ITEMS.table)
    sink.commit(msgspec.structs.replace(batch, parts=parts, tables=tables), nobody)
    assert told(read("PREFIX.transaction")) == [BOTH[0], ("END", FIRST, 3, {"public.items": 3})]


def test_changes_that_catch_up_are_of_no_transaction(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(transactions=True)
    late = of_one(inserts(ITEMS, 1, (1, "a", None), (2, "b", None)), 1, late=True)
    apply(sink, [[late], [of_one(inserts(ORDERS, 3, (1, 1)), 1)]], 3)
    assert told(read("PREFIX.transaction")) == [BOTH[0], ("END", FIRST, 1, {"public.orders": 1})]
    assert [value["transaction"] for value in read("PREFIX.public.items")] == [None, None]


def test_a_killed_commit_tells_of_its_transactions_once(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(transactions=True, schema_changes=True, transaction_timeout_seconds=10)
    sink.claim("run")
    batch, step = staged(sink, two_transactions(), 5), 1
    sink.close()
    with Mortal() as mortal:
        while mortal.dies(Commit(sink, batch), step):
            step += 1
        assert step > 3
    sink.commit(batch, nobody)
    assert told(read("PREFIX.transaction")) == BOTH
    assert len(read("PREFIX")) == 2


def test_nothing_is_told_that_nobody_asked_for(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, kafka_prefix: str
) -> None:
    sink = make_sink()
    apply(sink, two_transactions(), 5)
    client = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
    topics = {name for name in client.list_topics(timeout=60).topics if kafka_prefix in name}
    assert topics == {
        f"{kafka_prefix}.public.items",
        f"{kafka_prefix}.public.orders",
        f"tailrace-state.{kafka_prefix}.telling.out",
    }
    (first, *_) = kafka_reading.read(kafka_broker.servers, [f"{kafka_prefix}.public.items"])
    assert first.value["transaction"] is None


# --- schema changes


def changes_told(values: list[Any]) -> list[tuple[str, str, list[str], int]]:
    found = []
    for value in values:
        (change,) = value["tableChanges"]
        columns = [column["name"] for column in change["table"]["columns"]]
        found.append((change["type"], change["id"], columns, value["source"]["lsn"]))
    return found


def test_tables_are_told_when_they_come_and_when_their_columns_change(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(schema_changes=True)
    sink.claim("run")
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, 5), [chunk(ITEMS)], clear=True)
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, 6, 2), [chunk(ITEMS, 0, 2)], clear=True)
    apply(sink, [[inserts(ITEMS, 11, (1, "a", None))]], 20)
    parts = [[inserts(ITEMS, 21, (2, "a", None))], [inserts(WIDER, 22, (3, "a", None, "x"), (4, "a", None, "x"))]]
    apply(sink, parts, 30)
    apply(sink, [[inserts(WIDER, 31, (5, "a", None, "x"))]], 40)
    own = '"public"."items"'
    assert changes_told(read("PREFIX")) == [
        ("CREATE", own, ["id", "name", "notes"], 5),
        ("ALTER", own, ["id", "name", "notes", "size"], 22),
    ]


def test_a_version_that_came_and_went_within_a_batch_is_told(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(schema_changes=True)
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    between = [[inserts(WIDER, 11, (2, "a", None, "x")), inserts(ITEMS, 12, (3, "a", None))]]
    apply(sink, between, 20)
    assert [(kind, lsn) for kind, _, _, lsn in changes_told(read("PREFIX"))] == [
        ("CREATE", 1),
        ("ALTER", 11),
        ("ALTER", 12),
    ]


# --- heartbeats


def beats(read: Any) -> int:
    return len(read("__debezium-heartbeat.PREFIX"))


def test_a_heartbeat_comes_with_a_batch_and_without_one(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(heartbeat_ms=1)
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    assert beats(read) == 1
    sink.beat()
    wait_until(lambda: beats(read) == 2, seconds=60, what="a heartbeat while nothing changes")
    (value, *_) = read("__debezium-heartbeat.PREFIX")
    assert value.keys() == {"ts_ms"}
    apply(sink, [[inserts(ITEMS, 11, (2, "a", None))]], 20)
    assert len(read("PREFIX.public.items")) == 2


def test_heartbeats_are_no_more_often_than_they_are_asked_for(make_sink: MakeKafka, read: Any) -> None:
    sink = make_sink(heartbeat_ms=86_400_000)
    sink._controls._beaten_at = -1e9  # as if it were long ago
    for number in range(1, 4):
        apply(sink, [[inserts(ITEMS, number, (number, "a", None))]], number)
        sink.beat()
    assert beats(read) == 1


def test_a_run_that_was_claimed_over_has_no_heartbeat(make_sink: MakeKafka, read: Any) -> None:
    first, second = make_sink(heartbeat_ms=1), make_sink(heartbeat_ms=1)
    first.claim("first")
    apply(first, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    second.claim("second")
    with pytest.raises(SinkTaken):
        first._beat()
    assert beats(read) == 1
    apply(second, [[inserts(ITEMS, 11, (2, "a", None))]], 20)
    assert beats(read) == 2


# --- their topics


def test_a_table_does_not_get_a_topic_of_the_sinks_own(make_sink: MakeKafka, kafka_prefix: str) -> None:
    sink = make_sink({ITEMS.table: f"{kafka_prefix}.transaction"}, transactions=True)
    with pytest.raises(SinkRejected, match="the sink's own") as refused:
        apply(sink, [[of_one(inserts(ITEMS, 1, (1, "a", None)), 1)]], 10)
    assert refused.value.table == ITEMS.table


def test_a_topic_of_transactions_that_is_deleted_is_made_again(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, kafka_prefix: str, read: Any
) -> None:
    sink = make_sink(transactions=True)
    apply(sink, [[of_one(inserts(ITEMS, 1, (1, "a", None)), 1)]], 10)
    topic = f"{kafka_prefix}.transaction"
    admin = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be gone")
    batch = staged(sink, [[of_one(inserts(ITEMS, 11, (2, "b", None)), 11)]], 20)
    with pytest.raises(SinkUnavailable):
        sink.commit(batch, nobody)
    sink.commit(batch, nobody)
    assert [each[:2] for each in told(read("PREFIX.transaction"))] == [("BEGIN", "1011:111"), ("END", "1011:111")]
    assert len(read("PREFIX.public.items")) == 2
