"""Memory is bounded and the source waits: transactions of any size, consumers of any slowness."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, taken
from tailrace import SourceUnavailable, StateUnavailable
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.status import Health
from tailrace.embedded.stream import Stream
from tailrace.sources.postgres.capture import PostgresCapture
from tailrace.sources.postgres.replication import BURST_BYTES
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

MIB = 1 << 20


def insert(url: str, first: int, last: int) -> None:
    """One transaction, of about 220 bytes a row."""
    execute(url, f"INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series({first}, {last}) i")


def ids(batch: tailrace.Batch) -> list[int]:
    return [event.after["id"] for event in batch.events() if event.after]


def small(url: str, store: MemoryStore, transactions: str) -> Stream:
    return tailrace.capture(url, checkpoint=store, snapshot="never", max_bytes=MIB, transactions=transactions)


def test_a_transaction_that_does_not_fit_into_memory_is_whole_and_spooled(url: str, store: MemoryStore) -> None:
    with small(url, store, "whole") as stream:
        insert(url, 1, 60_000)
        insert(url, 60_001, 60_001)
        batch = stream.poll(PATIENCE)
        assert batch is not None
        assert stream.status().spooled_bytes > 2 * MIB
        assert stream.status().buffered_bytes < MIB + BURST_BYTES + MIB
        assert ids(batch)[:60_000] == list(range(1, 60_001))
        assert sum(rows.num_rows for _, rows in batch.arrow()) == len(batch) >= 60_000
        numbers = [event.transaction.number for event in batch.events() if event.transaction]
        assert numbers[:60_000] == list(range(1, 60_001))
        assert {event.position for event in batch.events() if event.key != {"id": 60_001}} == {
            next(batch.events()).position
        }
        batch.ack()
        assert stream.status().spooled_bytes == 0
        stream.stop(force=True)


def test_a_transaction_that_may_be_split_comes_in_parts(url: str, store: MemoryStore) -> None:
    with small(url, store, "split") as stream:
        insert(url, 1, 20_000)
        found, numbers, of_table, batches = [], [], [], 0
        while len(found) < 20_000:
            batch = stream.poll(PATIENCE)
            assert batch is not None
            found += ids(batch)
            numbers += [event.transaction.number for event in batch.events() if event.transaction]
            of_table += [event.transaction.table_number for event in batch.events() if event.transaction]
            batches += 1
            assert stream.status().spooled_bytes == 0
            batch.ack()
        assert stream.checkpoint.skip in (0, 20_000)
    assert batches > 1
    assert found == numbers == of_table == list(range(1, 20_001))


@pytest.fixture
def halfway(url: str, store: MemoryStore) -> Iterator[tuple[Stream, list[int]]]:
    """A stream inside of a transaction: the first of its parts is acknowledged."""
    with small(url, store, "split") as stream:
        insert(url, 1, 20_000)
        batch = stream.poll(PATIENCE)
        assert batch is not None
        found = ids(batch)
        batch.ack()
        assert 0 < len(found) < 20_000
        assert stream.checkpoint.skip == len(found)
        yield stream, found


def test_a_stream_that_was_stopped_inside_of_a_transaction_goes_on_there(
    url: str, store: MemoryStore, halfway: tuple[Stream, list[int]]
) -> None:
    stream, found = halfway
    stream.stop(force=True)
    with small(url, store, "split") as again:
        found += [event.after["id"] for event in taken(again, 20_000 - len(found)) if event.after]
    assert found == list(range(1, 20_001))


def test_a_connection_that_is_cut_inside_of_a_transaction_goes_on_there(
    url: str, halfway: tuple[Stream, list[int]]
) -> None:
    stream, found = halfway
    execute(url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    found += [event.after["id"] for event in taken(stream, 20_000 - len(found)) if event.after]
    assert found == list(range(1, 20_001))


def test_a_part_of_a_part_is_accepted(url: str, store: MemoryStore, halfway: tuple[Stream, list[int]]) -> None:
    stream, found = halfway
    batch = stream.poll(PATIENCE)
    assert batch is not None
    found += ids(batch)[:7]
    batch.ack(prefix=7)
    assert stream.checkpoint.skip == len(found)
    stream.stop(force=True)
    with small(url, store, "split") as again:
        found += [event.after["id"] for event in taken(again, 20_000 - len(found)) if event.after]
    assert found == list(range(1, 20_001))


def test_the_source_waits_for_a_consumer_that_takes_nothing(url: str, store: MemoryStore) -> None:
    with small(url, store, "whole") as stream:
        for first in range(1, 60_000, 10_000):
            insert(url, first, first + 9_999)
        wait_until(lambda: stream.status().buffered_bytes >= MIB, seconds=PATIENCE, what="the buffer to be full")
        read = stream.status().received
        assert stream.status().buffered_bytes < 5 * MIB
        with psycopg.connect(url) as connection:
            query = "SELECT pg_current_wal_lsn() - %s::pg_lsn"
            [(left,)] = connection.execute(query, [read]).fetchall()
        assert left > 6 * MIB
        events = taken(stream, 60_000)
    assert [event.after["id"] for event in events if event.after] == list(range(1, 60_001))


def test_a_slow_consumer_does_not_lose_the_connection(url: str, store: MemoryStore) -> None:
    """The server cuts those off who do not answer for a second."""
    impatient = f"{url}?options={quote('-c wal_sender_timeout=1000')}"
    with small(impatient, store, "whole") as stream:
        for first in range(1, 20_000, 1000):
            insert(url, first, first + 999)
        wait_until(lambda: stream.status().buffered_bytes >= MIB, seconds=PATIENCE, what="the buffer to be full")
        batch = stream.poll(PATIENCE)
        assert batch is not None
        with psycopg.connect(url) as connection:  # for longer than the server waits
            connection.execute("SELECT pg_sleep(4)")
        assert stream.status().reconnects == 0
        assert stream.status().health == "healthy"
        found = ids(batch)
        batch.ack()
        found += [event.after["id"] for event in taken(stream, 20_000 - len(found)) if event.after]
    assert found == list(range(1, 20_001))


MEASURE = """
import json, resource, sys
import pyarrow, psycopg
import tailrace
from tailrace.embedded.api import capture
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with capture(sys.argv[1], snapshot="never", name="measured", max_bytes=4 << 20) as stream:
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute("INSERT INTO items VALUES (0, NULL)")
        batch = stream.poll(600); list(batch.events()); batch.ack()
        before = peak()
        connection.execute("INSERT INTO items SELECT i, repeat('x', 200) FROM generate_series(1, 300000) i")
    batch = stream.poll(600)
    spooled = stream.status().spooled_bytes
    events = sum(1 for _ in batch.events())
    rows = sum(rows.num_rows for _, rows in batch.arrow())
    batch.ack()
    print(json.dumps([before, peak(), spooled, events, rows]))
