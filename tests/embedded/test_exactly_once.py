"""The checkpoint in the consumer's own transaction: its rows and its place are committed together, or neither is."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tailrace
from support.own_tables import copied, opened, transaction, write
from support.streams import PATIENCE
from tailrace import CheckpointRefused, CheckpointTaken, Misuse, failpoints
from tailrace.checkpoints import open_store
from tailrace.embedded.states import State
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

KINDS = ("sqlite", "postgres", "mysql", "mariadb")
IDS = list(range(1, 61))
ACKNOWLEDGING = (
    "embedded-before-checkpoint",
    "embedded-checkpoint-saved",
    "embedded-before-source-told",
    "embedded-source-told",
)


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)")
    return postgres_url


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """The user's database: his table is there, and the checkpoints. PostgreSQL's is not the one that is captured."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/mine.db"
    elif request.param == "postgres":
        name = f"own_{url.rpartition('/')[2]}"
        execute(url, f"CREATE DATABASE {name}")
        yield f"{url.rpartition('/')[0]}/{name}"
        execute(url, f"DROP DATABASE {name} WITH (FORCE)")
    else:
        yield request.getfixturevalue(f"{request.param}_url")


def insert(url: str, ids: list[int], each: int = 1) -> None:
    """A transaction for each so many."""
    values = [", ".join(f"({id_})" for id_ in ids[low : low + each]) for low in range(0, len(ids), each)]
    execute(url, *(f"INSERT INTO items VALUES {some}" for some in values))


