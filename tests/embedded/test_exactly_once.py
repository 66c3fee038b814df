"""The checkpoint in the consumer's own transaction: its rows and its place are committed together, or neither is."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE
from tailrace import Misuse, failpoints
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

IDS = list(range(1, 61))


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)")
    return postgres_url


def insert(url: str, ids: list[int]) -> None:
    execute(url, *(f"INSERT INTO items VALUES ({id_})" for id_ in ids))


def mine(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "mine.db", isolation_level=None, timeout=60)
    connection.execute("CREATE TABLE IF NOT EXISTS copied (id INTEGER)")
    return connection


def copied(folder: Path) -> list[int]:
    with closing(mine(folder)) as connection:
        return [id_ for (id_,) in connection.execute("SELECT id FROM copied ORDER BY rowid")]


def write(batch: tailrace.Batch, connection: sqlite3.Connection, *, commits: bool = True) -> None:
    connection.execute("BEGIN IMMEDIATE")
    rows = [(event.after["id"],) for event in batch.events() if event.after]
    connection.executemany("INSERT INTO copied VALUES (?)", rows)
    batch.ack(within=connection)
    connection.execute("COMMIT" if commits else "ROLLBACK")


def test_rows_and_place_are_committed_together(url: str, tmp_path: Path) -> None:
    options = {"checkpoint": f"sqlite:///{tmp_path}/mine.db", "snapshot": "never"}
    with closing(mine(tmp_path)) as connection, tailrace.capture(url, **options) as stream:  # type: ignore[arg-type]
        insert(url, [1])
        first = stream.poll(PATIENCE)
        assert first is not None
        write(first, connection, commits=False)
        again = stream.poll(PATIENCE)
        assert again is not None
        assert list(again.events()) == list(first.events())
        with pytest.raises(Misuse):
            first.ack()
        write(again, connection)
        with pytest.raises(Misuse):
            again.ack(within=connection)
        insert(url, [2])
        second = stream.poll(PATIENCE)
        assert second is not None
        write(second, connection)
        position = second.position
        stream.stop()
        assert stream.checkpoint.events == 2
    assert copied(tmp_path) == [1, 2]
    with psycopg.connect(url) as source:
        assert source.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchall() == [(position,)]


CONSUMER = """
import json, sys
from pathlib import Path
import tailrace
from embedded_exactly_once import mine, write
folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
connection = mine(folder)
with tailrace.capture(**options) as stream:
    while (batch := stream.poll(3)) is not None:
        write(batch, connection)
"""


def consume(folder: Path, url: str, environment: dict[str, str]) -> int:
    import os

    (folder / "embedded_exactly_once.py").write_text(Path(__file__).read_text())
    options = json.dumps({"url": url, "checkpoint": f"sqlite:///{folder}/mine.db", "snapshot": "never"})
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-c", CONSUMER, folder, options],
        env={**os.environ, **environment, "PYTHONPATH": path},
        timeout=10 * PATIENCE,
        check=False,
    ).returncode


@pytest.mark.crash
@pytest.mark.parametrize(
    "failpoint",
    ["embedded-before-checkpoint", "embedded-checkpoint-saved", "embedded-before-source-told", "embedded-source-told"],
)
def test_a_consumer_that_is_killed_has_every_row_exactly_once(url: str, tmp_path: Path, failpoint: str) -> None:
    assert consume(tmp_path, url, {}) == 0
    insert(url, IDS[:40])
    assert consume(tmp_path, url, failpoints.environment(failpoint, nth=1)) == -signal.SIGKILL
    insert(url, IDS[40:])
    assert consume(tmp_path, url, {}) == 0
    assert copied(tmp_path) == IDS
