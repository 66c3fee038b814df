"""Topics of a pipeline that was killed, read by others: a consumer for Debezium, and Confluent's with its registry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from support import kafka_reading
from support.debezium.applying import NEW_KEY, OLD_KEY, Applier
from support.kafka import KafkaCluster
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from support.registry import SchemaRegistry
from tailrace.testing import PostgresServer, content
from tailrace.testing.plugin import requires
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(5400)]

TABLES = """
CREATE TABLE kinds (
    id int PRIMARY KEY, big bigint, ratio double precision, ok boolean, total numeric(12, 3), free numeric, note text,
    raw bytea, uid uuid, doc jsonb, day date, tod time, at timestamp, at_zone timestamptz, names text[], nums int[]);
CREATE TABLE pairs (a int, b text, v int, PRIMARY KEY (a, b));
ALTER TABLE pairs REPLICA IDENTITY FULL;
CREATE TABLE toasty (id int PRIMARY KEY, large text, v int);
ALTER TABLE toasty ALTER large SET STORAGE EXTERNAL;
CREATE TABLE cleared (id int PRIMARY KEY, v text);
"""
ROW = (
    "n, n * 10000000000, n / 7.0, n % 2 = 0, n * 1.125, n + 0.5::numeric, CASE WHEN n % 5 > 0 THEN 'é ' || n END,"
    " decode(md5(n::text), 'hex'), md5(n::text)::uuid, jsonb_build_object('n', n), DATE '1969-12-01' + n,"
    " TIME '00:00:00.5' + n * interval '1 min', TIMESTAMP '1960-01-01 00:00:00.000001' + n * interval '1 year',"
    " TIMESTAMPTZ '2024-02-29 23:59:59.5+02' + n * interval '1 s', ARRAY['a', NULL, 'b' || n], ARRAY[n, NULL]"
)
BEFORE = (
    f"INSERT INTO kinds SELECT {ROW} FROM generate_series(1, 100) n",
    "INSERT INTO pairs SELECT n, 'p' || n, n FROM generate_series(1, 50) n",
    "INSERT INTO toasty SELECT n, repeat(md5(n::text), 200), n FROM generate_series(1, 10) n",
    "INSERT INTO cleared SELECT n, 'old' FROM generate_series(1, 20) n",
)
AFTER = (
    f"INSERT INTO kinds SELECT {ROW} FROM generate_series(101, 150) n",
    "UPDATE kinds SET note = 'updated', total = -total WHERE id % 3 = 0",
    "UPDATE kinds SET id = id + 1000 WHERE id BETWEEN 20 AND 30",
    "DELETE FROM kinds WHERE id % 7 = 0",
    "UPDATE pairs SET b = 'moved', a = a + 100 WHERE a > 40",
    "DELETE FROM pairs WHERE a < 10",
    "INSERT INTO pairs SELECT n, 'p' || n, -n FROM generate_series(1, 5) n",
    "UPDATE toasty SET v = v + 1 WHERE id < 6",
    "UPDATE toasty SET large = 'small' WHERE id = 7",
    "TRUNCATE cleared",
    "INSERT INTO cleared SELECT n, 'new' FROM generate_series(15, 25) n",
)
NAMES = ("kinds", "pairs", "toasty", "cleared")


class Told:
    """Source and broker, after a pipeline with a sink for each form has died in the middle and gone on."""

    def __init__(self, url: str, servers: str, registry: str) -> None:
        self.url, self.servers, self.registry = url, servers, registry


@pytest.fixture(scope="module")
def told(
    postgres_server: PostgresServer, kafka_broker: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Told]:
    url, folder = postgres_server.create_database("kafka_readers"), tmp_path_factory.mktemp("readers")
    with requires(SchemaRegistry.start) as registry:
        execute(url, TABLES, *BEFORE)
        whole = NewTopic("envelopes.public.cleared", 1)  # who takes a truncate for the whole table needs one partition
        admin = AdminClient({"bootstrap.servers": kafka_broker.servers})
        admin.create_topics([whole])[whole.topic].result()
        sinks = {
            "envelopes": {"format": "json-schemas"},
            "avro": {"format": "avro", "registry": {"url": registry.url}},
        }
        common = {"url": kafka_broker.url, "partitions": 3}
        settings: dict[str, Any] = {name: common | {"prefix": name} | own for name, own in sinks.items()}
        file = write_pipeline(folder, url, settings, tables=["public.*"], name="readers")
        change_and_die(url, file)
        run_until_current(file)
        yield Told(url, kafka_broker.servers, registry.url)
    postgres_server.drop_database("kafka_readers")


def change_and_die(url: str, file: Path) -> None:
    """Changed when all is live in every sink, and dead in the middle of it."""
    with RunningPipeline(file) as running:
        live = {(sink, f"public.{table}") for sink in ("envelopes", "avro") for table in NAMES}
        running.wait_for(
            lambda: {(e["sink"], e["table"]) for e in running.said("table") if e["state"] == "live"} == live,
            "all tables to be live in all sinks",
        )
        execute(url, *AFTER[:6])
        running.kill()
    execute(url, *AFTER[6:])


def test_a_consumer_for_debezium_ends_with_the_tables_of_the_source(
    told: Told, postgres_server: PostgresServer
) -> None:
    mirror = postgres_server.create_database("kafka_readers_mirror")
    execute(mirror, TABLES)
    with psycopg.connect(mirror) as connection:
        applier = Applier(connection)
        for message in kafka_reading.read(told.servers, [f"envelopes.public.{name}" for name in NAMES]):
            applier.apply(message)
    content.assert_same(content.postgres_differences(told.url, mirror, [f"public.{name}" for name in NAMES]))
    deleted = applier.met.pop("d")
    assert applier.met == {"r": 180, "c": 50 + 11 + 10 + 5 + 11, "u": 50 + 5 + 1, "tombstone": deleted, "t": 1}
    postgres_server.drop_database("kafka_readers_mirror")


def test_a_changed_key_is_a_delete_and_a_create_that_name_each_other(told: Told) -> None:
    moved: Counter[tuple[Any, Any]] = Counter()
    topics = ["envelopes.public.kinds", "envelopes.public.pairs"]
    for message in (each for each in kafka_reading.read(told.servers, topics) if each.value is not None):
        own = json.dumps(message.key["payload"])
        if NEW_KEY in message.headers:
            assert message.value["payload"]["op"] == "d"
            moved[own, _key(message.headers[NEW_KEY])] += 1
        if OLD_KEY in message.headers:
            assert message.value["payload"]["op"] == "c"
            moved[_key(message.headers[OLD_KEY]), own] += 1
    assert set(moved.values()) == {2}
    assert len(moved) == 11 + 10


def _key(header: bytes) -> str:
    return json.dumps(json.loads(header)["payload"])


def test_confluents_own_consumer_reads_a_topic_with_its_registry(told: Told) -> None:
    read = AvroDeserializer(SchemaRegistryClient({"url": told.registry}))
    rows: dict[tuple[int, str], int] = {}
    topic = "avro.public.pairs"
    for message in messages(told.servers, topic):
        key = read(message.key(), SerializationContext(topic, MessageField.KEY))
        value = read(message.value(), SerializationContext(topic, MessageField.VALUE))
        place = (key["a"], key["b"])
        if value is None or value["op"] == "d":
            rows.pop(place, None)
        else:
            assert (value["after"]["a"], value["after"]["b"]) == place
            rows[place] = value["after"]["v"]
    with psycopg.connect(told.url) as connection:
        expected = {(a, b): v for a, b, v in connection.execute("SELECT a, b, v FROM pairs")}
    assert rows == expected


def messages(servers: str, topic: str) -> Iterator[Any]:
    """As an application subscribes to it, until nothing comes any more that is there."""
    settings = {"bootstrap.servers": servers, "group.id": f"of {topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.subscribe([topic])
    ended: set[int] = set()
    try:
        while len(ended) < 3:
            if (message := consumer.poll(1.0)) is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                yield message
    finally:
        consumer.close()
