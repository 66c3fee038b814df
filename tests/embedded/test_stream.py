"""A stream inside of the program that consumes it: what comes, and what an acknowledgement does."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pyarrow as pa
import pytest

import tailrace
from support.streams import PATIENCE, rows_after, short, taken
from tailrace import Misuse
from tailrace.checkpoints.memory import MemoryStore
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.embedded.states import State
from tailrace.embedded.stream import Stream
from tailrace.embedded.watch import Watch
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def stream(url: str, store: MemoryStore) -> Iterator[Stream]:
    with tailrace.capture(url, checkpoint=store, snapshot="never") as stream:
        yield stream


def insert(url: str, *ids: int) -> None:
    """A transaction each."""
    execute(url, *(f"INSERT INTO items VALUES ({id_}, 'name {id_}')" for id_ in ids))


def insert_together(url: str, *ids: int) -> None:
    execute(url, f"INSERT INTO items VALUES {', '.join(f'({id_}, NULL)' for id_ in ids)}")


def ids(batch: tailrace.Batch | None) -> list[int]:
    assert batch is not None
    return [event.after["id"] for event in batch.events() if event.after is not None]


def confirmed(url: str) -> str:
    with psycopg.connect(url) as connection:
        query = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'tailrace_embedded'"
        return str(connection.execute(query).fetchall()[0][0])


# --- what comes


def test_changes_come_as_plain_events_in_commit_order(url: str, stream: Stream) -> None:
    began = datetime.now(UTC)
    execute(url, "INSERT INTO items VALUES (1, 'a'), (2, 'b')", "UPDATE items SET name = 'c' WHERE id = 1")
    execute(url, "DELETE FROM items WHERE id = 2", "TRUNCATE items")
    events = taken(stream, 5)
    assert short(events) == [
        ("insert", (1, "a")),
        ("insert", (2, "b")),
        ("update", (1, "c")),
        ("delete", None),
        ("truncate", None),
    ]
    assert [event.key for event in events] == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}, None]
    assert [event.before for event in events] == [None, None, None, {"id": 2}, None]
    assert [event.table for event in events] == ["public.items"] * 5
    assert [event.transaction.number for event in events if event.transaction] == [1, 2, 1, 1, 1]
    assert len({event.transaction.id for event in events if event.transaction}) == 4
    assert all(event.commit_time is not None and event.commit_time >= began for event in events)
    assert len({event.position for event in events}) == 4
    assert events[0].schema is not None
    assert events[0].schema.key == ("id",)


def test_changes_of_several_tables_are_in_the_order_that_they_were_made_in(url: str, stream: Stream) -> None:
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)", "ALTER PUBLICATION tailrace_embedded ADD TABLE others")
    with psycopg.connect(url) as connection:
        for number in range(50):
            connection.execute(f"INSERT INTO {'items' if number % 2 else 'others'} (id) VALUES ({number})".encode())
    events = taken(stream, 50)
    assert [event.after["id"] for event in events if event.after] == list(range(50))
    assert [event.transaction.number for event in events if event.transaction] == list(range(1, 51))


def test_events_count_those_of_their_table_too(url: str, stream: Stream, store: MemoryStore) -> None:
    """As Debezium's envelope tells them; also behind a part that was acknowledged, and in the next transaction."""
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)", "ALTER PUBLICATION tailrace_embedded ADD TABLE others")
    with psycopg.connect(url) as connection:
        for table in ("items", "others", "items", "items", "others"):
            connection.execute(f"INSERT INTO {table} SELECT coalesce(max(id), 0) + 1 FROM {table}".encode())
        connection.execute("ALTER TABLE items ADD n int")
        connection.execute("INSERT INTO items VALUES (9)")
    execute(url, "INSERT INTO others VALUES (9)")
    wait_until(lambda: _buffered(stream) >= 7, seconds=PATIENCE, what="the changes")
    batch = stream.poll(PATIENCE)
    assert batch is not None
    wanted = [1, 1, 2, 3, 2, 4, 4, 1]  # the seventh is a change, the sixth tells of its columns
    assert [event.transaction.table_number for event in batch.events() if event.transaction] == wanted
    codec = DebeziumCodec(DebeziumSettings(name="shop", database="shop", schemas=False, transactions=True))
    told = [json.loads(record.value or b"") for event in batch.events() for record in codec.encode(event)]
    orders = [(each["transaction"]["total_order"], each["transaction"]["data_collection_order"]) for each in told]
    assert orders == [(1, 1), (2, 1), (3, 2), (4, 3), (5, 2), (6, 4), (1, 1)]
    batch.ack(prefix=4)
    stream.stop(force=True)
    with tailrace.capture(url, checkpoint=store, snapshot="never") as again:
        rest = taken(again, 4)
    assert [event.transaction.table_number for event in rest if event.transaction] == wanted[4:]


