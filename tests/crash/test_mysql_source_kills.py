"""SIGKILL of a pipeline that reads MySQL or MariaDB, and the loss of its state, in each phase: it ends equal."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from support import mysql_workload
from support.failpoint_chains import OF_CAPTURE, OF_TASKS, OF_THE_DRIVER
from support.moved_rows import SLOW_COPY
from support.mysql_sources import start_mysql
from support.mysql_workload import Workload
from support.pipelines import Replica, RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace import failpoints
from tailrace.testing.plugin import requires

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]

PHASES = {"snapshot": Replica.is_copying, "catch-up": Replica.is_catching_up, "live": Replica.is_live}


@pytest.fixture
def file(logged_url: str, tmp_path: Path) -> Path:
    mysql_workload.create(logged_url)
    mysql_workload.run(logged_url, seed=21, transactions=250)
    return written(logged_url, tmp_path)


def written(url: str, folder: Path) -> Path:
    sink = {"url": f"sqlite:///{folder}/replica.db", "max_rows": 150}
    return write_pipeline(folder, url, {"replica": sink}, source={"snapshot": {"chunk_bytes": 8192}})


def assert_equal(file: Path) -> None:
    ended = tailrace("verify", file)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("logging", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)], indirect=True)
def test_a_pipeline_killed_without_its_state_in_the_middle_ends_equal(logged_url: str, file: Path) -> None:
    """Killed while it copies, its state deleted; then killed while it is live."""
    replica = Replica(file)
    with Workload(logged_url, seed=22, rate=20):
        with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
            pipeline.wait_for(replica.is_copying, "chunks to be copied")
            pipeline.kill()
        shutil.rmtree(file.parent / "state")
        with RunningPipeline(file) as pipeline:
            pipeline.wait_for(replica.is_live, "tables to be live")
            pipeline.kill_capture()
            pipeline.wait_for(lambda: pipeline.said("capture-restart"), "its restart")
            pipeline.kill()
    run_until_current(file)
    assert_equal(file)


@pytest.mark.long
def test_a_driver_killed_in_every_phase_ends_equal_to_its_source(logged_url: str, file: Path) -> None:
    replica = Replica(file)
    with Workload(logged_url, seed=23, rate=40):
        for phase, is_reached in PHASES.items():
            with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill()
    run_until_current(file)
    assert_equal(file)


@pytest.mark.long
def test_a_driver_killed_at_any_step_ends_equal_to_its_source(logged_url: str, file: Path) -> None:
    once = str(file.with_name("once"))
    with Workload(logged_url, seed=28, rate=40):
        for name in OF_THE_DRIVER:
            if name == "table-live":  # the step before may have been the last one: the tables begin anew
                for path in file.parent.glob("replica.db*"):
                    path.unlink()
            with RunningPipeline(file, environment=failpoints.environment(name, once=once)) as pipeline:
                assert pipeline.ended() == -9, (name, pipeline.output)
            assert failpoints.fired(name, once)
    run_until_current(file)
    assert_equal(file)


@pytest.mark.long
def test_processes_of_a_pipeline_killed_at_any_step_are_replaced(logged_url: str, tmp_path: Path) -> None:
    """The capture process and the tasks: the run goes on, with others in their place."""
    mysql_workload.create(logged_url)
    mysql_workload.run(logged_url, seed=29, transactions=150)
    replica = {"replica": f"sqlite:///{tmp_path}/replica.db"}
    file = write_pipeline(tmp_path, logged_url, replica, log={"keep": "1 d"})  # history is there to be merged
    once, names = str(tmp_path / "once"), (*OF_CAPTURE, *OF_TASKS)
    armed = failpoints.together(*(failpoints.environment(name, once=once) for name in names))
    with Workload(logged_url, seed=30, rate=40), RunningPipeline(file, environment=armed) as pipeline:
        for name in names:
            pipeline.wait_for(partial(failpoints.fired, name, once), f"{name} to be reached")
        pipeline.wait_for(Replica(file).is_live, "tables to be live")
        assert pipeline.stop() == 0, pipeline.output
    run_until_current(file)
    assert_equal(file)


@pytest.mark.long
def test_the_state_directory_may_be_deleted_in_every_phase_and_so_may_the_replica(logged_url: str, file: Path) -> None:
    replica = Replica(file)
    with Workload(logged_url, seed=24, rate=40):
        for phase, is_reached in PHASES.items():
            with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill()
            shutil.rmtree(file.parent / "state")
    run_until_current(file)
    assert_equal(file)
    for path in file.parent.glob("replica.db*"):
        path.unlink()
    run_until_current(file)
    assert_equal(file)


@pytest.mark.long
def test_a_server_that_is_killed_and_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    with requires(start_mysql) as server:
        url = server.create_database("crashing")
        mysql_workload.create(url)
        mysql_workload.run(url, seed=25, transactions=100)
        file = written(url, tmp_path)
        with RunningPipeline(file) as pipeline:
            pipeline.wait_for(Replica(file).is_live, "tables to be live")
            mysql_workload.run(url, seed=26, transactions=50)
            server.kill()
            server.restart()
            mysql_workload.run(url, seed=27, transactions=50)
            pipeline.wait_for(lambda: pipeline.said("progress"), "progress")
            assert pipeline.stop(120) == 0, pipeline.output
        run_until_current(file)
        assert_equal(file)
