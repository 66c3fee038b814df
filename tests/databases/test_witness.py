"""A server that was started anew: its log is the one that was read, or another that has come as far by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from support.pipelines import position_of
from tailrace import config
from tailrace.errors import SourceChanged
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.postgres.positions import reached
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

PAST = 4 << 20
"""Bytes of log that take another past surely beyond what was read."""


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, version=request.param, settings=FAST) as started:
        execute(started.url, "CREATE TABLE items (id int PRIMARY KEY)", "CREATE TABLE aside (t text)")
        yield started


class Reader:
    """Captures as a pipeline does, and remembers what its log would."""

    def __init__(self, url: str) -> None:
        self.source = PostgresSource(config.Pipeline("under_test", config.Source(url, ("public.items",)), {}))
        self.url, self.position = url, self.source.prepare()
        self.known: SourceIdentity | None = None
        self.transactions = 0

    def read(self, *, acknowledge: bool = False) -> None:
        """Up to the server's present end."""
        end, deadline = position_of(self.url), time.monotonic() + 60
        with closing(self.source.capture(self.position, 1, {}, self.known)) as capture:
            while not reached(capture.received, end) or capture.pending_bytes:
                assert time.monotonic() < deadline
                capture.poll(0.1)
                if taken := capture.take():
                    self.position = taken[1]
                    table = taken[0].transactions.to_pylist()
                    self.transactions += sum(row["xid"] > 0 and row["end"] > 0 for row in table)
            self.known = capture.identity
            self.position = capture.received
            if acknowledge:
                capture.acknowledge(self.position)
                capture.poll(0.1)

    def check(self) -> None:
        assert self.known is not None
        self.source.check_same(self.known, self.position)


def go_on(url: str, first: int, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for n in range(first, first + count):
            connection.execute("INSERT INTO items VALUES (%s)", [n])


def write_aside(url: str) -> None:
    execute(url, f"INSERT INTO aside SELECT repeat('x', 1000) FROM generate_series(1, {PAST // 1000})")


def test_a_server_that_crashed_or_was_stopped_goes_on_and_sends_nothing_twice(server: PostgresServer) -> None:
    reader = Reader(server.url)
    go_on(server.url, 1, 3)
    reader.read()
    assert reader.transactions == 3
    for end in (server.kill, lambda: None):
        end()
        server.restart()
        reader.check()
        reader.read()
    assert reader.transactions == 3
    write_aside(server.url)  # what was read reaches beyond the last transaction
    reader.read(acknowledge=True)
    server.restart()
    go_on(server.url, 4, 2)
    reader.check()
    reader.read()
    assert reader.transactions == 5


def test_a_server_that_has_not_been_started_since_is_not_asked_again(server: PostgresServer) -> None:
    reader = Reader(server.url)
    go_on(server.url, 1, 1)
    reader.read()
    assert reader.known is not None
    xid, time_us, commit = reader.known.newest.split()
    reader.known = msgspec.structs.replace(reader.known, newest=f"{xid} {time_us} {int(commit) + 1}")
    reader.check()
    server.restart()
    with pytest.raises(SourceChanged, match=f"transaction {xid} at .* is not in its log"):
        reader.check()


@pytest.mark.parametrize("acknowledge", [False, True])
@pytest.mark.parametrize("is_idle", [False, True])
def test_a_copy_that_has_come_as_far_by_itself_is_another_server(
    server: PostgresServer, tmp_path: Path, acknowledge: bool, is_idle: bool
) -> None:
    """Whether we had read transactions that it lacks, or only that there were none where it has some."""
    reader = Reader(server.url)
    go_on(server.url, 1, 3)
    reader.read(acknowledge=acknowledge)
    server.save(tmp_path / "copy")
    if is_idle:
        write_aside(server.url)
    else:
        go_on(server.url, 10, 5)
    reader.read()
    server.restore(tmp_path / "copy")
    go_on(server.url, 100, 20)
    for _ in range(2):
        write_aside(server.url)
    go_on(server.url, 200, 20)
    for act in (reader.check, reader.read):
        with pytest.raises(SourceChanged, match="it was restored from a backup"):
            act()
