"""Rows of a megabyte, and one value of many: what they cost each process of a pipeline, in one life of it.

They are copied and streamed, in many transactions and in one, into two sinks at once. What counts is the most memory
that Linux has seen a process hold (VmHWM), so it does not matter how busy the machine is. `make large` takes more rows
and a larger value than `make test`.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from support.pipelines import RunningPipeline, position_of, write_pipeline
from tailrace import config, registry
from tailrace.config import load
from tailrace.errors import SinkError
from tailrace.model.lifecycle import TableState
from tailrace.sources.postgres import copy_stream as copying
from tailrace.sources.postgres.positions import reached
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

IS_FULL = bool(os.environ.get("TAILRACE_LARGE"))
MB = 1_000_000
ROWS = 600 if IS_FULL else 100  # of a megabyte, in each of three ways
HUGE = 200 * MB if IS_FULL else 100 * MB

ROLES = {
    "tailrace.pipeline.capture_process": "capture",
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "tailrace.spark.daemon": "worker",
    "tailrace.cli.main": "driver",
}


class Peaks:
    """The most memory that a process of each kind has held since `begin`, in bytes."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most: dict[str, int] = {}
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def begin(self) -> None:
        for member in self._family():
            with suppress(OSError):
                Path(f"/proc/{member.pid}/clear_refs").write_text("5")  # forget the most so far
        self._most = {}

    def most(self) -> dict[str, int]:
        self._look()
        return dict(self._most)

    def end(self) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        """Workers come and go: of those that are gone we know what was seen last."""
        while not self._ended.wait(0.1):
            self._look()

    def _look(self) -> None:
        for member in self._family():
            with suppress(psutil.Error, OSError):
                command = " ".join(member.cmdline())
                status = Path(f"/proc/{member.pid}/status").read_text()
                for mark, role in ROLES.items():
                    if mark in command:
                        [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
                        self._most[role] = max(self._most.get(role, 0), int(kilobytes) * 1024)
                        break

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._pid)
            return [parent, *parent.children(recursive=True)]
        return []


def has_reached(file: Path, sink: str, position: str) -> bool:
    with closing(registry.make_sink(load(file), sink)) as replica, suppress(SinkError):
        state = replica.read_state()
        is_live = len(state.tables) == 2 and all(t.state is TableState.LIVE for t in state.tables.values())
        return is_live and state.watermark is not None and reached(state.watermark.position, position)
    return False


@contextmanager
def measured(pipeline: RunningPipeline, peaks: Peaks, file: Path, url: str, found: dict[str, Any], name: str) -> Any:
    """What happens inside, until all sinks have it; the peaks are in `found` afterwards."""
    peaks.begin()
    yield
    end = position_of(url)
    pipeline.wait_for(lambda: all(has_reached(file, s, end) for s in ("lite", "pg")), f"{name} to arrive", seconds=900)
    found[name] = peaks.most()


def add_rows(connection: psycopg.Connection[Any], first: int, together: int) -> None:
    """ROWS rows that can not be made smaller, so many of them in a transaction."""
    for start in range(first, first + ROWS, together):
        with connection.transaction():
            for number in range(start, min(start + together, first + ROWS)):
                connection.execute("INSERT INTO documents VALUES (%s, %b)", [number, os.urandom(MB)])


