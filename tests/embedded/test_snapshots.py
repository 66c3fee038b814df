"""Snapshots of an embedded stream: before it, alone, and on demand while it flows."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, rows_after, short, taken, until
from tailrace import Misuse
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

SMALL = 8192
"""A chunk of a page: about 200 rows of these tables."""
END = {"id": 1_000_000}
_SAME = "SELECT FROM items WHERE id = {}"


def fill(url: str, first: int, last: int, table: str = "items") -> None:
    execute(url, f"INSERT INTO {table} SELECT i, 'name ' || i FROM generate_series({first}, {last}) i")


def content(url: str, table: str = "items") -> dict[int, dict[str, Any]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(f"SELECT id, name FROM {table}".encode()).fetchall()
    return {id_: {"id": id_, "name": name} for id_, name in rows}


def the_end(url: str) -> None:
    execute(url, f"INSERT INTO items VALUES ({END['id']}, 'the end')")


@contextmanager
def writing(url: str, seed: int, rows: int) -> Iterator[None]:
    """Somebody inserts, updates, moves and deletes rows all the time."""
    stopping, random_ = threading.Event(), random.Random(seed)

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stopping.is_set():
                one, other = random_.randint(1, rows), random_.randint(rows + 1, rows * 2)
                statement = random_.choice(
                    [
                        f"UPDATE items SET name = name || '+' WHERE id IN ({one}, {other})",
                        f"DELETE FROM items WHERE id = {one}",
                        f"INSERT INTO items VALUES ({one}, 'again') ON CONFLICT DO NOTHING",
                        f"UPDATE items SET id = {other} WHERE id = {one} AND NOT EXISTS ({_SAME.format(other)})",
                        f"BEGIN; UPDATE items SET name = 'slow' WHERE id = {one}; SELECT pg_sleep(0.02); COMMIT",
                    ]
                )
                connection.execute(statement.encode())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopping.set()
        writer.join(PATIENCE)


# --- before the stream


def test_rows_and_changes_meet_exactly_under_a_writer(url: str, store: MemoryStore) -> None:
    fill(url, 1, 2000)
    with writing(url, 1, 2000), tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL) as stream:
        events = taken(stream, 2500)
        threading.Timer(0, the_end, [url]).start()
        events += until(stream, "public.items", END)
        read = [event.key["id"] for event in events if event.op == "read" and event.key]
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "DELETE FROM items WHERE id = 1000000")
        events += until(stream, "public.items", END)
    assert len(read) == len(set(read))
    assert rows_after(events) == content(url)


def test_a_change_that_the_snapshot_has_seen_does_not_come(url: str, store: MemoryStore) -> None:
    """The slot is older than the snapshot: somebody committed in between."""
    stream = tailrace.capture(url, checkpoint=store)
    prepare = stream._source.prepare

    def prepared(*args: Any) -> str:
        position = prepare(*args)
        fill(url, 1, 3)
        return position

    stream._source.prepare = prepared  # type: ignore[method-assign]
    with stream:
        fill(url, 4, 4)
        assert short(taken(stream, 4)) == [
            *(("read", (id_, f"name {id_}")) for id_ in (1, 2, 3)),
            ("insert", (4, "name 4")),
        ]


def test_a_snapshot_goes_on_behind_the_chunks_that_were_acknowledged(url: str, store: MemoryStore) -> None:
    fill(url, 1, 2000)
    with tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL) as stream:
        first = taken(stream, 1)
        assert stream.poll(PATIENCE) is not None  # and nobody acknowledges it
    progress = store.load("embedded")
    assert progress is not None
    assert len(progress.copies[0].left) == progress.copies[0].chunks - 1
    with tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL) as stream:
        rest = taken(stream, 2000 - len(first))
        fill(url, 5000, 5000)
        rest += taken(stream, 1)
    before, after = ({event.key["id"] for event in some if event.key} for some in (first, rest))
    assert before.isdisjoint(after)
    assert before | after == {*range(1, 2001), 5000}
    assert [str(event.op) for event in rest].count("read") == 2000 - len(first)


def test_rows_tell_the_first_and_the_last_of_their_snapshot(url: str, store: MemoryStore) -> None:
    fill(url, 1, 500)
    with tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL) as stream:
        events = taken(stream, 500)
    assert [event.snapshot for event in events if event.snapshot != "1:"] == ["1:first", "1:last"]
    assert all(event.position and event.transaction is None for event in events)


def test_record_batches_of_a_snapshot_have_the_columns_of_the_stream(url: str, store: MemoryStore) -> None:
    fill(url, 1, 2)
    with tailrace.capture(url, checkpoint=store) as stream:
        read = stream.poll(PATIENCE)
        assert read is not None
        [rows] = read.tables["public.items"]
        read.ack()
        fill(url, 3, 3)
        changed = stream.poll(PATIENCE)
        assert changed is not None
        assert changed.tables["public.items"][0].schema == rows.schema
        assert rows.column("_op").to_pylist() == ["read", "read"]


def test_a_prefix_of_a_chunk_is_accepted(url: str, store: MemoryStore) -> None:
    fill(url, 1, 10)
    with tailrace.capture(url, checkpoint=store) as stream:
        batch = stream.poll(PATIENCE)
        assert batch is not None
        batch.ack(prefix=4)
        assert [event.key["id"] for event in taken(stream, 6) if event.key] == list(range(5, 11))


def test_a_table_without_a_key_begins_again_with_a_truncate(url: str, store: MemoryStore) -> None:
    execute(url, "CREATE TABLE keyless (id int, name text)", "ALTER TABLE keyless REPLICA IDENTITY FULL")
    fill(url, 1, 1000, "keyless")
    tables = "public.keyless"
    with tailrace.capture(url, tables, checkpoint=store, chunk_bytes=SMALL) as stream:
        events = taken(stream, 1)
        assert len(events) < 1000
    with tailrace.capture(url, tables, checkpoint=store, chunk_bytes=SMALL) as stream:
        again = taken(stream, 1001)
    assert again[0].op == "truncate"
    assert sorted(event.after["id"] for event in again[1:] if event.after) == list(range(1, 1001))


def test_a_table_that_is_rewritten_under_its_snapshot_begins_again(url: str, store: MemoryStore) -> None:
    fill(url, 1, 1000)
    with tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL) as stream:
        events = taken(stream, 1)
        execute(url, "TRUNCATE items")
        fill(url, 7, 9)
        the_end(url)
        events += until(stream, "public.items", END) if stream.status().snapshots == () else taken(stream, 5)
    assert rows_after(events) == content(url)


def test_all_tables_are_read_before_the_stream(url: str, store: MemoryStore) -> None:
    execute(url, "CREATE TABLE others (id int PRIMARY KEY, name text)", "CREATE TABLE nothing (id int PRIMARY KEY)")
    fill(url, 1, 5)
    fill(url, 11, 15, "others")
    with tailrace.capture(url, checkpoint=store) as stream:
        fill(url, 6, 6)
        events = taken(stream, 11)
    assert [str(event.op) for event in events] == ["read"] * 10 + ["insert"]
    assert stream.checkpoint.copies == ()


def test_a_stream_that_was_begun_without_rows_reads_none(url: str, store: MemoryStore) -> None:
    fill(url, 1, 5)
    with tailrace.capture(url, checkpoint=store, snapshot="never") as stream:
        fill(url, 6, 6)
        assert [str(event.op) for event in taken(stream, 1)] == ["insert"]


def test_tables_alone_are_read_and_nothing_is_made_in_the_source(url: str, store: MemoryStore) -> None:
    fill(url, 1, 1000)
    with tailrace.capture(url, checkpoint=store, snapshot="only", chunk_bytes=SMALL) as stream:
        first = stream.poll(PATIENCE)
        assert first is not None
        read = [event.key["id"] for event in first.events() if event.key]
        first.ack()
    with tailrace.capture(url, checkpoint=store, snapshot="only", chunk_bytes=SMALL) as stream:
        for batch in stream:
            read += [event.key["id"] for event in batch.events() if event.key]
            batch.ack()
    assert sorted(read) == list(range(1, 1001))
    with tailrace.capture(url, checkpoint=store, snapshot="only") as stream:
        assert list(stream) == []
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_tables_alone_have_the_rows_that_moved_while_nobody_read(url: str, store: MemoryStore) -> None:
    """No stream tells of an update; the row lies behind the pages that were planned."""
    fill(url, 1, 1000)
    with tailrace.capture(url, checkpoint=store, snapshot="only", chunk_bytes=SMALL) as stream:
        events = taken(stream, 1)
        assert len(events) < 900
    execute(url, "UPDATE items SET name = name || ', updated' WHERE id > 900")
    with tailrace.capture(url, checkpoint=store, snapshot="only", chunk_bytes=SMALL) as stream:
        for batch in stream:
            events += batch.events()
            batch.ack()
    assert rows_after(events) == content(url)


def test_a_table_that_left_the_stream_for_a_time_is_read_again(url: str, store: MemoryStore) -> None:
    fill(url, 1, 2)
    with tailrace.capture(url, checkpoint=store) as stream:
        events = taken(stream, 2)
    execute(
        url,
        "ALTER PUBLICATION tailrace_embedded DROP TABLE items",
        "DELETE FROM items WHERE id = 1",
        "ALTER PUBLICATION tailrace_embedded ADD TABLE items",
    )
    with tailrace.capture(url, checkpoint=store) as stream:
        events += taken(stream, 2)
    assert [str(event.op) for event in events] == ["read", "read", "truncate", "read"]
    assert rows_after(events) == content(url)


def test_a_table_that_left_the_stream_is_an_error_where_nothing_is_read(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store, snapshot="never") as stream:
        fill(url, 1, 1)
        taken(stream, 1)
    execute(url, "ALTER PUBLICATION tailrace_embedded DROP TABLE items")
    execute(url, "ALTER PUBLICATION tailrace_embedded ADD TABLE items")
    with pytest.raises(tailrace.PositionLost, match=r"public.items was not in the source's stream"):
        tailrace.capture(url, checkpoint=store, snapshot="never").start()


# --- on demand


@pytest.fixture
def stream(url: str, store: MemoryStore) -> Iterator[Stream]:
    fill(url, 1, 1000)
    options: dict[str, Any] = {"checkpoint": store, "snapshot": "never", "chunk_bytes": SMALL, "heartbeat_ms": 50}
    with tailrace.capture(url, **options) as stream:
        yield stream


def reads(events: list[Event]) -> list[int]:
    return [event.key["id"] for event in events if event.op == "read" and event.key]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_snapshot_on_demand_is_exact_while_somebody_writes(url: str, stream: Stream, seed: int) -> None:
    events: list[Event] = []
    with writing(url, seed, 1000):
        events += taken(stream, 20)
        snapshot = stream.snapshot("public.items")
        while not snapshot.is_over:
            events += taken(stream, 1)
        events += taken(stream, 20)
    the_end(url)
    events += until(stream, "public.items", END)
    assert len(reads(events)) > 500
    assert rows_after(events) == content(url)


def test_rows_that_were_changed_since_they_were_read_are_left_out(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is read while a transaction is open, which is delivered before the chunk is."""
    feed = stream._feed
    assert feed is not None
    stream.snapshot("items")
    taken(stream, 1)  # the first chunk, so that nobody is waited for any more
    monkeypatch.setattr(feed, "_border", lambda _: "0/1")
    with psycopg.connect(url) as writer:
        writer.execute("UPDATE items SET name = 'newer' WHERE id = 300")
        writer.execute("DELETE FROM items WHERE id = 301")
        writer.execute("UPDATE items SET id = 3020 WHERE id = 302")
        wait_until(
            lambda: stream.poll(0.05) is None and feed._incremental._waiting is not None,
            seconds=PATIENCE,
            what="a chunk to be read",
        )
    events = taken(stream, 3)
    assert [str(event.op) for event in events] == ["update", "delete", "update"]
    monkeypatch.undo()
    chunk = taken(stream, 1)
    assert chunk[0].op == "read"
    assert {300, 301, 302}.isdisjoint(reads(chunk))
    assert {299, 303} <= set(reads(chunk))


