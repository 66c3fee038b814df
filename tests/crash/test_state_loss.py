"""The state directory is disposable; a place that the source itself has forgotten is not, and is refused loudly."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from support import hot
from support.hot import HotWorkload
from support.moved_rows import SLOW_COPY
from support.pipelines import Replica, RunningPipeline, run_until_current, tailrace, write_pipeline
from tailrace.testing import content
from tailrace.testing.postgres import execute

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.server]

PHASES = {"snapshot": Replica.is_copying, "catch-up": Replica.is_catching_up, "live": Replica.is_live}
SLOT = "tailrace_under_test"


def assert_equal(url: str, file: Path) -> None:
    content.assert_same(content.sqlite_differences(url, file.parent / "replica.db"))


@pytest.mark.long
def test_the_state_directory_may_be_deleted_in_every_phase_and_so_may_the_replica(
    postgres_url: str, tmp_path: Path
) -> None:
    hot.create(postgres_url)
    hot.run(postgres_url, seed=31, transactions=250)
    sink = {"url": f"sqlite:///{tmp_path}/replica.db", "max_rows": 150}
    file = write_pipeline(tmp_path, postgres_url, {"replica": sink}, source={"snapshot": {"chunk_bytes": 8192}})
    replica = Replica(file)
    with HotWorkload.start(postgres_url, rate=40, seed=32):
        for phase, is_reached in PHASES.items():
            with RunningPipeline(file, environment=SLOW_COPY) as pipeline:
                pipeline.wait_for(partial(is_reached, replica), phase)
                pipeline.kill()
            shutil.rmtree(tmp_path / "state")
    run_until_current(file)
    assert_equal(postgres_url, file)

    hot.run(postgres_url, seed=33, transactions=50)
    shutil.rmtree(tmp_path / "state" / "log")
    run_until_current(file)
    assert_equal(postgres_url, file)

    for path in tmp_path.glob("replica.db*"):  # and now the other way round: the state is there, the replica is not
        path.unlink()
    run_until_current(file)
    assert_equal(postgres_url, file)


def everything_in(path: Path) -> list[str]:
    """All that a SQLite file holds, our own notes included."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return list(connection.iterdump())


def watermarks_in(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        [count] = connection.execute("SELECT count(*) FROM _tailrace_watermarks").fetchone()
    return int(count)


def assert_refused(file: Path, who: str) -> None:
    """`run` ends with the sentence about a lost position, and has changed nothing in the sink."""
    before = everything_in(file.parent / "replica.db")
    ended = tailrace("run", file, "--until-current")
    assert ended.returncode == 1, ended
    error, hint = ended.stderr.splitlines()
    assert error.startswith(f"error: {who} has the changes up to ")
    assert f"but replication slot {SLOT} begins at " in error
    assert error.endswith("what lies between is gone")
    assert hint.startswith("hint: run `tailrace drop` on this pipeline, then `tailrace run`")
    assert everything_in(file.parent / "replica.db") == before


def test_a_position_that_the_source_has_forgotten_is_refused_until_the_pipeline_is_dropped(
    postgres_url: str, tmp_path: Path
) -> None:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, v text)", "INSERT INTO items VALUES (1, 'one')")
    file = write_pipeline(tmp_path, postgres_url, {"replica": f"sqlite:///{tmp_path}/replica.db"})
    run_until_current(file)
    assert watermarks_in(file.parent / "replica.db") == 1  # though nothing has changed since

    execute(
        postgres_url,
        "INSERT INTO items VALUES (2, 'two')",
        f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())",
    )
    assert_refused(file, "the change log")
    shutil.rmtree(tmp_path / "state")
    assert_refused(file, "sink replica")
    execute(
        postgres_url,
        f"SELECT pg_drop_replication_slot('{SLOT}')",
        "UPDATE items SET v = 'uno' WHERE id = 1",
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')",
    )
    assert_refused(file, "sink replica")
    execute(postgres_url, f"SELECT pg_drop_replication_slot('{SLOT}')", "DELETE FROM items WHERE id = 2")
    assert_refused(file, "sink replica")

    dropped = tailrace("drop", file)
    assert dropped.returncode == 0, dropped
    assert "dropped what sink replica remembered" in dropped.stdout
    run_until_current(file)
    assert_equal(postgres_url, file)