"""


def test_a_large_transaction_takes_little_memory(url: str) -> None:
    """60 MB of raw changes; as Python objects all at once they would be 300 MB and more."""
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, url], capture_output=True, text=True, timeout=1500, check=False
    )
    assert ran.returncode == 0, ran.stderr
    before, peak, spooled, events, rows = json.loads(ran.stdout)
    assert (events, rows) == (300_000, 300_000)
    assert spooled > 50 * MIB
    assert peak - before < 100, f"from {before} to {peak} MiB"


def spools() -> int:
    """How many files without a name we hold."""
    found = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(path.is_symlink() and "tailrace-spool" in os.readlink(path) for path in found)


def test_a_stream_that_is_over_holds_no_spool(url: str, store: MemoryStore) -> None:
    options: dict[str, Any] = {"checkpoint": store, "snapshot": "never", "max_bytes": 1 << 16}
    with tailrace.capture(url, **options) as stream:
        execute(url, "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 9000) i")
        batch = stream.poll(PATIENCE)
        assert batch is not None
        assert spools() == 1
        assert len(list(batch.events())) == 9000
    del batch, stream
    gc.collect()
    assert spools() == 0


def test_a_transaction_that_can_not_be_spooled_is_an_error(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint": store, "snapshot": "never", "max_bytes": 1 << 16}
    with tailrace.capture(url, **options) as stream:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
        execute(url, "INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 9000) i")
        with pytest.raises(StateUnavailable, match="can not be spooled"):
            stream.poll(PATIENCE)
    monkeypatch.undo()
    with tailrace.capture(url, **options) as stream:
        batch = stream.poll(PATIENCE)
        assert batch is not None
        assert len(batch) == 9000


def test_a_stream_that_is_lost_at_the_same_place_again_and_again_is_stalled(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise SourceUnavailable("the server can not send that")

    with tailrace.capture(url, checkpoint=store, snapshot="never", stall_seconds=1) as stream:
        monkeypatch.setattr(PostgresCapture, "take", lost)
        execute(url, "INSERT INTO items VALUES (1)")
        wait_until(lambda: stream.status().reconnects > 2, seconds=PATIENCE, what="it to be tried again")
        wait_until(lambda: stream.status().health is Health.STALLED, seconds=PATIENCE, what="it to be stalled")
        assert "the server can not send that" in stream.status().reason
        monkeypatch.undo()
        batch = stream.poll(PATIENCE)
        assert batch is not None
        wait_until(lambda: stream.status().health is not Health.STALLED, seconds=PATIENCE, what="it to be well")
