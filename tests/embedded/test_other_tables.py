"""Tables that go, come back, are replaced or taken out of the stream: they are read anew, or the stream says so."""

from __future__ import annotations

from typing import Any

import pytest

import tailrace
from support.streams import PATIENCE, short, taken
from tailrace import PositionLost, SourceRefused
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded import watch
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

ITEMS = "public.items"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)


def until_read(stream: Stream, table: str, id_: int) -> list[Event]:
    """Up to the row of a snapshot that has this id."""
    found: list[Event] = []
    while not any((e.op, e.table, (e.after or {}).get("id")) == ("read", table, id_) for e in found):
        batch = stream.poll(PATIENCE)
        assert batch is not None, f"{short(found)} came"
        found += batch.events()
        batch.ack()
    return found


def told(events: list[Event], table: str) -> list[tuple[Any, ...]]:
    return [(str(e.op), (e.after or {}).get("id")) for e in events if e.table == table and e.op != "schema"]


def raises_lost(stream: Stream, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        taken(stream, 1 << 60)


def test_a_table_that_was_made_again_is_read_from_its_beginning(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
        execute(url, "DROP TABLE items", "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (2)")
        assert told(until_read(stream, ITEMS, 2), ITEMS) == [("truncate", None), ("read", 2)]


def test_a_table_that_took_the_place_of_another_is_read(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, ITEMS, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
        execute(
            url,
            "CREATE TABLE other (id int PRIMARY KEY, name text)",
            "INSERT INTO other VALUES (2)",
            "BEGIN; ALTER TABLE items RENAME TO former; ALTER TABLE other RENAME TO items; COMMIT",
        )
        assert told(until_read(stream, ITEMS, 2), ITEMS)[:2] == [("truncate", None), ("read", 2)]


def test_a_table_with_a_new_name_is_read_though_its_changes_came_first(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        taken(stream, 1)
        execute(url, "ALTER TABLE items RENAME TO goods", "INSERT INTO goods VALUES (2, 'b')")
        found = told(until_read(stream, "public.goods", 2), "public.goods")
    assert found[-3:] == [("truncate", None), ("read", 1), ("read", 2)]


def test_a_table_that_was_elsewhere_for_a_time_is_read_again(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, "public.*", checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
        execute(url, "CREATE SCHEMA aside", "ALTER TABLE items SET SCHEMA aside", "INSERT INTO aside.items VALUES (2)")
        execute(url, "CREATE TABLE mark (id int PRIMARY KEY)", "INSERT INTO mark VALUES (1)")
        until_read(stream, "public.mark", 1)  # somebody has looked
        execute(url, "ALTER TABLE aside.items SET SCHEMA public")
        assert told(until_read(stream, ITEMS, 2), ITEMS) == [("truncate", None), ("read", 1), ("read", 2)]


def test_a_table_that_had_another_name_for_a_moment_is_read_again(url: str, store: MemoryStore) -> None:
    """Nobody can have looked meanwhile; what was written to it has the other name in the stream."""
    with tailrace.capture(url, ITEMS, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
        there, back = "ALTER TABLE items RENAME TO other", "ALTER TABLE other RENAME TO items"
        execute(url, f"BEGIN; {there}; INSERT INTO other VALUES (2); {back}; COMMIT")
        assert told(until_read(stream, ITEMS, 2), ITEMS) == [("truncate", None), ("read", 1), ("read", 2)]


def test_a_table_that_was_taken_out_is_an_error_until_it_is_back(url: str, store: MemoryStore) -> None:
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)")
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
        execute(url, "ALTER PUBLICATION tailrace_embedded DROP TABLE items", "INSERT INTO items VALUES (2)")
        raises_lost(stream, SourceRefused, "public.items can not be followed any more: .* out of the publication")
        execute(url, "ALTER PUBLICATION tailrace_embedded ADD TABLE items")
        wait_until(lambda: stream._feed.live.watch.lost is None, seconds=PATIENCE, what="a look")
        assert told(until_read(stream, ITEMS, 2), ITEMS) == [("truncate", None), ("read", 1), ("read", 2)]


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("DROP PUBLICATION tailrace_embedded", PositionLost, "publication tailrace_embedded is gone|was dropped"),
        ("ALTER PUBLICATION tailrace_embedded SET (publish = 'insert')", SourceRefused, "does not publish .*update"),
    ],
)
def test_a_publication_that_tells_less_is_an_error(
    url: str, store: MemoryStore, statement: str, kind: type[Exception], words: str
) -> None:
    with tailrace.capture(url, checkpoint=store) as stream:
        execute(url, statement, "INSERT INTO items VALUES (1)")
        raises_lost(stream, kind, words)


def test_a_table_that_was_not_asked_for_by_one_run_is_read_again(url: str, store: MemoryStore) -> None:
    """The publication is another's, and has it all the time."""
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)", "CREATE PUBLICATION everything FOR ALL TABLES")
    options: dict[str, Any] = {"checkpoint": store, "publication": "everything"}
    with tailrace.capture(url, **options) as stream:
        execute(url, "INSERT INTO items VALUES (1)")
        taken(stream, 1)
    with tailrace.capture(url, "public.others", **options) as stream:
        execute(url, "INSERT INTO items VALUES (2)", "INSERT INTO others VALUES (1)")
        taken(stream, 1)
    with pytest.raises(PositionLost, match="for a time"), tailrace.capture(url, snapshot="never", **options):
        pass
    with tailrace.capture(url, **options) as stream:
        assert told(until_read(stream, ITEMS, 2), ITEMS) == [("truncate", None), ("read", 1), ("read", 2)]


def test_a_table_of_which_only_inserts_come_is_remarked_on(
    url: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL would refuse the application's updates otherwise."""
    execute(url, "CREATE TABLE keyless (id int)")
    with tailrace.capture(url, checkpoint=store) as stream:
        assert ["public.keyless: only its inserts" in remark for remark in stream.status().remarks] == [True]
        execute(url, "ALTER TABLE items DROP CONSTRAINT items_pkey")
        wait_until(lambda: len(stream.status().remarks) == 2, seconds=PATIENCE, what="it to be seen")
    assert caplog.text.count("only its inserts are captured") == 2


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_table_that_is_dropped_while_it_is_copied_holds_up_nobody(
    url: str, store: MemoryStore, is_stopped: bool
) -> None:
    execute(url, "INSERT INTO items SELECT i, repeat('x', 500) FROM generate_series(1, 100) i")
    execute(url, "CREATE TABLE others (id int PRIMARY KEY)")
    stream = tailrace.capture(url, checkpoint=store, chunk_bytes=8192).start()
    taken(stream, 1)
    if is_stopped:
        stream.stop()
    execute(url, "DROP TABLE items", "INSERT INTO others VALUES (1)")
    with stream:
        assert [id_ for _, id_ in told(taken(stream, 1), "public.others")] == [1]
        execute(url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (7)")
        assert told(until_read(stream, ITEMS, 7), ITEMS) == [("truncate", None), ("read", 7)]