@contextmanager
def chunk_waiting(url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A chunk is read, and handed out behind the block."""
    feed = stream._feed
    assert feed is not None
    with monkeypatch.context() as held:
        held.setattr(feed, "_border", lambda _: "0/1")
        wait_until(
            lambda: stream.poll(0.05) is None and feed._incremental._waiting is not None,
            seconds=PATIENCE,
            what="a chunk to be read",
        )
        yield


def large_values(url: str, rows: int) -> None:
    """Beside each row, where an update that leaves it alone does not send it."""
    execute(
        url,
        "ALTER TABLE items ALTER name SET STORAGE EXTERNAL, ADD n int DEFAULT 0",
        f"INSERT INTO items SELECT i, repeat(chr(65 + i % 26), 2500), 0 FROM generate_series(1, {rows}) i",
    )


def whole(url: str) -> dict[int, dict[str, Any]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT id, name, n FROM items").fetchall()
    return {id_: {"id": id_, "name": name, "n": n} for id_, name, n in rows}


def on_demand(url: str, store: MemoryStore) -> Stream:
    return tailrace.capture(url, checkpoint=store, snapshot="never", chunk_bytes=SMALL, heartbeat_ms=50)


def test_rows_that_came_in_part_before_their_chunk_are_whole_behind_it(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer has nothing of the table before it asks for it."""
    large_values(url, 20)
    with on_demand(url, store) as stream:
        snapshot = stream.snapshot("items")
        with chunk_waiting(url, stream, monkeypatch):
            execute(
                url,
                "UPDATE items SET n = 1 WHERE id = 1",
                "UPDATE items SET id = 102 WHERE id = 2",
                "UPDATE items SET n = 3 WHERE id = 102",
                "UPDATE items SET n = 1 WHERE id IN (4, 5)",
                "DELETE FROM items WHERE id = 4",
                "INSERT INTO items VALUES (4, 'again', 4)",
                "UPDATE items SET name = 'small' WHERE id = 5",
                "UPDATE items SET n = 6 WHERE id = 4",
                "UPDATE items SET id = 106 WHERE id = 6",
                "INSERT INTO items VALUES (6, 'another', 6)",
            )
            events = taken(stream, 11)
        while not snapshot.is_over:
            events += taken(stream, 1)
        the_end(url)
        events += until(stream, "public.items", END)
    assert rows_after(events) == whole(url)


def test_rows_that_move_to_where_their_table_was_read_are_whole_in_the_end(url: str, store: MemoryStore) -> None:
    """A row of a page that was not read is updated, and lies in one then that was; in part it came by the stream."""
    large_values(url, 600)
    execute(url, "DELETE FROM items WHERE id <= 100", "VACUUM items")
    with on_demand(url, store) as stream:
        snapshot = stream.snapshot("items")
        events = taken(stream, 1)
        assert snapshot.progress is not None
        assert snapshot.progress.chunks_done < snapshot.progress.chunks
        execute(url, "UPDATE items SET n = 1 WHERE id > 300")
        while not snapshot.is_over:
            events += taken(stream, 1)
        the_end(url)
        events += until(stream, "public.items", END)
    assert rows_after(events) == whole(url)


def test_a_snapshot_begins_again_whose_rows_in_part_nobody_remembers(url: str, store: MemoryStore) -> None:
    large_values(url, 600)
    execute(url, "DELETE FROM items WHERE id <= 100", "VACUUM items")
    with on_demand(url, store) as stream:
        snapshot = stream.snapshot("items")
        events = taken(stream, 1)
        execute(url, "UPDATE items SET n = 1 WHERE id > 300")
        while not any(event.op == "update" for event in events):
            events += taken(stream, 1)
    with on_demand(url, store) as stream:
        [snapshot] = stream.snapshots
        while not snapshot.is_over:
            events += taken(stream, 1)
        the_end(url)
        events += until(stream, "public.items", END)
    assert rows_after(events) == whole(url)
    assert {event.snapshot.partition(":")[0] for event in events if event.op == "read"} == {"1", "2"}


@pytest.mark.parametrize("breaks", ["restarted", "cut off"])
def test_rows_that_moved_between_the_snapshots_of_a_copy_are_whole(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """What is left is read under a later snapshot, in which updated rows lie behind the last page that was planned."""
    large_values(url, 600)
    stream = tailrace.capture(url, checkpoint=store, chunk_bytes=SMALL)
    with stream:
        events = taken(stream, 1)
        if breaks == "restarted":
            stream.close()
        execute(url, "UPDATE items SET n = 1 WHERE id > 100", "DELETE FROM items WHERE id % 7 = 0")
        execute(url, "UPDATE items SET n = 2, id = id + 5000 WHERE id % 11 = 0")
        if breaks == "restarted":
            stream.start()
        else:
            stream._copying.close()
        while stream.status().snapshots and any(copy.left or copy.moved for copy in stream.checkpoint.copies):
            events += taken(stream, 1)
        the_end(url)
        events += until(stream, "public.items", END)
    assert rows_after(events) == whole(url)
    assert {str(event.op) for event in events} == {"read", "update", "delete", "insert"}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_snapshot_on_demand_of_large_values_is_exact_while_somebody_writes(
    url: str, store: MemoryStore, seed: int
) -> None:
    """The writer appends to some of them, and leaves most alone."""
    large_values(url, 1000)
    with on_demand(url, store) as stream, writing(url, seed, 1000):
        events = taken(stream, 20)
        execute(url, "UPDATE items SET n = n + 1 WHERE id % 3 = 0")
        snapshot = stream.snapshot("public.items")
        for number in itertools.count():
            if snapshot.is_over:
                break
            execute(url, f"UPDATE items SET n = n + 1 WHERE id % 97 = {number % 97}")
            events += taken(stream, 1)
        stream.stop(force=True)
    with on_demand(url, store) as stream:
        the_end(url)
        events += until(stream, "public.items", END)
    assert rows_after(events) == whole(url)


def test_a_table_that_is_altered_under_its_chunk_is_read_anew(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = stream.snapshot("items")
    with chunk_waiting(url, stream, monkeypatch):
        execute(url, "ALTER TABLE items ADD n int DEFAULT 7", "UPDATE items SET name = 'new' WHERE id = 1")
        events = taken(stream, 2)
    while not snapshot.is_over:
        events += taken(stream, 1)
    assert [str(event.op) for event in events[:2]] == ["schema", "update"]
    assert rows_after(events) == {id_: row | {"n": 7} for id_, row in content(url).items()}


def test_rows_tell_the_new_columns_of_their_table_first(url: str, stream: Stream, store: MemoryStore) -> None:
    fill(url, 2001, 2001)
    taken(stream, 1)
    execute(url, "ALTER TABLE items ADD n int DEFAULT 7")
    snapshot = stream.snapshot("items", where="id <= 2")
    batch = stream.poll(PATIENCE)
    assert batch is not None
    events = list(batch.events())
    assert [str(event.op) for event in events] == ["schema", "read", "read"]
    assert len(batch) == 3
    assert events[0].schema == events[1].schema
    batch.ack(prefix=1)
    events = taken(stream, 2)
    assert [event.snapshot for event in events if event.key == {"id": 1}] == [f"{snapshot.generation}:first"]
    execute(url, "INSERT INTO items VALUES (2002)")
    assert [str(event.op) for event in taken(stream, 1)] == ["insert"], "its columns were told"


def test_a_condition_chooses_the_rows_and_not_the_changes(url: str, stream: Stream) -> None:
    snapshot = stream.snapshot("items", where="id % 100 = 0 -- only some")
    fill(url, 2001, 2001)
    events: list[Event] = []
    while not snapshot.is_over or len(events) < 11:
        events += taken(stream, 1)
    assert sorted(reads(events)) == list(range(100, 1001, 100))
    assert [str(event.op) for event in events if event.op != "read"] == ["insert"]


def test_a_condition_that_can_not_be_read_ends_its_snapshot_and_not_the_stream(url: str, stream: Stream) -> None:
    snapshot = stream.snapshot("items", where="no_such_column = 1")
    with pytest.raises(tailrace.SourceRefused, match="no_such_column"):
        stream.poll(PATIENCE)
    assert snapshot.is_over
    fill(url, 2001, 2001)
    assert short(taken(stream, 1)) == [("insert", (2001, "name 2001"))]


def test_a_snapshot_is_paused_and_resumed_and_tells_its_progress(url: str, stream: Stream) -> None:
    snapshot = stream.snapshot("items")
    first = taken(stream, 1)
    assert snapshot.pause()
    progress = snapshot.progress
    assert progress is not None
    assert (progress.chunks_done, progress.rows, progress.is_paused) == (1, len(first), True)
    assert stream.status().snapshots == (progress,)
    fill(url, 2001, 2001)
    assert short(taken(stream, 1)) == [("insert", (2001, "name 2001"))]
    assert stream.poll(1) is None
    assert snapshot.resume()
    events = taken(stream, 1000 - len(first))
    assert set(range(1, 1001)) <= set(reads([*first, *events]))
    assert snapshot.is_over
    assert not snapshot.pause()


def test_a_snapshot_that_is_stopped_reads_no_more(url: str, stream: Stream) -> None:
    snapshot = stream.snapshot("items")
    assert stream.poll(PATIENCE) is not None
    assert snapshot.stop()
    batch = stream.poll(PATIENCE)
    assert batch is not None
    batch.ack()
    assert snapshot.is_over
    assert stream.poll(1) is None
    assert not snapshot.stop()


def test_a_snapshot_goes_on_after_a_restart(url: str, stream: Stream, store: MemoryStore) -> None:
    snapshot = stream.snapshot("items")
    events = taken(stream, 1)
    snapshot.pause()
    stream.stop()
    with tailrace.capture(url, checkpoint=store, snapshot="never", chunk_bytes=SMALL, heartbeat_ms=50) as again:
        [snapshot] = again.snapshots
        assert snapshot.progress is not None
        assert snapshot.progress.is_paused
        snapshot.resume()
        events += taken(again, 1000 - len(events))
    assert sorted(reads(events)) == [*range(1, 1001)]


def test_each_snapshot_has_a_later_generation(url: str, stream: Stream) -> None:
    generations = []
    for _ in range(2):
        snapshot = stream.snapshot("items", where="id = 1")
        generations.append(snapshot.generation)
        [event] = taken(stream, 1)
        assert event.snapshot.startswith(f"{snapshot.generation}:")
        while not snapshot.is_over:
            stream.poll(0.1)
    assert generations == [1, 2]


def test_a_table_that_is_rewritten_is_read_anew(url: str, stream: Stream) -> None:
    snapshot = stream.snapshot("items")
    events = taken(stream, 1)
    execute(url, "VACUUM FULL items")
    while not snapshot.is_over:
        events += taken(stream, 1)
    assert set(reads(events)) == set(range(1, 1001))
    assert {event.snapshot.partition(":")[0] for event in events} == {"1", "2"}


def test_what_can_not_be_read_on_demand_is_refused(url: str, stream: Stream) -> None:
    with pytest.raises(Misuse, match="not a table of this stream"):
        stream.snapshot("public.absent")
    stream.snapshot("items")
    with pytest.raises(Misuse, match="being read already"):
        stream.snapshot("public.items")


def test_a_table_without_a_key_can_not_be_read_on_demand(url: str, store: MemoryStore) -> None:
    execute(url, "CREATE TABLE keyless (id int)")
    with (
        tailrace.capture(url, checkpoint=store, snapshot="never") as stream,
        pytest.raises(Misuse, match="has no key"),
    ):
        stream.snapshot("keyless")
