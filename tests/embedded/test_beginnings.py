"""Where a stream begins: a checkpoint of another kind of stream, or a place that was seeded, loses nothing silently."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

import tailrace
from support.streams import short, taken
from tailrace import CheckpointRefused, PositionLost
from tailrace.checkpoints.memory import MemoryStore
from tailrace.model.checkpoint import Checkpoint
from tailrace.testing.postgres import execute

pytestmark = pytest.mark.server

SLOT = "SELECT pg_create_logical_replication_slot('tailrace_embedded', 'pgoutput')"


def position(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots").fetchone()
    assert row is not None
    return str(row[0])


def seed(store: MemoryStore, at: str) -> None:
    store.claim("embedded")
    store.seed("embedded", Checkpoint("postgresql", at, 0))
    store.release("embedded")


def test_a_place_of_rows_only_is_not_gone_on_with_by_a_stream(url: str, store: MemoryStore) -> None:
    execute(url, "INSERT INTO items VALUES (1)", SLOT)
    with tailrace.capture(url, checkpoint=store, snapshot="only") as stream:
        taken(stream, 1)
    execute(url, "INSERT INTO items VALUES (2)")
    with pytest.raises(CheckpointRefused, match="is of snapshot='only'"), tailrace.capture(url, checkpoint=store):
        pass


def test_rows_only_do_not_go_on_at_the_place_of_a_stream(url: str, store: MemoryStore) -> None:
    execute(url, "INSERT INTO items VALUES (1)")
    with tailrace.capture(url, checkpoint=store) as stream:
        taken(stream, 1)
    only = tailrace.capture(url, checkpoint=store, snapshot="only")
    with pytest.raises(CheckpointRefused, match="is of a stream"), only:
        pass


@pytest.mark.parametrize("is_running", [False, True])
def test_a_slot_that_somebody_made_again_has_lost_the_place(url: str, store: MemoryStore, is_running: bool) -> None:
    stream = tailrace.capture(url, checkpoint=store).start()
    execute(url, "INSERT INTO items VALUES (1)")
    taken(stream, 1)
    if not is_running:
        stream.stop()
    with psycopg.connect(url, autocommit=True) as connection:
        end = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        while True:
            connection.execute(end)
            with suppress(psycopg.errors.ObjectInUse):
                connection.execute("SELECT pg_drop_replication_slot('tailrace_embedded')")
                break
    execute(url, "INSERT INTO items VALUES (2)", SLOT, "INSERT INTO items VALUES (3)")
    with pytest.raises(PositionLost, match=r"begins at|is gone"), stream:
        taken(stream, 1)


def test_a_seed_that_the_source_has_not_reached_is_refused(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=MemoryStore()):
        pass
    seed(store, "FF/0")
    with pytest.raises(CheckpointRefused, match="seeded at FF/0, and the source's log ends"):
        tailrace.capture(url, checkpoint=store).start()


def test_a_seed_from_before_the_tables_were_published_is_refused(url: str, store: MemoryStore) -> None:
    execute(url, SLOT, "INSERT INTO items VALUES (1)")
    seed(store, position(url))
    with pytest.raises(PositionLost, match="publication tailrace_embedded is gone"):
        tailrace.capture(url, checkpoint=store).start()
    execute(url, "CREATE PUBLICATION tailrace_embedded")
    with pytest.raises(PositionLost, match="items was not published before"):
        tailrace.capture(url, checkpoint=store).start()


def test_a_seed_is_where_the_stream_begins(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=MemoryStore()):
        pass
    seed(store, position(url))
    execute(url, "INSERT INTO items VALUES (1, 'a')")
    with tailrace.capture(url, checkpoint=store) as stream:
        assert short(taken(stream, 1)) == [("insert", (1, "a"))]
