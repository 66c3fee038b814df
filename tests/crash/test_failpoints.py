"""A pipeline killed at any step ends equal to its source: real processes, real SIGKILL, compared by content."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace import failpoints
from tailrace.testing import content, hot
from tailrace.testing.pipelines import RunningPipeline, run_until_current, write_pipeline

IN_CAPTURE = {
    "log-segment-written",
    "log-segment-synced",
    "log-segment-published",
    "capture-before-acknowledge",
    "capture-after-acknowledge",
}
IN_TASKS = {"chunk-before-load", "chunk-loaded"}


@pytest.mark.parametrize("failpoint", sorted(failpoints.ALL))
def test_a_pipeline_killed_at_any_step_ends_equal_to_its_source(
    failpoint: str, postgres_url: str, tmp_path: Path
) -> None:
    hot.create(postgres_url)
    hot.run(postgres_url, seed=11, transactions=150)
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    once = tmp_path / "fired"
    armed = failpoints.environment(failpoint, once=str(once))

    workload = hot.HotWorkload.start(postgres_url, rate=100, seed=12)
    pipeline = RunningPipeline(file, environment=armed)
    pipeline.wait_for(lambda: once.exists() or pipeline.process.poll() is not None, f"{failpoint} to be reached")
    assert once.exists(), pipeline.output
    if failpoint in IN_CAPTURE | IN_TASKS:
        pipeline.wait_until_live()
        assert pipeline.stop() == 0, pipeline.output
    else:
        assert pipeline.ended() == -9, pipeline.output
    workload.stop()

    run_until_current(file)
    content.assert_same(content.sqlite_differences(postgres_url, tmp_path / "replica.db"))
