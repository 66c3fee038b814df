"""Sinks of changes end to end, killed between two steps and compared: Kafka, and folders of lines and of Parquet.

The files are folded here by hand; `tailrace verify` then has to say the same of all three, while the pipeline runs as
well, and to name what somebody else has changed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyarrow import parquet

from support import kafka_witness
from support.kafka import KafkaCluster
from support.kafka_witness import TABLES, Workload, differences
from support.pipelines import RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace import failpoints
from tailrace.sinks.files import committed

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash]

OPS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}
Change = tuple[str, dict[str, Any]]


def told(path: Path) -> list[Change]:
    if path.suffix == ".parquet":
        return [(row["_op"], row) for row in parquet.read_table(path, partitioning=None).to_pylist()]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(OPS[line["op"]], line["after"] or line["before"]) for line in lines]


def assert_each_change_is_there_once(url: str, folder: Path, table: str) -> None:
    changes = [change for path in committed(folder)[f"public.{table}"] for change in told(path)]
    written = Counter((row["id"], row["stamp"]) for op, row in changes if op in ("insert", "update"))
    assert [each for each, count in written.items() if count > 1] == []
    rows: dict[int, int] = {}
    for op, row in changes:
        for old in [row["id"], *([row["_before"]["id"]] if row.get("_before") else [])]:
            rows.pop(old, None)
        if op != "delete":
            rows[row["id"]] = row["stamp"]
    with psycopg.connect(url) as connection:
        assert rows == dict(connection.execute(f"SELECT id, stamp FROM {table}").fetchall())


def test_sinks_of_changes_are_the_same_as_their_source_after_a_kill_and_verify_says_so(
    postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path
) -> None:
    kafka_witness.create(postgres_url, rows=200)
    sinks = {
        "topics": {"url": kafka_broker.url, "partitions": 3, "prefix": kafka_prefix},
        "lines": f"file://{tmp_path}/lines",
        "columns": {"url": f"file://{tmp_path}/columns", "format": "parquet"},
    }
    file = write_pipeline(tmp_path, postgres_url, sinks, tables=["public.*"])
    workload = Workload(postgres_url, seed=3)
    workload.start()
    once = str(tmp_path / "once")
    with RunningPipeline(file, environment=failpoints.environment("sink-committed", nth=3, once=once)) as running:
        running.ended()
    assert failpoints.fired("sink-committed", once)
    with RunningPipeline(file) as running:
        running.wait_until_live(*(f"public.{table}" for table in TABLES))
        count = workload.count
        running.wait_for(lambda: workload.count > count + 50, "some changes")
        said = tailrace("verify", file)
        assert (said.returncode, said.stderr) == (0, ""), said.stdout
        workload.stop()
        assert running.stop() == 0, running.output
    run_until_current(file)
    for table in TABLES:
        assert_each_change_is_there_once(postgres_url, tmp_path / "lines", table)
        assert_each_change_is_there_once(postgres_url, tmp_path / "columns", table)
        topic = f"{kafka_prefix}.public.{table}"
        assert differences(postgres_url, kafka_broker.servers, topic, table, is_resumed=True) == []
    assert tailrace("verify", file).returncode == 0
    assert_verify_names_what_somebody_changed(file, kafka_broker, kafka_prefix, tmp_path / "lines", postgres_url)


def assert_verify_names_what_somebody_changed(
    file: Path, broker: KafkaCluster, prefix: str, folder: Path, url: str
) -> None:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT min(id), max(id) FROM keyed").fetchone()
    assert found is not None
    lost, changed = found
    producer = Producer({"bootstrap.servers": broker.servers, "partitioner": "murmur2_random", "log_level": 0})
    producer.produce(f"{prefix}.public.keyed", None, json.dumps({"id": lost}, separators=(",", ":")))
    assert producer.flush(60) == 0
    last = committed(folder)["public.keyed"][-1]
    old = {"op": "u", "before": None, "after": {"id": changed, "stamp": -1, "pad": ""}, "source": {}}
    last.write_text(last.read_text() + json.dumps(old) + "\n")
    said = tailrace("verify", file)
    assert said.returncode == 1
    lines = {tuple(line.split()[:2]): line.split() for line in said.stdout.splitlines()}
    assert str(lost) in lines["topics", "public.keyed"], said.stdout
    assert str(changed) in lines["lines", "public.keyed"], said.stdout
    assert "False" not in lines["columns", "public.keyed"], said.stdout