def test_a_batch_has_typed_record_batches_with_the_change_columns(url: str, stream: Stream) -> None:
    insert(url, 1, 2)
    wait_until(lambda: stream.status().health == "healthy", seconds=PATIENCE, what="the changes")
    batch = stream.poll(PATIENCE)
    assert batch is not None
    found = pa.Table.from_batches(batch.tables["public.items"])
    assert found.column_names[:4] == ["id", "name", "_op", "_offset"]
    assert found.schema.field("id").type == pa.int32()
    assert pa.Table.from_batches([rows for _, rows in batch.arrow()]) == found
    assert found.column("_op").to_pylist()[0] == "insert"


def test_columns_that_were_not_sent_are_named_and_left_out(url: str, stream: Stream) -> None:
    execute(
        url,
        "ALTER TABLE items ALTER name SET STORAGE EXTERNAL, ADD n int",
        "INSERT INTO items VALUES (1, repeat('x', 100000), 1)",
        "UPDATE items SET n = 2",
    )
    events = [event for event in taken(stream, 3) if event.op != "schema"]
    assert events[1].unchanged == ("name",)
    assert events[1].after == {"id": 1, "n": 2}


def test_a_row_that_moves_tells_its_old_key(url: str, stream: Stream) -> None:
    execute(url, "INSERT INTO items VALUES (1, 'a')", "UPDATE items SET id = 2")
    moved = taken(stream, 2)[1]
    assert (moved.before, moved.key, moved.after) == ({"id": 1}, {"id": 2}, {"id": 2, "name": "a"})


def test_the_whole_old_row_is_told_where_the_source_sends_it(url: str, stream: Stream) -> None:
    execute(url, "ALTER TABLE items REPLICA IDENTITY FULL", "INSERT INTO items VALUES (1, 'a')")
    execute(url, "UPDATE items SET name = 'b'", "DELETE FROM items")
    _, updated, deleted = taken(stream, 3)
    assert updated.before == {"id": 1, "name": "a"}
    assert deleted.before == {"id": 1, "name": "b"}


def test_a_table_that_is_altered_is_told_before_its_next_change(url: str, stream: Stream, store: MemoryStore) -> None:
    insert(url, 1)
    taken(stream, 1)
    execute(url, "ALTER TABLE items ADD n int DEFAULT 7", "INSERT INTO items VALUES (2, 'b')")
    schema, inserted = taken(stream, 2)
    assert (schema.op, schema.table, schema.after, schema.key) == ("schema", "public.items", None, None)
    assert schema.schema is not None
    assert [column.name for column in schema.schema.columns] == ["id", "name", "n"]
    assert inserted.after == {"id": 2, "name": "b", "n": 7}
    insert_together(url, 3)
    assert [str(event.op) for event in taken(stream, 1)] == ["insert"]


def test_a_table_that_was_altered_while_nobody_consumed_is_told(url: str, stream: Stream, store: MemoryStore) -> None:
    insert(url, 1)
    taken(stream, 1)
    stream.stop()
    execute(url, "ALTER TABLE items DROP name", "INSERT INTO items VALUES (2)")
    stream.start()
    assert [(str(event.op), event.after) for event in taken(stream, 2)] == [("schema", None), ("insert", {"id": 2})]


