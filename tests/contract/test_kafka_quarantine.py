"""Changes that are too large for Kafka, with `on_error: quarantine`: set aside exactly once, listed, sent again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support import kafka_reading
from support.kafka import KafkaCluster
from tailrace import config
from tailrace.errors import ConfigError, SinkRejected
from tailrace.model.changes import Op
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Identity
from tailrace.sinks.base import Batch
from tailrace.sinks.kafka import KafkaSink, fitting
from tailrace.testing.change_sink_contract import apply, changes, inserts, nobody, staged
from tailrace.testing.sink_changes import ITEMS, ORDERS, SourceRows, chunk, status, table_of, watermark

pytestmark = [pytest.mark.server]

MakeKafka = Callable[..., KafkaSink]
LARGE = "a" * 30_000
LIMIT = {"message_max_bytes": 20_000}
FULL = msgspec.structs.replace(ITEMS, identity=Identity.FULL)


@pytest.fixture
def make_sink(kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Iterator[MakeKafka]:
    made = []

    def make(on_error: str = "quarantine", **own: Any) -> KafkaSink:
        settings = {"prefix": kafka_prefix, **own}
        sink = config.Sink(kafka_broker.url, on_error=config.OnError(on_error), own=settings)
        source = config.Source("postgresql://localhost/shop", ("*.*",))
        pipeline = config.Pipeline("under_test", source, {"out": sink}, state=str(tmp_path / "state"))
        made.append(KafkaSink(pipeline, "out"))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def told(broker: KafkaCluster, topic: str) -> list[tuple[str, Any]]:
    found = kafka_reading.read(broker.servers, [topic])
    return [("tombstone", each.key) if each.value is None else (each.value["op"], each.key) for each in found]


def listed(sink: KafkaSink) -> list[tuple[str, str, dict[str, Any]]]:
    return [(each.rejected.table, each.rejected.operation, each.rejected.key) for each in sink.quarantined()]


def test_a_change_that_is_too_large_is_set_aside_once_and_the_others_are_sent(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink(**LIMIT)
    batch = staged(sink, [[inserts(ITEMS, 1, (1, "a", None), (2, LARGE, None), (3, "c", None))]], 10)
    sink.commit(batch, nobody)
    assert sink.commit(batch, nobody) == 0  # the answer was lost
    assert [key["id"] for _, key in told(kafka_broker, sink.held_as(ITEMS))] == [1, 3]
    records = kafka_reading.read(kafka_broker.servers, [sink._quarantine.name])
    assert len(records) == 1
    assert len(str(records[0].value)) < 1000
    (entry,) = sink.quarantined()
    assert (entry.rejected.table, entry.rejected.operation) == ("public.items", "insert")
    assert (str(entry.rejected.key["id"]), entry.place.offset, entry.rejected.payload) == ("2", 10, {"position": "0/2"})
    assert "is larger than the 19,964 of topic" in entry.rejected.reason
    assert LARGE[:100] not in str(records)


def test_nothing_is_set_aside_of_a_batch_that_is_not_committed(
    make_sink: MakeKafka, kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(**LIMIT)
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    batch = staged(sink, [[inserts(ITEMS, 11, (2, LARGE, None), (3, "c", None))]], 20)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "_tell", lambda *_: (_ for _ in ()).throw(SinkRejected("no")))
        with pytest.raises(SinkRejected, match="no"):
            sink.commit(batch, nobody)
    assert listed(sink) == []
    assert sink.commit(staged(sink, [[inserts(ITEMS, 11, (2, LARGE, None), (3, "c", None))]], 20), nobody)
    assert len(listed(sink)) == 1


def test_the_topics_own_limit_is_known_before_anything_is_sent(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink(topic_settings={"max.message.bytes": 20_000}, compression="none", batch_bytes=10_000)
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    sink.close()
    again = make_sink(compression="none", batch_bytes=10_000)
    again.claim("next")
    task = pickle.loads(pickle.dumps(again))
    part = task.stage_changes("batch", 0, iter([inserts(ITEMS, 11, (2, LARGE, None), (3, "c", None))]))
    known = again.read_state()
    places = {ITEMS.table: known.tables[ITEMS.table].watermark}
    again.commit(Batch((part,), watermark(20), (status(ITEMS, offset=20),), known.watermark, places), nobody)
    assert [str(key["id"]) for *_, key in listed(again)] == ["2"]
    assert [key["id"] for _, key in told(kafka_broker, again.held_as(ITEMS))] == [1, 3]


def test_the_largest_message_that_fits_is_sent(make_sink: MakeKafka, kafka_broker: KafkaCluster) -> None:
    """Both by our own limit and by the topic's."""
    sink = make_sink(topic_settings={"max.message.bytes": 20_000}, compression="none", batch_bytes=10_000)
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, "a", None))]], 10)
    topic = sink.held_as(ITEMS)
    empty = sink._encoder.reads(topic, ITEMS, table_of(ITEMS, [(1, "", None)]), "0/1", 1)
    room = sink._fitting.limit(topic) - int(fitting._sizes(empty)[0])
    mark = begun(sink)
    rows = table_of(ITEMS, [(1, "x" * room, None), (2, "x" * (room + 1), None)])
    assert sink.load_chunk(ITEMS, mark, iter([rows])) == 2
    assert sink.deliver(mark) == 1
    assert told(kafka_broker, topic)[-1] == ("r", {"id": 1})
    assert listed(sink) == [("public.items", "read", sink.quarantined()[0].rejected.key)]


def begun(sink: KafkaSink, generation: int = 1) -> Any:
    mark = chunk(ITEMS, 0, generation)
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT, 5, generation), [mark], clear=True)
    return mark


