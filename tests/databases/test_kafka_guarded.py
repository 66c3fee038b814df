"""A pipeline into brokers that ask who it is and what it may: told by `tailrace check`, and by the run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from support import kafka_reading
from support.kafka import KafkaCluster
from support.kafka_security import PASSWORD, USER, Grant, allow, needed
from support.pipelines import RunningPipeline, states, tailrace, write_pipeline
from tailrace.config import load
from tailrace.pipeline import preflight
from tailrace.sources.base import Level
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.long]


@pytest.fixture
def file(postgres_url: str, guarded_broker: KafkaCluster, guarded_prefix: str, tmp_path: Path) -> Path:
    for table in ("open", "closed"):
        execute(postgres_url, f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    return write(tmp_path, postgres_url, guarded_broker, guarded_prefix, PASSWORD)


def write(folder: Path, source: str, broker: KafkaCluster, prefix: str, password: str) -> Path:
    url = f"kafka://{USER}:{quote(password, safe='')}@{broker.servers_of('SASL')}"
    sink = {"url": url, "prefix": prefix, "sasl_mechanism": "SCRAM-SHA-512"}
    return write_pipeline(folder, source, {"topics": sink}, tables=["public.*"])


def failing(file: Path) -> list[str]:
    """What `tailrace check` says that stops the pipeline, or a table."""
    return [finding.message for finding in preflight.check(load(file)) if finding.level is Level.FAIL]


def replayed(broker: KafkaCluster, topic: str) -> list[int]:
    """The rows that a topic ends with: a new copy begins with a truncate."""
    rows: list[int] = []
    for each in kafka_reading.read(broker.servers, [topic]):
        rows = [] if each.value["op"] == "t" else [*rows, each.value["after"]["id"]]
    return sorted(rows)


def test_a_table_whose_topic_may_not_be_written_is_set_aside_alone(
    file: Path, postgres_url: str, guarded_broker: KafkaCluster, guarded_prefix: str, guard: AdminClient
) -> None:
    topic, state = ResourceType.TOPIC, f"tailrace-state.{guarded_prefix}.under_test.topics"
    closed = f"{guarded_prefix}.public.closed"
    allow(guard, *needed(f"{guarded_prefix}.public.open", state))
    assert tailrace("check", file).returncode == 1
    assert f"our user lacks Describe on topic {closed}" in failing(file)
    with RunningPipeline(file) as running:
        running.wait_until_live("public.open")
        running.wait_for(lambda: [each for each in running.said("table") if each["state"] == "failed"], "a refusal")
        [(is_failed, reason)] = [each for (_, table), each in states(file).items() if table == "public.closed"]
        assert is_failed == "failed"
        assert f"lacks Describe on topic {closed}" in reason
        execute(postgres_url, "INSERT INTO open VALUES (2)", "INSERT INTO closed VALUES (2)")
        allow(guard, Grant(topic, closed, AclOperation.WRITE), Grant(topic, closed, AclOperation.CREATE))
        assert tailrace("check", file).returncode == 0
        assert tailrace("snapshot", "public.closed", file).returncode == 0
        running.wait_until_live("public.open", "public.closed")
        assert running.stop() == 0, running.output
    for name in ("open", "closed"):
        assert replayed(guarded_broker, f"{guarded_prefix}.public.{name}") == [1, 2]


def test_a_wrong_password_ends_the_run_with_one_sentence(
    file: Path, postgres_url: str, guarded_broker: KafkaCluster, guarded_prefix: str, tmp_path: Path
) -> None:
    wrong = write(tmp_path, postgres_url, guarded_broker, guarded_prefix, "wr0ng-p@ss")
    checked = tailrace("check", wrong)
    assert checked.returncode == 1
    assert ["does not let us in" in message for message in failing(wrong)] == [True]
    with RunningPipeline(wrong) as running:
        assert running.ended() == 1
    assert "does not let us in" in running.output
    assert "correct user and password" in running.output
    for output in (checked.stdout, checked.stderr, running.output):
        assert "Traceback" not in output
        assert "wr0ng" not in output
