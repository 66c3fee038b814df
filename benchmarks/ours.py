"""tailrace's side of each benchmark: thin adapters onto the product, which the suite calls and times.

Each returns its own seconds, without what its peer does not pay either: starting a JVM or a Spark session.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Never

from benchmarks.backlog import Backlog


def prepare_streams(url: str) -> None:
    """Called on the empty table, before the backlog is made: a place to bring a pipeline to life first."""


def capture(backlog: Backlog, slot: str, log: Path) -> float:
    """Capture the whole backlog into a change log in `log`."""
    raise NotImplementedError


def decode(messages: Sequence[bytes]) -> float:
    """Decode messages, packed beforehand as the change log holds them, into typed Arrow columns."""
    raise NotImplementedError


def stream_to_null(backlog: Backlog, slot: str, state: Path) -> float:
    """Capture, decode and net the whole backlog, and write nothing."""
    raise NotImplementedError


def stream_to_sqlite(backlog: Backlog, slot: str, state: Path, replica: Path) -> float:
    """The whole backlog into table `measured` of the SQLite file `replica`."""
    raise NotImplementedError


def stream_to_postgres(backlog: Backlog, slot: str, state: Path, target_url: str) -> float:
    """The whole backlog into table `measured` of another PostgreSQL server."""
    raise NotImplementedError


def snapshot_to_null(url: str, table: str, connections: int) -> float:
    """Read a table as a snapshot does, to Arrow, by `connections` tasks, and write nothing."""
    raise NotImplementedError


def snapshot_to_sqlite(url: str, table: str, connections: int, state: Path, replica: Path) -> float:
    """The snapshot of a table into the SQLite file `replica`."""
    raise NotImplementedError


def snapshot_to_postgres(url: str, table: str, connections: int, state: Path, target_url: str) -> float:
    """The snapshot of a table into another PostgreSQL server."""
    raise NotImplementedError


@contextlib.contextmanager
def live_pipeline(url: str, table: str, state: Path, replica: Path) -> Iterator[None]:
    """A pipeline that is live, from one table into the SQLite file `replica`, for as long as the block runs."""
    yield not_yet(url, table, state, replica)


@contextlib.contextmanager
def capture_process(url: str, publication: str, slot: str, log: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """A running capture: its process id, and a function that returns when it has all that was committed before."""
    yield not_yet(url, publication, slot, log)


def not_yet(*_: object) -> Never:
    raise NotImplementedError
