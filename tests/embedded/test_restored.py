"""A server that was put back from a backup is not the one that was read, also in the middle of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from support.streams import taken
from tailrace import SourceChanged
from tailrace.checkpoints.memory import MemoryStore
from tailrace.testing.postgres import PostgresServer, execute

pytestmark = pytest.mark.server


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.start() as server:
        execute(
            server.url,
            "CREATE TABLE items (id int PRIMARY KEY, name text)",
            "CREATE PUBLICATION tailrace_embedded FOR TABLE items",
            "INSERT INTO items SELECT i, repeat('x', 500) FROM generate_series(1, 60) i",
            "SELECT pg_create_logical_replication_slot('tailrace_embedded', 'pgoutput')",
        )
        yield server


@pytest.mark.parametrize("count", [0, 30])
def test_a_backup_that_is_restored_while_tables_are_copied_is_noticed(
    server: PostgresServer, store: MemoryStore, tmp_path: Path, count: int
) -> None:
    """Transactions of the new life have the numbers of those that the copy's snapshot saw: they would be left out."""
    server.save(tmp_path / "backup")
    execute(server.url, "INSERT INTO items VALUES (100)", *["CREATE TABLE t (i int)", "DROP TABLE t"] * 5)
    with tailrace.capture(server.url, "public.items", checkpoint=store, chunk_bytes=8192) as stream:
        feed = stream._feed
        taken(stream, 15)
        while feed.live.pump.identity.newest == "":  # not all of it has come
            stream.poll(0.1)
        taken(stream, 15)
    server.restore(tmp_path / "backup")
    execute(server.url, *(f"INSERT INTO items VALUES ({id_})" for id_ in range(200, 200 + count)))
    with pytest.raises(SourceChanged, match="restored from a backup"):
        tailrace.capture(server.url, "public.items", checkpoint=store, chunk_bytes=8192).start()