def test_what_applications_write_into_the_log_comes_where_it_is_asked_for(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store, snapshot="never", messages=True) as stream:
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO items VALUES (1, 'a')")
            connection.execute("SELECT pg_logical_emit_message(true, 'audit', 'in it')")
            connection.execute("INSERT INTO items VALUES (2, 'b')")
        execute(
            url,
            "SELECT pg_logical_emit_message(false, 'audit', 'by itself', true)"
            if _flushes(url)
            else "SELECT pg_logical_emit_message(false, 'audit', 'by itself')",
        )
        insert(url, 3)
        events = taken(stream, 5)
        assert [str(event.op) for event in events] == ["insert", "message", "insert", "message", "insert"]
        inside, alone = (event for event in events if event.message is not None)
        assert (inside.message.prefix, inside.message.content) == ("audit", b"in it")  # type: ignore[union-attr]
        assert inside.transaction == tailrace_transaction(events[0], 2)
        assert (alone.transaction, alone.message.is_transactional) == (None, False)  # type: ignore[union-attr]
        stream.stop()
    with tailrace.capture(url, checkpoint=store, snapshot="never", messages=True) as again:
        assert again.poll(2) is None


def test_what_applications_write_into_the_log_does_not_come_where_nobody_asked(url: str, stream: Stream) -> None:
    """As in a pipeline: the source is not asked for it."""
    execute(url, "SELECT pg_logical_emit_message(true, 'audit', 'x')", "INSERT INTO items VALUES (1, 'a')")
    assert [str(event.op) for event in taken(stream, 1)] == ["insert"]


def tailrace_transaction(event: object, number: int) -> object:
    from tailrace.model.event import Event, Transaction

    assert isinstance(event, Event)
    assert event.transaction is not None
    return Transaction(event.transaction.id, number)


def _flushes(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.info.server_version >= 170000


def test_a_truncate_of_several_tables_is_told_of_each(url: str, stream: Stream) -> None:
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)", "ALTER PUBLICATION tailrace_embedded ADD TABLE others")
    execute(url, "INSERT INTO others VALUES (1)", "INSERT INTO items VALUES (1)", "TRUNCATE items, others")
    assert sorted((str(e.op), e.table) for e in taken(stream, 4)[2:]) == [
        ("truncate", "public.items"),
        ("truncate", "public.others"),
    ]


# --- acknowledging


def test_the_same_batch_comes_until_it_is_acknowledged(url: str, stream: Stream) -> None:
    insert(url, 1)
    first = stream.poll(PATIENCE)
    assert ids(stream.poll(PATIENCE)) == ids(stream.poll(PATIENCE)) == ids(first) == [1]
    last = stream.poll(PATIENCE)
    assert last is not None
    last.ack()
    insert(url, 2)
    assert ids(stream.poll(PATIENCE)) == [2]


def test_a_second_acknowledgement_is_an_error(url: str, stream: Stream) -> None:
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    batch.ack()
    with pytest.raises(Misuse, match="acknowledged before"):
        batch.ack()


def test_a_batch_that_was_polled_again_can_not_be_acknowledged(url: str, stream: Stream) -> None:
    insert(url, 1)
    old, new = stream.poll(PATIENCE), stream.poll(PATIENCE)
    assert old is not None
    assert new is not None
    with pytest.raises(Misuse, match="polled again"):
        old.ack()
    new.ack()


def test_the_source_is_told_once_the_checkpoint_is_durable(url: str, stream: Stream, store: MemoryStore) -> None:
    before = confirmed(url)
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    assert confirmed(url) == before
    batch.ack()
    checkpoint = store.load("embedded")
    assert checkpoint is not None
    assert checkpoint.position == batch.position
    wait_until(lambda: confirmed(url) == batch.position, seconds=PATIENCE, what="the source to be told")


