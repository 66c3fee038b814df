"""What `{prefix}.transaction` tells, compared with the messages of the topics, and with the source's own count.

Transactions are larger than a segment, of several tables, and read by several tasks; the pipeline is killed in between,
and its state deleted.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import kafka_reading
from support.kafka import KafkaCluster
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from tailrace import failpoints
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long]

TABLES = ("public.one", "public.two")
LARGE = 6000


@pytest.fixture
def file(postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path) -> Path:
    for table in TABLES:
        execute(postgres_url, f"CREATE TABLE {table} (id int PRIMARY KEY, pad text)", f"INSERT INTO {table} VALUES (0)")
    own = {"prefix": kafka_prefix, "transactions": True, "schema_changes": True, "heartbeat_ms": 200}
    sink = {"url": kafka_broker.url, "partitions": 2, **own}
    return write_pipeline(tmp_path, postgres_url, {"topics": sink}, tables=["public.*"], log={"segment_bytes": 65536})


def change(url: str, round_: int) -> None:
    """Two small transactions around a large one, whose changes of two tables take turns."""
    first = 100_000 * round_
    execute(url, f"INSERT INTO public.one VALUES ({first})")
    rows = f"generate_series({first + 1}, {first + LARGE}) n"
    halves = [f"INSERT INTO {table} SELECT n, repeat('x', 100) FROM {rows}" for table in TABLES]
    with psycopg.connect(url) as connection:
        for statement in (*halves, f"UPDATE public.one SET pad = 'y' WHERE id > {first} AND id <= {first + 100}"):
            connection.execute(statement.encode())
    execute(url, f"DELETE FROM public.one WHERE id = {first}")


def test_transactions_are_told_once_whatever_is_killed(
    postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, file: Path, tmp_path: Path
) -> None:
    with RunningPipeline(file) as running:
        running.wait_until_live(*TABLES)
        change(postgres_url, 1)
        beats = f"__debezium-heartbeat.{kafka_prefix}"
        running.wait_for(lambda: len(kafka_reading.read(kafka_broker.servers, [beats])) > 3, "heartbeats")
        assert running.stop() == 0, running.output
    for round_, place in enumerate(("sink-before-commit", "sink-committed", "batch-staged"), 2):
        change(postgres_url, round_)
        once = str(tmp_path / f"once-{place}")
        with RunningPipeline(file, environment=failpoints.environment(place, once=once)) as running:
            running.wait_for(partial(failpoints.fired, place, once), f"its end at {place}")
            running.kill()
    shutil.rmtree(file.parent / "state")
    change(postgres_url, 5)
    run_until_current(file)
    execute(postgres_url, "ALTER TABLE public.one ADD COLUMN more int")
    change(postgres_url, 6)
    run_until_current(file)
    changes, ends = told_by_changes(kafka_broker, kafka_prefix), told_by_transactions(kafka_broker, kafka_prefix)
    assert ends == changes
    sizes = sorted(sum(counts.values()) for counts in ends.values())
    assert sizes == [1] * 12 + [2 * LARGE + 100] * 6
    kinds = [each.value["tableChanges"][0]["type"] for each in kafka_reading.read(kafka_broker.servers, [kafka_prefix])]
    assert kinds == ["CREATE", "CREATE", "ALTER"]


def told_by_changes(broker: KafkaCluster, prefix: str) -> dict[str, Counter[str]]:
    """The changes of each table in each transaction. Places differ, and those in the table are dense."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    orders: dict[Any, list[int]] = defaultdict(list)
    for message in kafka_reading.read(broker.servers, [f"{prefix}.{table}" for table in TABLES]):
        if message.value is None or message.value["op"] == "r":
            continue
        place, table = message.value["transaction"], message.topic.removeprefix(f"{prefix}.")
        found[place["id"]][table] += 1
        orders[place["id"]].append(place["total_order"])
        orders[place["id"], table].append(place["data_collection_order"])
    for of, order in orders.items():
        assert len(set(order)) == len(order)
        assert isinstance(of, str) or sum(order) == len(order) * (len(order) + 1) // 2, of
    return dict(found)


def told_by_transactions(broker: KafkaCluster, prefix: str) -> dict[str, Counter[str]]:
    """The counts of each transaction, which begins and then ends, once."""
    values = [message.value for message in kafka_reading.read(broker.servers, [f"{prefix}.transaction"])]
    begins, ends = values[::2], values[1::2]
    assert [value["status"] for value in begins] == ["BEGIN"] * len(ends)
    assert [value["status"] for value in ends] == ["END"] * len(begins)
    assert [value["id"] for value in begins] == [value["id"] for value in ends]
    found: dict[str, Counter[str]] = {}
    for value in ends:
        assert value["id"] not in found
        found[value["id"]] = Counter(
            {each["data_collection"]: each["event_count"] for each in value["data_collections"]}
        )
        assert value["event_count"] == sum(found[value["id"]].values())
    return found
