"""Streams that are started, stopped, cancelled or forgotten at a bad moment: nothing hangs, nothing is left held."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

import tailrace
from support.streams import PATIENCE, short, taken
from tailrace import CheckpointTaken, Misuse
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded import waiting, watch
from tailrace.embedded.states import State
from tailrace.embedded.status import Health
from tailrace.errors import StateUnavailable
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"


@pytest.fixture
def writer(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody who has written, and does not end his transaction."""
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO items VALUES (1, 'a')")
        yield connection
        connection.rollback()


def slots(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute(SLOTS)]


def test_a_program_with_many_files_open_has_streams(url: str) -> None:
    """`select` knows descriptors up to 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    execute(url, "INSERT INTO items VALUES (1, 'a')")
    with ExitStack() as held:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        stream = held.enter_context(tailrace.capture(url))
        assert short(taken(stream, 1)) == [("read", (1, "a"))]
        execute(url, "INSERT INTO items VALUES (2, 'b')")
        assert short(taken(stream, 1)) == [("insert", (2, "b"))]


def test_a_stream_that_is_forgotten_lets_go_of_its_slot(url: str, store: MemoryStore) -> None:
    stream = tailrace.capture(url, checkpoint=store).start()
    before = threading.active_count()
    del stream
    gc.collect()
    wait_until(lambda: threading.active_count() < before - 1, seconds=PATIENCE, what="its threads to end")
    with tailrace.capture(url, checkpoint=MemoryStore()) as stream:
        assert stream.state is State.RUNNING


def test_a_start_that_waits_says_for_whom(
    url: str,
    writer: psycopg.Connection[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waiting, "ALOUD_SECONDS", 0.2)
    stream = tailrace.capture(url, snapshot="never", stall_seconds=0)
    thread = threading.Thread(target=stream.start)
    with caplog.at_level(logging.WARNING, "tailrace.embedded"):
        thread.start()
        wait_until(lambda: stream.status().health is Health.STALLED, seconds=PATIENCE, what="it to wait")
        told = f"process {writer.info.backend_pid} of postgres"
        wait_until(lambda: told in caplog.text, seconds=PATIENCE, what="it to say for whom")
        assert told in stream.status().reason
    writer.rollback()
    thread.join(PATIENCE)
    assert stream.status().health is not Health.STALLED
    stream.close()


def test_a_start_that_waits_can_be_stopped(url: str, writer: psycopg.Connection[tuple[object, ...]]) -> None:
    stream = tailrace.capture(url, snapshot="never", stall_seconds=0)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            stream.start()
        except Misuse as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: stream.status().health is Health.STALLED, seconds=PATIENCE, what="it to wait")
    stream.stop()
    thread.join(PATIENCE)
    assert stream.state is State.STOPPED
    assert "stopped while it was started" in str(errors[0])
    assert not slots(url)


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_an_async_start_that_is_cancelled_waits_for_nobody(
    url: str, writer: psycopg.Connection[tuple[object, ...]]
) -> None:
    """Its thread would keep the program from ending."""
    stream = tailrace.capture(url, snapshot="never", stall_seconds=0)

    async def run() -> None:
        async with stream:
            raise AssertionError("it has begun")

    async def main() -> None:
        task = asyncio.create_task(run())
        while stream.status().health is not Health.STALLED:
            await asyncio.sleep(0.01)
        await cancelled(task)
        while stream.state is not State.STOPPED:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert not slots(url)


def test_an_async_stream_whose_end_is_cancelled_ends_all_the_same(url: str, store: MemoryStore) -> None:
    stream = tailrace.capture(url, checkpoint=store)

    async def run(begun: asyncio.Event) -> None:
        async with stream as polled:
            begun.set()
            await polled.poll()

    async def main() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(run(begun))
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        await cancelled(task)
        while stream.state is not State.STOPPED:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_stream_that_is_refused_the_name_takes_it_from_nobody(url: str, store: MemoryStore) -> None:
    with tailrace.capture(url, checkpoint=store, snapshot="never") as stream:
        with pytest.raises(CheckpointTaken):
            tailrace.capture(url, checkpoint=store, snapshot="never").start()
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        assert short(taken(stream, 1)) == [("insert", (1, "a"))]


class Unreliable(MemoryStore):
    """Can not be let go of for a time."""

    is_away = True

    def release(self, name: str) -> None:
        super().release(name)
        if self.is_away:
            raise StateUnavailable("the store does not answer")


def test_a_stream_whose_end_failed_can_be_started_again(url: str) -> None:
    store = Unreliable()
    stream = tailrace.capture(url, checkpoint=store, snapshot="never").start()
    with pytest.raises(StateUnavailable):
        stream.close()
    assert stream.state is State.STOPPED
    store.is_away = False
    with stream:
        execute(url, "INSERT INTO items VALUES (1, 'a')")
        assert short(taken(stream, 1)) == [("insert", (1, "a"))]


def test_a_poll_does_not_wait_for_those_who_write_to_a_new_table(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
    with tailrace.capture(url, checkpoint=store) as stream, psycopg.connect(url) as writer:
        execute(url, "CREATE TABLE late (id int PRIMARY KEY)")
        feed = stream._feed
        wait_until(lambda: feed.live.watch.news is not None, seconds=PATIENCE, what="it to be found")
        writer.execute("INSERT INTO late VALUES (1)")
        assert stream.poll(0) is None
        writer.commit()
        assert [event.key for event in taken(stream, 1)] == [{"id": 1}]
