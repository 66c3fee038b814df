"""`on_error: quarantine` of a Kafka sink as a user has it: rows that are too large, in a copy and as changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import kafka_reading
from support.kafka import KafkaCluster
from support.pipelines import run_until_current, tailrace, write_pipeline
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server]


def test_rows_that_are_too_large_are_set_aside_and_sent_again_once_they_fit(
    postgres_url: str, kafka_broker: KafkaCluster, kafka_prefix: str, tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE notes (id int PRIMARY KEY, body text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT n, repeat('x', CASE n WHEN 7 THEN 50000 ELSE 10 END) FROM generate_series(1, 20) n",
    )
    topics = {"url": kafka_broker.url, "prefix": kafka_prefix, "on_error": "quarantine", "message_max_bytes": 20_000}
    file = write_pipeline(tmp_path, postgres_url, {"topics": topics}, tables=["public.*"])
    run_until_current(file)
    execute(
        postgres_url, "INSERT INTO notes VALUES (21, repeat('y', 60000)), (22, 'z')", "DELETE FROM notes WHERE id=1"
    )
    run_until_current(file)
    lines = [json.loads(line) for line in tailrace("quarantine", "list", file, "--json").stdout.splitlines()]
    assert [(line["table"], line["operation"], line["key"]) for line in lines] == [
        ("public.notes", "read", "id=7"),
        ("public.notes", "insert", "id=21"),
    ]
    assert "sink topics has 2 rows set aside" in tailrace("status", file).stdout
    said = tailrace("verify", file)
    assert said.returncode == 1
    assert "21, 7" in " ".join(said.stdout.split()), said.stdout
    refused = tailrace("quarantine", "replay", file)
    assert (refused.returncode, "0 written" in refused.stdout) == (1, True), refused
    write_pipeline(tmp_path, postgres_url, {"topics": topics | {"message_max_bytes": 100_000}}, tables=["public.*"])
    replayed = tailrace("quarantine", "replay", file)
    assert (replayed.returncode, "2 written" in replayed.stdout) == (0, True), replayed
    assert "no rows are set aside" in tailrace("quarantine", "list", file).stdout
    assert tailrace("verify", file).returncode == 0
    last = kafka_reading.read(kafka_broker.servers, [f"{kafka_prefix}.public.notes"])[-2:]
    assert {(each.value["op"], each.key["id"]) for each in last} == {("r", 7), ("r", 21)}
