"""Latency, from a commit's return in the source to the moment when a reader of a sink can see it."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

import msgspec
import numpy as np
import psycopg

TABLE: LiteralString = "ticks"
COLUMNS: LiteralString = "id bigint PRIMARY KEY, written_at timestamptz"
INSERT: LiteralString = "INSERT INTO ticks SELECT i, clock_timestamp() FROM generate_series(%s::bigint, %s::bigint) i"
PATIENCE = 60.0

Sightings = list[tuple[int, float]]
"""(the highest id that was readable, when)."""


class Latencies(msgspec.Struct):
    """Seconds from commit to readable, one for each change after the warm-up."""

    seconds: list[float]
    changes: int
    rate: float
    slowest_commit: float

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.seconds, percent))


class Writer(threading.Thread):
    """Inserts at a steady rate, in transactions of a few rows, and remembers when each commit had returned."""

    def __init__(self, url: str, rate: int, per_transaction: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self.commits: list[tuple[int, float]] = []  # last id of the transaction, time of its commit
        self.slowest_commit = 0.0
        self.problem: Exception | None = None
        self._url, self._pause, self._size = url, per_transaction / rate, per_transaction
        self._transactions = round(rate * seconds / per_transaction)

    def run(self) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                began = time.monotonic()
                for number in range(self._transactions):
                    time.sleep(max(0.0, began + number * self._pause - time.monotonic()))
                    self._commit(connection, number)
        except psycopg.Error as error:
            self.problem = error

    def _commit(self, connection: psycopg.Connection, number: int) -> None:
        last = (number + 1) * self._size
        sent = time.monotonic()
        connection.execute(INSERT, [last - self._size + 1, last])
        self.commits.append((last, time.monotonic()))
        self.slowest_commit = max(self.slowest_commit, self.commits[-1][1] - sent)


def make_ticks(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")


def measure(
    url: str,
    watch: Callable[[Writer, int, float], Sightings],
    *,
    rate: int = 500,
    per_transaction: int = 5,
    seconds: float = 30,
    warm_up: float = 10,
) -> Latencies:
    """Write for `warm_up + seconds` while `watch` looks at the sink; a pipeline must be running from one to the other.

    One writer, and a sink that shows transactions in order: an id is readable once a higher one is. `watch` is given
    the writer, the last id to see, and for how many seconds it may see nothing new.
    """
    writer = Writer(url, rate, per_transaction, warm_up + seconds)
    total = round(rate * (warm_up + seconds) / per_transaction) * per_transaction
    began = time.monotonic()
    writer.start()
    sightings = watch(writer, total, PATIENCE)
    took = writer.commits[-1][1] - began
    skipped = round(rate * warm_up)
    ids, commits = (np.array(column) for column in zip(*writer.commits, strict=True))
    seen_ids, seen_at = (np.array(column) for column in zip(*sightings, strict=True))
    measured = ids > skipped
    waited = seen_at[np.searchsorted(seen_ids, ids[measured])] - commits[measured]
    return Latencies(np.repeat(waited, per_transaction).tolist(), total, total / took, writer.slowest_commit)


def watch_replica(replica: Path, writer: Writer, last: int, patience: float) -> Sightings:
    """(highest id readable, time) each time that it grew, polled every 5 ms until `last` is readable."""
    sightings: Sightings = []
    highest, moved = 0, time.monotonic()
    with contextlib.closing(sqlite3.connect(f"file:{replica}?mode=ro", uri=True, isolation_level=None)) as reader:
        while highest < last:
            found = reader.execute(f"SELECT max(id) FROM {TABLE}").fetchone()[0] or 0
            now = time.monotonic()
            if found > highest:
                highest, moved = found, now
                sightings.append((found, now))
            elif writer.problem or now - moved > patience:
                raise RuntimeError(f"the replica stands at {highest} of {last}") from writer.problem
            time.sleep(0.005)
    return sightings
