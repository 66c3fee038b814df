"""What rustcdc's own suites ask of its runtime, asked of an embedded stream. Each test names those that it answers.

The databases are a parameter: one whose source stands is added to the fixture `database`, and runs the same file.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, Consumer, taken
from tailrace import Misuse
from tailrace.checkpoints.files import FileStore
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.states import State
from tailrace.embedded.status import Health
from tailrace.embedded.stream import Stream
from tailrace.model.checkpoint import Checkpoint
from tailrace.sources.mysql.connection import connect, database_of, rows
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

_numbers = count(1)


class Database(Protocol):
    """A fresh database with an empty table `users (id, payload)`, whose key is `id`."""

    table: str
    url: str

    def insert(self, first: int, last: int) -> None:
        """Rows with `payload-<id>`, a transaction each."""

    def confirmed(self) -> str:
        """What the source was told last."""

    def cut(self) -> None:
        """End the stream's connection, as a network does."""


class Postgres:
    table = "public.users"

    def __init__(self, url: str) -> None:
        self.url = url
        execute(url, "CREATE TABLE users (id bigint PRIMARY KEY, payload text NOT NULL)")
        execute(url, "ALTER TABLE users REPLICA IDENTITY FULL")

    def insert(self, first: int, last: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for id_ in range(first, last + 1):
                connection.execute("INSERT INTO users VALUES (%s, %s)", [id_, f"payload-{id_}"])

    def confirmed(self) -> str:
        with psycopg.connect(self.url) as connection:
            return str(connection.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall()[0][0])

    def cut(self) -> None:
        execute(self.url, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")


class Mysql:
    """MySQL or MariaDB. They are told nothing: a binary log is kept for all of its readers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.table = f"{database_of(url)}.users"
        self._execute("CREATE TABLE users (id bigint PRIMARY KEY, payload text NOT NULL)")

    def insert(self, first: int, last: int) -> None:
        self._execute(*(f"INSERT INTO users VALUES ({id_}, 'payload-{id_}')" for id_ in range(first, last + 1)))
        self._execute("ANALYZE TABLE users")

    def confirmed(self) -> str:
        pytest.skip("a binary log is told nothing")

    def cut(self) -> None:
        with connect(self.url) as connection:
            for session, *_, command, _, _, _ in rows(connection, "SELECT * FROM information_schema.processlist"):
                if "Binlog Dump" in str(command):
                    connection.query(f"KILL {session}")

    def _execute(self, *statements: str) -> None:
        with connect(self.url) as connection:
            for statement in statements:
                connection.query(statement)


@pytest.fixture(params=["postgresql", *(pytest.param(name, marks=pytest.mark.long) for name in ("mysql", "mariadb"))])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "postgresql":
        yield Postgres(request.getfixturevalue("postgres_url"))
        return
    server, name = request.getfixturevalue(f"{request.param}_logging"), f"seed_{os.getpid()}_{next(_numbers)}"
    yield Mysql(server.create_database(name))
    server.drop_database(name)


@pytest.fixture
def stream(database: Database) -> Iterator[Stream]:
    """Not started."""
    stream = tailrace.capture(database.url, checkpoint=MemoryStore(), snapshot="never")
    yield stream
    if stream.state is State.RUNNING:
        stream.stop(force=True)


def saved(folder: Path) -> Checkpoint:
    with FileStore(folder / "checkpoints") as store:
        checkpoint = store.load("embedded")
    assert checkpoint is not None
    return checkpoint


def ids(batches: list[list[list[Any]]]) -> list[int]:
    return [event[2]["id"] for batch in batches for event in batch]


def killed(consumer: Consumer, **orders: Any) -> None:
    """A consumer that is killed with a batch in its hands."""
    process = consumer.launch(quiet=PATIENCE, **orders)
    try:
        wanted = orders["hangs_after"]
        wait_until(lambda: len(ids(consumer.delivered())) >= wanted, seconds=PATIENCE, what="a batch")
        process.kill()
        assert process.wait(PATIENCE) == -signal.SIGKILL
    finally:
        process.kill()


# --- runtime_<db>_process_crash_integration.rs


@pytest.mark.crash
@pytest.mark.parametrize("encrypts", ["", "payload"], ids=["plain", "with_encryption_transform"])
def test_process_kill_replays_uncommitted_batch(database: Database, tmp_path: Path, encrypts: str) -> None:
    """runtime_postgres_process_kill_replays_uncommitted_batch, and the same `_with_encryption_transform`."""
    consumer = Consumer(database.url, tmp_path, snapshot="never")
    consumer.ends(events=0)
    database.insert(1, 100)
    killed(consumer, hangs_after=1, encrypts=encrypts)
    held = consumer.delivered()
    assert saved(tmp_path).events == 0
    consumer.ends(encrypts=encrypts)
    replayed = [event for batch in consumer.delivered()[len(held) :] for event in batch]
    assert replayed[: len(held[0])] == held[0]
    assert [event[2]["id"] for event in replayed] == list(range(1, 101))
    assert saved(tmp_path).events == 100
    payloads = [event[2]["payload"] for event in replayed]
    assert all(payload.startswith("enc:") for payload in payloads) is bool(encrypts)
    assert len(set(payloads)) == 100


@pytest.mark.crash
def test_process_kill_resumes_snapshot_after_committed_batch(database: Database, tmp_path: Path) -> None:
    """runtime_postgres_process_kill_resumes_snapshot_after_committed_batch."""
    database.insert(1, 600)
    consumer = Consumer(database.url, tmp_path, chunk_bytes=8192)
    with_first = consumer.launch(quiet=PATIENCE, hangs_after=200)
    try:
        wait_until(lambda: len(consumer.delivered()) >= 2, seconds=PATIENCE, what="the second chunk")
        with_first.kill()
        with_first.wait(PATIENCE)
    finally:
        with_first.kill()
    acknowledged = ids(consumer.acknowledged())
    checkpoint, delivered = saved(tmp_path), len(consumer.delivered())
    assert checkpoint.events == len(acknowledged) > 0
    assert checkpoint.copies[0].left
    consumer.ends()
    resumed = ids(consumer.delivered()[delivered:])
    assert set(acknowledged).isdisjoint(resumed)
    assert sorted([*acknowledged, *resumed]) == list(range(1, 601))


# --- <db>_restart_resume_integration.rs, <db>_checkpoint_integration.rs


def test_restart_delivers_nothing_new(database: Database, stream: Stream) -> None:
    """streaming_replication_restart_delivers_nothing_new."""
    stream.start()
    database.insert(1, 1)
    taken(stream, 1)
    stream.stop()
    stream.start()
    assert stream.poll(3) is None
    assert stream.checkpoint.events == 1


def test_confirming_advances_the_source(database: Database, stream: Stream) -> None:
    """commit_ack_confirms_postgres_lsn_when_available; confirm_lsn advances slot."""
    stream.start()
    database.insert(1, 1)
    taken(stream, 1)
    place = stream.checkpoint.position
    wait_until(lambda: database.confirmed() == place, seconds=PATIENCE, what="the source to be told")


def test_an_acknowledgement_stands_though_the_source_can_not_be_told(database: Database, stream: Stream) -> None:
    """commit_ack_can_continue_when_confirm_lsn_fails_post_commit: it is told when it is back."""
    stream.start()
    database.insert(1, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    database.cut()
    batch.ack()
    assert stream.checkpoint.events == 1
    database.insert(2, 2)
    taken(stream, 1)
    place = stream.checkpoint.position
    wait_until(lambda: database.confirmed() == place, seconds=PATIENCE, what="the source to be told")


# --- the runtime's life: src/core/runtime.rs


def test_state_transitions_are_valid(stream: Stream) -> None:
    """mock_source_state_transitions_are_valid."""
    assert stream.state is State.IDLE
    stream.start()
    assert stream.state is State.RUNNING
    with pytest.raises(Misuse):
        stream.start()
    stream.stop()
    assert stream.state is State.STOPPED
    stream.start()
    assert stream.state is State.RUNNING


def test_stop_rejects_uncommitted_events_by_default(database: Database, stream: Stream) -> None:
    """stop_rejects_uncommitted_events_by_default."""
    stream.start()
    database.insert(1, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    with pytest.raises(Misuse):
        stream.stop()
    assert stream.state is State.RUNNING
    drained = stream.stop(force=True)
    assert next(list(each.events()) for each in drained) == list(batch.events())
    assert stream.checkpoint.events == 0


def test_poll_redelivers_until_acknowledged(database: Database, stream: Stream) -> None:
    """mock_source_poll_event_batch_redelivers_until_acknowledged."""
    stream.start()
    database.insert(1, 2)
    first, second = stream.poll(PATIENCE), stream.poll(PATIENCE)
    assert first is not None
    assert second is not None
    assert list(first.events()) == list(second.events())
    second.ack()
    assert stream.checkpoint.events == len(second)


def test_partial_ack_and_retry(database: Database, stream: Stream) -> None:
    """mock_source_commit_ack_supports_partial_ack_and_retry."""
    stream.start()
    database.insert(1, 3)
    found: list[int] = []
    while len(found) < 3:
        batch = stream.poll(PATIENCE)
        assert batch is not None
        found.append(next(event.after["id"] for event in batch.events() if event.after))
        batch.ack(prefix=1)
        assert stream.checkpoint.events == len(found)
    assert found == [1, 2, 3]


def test_event_batches_are_never_empty(database: Database, stream: Stream) -> None:
    """runtime_event_batches_stream_yields_non_empty_batches."""
    stream.start()
    database.insert(1, 1)
    for batch in stream:
        assert len(batch) == 1
        batch.ack()
        break


def test_an_ack_that_fails_before_the_checkpoint_leaves_the_batch(database: Database, stream: Stream) -> None:
    """commit_ack_fails_when_snapshot_checkpoint_fails_pre_commit."""
    stream.start()
    database.insert(1, 1)
    batch = stream.poll(PATIENCE)
    assert batch is not None
    stream._ledger.store.release("embedded")
    with pytest.raises(Misuse):
        batch.ack()
    stream._ledger.store.claim("embedded")
    assert stream.checkpoint.events == 0
    assert stream.status().in_flight


# --- runtime_health_states.rs


def test_healthy_state_shows_zero_lag_after_recent_commit(database: Database, stream: Stream) -> None:
    """healthy_state_shows_zero_lag_after_recent_commit; multiple_commits_track_checkpoint_age."""
    stream.start()
    for id_ in (1, 2):
        database.insert(id_, id_)
        taken(stream, 1)
        status = stream.status()
        assert (status.state, status.events) == (State.RUNNING, id_)
        assert status.is_ready
        assert status.is_alive
        assert status.health in (Health.HEALTHY, Health.IDLE)
        assert status.seconds_since_ack is not None
    assert stream._ledger.store.age("embedded") is not None


def test_degraded_state_shows_what_is_in_flight(database: Database, stream: Stream) -> None:
    """degraded_state_shows_high_lag_without_recent_polls."""
    stream.start()
    database.insert(1, 1)
    assert stream.poll(PATIENCE) is not None
    database.insert(2, 50)
    before = stream.status()
    assert before.in_flight
    wait_until(
        lambda: (stream.status().lag_bytes or 0) > (before.lag_bytes or 0), seconds=PATIENCE, what="the lag to grow"
    )


def test_stalled_state_shows_no_polling_activity(database: Database) -> None:
    """stalled_state_shows_no_polling_activity."""
    stream = tailrace.capture(database.url, snapshot="never", stall_seconds=0.2)
    with stream:
        assert stream.status().seconds_since_poll is None
        database.insert(1, 1)
        wait_until(lambda: stream.status().health is Health.STALLED, seconds=PATIENCE, what="the stall")
        assert "nobody polls" in stream.status().reason
        assert stream.poll(PATIENCE) is not None
        wait_until(lambda: "nobody acknowledges" in stream.status().reason, seconds=PATIENCE, what="the stall")
        assert stream.status().seconds_since_poll is not None


def test_stopped_state_shows_not_live(stream: Stream) -> None:
    """stopped_state_shows_not_live."""
    stream.start()
    stream.stop()
    status = stream.status()
    assert (status.state, status.health) == (State.STOPPED, Health.NOT_RUNNING)
    assert not status.is_alive


def test_idle_state_shows_not_ready(stream: Stream) -> None:
    """idle_state_shows_not_ready."""
    status = stream.status()
    assert (status.state, status.health) == (State.IDLE, Health.NOT_RUNNING)
    assert not status.is_ready
    assert status.is_alive


def test_status_as_json_has_all_health_fields(database: Database, stream: Stream) -> None:
    """admin_json_output_includes_all_health_fields; admin_prometheus_output_reflects_state_changes (as JSON)."""
    stream.start()
    database.insert(1, 1)
    taken(stream, 1)
    told = stream.status().to_json().decode()
    for field in ("state", "health", "position", "events", "lag_bytes", "seconds_since_poll", "seconds_since_ack"):
        assert f'"{field}":' in told
