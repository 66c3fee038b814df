"""A stream inside of the program that consumes it: batches, acknowledgements, restarts. Against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tailrace
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.batch import Batch
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    return postgres_url


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def taken(stream: Stream, count: int, *, acks: bool = True) -> list[Event]:
    """The next events, `count` of them at least."""
    found: list[Event] = []
    while len(found) < count:
        batch = stream.poll(30)
        assert batch is not None, f"{len(found)} of {count} events came"
        found += batch.events()
        if acks:
            batch.ack()
    return found


def short(events: list[Event]) -> list[tuple[Any, ...]]:
    return [(str(e.op), e.table, None if e.after is None else tuple(e.after.values())) for e in events]


def test_changes_come_as_plain_events_in_commit_order(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, "public.*", checkpoint=store, snapshot="never") as stream:
        execute(url, "INSERT INTO items VALUES (1, 'a'), (2, 'b')", "UPDATE items SET name = 'c' WHERE id = 1")
        execute(url, "DELETE FROM items WHERE id = 2", "TRUNCATE items")
        events = taken(stream, 5)
    assert [str(event.op) for event in events] == ["insert", "insert", "update", "delete", "truncate"]
    assert [event.after for event in events] == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 1, "name": "c"},
        None,
        None,
    ]
    assert [event.key for event in events] == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}, None]
    assert events[3].before == {"id": 2}
    assert [event.transaction.number for event in events if event.transaction] == [1, 2, 1, 1, 1]
    assert events[0].commit_time == events[1].commit_time


def test_what_was_acknowledged_does_not_come_again(url: str, store: MemoryStore) -> None:
    stream = tailrace.capture(url, checkpoint=store, snapshot="never")
    with stream:
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        taken(stream, 1)
    with tailrace.capture(url, checkpoint=store, snapshot="never") as again:
        assert again.poll(2) is None
        execute(url, "INSERT INTO items VALUES (2, 'b')")
        assert short(taken(again, 1)) == [("insert", "public.items", (2, "b"))]


def test_the_rows_that_are_there_come_first(url: str, store: MemoryStore) -> None:
    execute(url, "INSERT INTO items VALUES (1, 'a')")
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (2, 'b')")
        assert short(taken(stream, 2)) == [("read", "public.items", (1, "a")), ("insert", "public.items", (2, "b"))]
