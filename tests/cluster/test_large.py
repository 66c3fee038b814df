"""A table of two million rows on a cluster whose workers share nothing with the driver but an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cluster.conftest import PASSWORD
from support.cluster import EventLog, StandaloneCluster
from support.pipelines import Replica, RunningPipeline, write_pipeline
from support.stores import object_store
from tailrace.testing import content

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.crash, pytest.mark.long]

ROWS = 2_000_000
WAIT = 2400.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": PASSWORD}


@pytest.fixture
def state() -> Iterator[str]:
    """Without credentials: whoever reads it has them in his environment."""
    with object_store() as address:
        yield address("large").replace("key:secret@", "")


def load(url: str, rows: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE readings (id bigint PRIMARY KEY, at timestamptz, level numeric, note text)")
        values = (
            "n, timestamptz '2026-01-01Z' + n * interval '1 s', (n * 7919::bigint % 100000) / 100.0, 'weir ' || n % 977"
        )
        connection.execute(f"INSERT INTO readings SELECT {values} FROM generate_series(1, {rows}) n".encode())


def test_both_workers_copy_two_million_rows_and_one_of_them_is_killed(
    cluster: StandaloneCluster, databases: tuple[str, str], folder: Path, state: str
) -> None:
    source, sink = databases
    load(source, ROWS)
    events = EventLog(folder / "events")
    given = {f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()}
    file = write_pipeline(
        folder / "run",
        source,
        {"replica": sink, "nowhere": "null://"},
        state=state,
        source={"snapshot": {"chunk_bytes": 4 << 20}},
        spark={"master": cluster.master, "conf": cluster.conf | events.conf | given},
    )
    with RunningPipeline(file, "--until-current", environment=cluster.environment | CREDENTIALS) as pipeline:
        pipeline.wait_for(Replica(file).is_copying, "the copy to be under way", WAIT)
        cluster.kill_worker(next(iter(cluster.workers)))
        cluster.start_worker()
        assert pipeline.ended(WAIT) == 0, pipeline.output
    assert len(events.workers_of("snapshots of large tables", done=False)) >= 2
    content.assert_same(content.postgres_differences(source, sink))
