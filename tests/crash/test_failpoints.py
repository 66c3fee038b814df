"""A pipeline killed at any step ends equal to its source: real processes, real SIGKILL, compared by content."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from support import hot
from support.failpoint_chains import OF_CAPTURE, OF_TASKS, OF_THE_DRIVER
from support.pipelines import RunningPipeline, run_until_current, write_pipeline
from tailrace import failpoints
from tailrace.testing import content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]

OF_CHECKPOINTS = ("checkpoint-written", "checkpoint-synced", "checkpoint-before-commit", "checkpoint-saved")
"""No pipeline has them: see `test_checkpoint_kills`."""
OF_EMBEDDED = (  # tests/embedded/test_kills.py and test_exactly_once.py
    "embedded-prepared",
    "embedded-planned",
    "embedded-chunk-read",
    "embedded-chunk-waits",
    "embedded-before-checkpoint",
    "embedded-checkpoint-saved",
    "embedded-before-source-told",
    "embedded-source-told",
)
OF_DOCUMENTS = ("documents-remembered", "documents-written")  # test_document_kills.py
OF_KAFKA = ("chunk-staged", "kafka-before-flush")  # test_kafka_kills.py and tests/contract/test_kafka_sink.py


def test_every_failpoint_is_tried() -> None:
    of_pipelines = {*OF_THE_DRIVER, *OF_CAPTURE, *OF_TASKS, *OF_DOCUMENTS, *OF_KAFKA}
    assert {*of_pipelines, *OF_CHECKPOINTS, *OF_EMBEDDED} == failpoints.ALL.keys()


@pytest.fixture
def file(postgres_url: str, tmp_path: Path) -> Path:
    hot.create(postgres_url)
    hot.run(postgres_url, seed=11, transactions=150)
    replica = {"replica": f"sqlite:///{tmp_path}/replica.db"}
    return write_pipeline(tmp_path, postgres_url, replica, log={"keep": "1 d"})  # history is there to be merged


def remake(url: str, number: int) -> None:
    """A column goes, and another one comes under its name. A transaction that is older than that writes after it."""
    with psycopg.connect(url) as older:
        older.execute("INSERT INTO remade VALUES (%s, 1)", [-number])
        older.commit()
        older.execute("SELECT txid_current()")
        execute(url, f"INSERT INTO remade VALUES ({number}, 2)", "ALTER TABLE remade DROP COLUMN c")
        execute(url, f"ALTER TABLE remade ADD COLUMN c int DEFAULT {number}", f"INSERT INTO remade VALUES (10{number})")
        older.execute("INSERT INTO remade VALUES (%s, NULL)", [200 + number])


def test_a_driver_killed_at_any_step_ends_equal_to_its_source(postgres_url: str, file: Path) -> None:
    """While a table's column is dropped and made again after every step."""
    once = str(file.with_name("once"))
    execute(postgres_url, "CREATE TABLE remade (id int PRIMARY KEY, c int)", "INSERT INTO remade VALUES (0, 0)")
    with hot.HotWorkload.start(postgres_url, rate=50, seed=12):
        for number, name in enumerate(OF_THE_DRIVER, 1):
            remake(postgres_url, number)
            if name == "table-live":  # the step before may have been the last one: the tables begin anew
                for path in file.parent.glob("replica.db*"):
                    path.unlink()
            with RunningPipeline(file, environment=failpoints.environment(name, once=once)) as pipeline:
                assert pipeline.ended() == -9, (name, pipeline.output)
            assert failpoints.fired(name, once)
    run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, file.with_name("replica.db")))


@pytest.mark.long
def test_processes_of_a_pipeline_killed_at_any_step_are_replaced(postgres_url: str, file: Path) -> None:
    """The capture process and the tasks: the run goes on, with others in their place."""
    once = str(file.with_name("once"))
    names = (*OF_CAPTURE, *OF_TASKS)
    armed = failpoints.together(*(failpoints.environment(name, once=once) for name in names))
    with (
        hot.HotWorkload.start(postgres_url, rate=50, seed=13),
        RunningPipeline(file, environment=armed) as pipeline,
    ):
        for name in names:
            pipeline.wait_for(lambda name=name: failpoints.fired(name, once), f"{name} to be reached")
        pipeline.wait_until_live()
        assert pipeline.stop() == 0, pipeline.output
    run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, file.with_name("replica.db")))


@pytest.mark.long
def test_a_copy_whose_tasks_die_every_time_is_tried_again_for_as_long_as_the_run_lasts(
    postgres_url: str, file: Path
) -> None:
    words = "the copy of tables into sink replica stopped"
    with RunningPipeline(file, environment=failpoints.environment("chunk-before-load")) as pipeline:
        pipeline.wait_for(lambda: len(pipeline.said("sink-retry")) > 2, "the copy to be tried again and again")
        assert all(words in event["message"] for event in pipeline.said("sink-retry"))
        assert pipeline.stop() == 0, pipeline.output
    assert "Traceback" not in pipeline.output
    run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, file.with_name("replica.db")))