@pytest.mark.parametrize("prefix", range(1, 7))
def test_a_prefix_is_accepted_and_the_rest_comes_again(
    url: str, stream: Stream, store: MemoryStore, prefix: int
) -> None:
    """Inside of a transaction, at its end, and in the next one; here, and in a process that was started anew."""
    insert_together(url, 1, 2, 3)
    insert_together(url, 4, 5, 6)
    insert(url, 7)
    wait_until(lambda: _buffered(stream) >= 7, seconds=PATIENCE, what="the changes")
    batch = stream.poll(PATIENCE)
    assert batch is not None
    batch.ack(prefix)
    rest = stream.poll(PATIENCE)
    assert ids(rest) == list(range(prefix + 1, 8))
    stream.stop(force=True)
    with tailrace.capture(url, checkpoint=store, snapshot="never") as again:
        events = taken(again, 7 - prefix)
    assert [event.after["id"] for event in events if event.after] == list(range(prefix + 1, 8))
    numbers = [event.transaction.number for event in events if event.transaction]
    assert numbers == [1, 2, 3, 1, 2, 3, 1][prefix:]


def test_prefixes_may_follow_one_another(url: str, stream: Stream, store: MemoryStore) -> None:
    insert_together(url, *range(10))
    found = []
    for _ in range(9):
        batch = stream.poll(PATIENCE)
        assert batch is not None
        found.append(ids(batch)[0])
        batch.ack(prefix=1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    assert [*found, *ids(batch)] == list(range(10))
    batch.ack(prefix=1)
    assert stream.checkpoint.events == 10
    assert stream.checkpoint.skip == 0


@pytest.mark.parametrize("prefix", [0, -1, 3])
def test_a_prefix_that_the_batch_has_not_is_an_error(url: str, stream: Stream, prefix: int) -> None:
    insert_together(url, 1, 2)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with pytest.raises(Misuse, match="prefix"):
        batch.ack(prefix)
    batch.ack()


def test_a_prefix_may_end_with_the_news_of_a_table(url: str, stream: Stream, store: MemoryStore) -> None:
    insert(url, 1)
    taken(stream, 1)
    execute(url, "ALTER TABLE items ADD n int", "INSERT INTO items VALUES (2, 'b')")
    batch = stream.poll(PATIENCE)
    assert batch is not None
    assert [str(event.op) for event in batch.events()] == ["schema", "insert"]
    batch.ack(prefix=1)
    stream.stop(force=True)
    stream.start()
    assert [str(event.op) for event in taken(stream, 1)] == ["insert"]


def test_an_acknowledgement_that_can_not_be_made_durable_may_be_repeated(url: str, stream: Stream) -> None:
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    store = stream._ledger.store
    store.release("embedded")
    with pytest.raises(Misuse, match="claim"):
        batch.ack()
    store.claim("embedded")
    batch.ack()
    assert stream.checkpoint.events == 1


def test_a_store_without_transactions_can_not_be_written_within_one(url: str, stream: Stream) -> None:
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with psycopg.connect(url) as connection, pytest.raises(Misuse, match="MemoryStore"):
        batch.ack(within=connection)
    batch.ack()


# --- starting and stopping


def test_a_clean_restart_delivers_nothing_new(url: str, stream: Stream, store: MemoryStore) -> None:
    insert(url, 1)
    taken(stream, 1)
    stream.stop()
    with tailrace.capture(url, checkpoint=store, snapshot="never") as again:
        assert again.poll(2) is None
        insert(url, 2)
        assert short(taken(again, 1)) == [("insert", (2, "name 2"))]


def test_stopping_is_refused_while_something_is_unacknowledged(url: str, stream: Stream) -> None:
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with pytest.raises(Misuse, match=r"a batch of 1 events up to .* is not acknowledged"):
        stream.stop()
    assert stream.state is State.RUNNING
    batch.ack()
    stream.stop()
    assert stream.state is State.STOPPED


def test_stopping_by_force_returns_what_was_pending_in_order(url: str, stream: Stream) -> None:
    insert(url, 1)
    assert ids(stream.poll(PATIENCE)) == [1]
    insert(url, 2, 3)
    wait_until(lambda: _buffered(stream) >= 3, seconds=PATIENCE, what="the changes")
    pending = stream.stop(force=True)
    assert [id_ for batch in pending for id_ in ids(batch)] == [1, 2, 3]
    with pytest.raises(Misuse):
        pending[0].ack()
    stream.start()
    assert [event.after["id"] for event in taken(stream, 3) if event.after] == [1, 2, 3]


def _buffered(stream: Stream) -> int:
    """The transactions that the pump has read."""
    assert stream._feed is not None
    assert stream._feed.live is not None
    pieces = list(stream._feed.live.buffer._pieces)
    return sum(piece.changes for piece in pieces)


def test_draining_gives_what_is_left_and_stops(url: str, stream: Stream) -> None:
    insert(url, 1, 2)
    wait_until(lambda: _buffered(stream) >= 2, seconds=PATIENCE, what="the changes")
    found = []
    for batch in stream.drain():
        found += ids(batch)
        batch.ack()
    assert found == [1, 2]
    assert stream.state is State.STOPPED
    insert(url, 3)
    stream.start()
    assert [event.after["id"] for event in taken(stream, 1) if event.after] == [3]


def test_an_iterator_ends_when_the_stream_is_stopped_by_another_thread(url: str, stream: Stream) -> None:
    insert(url, 1)
    found = []
    for batch in stream:
        found += ids(batch)
        batch.ack()
        threading.Thread(target=stream.stop).start()
    assert found == [1]
    assert stream.state is State.STOPPED


def test_a_stream_is_started_once(stream: Stream) -> None:
    with pytest.raises(Misuse, match="running"):
        stream.start()


def test_what_was_not_started_can_be_neither_polled_nor_stopped(url: str) -> None:
    stream = tailrace.capture(url, snapshot="never")
    assert stream.state is State.IDLE
    with pytest.raises(Misuse, match="idle"):
        stream.poll(0)
    with pytest.raises(Misuse, match="not started"):
        stream.stop()


def test_a_stream_that_could_not_be_started_may_be_started_later(url: str) -> None:
    stream = tailrace.capture(url, "nothing.*", snapshot="never")
    with pytest.raises(tailrace.SourceRefused):
        stream.start()
    assert stream.state is State.STOPPED
    execute(url, "CREATE SCHEMA nothing", "CREATE TABLE nothing.t (id int PRIMARY KEY)")
    with stream:
        execute(url, "INSERT INTO nothing.t VALUES (1)")
        assert ids(stream.poll(PATIENCE)) == [1]


def test_a_stream_whose_threads_can_not_be_started_is_stopped(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = tailrace.capture(url, checkpoint=store, snapshot="never")

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(Watch, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            stream.start()
    assert stream.state is State.STOPPED
    insert(url, 1)
    with stream:
        assert ids(stream.poll(PATIENCE)) == [1]


def test_whatever_the_look_at_the_catalog_raises_is_told_and_tables_are_found_later(
    url: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as once:
        once.setattr(stream._source, "publish", broken)
        wait_until(
            lambda: any("ZeroDivisionError" in remark for remark in stream.status().remarks),
            seconds=PATIENCE,
            what="the trouble to be told",
        )
    execute(url, "CREATE TABLE late (id int PRIMARY KEY)")
    wait_until(
        lambda: stream.poll(0.05) is None and "public.late" in stream.checkpoint.memberships,
        seconds=PATIENCE,
        what="the new table",
    )
    assert stream.status().remarks == ()


def test_an_idle_stream_lets_the_source_forget(url: str, stream: Stream) -> None:
    before = confirmed(url)
    execute(url, "CREATE TABLE unlogged_work AS SELECT generate_series(1, 1000)")

    def is_told() -> bool:
        stream.poll(0.1)
        return confirmed(url) > before and stream.checkpoint.position > before

    wait_until(is_told, seconds=PATIENCE, what="the source to be told")


def test_what_is_not_a_table_of_the_stream_does_not_come(url: str, store: MemoryStore) -> None:
    execute(url, "CREATE TABLE audit_log (id int PRIMARY KEY)")
    tables = ["public.*", "!public.audit_*"]
    with tailrace.capture(url, tables, checkpoint=store, snapshot="never") as stream:
        execute(url, "INSERT INTO audit_log VALUES (1)")
        insert(url, 2)
        assert [event.table for event in taken(stream, 1)] == ["public.items"]


# --- misuse


def test_two_threads_that_poll_at_once_are_an_error(url: str, stream: Stream) -> None:
    waiting = threading.Thread(target=stream.poll, args=[PATIENCE])
    waiting.start()
    wait_until(stream._polling.locked, seconds=PATIENCE, what="the other thread")
    with pytest.raises(Misuse, match="two threads"):
        stream.poll(0)
    insert(url, 1)
    waiting.join(PATIENCE)
    assert ids(stream.poll(PATIENCE)) == [1]


def test_a_child_that_was_forked_can_do_nothing(url: str, stream: Stream) -> None:
    insert(url, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    child = os.fork()
    if not child:
        refused = 0
        for work in (lambda: stream.poll(0), batch.ack, stream.stop, lambda: stream.snapshot("items")):
            try:
                work()
            except Misuse:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    batch.ack()
    insert(url, 2)
    assert ids(stream.poll(PATIENCE)) == [2]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"snapshot": "sometimes"}, "initial"), ({"transactions": "half"}, "whole"), ({"name": "My Name"}, "lower case")],
)
def test_a_wrong_option_is_refused_with_what_is_right(url: str, wrong: dict[str, str], words: str) -> None:
    with pytest.raises(tailrace.ConfigError) as refused:
        tailrace.capture(url, **wrong)  # type: ignore[arg-type]
    assert words in str(refused.value.hint)


def test_an_option_that_the_source_has_not_is_refused(url: str) -> None:
    with pytest.raises(tailrace.ConfigError, match="sloot"):
        tailrace.capture(url, sloot="x")


# --- what happens to the source


def test_a_stream_goes_on_after_its_connection_was_cut(url: str, stream: Stream) -> None:
    insert(url, 1)
    taken(stream, 1)
    execute(url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    insert(url, 2)
    assert short(taken(stream, 1)) == [("insert", (2, "name 2"))]
    assert stream.status().reconnects == 1


def test_a_slot_that_is_gone_is_an_error_at_the_start(url: str, stream: Stream) -> None:
    insert(url, 1)
    taken(stream, 1)
    stream.stop()
    execute(url, "SELECT pg_drop_replication_slot('tailrace_embedded')")
    with pytest.raises(tailrace.PositionLost, match="slot is gone"):
        stream.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_what_was_made_in_the_source_is_removed_with_the_checkpoint(
    url: str, stream: Stream, store: MemoryStore
) -> None:
    with pytest.raises(Misuse, match="running"):
        stream.drop()
    stream.stop()
    dropped = stream.drop()
    assert {"replication slot tailrace_embedded", "checkpoint embedded"} <= set(dropped)
    assert store.load("embedded") is None
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)


def test_a_table_that_comes_while_the_stream_runs_is_followed(url: str, stream: Stream) -> None:
    execute(url, "CREATE TABLE late (id int PRIMARY KEY, name text)")
    wait_until(
        lambda: stream.poll(0.05) is None and "public.late" in stream.checkpoint.memberships,
        seconds=PATIENCE,
        what="the new table",
    )
    execute(url, "INSERT INTO late VALUES (1, 'x')")
    assert [(event.table, event.after) for event in taken(stream, 1)] == [("public.late", {"id": 1, "name": "x"})]


def test_a_table_that_comes_is_read_first_where_tables_are(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
        events = taken(stream, 1)
        execute(url, "INSERT INTO late VALUES (2)")
        events += taken(stream, 1)
    assert rows_after(events).keys() == {1, 2}
    assert len(events) == 2
