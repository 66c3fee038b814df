"""The stream for asyncio is the same one."""

from __future__ import annotations

import asyncio
import time

import pytest

import tailrace
from support.streams import PATIENCE
from tailrace import Misuse
from tailrace.checkpoints.memory import MemoryStore
from tailrace.embedded.beginning import Begun
from tailrace.embedded.states import State
from tailrace.testing.postgres import execute
from tailrace.testing.processes import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    return postgres_url


def test_batches_are_awaited_and_acknowledged(url: str) -> None:
    store = MemoryStore()

    async def consume(count: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        async with tailrace.capture(url, checkpoint=store) as stream:
            execute(url, "INSERT INTO items SELECT max(id) + 1 FROM items")
            async for batch in stream:
                found += [(str(event.op), event.after["id"]) for event in batch.events() if event.after]
                assert sum(len(rows) for parts in batch.tables.values() for rows in parts) == len(batch)
                await batch.ack()
                with pytest.raises(Misuse):
                    await batch.ack()
                if len(found) >= count:
                    break
            assert stream.stream.state is State.RUNNING
        assert stream.stream.state is State.STOPPED
        return found

    assert asyncio.run(consume(2)) == [("read", 1), ("insert", 2)]
    assert asyncio.run(consume(1)) == [("insert", 3)]


def test_others_run_while_it_waits(url: str) -> None:
    async def wait() -> int:
        async with tailrace.capture(url, snapshot="never") as stream:
            polling = asyncio.create_task(stream.poll(2))
            turns = 0
            while not polling.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert polling.result() is None
            return turns

    assert asyncio.run(wait()) > 20


def test_what_a_cancelled_poll_would_have_given_comes_with_the_next(url: str) -> None:
    async def consume() -> list[int]:
        async with tailrace.capture(url, snapshot="never") as stream:
            polling = asyncio.create_task(stream.poll())
            await asyncio.sleep(0.1)
            polling.cancel()
            execute(url, "INSERT INTO items VALUES (2)")
            batch = await stream.poll(PATIENCE)
            assert batch is not None
            found = [event.after["id"] for event in batch.events() if event.after]
            await batch.ack(prefix=1)
            return found

    assert asyncio.run(consume()) == [2]


def test_what_is_left_is_drained(url: str) -> None:
    async def consume() -> list[int]:
        found: list[int] = []
        async with tailrace.capture(url, snapshot="never") as stream:
            execute(url, "INSERT INTO items VALUES (2)")
            while stream.stream.status().health != "healthy":
                await asyncio.sleep(0.01)
            async for batch in stream.drain():
                found += [event.after["id"] for event in batch.events() if event.after]
                await batch.ack()
            assert stream.stream.state is State.STOPPED
        return found

    assert asyncio.run(consume()) == [2]


def test_a_start_that_is_cancelled_leaves_nothing_running(url: str) -> None:
    store, stream = MemoryStore(), tailrace.capture(url, snapshot="never")
    begin = stream._beginning.begin

    def slowly() -> Begun:
        time.sleep(1)
        return begin()

    stream._beginning.begin = slowly  # type: ignore[method-assign]

    async def consume() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), stream:
                raise AssertionError("it has started")
        wait_until(lambda: stream.state is State.STOPPED, seconds=PATIENCE, what="the end of the start")
        async with tailrace.capture(url, checkpoint=store, snapshot="never") as again:
            assert again.stream.state is State.RUNNING

    asyncio.run(consume())


def test_an_acknowledgement_that_is_cancelled_counts_whole_or_not_at_all(url: str) -> None:
    """Nobody can say which: the batch comes again, or what follows does."""

    async def consume() -> list[int]:
        found: list[int] = []
        async with tailrace.capture(url, snapshot="never") as stream:
            for id_ in range(2, 12):
                execute(url, f"INSERT INTO items VALUES ({id_})")
                batch = await stream.poll(PATIENCE)
                assert batch is not None
                found += [event.after["id"] for event in batch.events() if event.after]
                acknowledging = asyncio.create_task(batch.ack())
                await asyncio.sleep(id_ % 3 / 100)
                acknowledging.cancel()
            while (batch := await stream.poll(2)) is not None:
                found += [event.after["id"] for event in batch.events() if event.after]
                await batch.ack()
            assert stream.stream.checkpoint.events == 10
        return found

    found = asyncio.run(consume())
    assert list(dict.fromkeys(found)) == list(range(2, 12))
