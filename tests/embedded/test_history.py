"""The schema history of a stream: every version is durable before anything is handed out that has it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, Consumer, taken
from tailrace import Misuse, failpoints
from tailrace.checkpoints.memory import MemoryStore
from tailrace.errors import StateError
from tailrace.history.schema_history import SchemaHistory
from tailrace.history.stores import FileHistory, MemoryHistory
from tailrace.model.event import Event
from tailrace.model.schema import TableSchema
from tailrace.sources.postgres.positions import reached
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

ITEMS = "public.items"


def names(schema: TableSchema | None) -> list[str] | None:
    return None if schema is None else [column.name for column in schema.columns]


def versions(path: Path) -> list[list[str] | None]:
    """What anybody finds who reads the file."""
    return [names(version.schema) for version in SchemaHistory(FileHistory(path), reached).versions(ITEMS)]


def check_each(history: SchemaHistory, events: list[Event]) -> None:
    """By its position, each event is of the version that it says."""
    for event in events:
        assert names(history.schema_at(event.table, position=event.position)) == names(event.schema)


def test_a_version_is_durable_when_its_first_change_is_handed_out(url: str, store: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "history.json"
    with tailrace.capture(url, checkpoint=store, snapshot="never", history=path) as stream:
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        events = taken(stream, 1)
        execute(url, "ALTER TABLE items ADD n int", "INSERT INTO items VALUES (2, 'b', 3)")
        batch = stream.poll(PATIENCE)
        assert batch is not None
        assert versions(path) == [["id", "name"], ["id", "name", "n"]]
        events += batch.events()
        batch.ack()
        check_each(stream.history, events)
        assert events[-1].commit_time is not None
        assert names(stream.history.schema_at(ITEMS, time=events[-1].commit_time)) == ["id", "name", "n"]
    assert names(stream.history.latest(ITEMS)) == ["id", "name", "n"]


def test_versions_of_one_transaction_and_of_one_batch_are_all_there(url: str, store: MemoryStore) -> None:
    kept = MemoryHistory()
    with tailrace.capture(url, checkpoint=store, snapshot="never", history=kept) as stream:
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO items VALUES (1, 'a')")
            for number in range(3):
                connection.execute(f"ALTER TABLE items ADD n{number} int".encode())
                connection.execute(f"INSERT INTO items (id) VALUES ({number + 2})".encode())
        execute(url, "ALTER TABLE items DROP n1", "INSERT INTO items (id) VALUES (9)")
        taken(stream, 9)
        found = [names(version.schema) for version in stream.history.versions(ITEMS)]
    base = ["id", "name"]
    assert found == [base, [*base, "n0"], [*base, "n0", "n1"], [*base, "n0", "n1", "n2"], [*base, "n0", "n2"]]


def test_rows_of_a_snapshot_have_their_version(url: str, store: MemoryStore) -> None:
    execute(url, "INSERT INTO items VALUES (1, 'a')")
    with tailrace.capture(url, checkpoint=store, history=MemoryHistory()) as stream:
        events = taken(stream, 1)
        execute(url, "INSERT INTO items VALUES (2, 'b')")
        events += taken(stream, 1)
        execute(url, "ALTER TABLE items DROP name", "INSERT INTO items VALUES (3)")
        events += taken(stream, 2)
        assert [str(event.op) for event in events] == ["read", "insert", "schema", "insert"]
        check_each(stream.history, events)
        assert len(stream.history.versions(ITEMS)) == 2


@pytest.mark.crash
@pytest.mark.parametrize("failpoint", ["embedded-before-checkpoint", "embedded-checkpoint-saved"])
def test_a_consumer_that_is_killed_finds_its_history_whole(url: str, tmp_path: Path, failpoint: str) -> None:
    path = tmp_path / "history.json"
    consumer = Consumer(url, tmp_path, snapshot="never", history=str(path))
    consumer.ends(events=0)
    execute(url, "INSERT INTO items VALUES (1, 'a')", "ALTER TABLE items ADD n int", "INSERT INTO items VALUES (2)")
    consumer.dies(failpoints.environment(failpoint))
    before = versions(path)
    assert before == [["id", "name"], ["id", "name", "n"]][: len(before)]
    assert len(consumer.delivered()[0]) <= {1: 1, 2: 3}[len(before)]
    execute(url, "ALTER TABLE items DROP name", "INSERT INTO items VALUES (3)")
    consumer.ends()
    assert versions(path) == [["id", "name"], ["id", "name", "n"], ["id", "n"]]


def test_a_batch_whose_version_can_not_be_kept_is_not_handed_out(url: str, store: MemoryStore) -> None:
    class Full(MemoryHistory):
        is_full = True

        def save(self, versions: object) -> None:
            if self.is_full:
                raise StateError("the disk is full")
            super().save(versions)  # type: ignore[arg-type]

    kept = Full()
    with tailrace.capture(url, checkpoint=store, snapshot="never", history=kept) as stream:
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        for _ in range(2):
            with pytest.raises(StateError, match="full"):
                stream.poll(PATIENCE)
        kept.is_full = False
        assert [event.after for event in taken(stream, 1)] == [{"id": 1, "name": "a"}]


def test_a_stream_without_a_history_says_so(url: str) -> None:
    stream = tailrace.capture(url, snapshot="never")
    with pytest.raises(Misuse, match="no schema history"):
        _ = stream.history
