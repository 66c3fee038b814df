"""`tailrace status` of a Kafka sink: the topic of each table, and how far it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support.kafka import KafkaCluster
from support.pipelines import write_pipeline
from tailrace.cli.main import main
from tailrace.config import load
from tailrace.registry import make_sink
from tailrace.sinks.kafka import KafkaSink
from tailrace.testing.change_sink_contract import apply, inserts
from tailrace.testing.processes import wait_until
from tailrace.testing.sink_changes import ITEMS, ORDERS

pytestmark = pytest.mark.server


def test_each_table_has_its_topic_and_the_sum_of_its_ends(
    kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = {"url": kafka_broker.url, "prefix": kafka_prefix, "partitions": 4}
    sinks = {"topics": topics, "replica": f"sqlite:///{tmp_path}/r.db"}
    file = write_pipeline(tmp_path, "postgresql://127.0.0.1:1/shop", sinks, state=str(tmp_path / "state"))
    sink = make_sink(load(file), "topics")
    assert isinstance(sink, KafkaSink)
    apply(sink, [[inserts(ITEMS, 1, *((number, "a", None) for number in range(50))), inserts(ORDERS, 60, (1, 1))]], 70)
    sink.close()
    assert main(["status", str(file), "--json"]) == 0
    lines = {line["table"]: line for line in json.loads(capsys.readouterr().out)}
    assert lines["public.items"]["topic"] == f"{kafka_prefix}.public.items"
    assert lines["public.items"]["end_offset"] == 50 + 4  # the end of a transaction has an offset in each partition
    assert (lines["public.orders"]["end_offset"], lines["public.orders"]["offset"]) == (1 + 1, 70)
    admin = AdminClient({"bootstrap.servers": kafka_broker.servers, "log_level": 0})
    gone = f"{kafka_prefix}.public.orders"
    admin.delete_topics([gone])[gone].result(60)
    wait_until(lambda: gone not in admin.list_topics(timeout=60).topics, seconds=60, what="the topic to be gone")
    assert main(["status", str(file)]) == 0
    said = capsys.readouterr().out
    items, orders = (next(line for line in said.splitlines() if line.split()[1:2] == [table]) for table in lines)
    assert items.split()[-2:] == [f"{kafka_prefix}.public.items", "54"]
    assert orders.split()[-2:] == [gone, "gone"]
