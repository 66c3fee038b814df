"""SIGKILL of each process of a pipeline in each phase of its tables' life, under a hostile workload: it ends equal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from support import hot
from support.hot import HotWorkload
from support.moved_rows import SLOW_COPY, killed_while_rows_move
from support.pipelines import Replica, RunningPipeline, position_of, run_until_current, write_pipeline
from tailrace.testing import content

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]

"""Holds the snapshot open. Catch-up takes several steps, because each takes a few segments of the log only."""

PHASES = {"snapshot": Replica.is_copying, "catch-up": Replica.is_catching_up, "live": Replica.is_live}


@pytest.fixture
def file(postgres_url: str, tmp_path: Path) -> Path:
    """A pipeline of the hostile tables: a page a chunk, and some segments of the log a micro-batch or catch-up step."""
    hot.create(postgres_url)
    hot.run(postgres_url, seed=21, transactions=250)
    sink = {"url": f"sqlite:///{tmp_path}/replica.db", "max_rows": 150}
    return write_pipeline(tmp_path, postgres_url, {"replica": sink}, source={"snapshot": {"chunk_bytes": 8192}})


def assert_equal(url: str, file: Path) -> None:
    content.assert_same(content.sqlite_differences(url, file.parent / "replica.db"))


def has_restarted(pipeline: RunningPipeline, count: int) -> bool:
    deaths = [event for event in pipeline.said("capture-restart") if "killed by signal 9" in event["message"]]
    return len(deaths) >= count


@pytest.mark.long  # `make test` kills one at every failpoint
def test_a_driver_killed_in_every_phase_ends_equal_to_its_source(postgres_url: str, file: Path) -> None:
    replica = Replica(file)
    with HotWorkload.start(postgres_url, rate=40, seed=22):
        for phase, is_reached in PHASES.items():
            with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill()
    run_until_current(file)
    assert_equal(postgres_url, file)


@pytest.mark.long
def test_a_jvm_killed_in_every_phase_ends_the_run_and_the_next_one_ends_equal(postgres_url: str, file: Path) -> None:
    replica = Replica(file)
    with HotWorkload.start(postgres_url, rate=40, seed=23):
        for phase, is_reached in PHASES.items():
            with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill_jvm()
                assert pipeline.ended() == 1, pipeline.output
                assert "Traceback" not in pipeline.output
                assert "hint: run the same command again" in pipeline.output
    run_until_current(file)
    assert_equal(postgres_url, file)


def test_a_capture_process_killed_in_every_phase_is_replaced_while_the_run_goes_on(
    postgres_url: str, file: Path
) -> None:
    replica = Replica(file)
    with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
        with HotWorkload.start(postgres_url, rate=40, seed=24):
            for count, (phase, is_reached) in enumerate(PHASES.items(), start=1):
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill_capture()
                pipeline.wait_for(partial(has_restarted, pipeline, count), "its restart")
        end = position_of(postgres_url)
        pipeline.wait_for(lambda: replica.has_reached(end), "the replica to be current")
        assert_equal(postgres_url, file)
        assert pipeline.stop() == 0, pipeline.output
    assert_equal(postgres_url, file)


def test_a_resumed_copy_takes_nothing_from_later_rows_under_a_key_that_moved(postgres_url: str, tmp_path: Path) -> None:
    file = killed_while_rows_move(postgres_url, tmp_path)
    run_until_current(file)
    assert_equal(postgres_url, file)