def add_huge(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute("INSERT INTO huge VALUES (%s, repeat(%s, %s))", [number, os.urandom(MB // 2).hex(), HUGE // MB])


def lived(url: str, target: str, folder: Path) -> dict[str, dict[str, int]]:
    file = write_pipeline(folder, url, {"lite": f"sqlite:///{folder}/replica.db", "pg": target})
    found: dict[str, dict[str, int]] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE documents (id int PRIMARY KEY, body bytea STORAGE EXTERNAL)")
        connection.execute("CREATE TABLE huge (id int PRIMARY KEY, body text STORAGE EXTERNAL)")
        add_rows(connection, 1, 10)
        add_huge(connection, 1)
        with RunningPipeline(file) as pipeline:
            peaks = Peaks(pipeline.process.pid)
            during = lambda name: measured(pipeline, peaks, file, url, found, name)  # noqa: E731
            with during("copy"):
                pass
            with during("many transactions"):
                add_rows(connection, 10_000, 1)
            with during("one transaction"):
                add_rows(connection, 20_000, ROWS)
            with during("huge"):
                add_huge(connection, 2)
            peaks.end()
            assert pipeline.stop() == 0, pipeline.output
            assert not pipeline.said("capture-restart"), pipeline.output
    return found


@pytest.fixture(scope="module")
def life(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    names = [f"large_{os.getpid()}_{kind}" for kind in ("source", "target")]
    url, target = map(postgres_server.create_database, names)
    folder = tmp_path_factory.mktemp("large")
    try:
        found = lived(url, target, folder)
        for name, most in found.items():
            print(name, {role: round(size / MB) for role, size in sorted(most.items())})
        yield found, url, target, folder / "replica.db"
    finally:
        for name in names:
            postgres_server.drop_database(name)


def over(most: dict[str, int], **limits: int) -> dict[str, int]:
    """The processes that held more than they may, in megabytes."""
    return {role: size // MB for role, size in most.items() if size > limits[role] * MB}


@pytest.mark.long
def test_rows_of_a_megabyte_and_a_huge_value_are_copied_in_the_memory_of_the_value(life: Any) -> None:
    value = HUGE // MB
    assert over(life[0]["copy"], driver=250, capture=230, worker=250 + 2 * value, jvm=800) == {}


@pytest.mark.long
@pytest.mark.parametrize("phase", ["many transactions", "one transaction"])
def test_rows_of_a_megabyte_take_the_memory_of_some_of_them(life: Any, phase: str) -> None:
    assert over(life[0][phase], driver=250, capture=230, worker=340, jvm=800) == {}


@pytest.mark.long
def test_a_huge_value_is_held_twice_in_each_process_and_not_more(life: Any) -> None:
    """Capture: libpq's buffer, the message from it. Worker: the value, SQLite's record of it. Driver: SQLite's own."""
    twice = 2 * HUGE // MB
    assert over(life[0]["huge"], driver=250 + twice, capture=250 + twice, worker=240 + twice, jvm=800) == {}


@pytest.mark.long
def test_all_of_them_arrive_as_they_are(life: Any) -> None:
    _, url, target, path = life
    for table, count in (("documents", 3 * ROWS), ("huge", 2)):
        digests = f"SELECT id, md5(body) FROM {table} ORDER BY id".encode()
        with psycopg.connect(url) as source, psycopg.connect(target) as replica:
            wanted = source.execute(digests).fetchall()
            assert replica.execute(digests).fetchall() == wanted
        with closing(sqlite3.connect(path)) as replica:
            rows = replica.execute(f"SELECT id, body FROM {table} ORDER BY id")
            assert [(number, digest(body)) for number, body in rows] == wanted
        assert len(wanted) == count


def test_a_chunk_counts_the_large_values_of_its_pages_too(postgres_url: str) -> None:
    source = PostgresSource(config.Pipeline("chunks", config.Source(postgres_url, ("public.items",)), {}))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, inside text, outside text STORAGE EXTERNAL)")
        connection.execute(
            "INSERT INTO items SELECT n, repeat('a', 1500), repeat('b', 100000) FROM generate_series(1, 100) n"
        )
    [schema] = source.tables() if source.prepare() else []
    chunks = source.plan_snapshot(schema, MB)
    with source.export_snapshot() as snapshot:
        batches = [list(source.read_chunk(schema, chunk, snapshot.id)) for chunk in chunks]
    source.drop()
    assert sorted(number for each in batches for b in each for number in b["id"].to_pylist()) == list(range(1, 101))
    assert max(sum(batch.nbytes for batch in each) for each in batches) < 1.2 * MB
    assert 10 * MB < sum(chunk.bytes for chunk in chunks) < 11 * MB


def test_large_rows_come_through_libpq_as_they_are(postgres_url: str) -> None:
    """The way that an encrypted connection takes."""
    sizes = [10, 5 * MB, 10, 20 * MB, 20 * MB, 100]
    values = ", ".join(f"({place}, repeat('x', {size}))" for place, size in enumerate(sizes))
    command = f"COPY (SELECT t FROM (VALUES {values}) v (n, t) ORDER BY n) TO STDOUT (FORMAT binary)"
    with psycopg.connect(postgres_url) as connection:
        found = [
            (rows.ends - rows.starts - 6).tolist() for rows in copying._through_libpq(connection, command.encode())
        ]
    assert found == [[10], [5 * MB], [10], [20 * MB], [20 * MB], [100]]


def digest(body: bytes | str) -> str:
    return hashlib.md5(body.encode() if isinstance(body, str) else body).hexdigest()