def test_a_copy_begins_without_what_was_set_aside_before(make_sink: MakeKafka) -> None:
    sink = make_sink(**LIMIT)
    sink.claim("run")
    mark = begun(sink)
    sink.load_chunk(ITEMS, mark, iter([table_of(ITEMS, [(1, LARGE, None), (2, "b", None)])]))
    assert sink.deliver(mark) == 1
    assert sink.read_state().chunks[ITEMS.table][0].rows == 1
    assert [(table, op) for table, op, _ in listed(sink)] == [("public.items", "read")]
    begun(sink, 2)
    assert listed(sink) == []


def test_old_rows_are_left_out_where_the_message_fits_without_them(
    make_sink: MakeKafka, kafka_broker: KafkaCluster
) -> None:
    sink = make_sink(**LIMIT)
    made = changes(
        FULL,
        1,
        (Op.INSERT, (1, "a", None)),
        (Op.UPDATE, (1, "b", None), (1, LARGE, None)),
        (Op.DELETE, (1, None, None), (1, LARGE, None)),
        (Op.UPDATE, (3, "moved", None), (2, LARGE, None)),
    )
    apply(sink, [[made]], 10)
    assert listed(sink) == []
    found = kafka_reading.read(kafka_broker.servers, [sink.held_as(ITEMS)])
    ops = [(each.value["op"], each.key["id"], each.value["before"]) if each.value else each.key["id"] for each in found]
    key_only = {"name": None, "notes": None}
    assert ops == [
        ("c", 1, None),
        ("u", 1, None),
        ("d", 1, {"id": 1, **key_only}),
        1,
        ("d", 2, {"id": 2, **key_only}),
        2,
        ("c", 3, None),
    ]


def test_replay_sends_the_row_as_the_source_has_it_now(make_sink: MakeKafka, kafka_broker: KafkaCluster) -> None:
    sink = make_sink(**LIMIT)
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, *((number, LARGE, None) for number in (1, 2, 3)))]], 10)
    assert len(listed(sink)) == 3
    beside = make_sink(**LIMIT)  # a command, while the run goes on
    now = SourceRows(ITEMS, [(1, "small by now", None), (2, LARGE, None)])  # and the third is gone
    assert beside.replay(beside.quarantined(), now) == 2
    assert told(kafka_broker, sink.held_as(ITEMS)) == [("r", {"id": 1})]
    assert [str(key["id"]) for *_, key in listed(beside)] == ["2"]
    sink.read_state()
    with pytest.raises(Exception, match="broke off"):  # the run is disturbed once, and goes on
        apply(sink, [[inserts(ITEMS, 11, (4, "d", None))]], 20)
    apply(sink, [[inserts(ITEMS, 11, (4, "d", None))]], 20)
    assert told(kafka_broker, sink.held_as(ITEMS)) == [("r", {"id": 1}), ("c", {"id": 4})]
    beside.drop_quarantined(beside.quarantined())
    assert listed(make_sink(**LIMIT)) == []


def test_replay_says_what_keeps_it_from_sending(make_sink: MakeKafka) -> None:
    sink = make_sink(**LIMIT)
    sink.claim("run")
    apply(sink, [[inserts(ITEMS, 1, (1, LARGE, None))]], 10)
    sink.commit(Batch(tables=(status(ITEMS, TableState.FAILED, 10),)), nobody)
    with pytest.raises(SinkRejected, match=r"public\.items is in the state failed"):
        sink.replay(sink.quarantined(), SourceRows(ITEMS))


def test_more_than_a_thousand_stop_the_table(make_sink: MakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_REJECTED", 3)
    sink = make_sink(**LIMIT)
    large = [inserts(ITEMS, 10 * part + 1, *((10 * part + row, LARGE, None) for row in range(2))) for part in range(2)]
    with pytest.raises(SinkRejected, match=r"more than 3 messages of public\.items") as refused:
        apply(sink, [[large[0]], [large[1]]], 100)
    assert refused.value.table == ITEMS.table
    assert listed(sink) == []
    apply(sink, [[large[0]]], 100)
    assert len(listed(sink)) == 2


def test_a_table_that_is_held_back_sets_nothing_aside(make_sink: MakeKafka) -> None:
    sink = make_sink(**LIMIT)
    batch = staged(sink, [[inserts(ITEMS, 1, (1, LARGE, None)), inserts(ORDERS, 2, (1, 1))]], 10)
    held = tuple(part.without([ITEMS.table]) for part in batch.parts)
    sink.commit(msgspec.structs.replace(batch, parts=held), nobody)
    assert listed(sink) == []


def test_a_key_that_is_too_large_itself_is_not_told(make_sink: MakeKafka) -> None:
    worded = msgspec.structs.replace(ITEMS, name="worded", key=("name",))
    sink = make_sink(**LIMIT)
    apply(sink, [[inserts(worded, 1, (1, LARGE, None))]], 10)
    (entry,) = sink.quarantined()
    assert (entry.rejected.key, "so large is its key" in entry.rejected.reason) == ({}, True)


def test_without_a_quarantine_the_table_is_set_aside_before_anything_is_sent(make_sink: MakeKafka) -> None:
    sink = make_sink("stop", **LIMIT)
    with pytest.raises(SinkRejected, match="larger than may be sent") as refused:
        staged(sink, [[inserts(ITEMS, 1, (1, LARGE, None))]], 10)
    assert refused.value.table == ITEMS.table
    assert "on_error: quarantine" in str(refused.value.hint)


def test_misfits_are_refused(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    sink = config.Sink(kafka_broker.url, misfits=config.Misfits.QUARANTINE)
    source = config.Source("postgresql://localhost/shop", ("*.*",))
    with pytest.raises(ConfigError, match="misfits"):
        KafkaSink(config.Pipeline("under_test", source, {"out": sink}, state=str(tmp_path)), "out")