def test_rows_and_place_are_committed_together(url: str, own: str) -> None:
    with closing(opened(own)) as connection, tailrace.capture(url, checkpoint=own, snapshot="never") as stream:
        insert(url, [1])
        first = stream.poll(PATIENCE)
        assert first is not None
        with pytest.raises(ZeroDivisionError):
            write(first, connection, then=lambda: 1 // 0)
        again = stream.poll(PATIENCE)
        assert again is not None
        assert list(again.events()) == list(first.events())
        with pytest.raises(Misuse):
            first.ack()
        write(again, connection)
        with pytest.raises(Misuse):
            again.ack(within=connection)
        insert(url, [2])
        second = stream.poll(PATIENCE)
        assert second is not None
        write(second, connection)
        position = second.position
        stream.stop()
        assert stream.checkpoint.events == 2
    assert copied(own) == [1, 2]
    with psycopg.connect(url) as source:
        assert source.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchall() == [(position,)]


def test_a_poll_before_the_commit_is_an_error_and_brings_nothing_twice(url: str, own: str) -> None:
    with closing(opened(own)) as connection, tailrace.capture(url, checkpoint=own, snapshot="never") as stream:
        insert(url, [1])
        batch = stream.poll(PATIENCE)
        assert batch is not None
        with transaction(connection) as cursor:
            cursor.execute("INSERT INTO copied (id) VALUES (1)")
            batch.ack(within=connection)
            for work in (lambda: stream.poll(0), stream.stop, lambda: stream.snapshot("items")):
                with pytest.raises(Misuse, match="still open"):
                    work()
        assert stream.poll(0) is None
        assert stream.checkpoint.events == 1
        stream.stop()
    assert copied(own) == [1]


def test_a_stream_ends_whatever_became_of_the_transaction(url: str, own: str) -> None:
    """An exception in the block, while the transaction is open, is the one that comes out."""
    connection = opened(own)

    def fails() -> None:
        with tailrace.capture(url, checkpoint=own, snapshot="never") as stream:
            insert(url, [1])
            batch = stream.poll(PATIENCE)
            assert batch is not None
            with transaction(connection):
                batch.ack(within=connection)
                stream.stop(force=True)
                assert stream.state is State.STOPPED
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    connection.close()
    with closing(opened(own)) as connection, tailrace.capture(url, checkpoint=own, snapshot="never") as stream:
        batch = stream.poll(PATIENCE)
        assert batch is not None
        write(batch, connection)
    assert copied(own) == [1]


def test_a_connection_that_is_closed_has_committed_nothing(url: str, own: str) -> None:
    with tailrace.capture(url, checkpoint=own, snapshot="never") as stream:
        insert(url, [1])
        for _ in range(2):
            batch = stream.poll(PATIENCE)
            assert batch is not None
            assert len(batch) == 1
            connection = opened(own)
            if not isinstance(connection, psycopg.Connection):
                connection.cursor().execute("BEGIN")
            batch.ack(within=connection)
            connection.close()
        with closing(opened(own)) as connection:
            batch = stream.poll(PATIENCE)
            assert batch is not None
            write(batch, connection)
            assert stream.poll(0) is None
    assert copied(own) == [1]


SLOW_COMMIT = """
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON copied DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION waits()
"""
"""A commit waits for whoever holds lock 7, as it may for a synchronous standby."""


@pytest.mark.parametrize("own", ["postgres"], indirect=True)
@pytest.mark.parametrize("prefix", [None, 1])
def test_a_commit_whose_answer_was_lost_and_that_comes_late_brings_nothing_twice(
    url: str, own: str, prefix: int | None
) -> None:
    """The server goes on with it, and the batch was polled again meanwhile."""
    lost, again = opened(own), opened(own)
    with (
        closing(again),
        closing(psycopg.connect(own, autocommit=True)) as other,
        tailrace.capture(url, checkpoint=own, snapshot="never") as stream,
    ):
        other.execute(SLOW_COMMIT)
        other.execute("SELECT pg_advisory_lock(7)")
        insert(url, [1, 2], each=2)
        batch = stream.poll(PATIENCE)
        assert batch is not None
        lost.execute("INSERT INTO copied (id) SELECT * FROM generate_series(1, %s)", [prefix or 2])
        batch.ack(prefix, within=lost)
        lost.pgconn.send_query(b"COMMIT")
        lost.pgconn.flush()
        with socket.socket(fileno=os.dup(lost.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        lost.close()
        batch = stream.poll(PATIENCE)
        assert batch is not None
        assert len(batch) == 2
        other.execute("SELECT pg_advisory_unlock(7)")
        again.execute("INSERT INTO copied (id) VALUES (1), (2)")
        with pytest.raises(CheckpointRefused, match="was committed") as refused:
            batch.ack(within=again)  # waits for the first
        assert refused.value.retry
        again.rollback()
        rest = stream.poll(0)
        if prefix is not None:
            assert rest is not None
            write(rest, again)
        assert stream.poll(0) is None
        stream.stop()
    assert copied(own) == [1, 2]


def consume(url: str, own: str, environment: Mapping[str, str], **orders: Any) -> int:
    options = {"url": url, "checkpoint": own, "snapshot": "never"}
    order = json.dumps({"options": options, "quiet": 2, "seed": None, "dies_behind": None, **orders})
    command = [sys.executable, "-m", "support.own_tables", order]
    return subprocess.run(command, env={**os.environ, **environment}, timeout=10 * PATIENCE, check=False).returncode


@pytest.mark.crash
@pytest.mark.parametrize(
    ("own", "failpoint"),
    [
        *itertools.product(KINDS[:1], ACKNOWLEDGING),
        *itertools.product(KINDS, ["embedded-checkpoint-saved", "committed"]),
    ],
    indirect=["own"],
)
def test_a_consumer_that_is_killed_has_every_row_exactly_once(url: str, own: str, failpoint: str) -> None:
    """In front of the checkpoint, between it and the commit, behind the commit, and around the word to the source."""
    assert consume(url, own, {}) == 0
    insert(url, IDS[:40], each=4)
    if failpoint == "committed":
        assert consume(url, own, {}, dies_behind=1) == -signal.SIGKILL
    else:
        assert consume(url, own, failpoints.environment(failpoint, nth=1)) == -signal.SIGKILL
    insert(url, IDS[40:], each=4)
    assert consume(url, own, {}) == 0
    assert copied(own) == IDS


@pytest.mark.crash
@pytest.mark.parametrize("nth", [2, 3])
def test_a_consumer_of_parts_that_is_killed_has_every_row_exactly_once(url: str, own: str, nth: int) -> None:
    """Most of the places are inside of a transaction."""
    assert consume(url, own, {}) == 0
    insert(url, IDS, each=20)
    before_the_commit = failpoints.environment("embedded-checkpoint-saved", nth=nth)
    assert consume(url, own, before_the_commit, seed=nth) == -signal.SIGKILL
    assert consume(url, own, {}, seed=nth + 1, dies_behind=2) == -signal.SIGKILL
    assert consume(url, own, {}, seed=9) == 0
    assert copied(own) == IDS


def test_the_checkpoints_of_a_database_are_its_own(url: str, own: str) -> None:
    """A second process that takes the name is refused while the first one lives."""
    with (
        tailrace.capture(url, checkpoint=own, snapshot="never"),
        closing(open_store(own)) as other,
        pytest.raises(CheckpointTaken),
    ):
        other.claim("embedded")
