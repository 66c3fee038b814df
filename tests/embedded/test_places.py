"""Places inside of transactions, and between messages: what a restart goes on with is what was not acknowledged."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, taken
from tailrace import Batch, CheckpointRefused
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

BOTH = "BEGIN; INSERT INTO items VALUES (1), (2), (3); INSERT INTO others VALUES (1), (2), (3); COMMIT"


@pytest.fixture
def url(url: str) -> str:
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)")
    return url


def polled(stream: Stream) -> Batch:
    batch = stream.poll(PATIENCE)
    assert batch is not None
    return batch


def told(event: Event) -> tuple[Any, ...]:
    return ("message", event.message.content) if event.message else (str(event.op), event.table, event.key)


def of_others(op: str, *ids: int) -> list[tuple[Any, ...]]:
    return [(op, "public.others", {"id": id_}) for id_ in ids]


def test_a_table_that_is_read_again_shifts_no_place_inside_of_a_transaction(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, BOTH)
        polled(stream).ack(prefix=3)
    execute(url, *(f"ALTER PUBLICATION tailrace_embedded {what} TABLE items" for what in ("DROP", "ADD")))
    with tailrace.capture(url, checkpoint=store) as stream:
        found = [told(event) for event in taken(stream, 7)]
    assert found[-3:] == of_others("insert", 1, 2, 3)


@pytest.mark.parametrize("then", [{"tables": "public.others"}, {"messages": True}])
def test_other_events_are_not_asked_for_inside_of_a_transaction(
    url: str, store: MemoryStore, then: dict[str, Any]
) -> None:
    execute(url, "CREATE PUBLICATION everything FOR ALL TABLES")
    options: dict[str, Any] = {"checkpoint": store, "publication": "everything"}
    with tailrace.capture(url, **options) as stream:
        execute(url, BOTH)
        polled(stream).ack(prefix=3)
    with pytest.raises(CheckpointRefused, match="inside of transaction"):
        tailrace.capture(url, **then, **options).start()
    with tailrace.capture(url, **options) as stream:
        assert [told(event) for event in taken(stream, 3)] == of_others("insert", 1, 2, 3)
    with tailrace.capture(url, **then, **options) as stream:
        execute(url, "INSERT INTO others VALUES (4)")
        assert [told(event) for event in taken(stream, 1)] == of_others("insert", 4)


def test_each_of_some_messages_in_a_row_comes_once(url: str, store: MemoryStore) -> None:
    options: dict[str, Any] = {"checkpoint": store, "snapshot": "never", "messages": True}
    emit = "SELECT pg_logical_emit_message(false, 'a', '{}')"
    with tailrace.capture(url, **options):
        pass
    execute(url, *(emit.format(number) for number in range(3)), "INSERT INTO others VALUES (4)")
    found: list[tuple[Any, ...]] = []
    for _ in range(4):
        with tailrace.capture(url, **options) as stream:
            batch = polled(stream)
            found.append(told(next(batch.events())))
            batch.ack(prefix=1)
    assert found == [("message", b"0"), ("message", b"1"), ("message", b"2"), *of_others("insert", 4)]


def test_a_message_right_before_a_commit_does_not_hide_it(url: str, store: MemoryStore) -> None:
    """The next record of the source's log begins where the message's ends."""
    options: dict[str, Any] = {"checkpoint": store, "snapshot": "never", "messages": True}
    with tailrace.capture(url, **options) as stream, psycopg.connect(url) as writer:
        writer.execute("INSERT INTO others VALUES (1)")
        writer.execute("SELECT pg_logical_emit_message(false, 'a', 'b')")
        writer.commit()
        batch = polled(stream)
        assert told(next(batch.events())) == ("message", b"b")
        batch.ack(prefix=1)
    with tailrace.capture(url, **options) as stream:
        assert [told(event) for event in taken(stream, 1)] == of_others("insert", 1)
