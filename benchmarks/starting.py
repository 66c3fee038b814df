"""From `tailrace run` to the first row in the sink, and from `kill -9` to a sink that is current again."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import msgspec
import psycopg

from support.pipelines import RunningPipeline, write_pipeline

TABLE: LiteralString = "starts"
PATIENCE = 180.0


class Starts(msgspec.Struct):
    """Seconds, one a turn. The first start of all is not among them: it makes the archive of Spark's classes."""

    start: list[float] = []
    restart: list[float] = []


def measure(url: str, folder: Path, turns: int) -> Starts:
    """Lives of one pipeline into SQLite, ended by SIGTERM and by SIGKILL in turn; a row waits for each."""
    found, replica = Starts(), folder / "replica.db"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} (id serial PRIMARY KEY)")
        file = write_pipeline(folder, url, {"sink": f"sqlite:///{replica}"}, tables=[f"public.{TABLE}"])
        with _life(file):
            _until_there(replica, _insert(connection))
        for _ in range(turns):
            found.start.append(_turn(connection, file, replica, kill=True))
            found.restart.append(_turn(connection, file, replica, kill=False))
    return found


def _turn(connection: psycopg.Connection, file: Path, replica: Path, *, kill: bool) -> float:
    """One life, to the first row. A life that is to be killed is at work when it is."""
    row = _insert(connection)
    began = time.monotonic()
    with _life(file) as pipeline:
        _until_there(replica, row)
        seconds = time.monotonic() - began
        if kill:
            _insert(connection)
            pipeline.kill()
    return seconds


@contextlib.contextmanager
def _life(file: Path) -> Iterator[RunningPipeline]:
    with RunningPipeline(file) as pipeline:
        yield pipeline
        if pipeline.process.poll() is None:
            pipeline.stop()


def _insert(connection: psycopg.Connection) -> int:
    row = connection.execute(f"INSERT INTO {TABLE} DEFAULT VALUES RETURNING id").fetchone()
    assert row is not None
    return int(row[0])


def _until_there(replica: Path, row: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _has(replica, row):
        if time.monotonic() > deadline:
            raise RuntimeError(f"row {row} has not arrived in {PATIENCE:g} s")
        time.sleep(0.01)


def _has(replica: Path, row: int) -> bool:
    if not replica.exists():
        return False
    with contextlib.closing(sqlite3.connect(f"file:{replica}?mode=ro", uri=True)) as reader:
        try:
            return reader.execute(f"SELECT 1 FROM {TABLE} WHERE id = ?", [row]).fetchone() is not None
        except sqlite3.OperationalError:  # it is not made yet
            return False
