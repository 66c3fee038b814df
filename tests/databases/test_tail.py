"""`tailrace tail` on a real broker: committed changes of every shape, one line each."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.kafka import KafkaCluster
from tailrace.cli.main import main
from tailrace.codecs.base import Record
from tailrace.codecs.opening import open_codec
from tailrace.codecs.settings import CodecSettings, Format, Shape, StreamName
from tailrace.model.changes import Op
from tailrace.testing.codec_contract import KEYED, changes_of, records_of
from tailrace.testing.codec_events import facts_of

pytestmark = pytest.mark.server


def records(settings: CodecSettings, prefix: str) -> list[Record]:
    """An insert, an update, and a delete with its tombstone."""
    after = [pa.array([7, 7, 7]), pa.array(["a b", "c", None])]
    changes = changes_of(KEYED, [Op.INSERT, Op.UPDATE, Op.DELETE], after, {2: {"id": 7}})
    codec = open_codec(settings, StreamName(prefix, "db", "postgresql"), f"{prefix}.public.orders")
    return records_of(codec.encode_changes(changes, facts_of(changes)))


def send(broker: KafkaCluster, topic: str, wanted: list[Record], *, is_committed: bool = True) -> None:
    admin = AdminClient({"bootstrap.servers": broker.servers})
    if topic not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    for key, value, _ in wanted:
        producer.produce(topic, value=value, key=key)
    if is_committed:
        producer.commit_transaction(60)
    else:
        producer.flush(60)
        producer.abort_transaction(60)


def tailed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["tail", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


SETTINGS = {
    "debezium": CodecSettings(),
    "with schemas": CodecSettings(format=Format.JSON_SCHEMAS),
    "flat": CodecSettings(Shape.FLAT),
    "cloudevents": CodecSettings(Shape.CLOUDEVENTS),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_shape_is_a_line_a_change(
    kafka_broker: KafkaCluster, kafka_prefix: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    send(kafka_broker, f"{kafka_prefix}.public.orders", records(SETTINGS[name], kafka_prefix))
    topic = f"{kafka_prefix}.public.orders"
    lines = tailed(capsys, kafka_broker.url, topic, "--from-beginning", "--limit", "4")
    assert [line.split(" ", 2)[2] for line in lines] == [
        'insert id=7 note="a b"',
        "update id=7 note=c",
        {"flat": "delete id=7"}.get(name, "delete id=7 note=∅"),
        "tombstone id=7",
    ]


def test_what_was_not_committed_is_not_shown(
    kafka_broker: KafkaCluster, kafka_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, wanted = f"{kafka_prefix}.public.orders", records(CodecSettings(), kafka_prefix)
    send(kafka_broker, topic, wanted[:1], is_committed=False)
    send(kafka_broker, topic, wanted[1:])
    (line,) = tailed(capsys, kafka_broker.url, topic, "--from-beginning", "--limit", "1", "--json")
    told: dict[str, Any] = json.loads(line)
    assert (told["op"], told["key"], told["after"]) == ("update", {"id": 7}, {"id": 7, "note": "c"})


def test_a_table_that_has_no_topic_is_told(
    kafka_broker: KafkaCluster, kafka_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", kafka_broker.url, f"{kafka_prefix}.nowhere"]) == 2
    assert f"there is no topic of {kafka_prefix}.nowhere" in capsys.readouterr().err
