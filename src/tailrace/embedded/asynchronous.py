"""The stream for asyncio: the one that there is, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import pyarrow as pa

from tailrace.embedded.batch import Batch
from tailrace.embedded.states import State
from tailrace.embedded.stream import Stream
from tailrace.model.event import Event

SLICE_SECONDS = 0.5
"""A poll that is cancelled ends within it; what it would have given comes with the next one."""

T = TypeVar("T")


class AsyncBatch:
    """A batch whose acknowledgement does not hold up the loop. Reading it is plain computing, so it is not awaited."""

    def __init__(self, stream: AsyncStream, batch: Batch) -> None:
        self._stream, self._batch = stream, batch

    @property
    def position(self) -> str:
        return self._batch.position

    @property
    def tables(self) -> dict[str, list[pa.RecordBatch]]:
        return self._batch.tables

    def arrow(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return self._batch.arrow()

    def events(self) -> Iterator[Event]:
        return self._batch.events()

    def __len__(self) -> int:
        return len(self._batch)

    def __bool__(self) -> bool:
        return True

    async def ack(self, prefix: int | None = None, *, within: Any = None) -> None:
        await self._stream.run(lambda: self._batch.ack(prefix, within=within))


class AsyncStream:
    """`async with tailrace.capture(…) as stream`, then `async for batch in stream`. `stream` is the sync one."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"tailrace {stream.name}")

    async def run(self, work: Callable[[], T]) -> T:
        """In the thread that the stream lives in."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def start(self) -> Self:
        """One that is cancelled ends by itself, as soon as it can: nobody else would stop the stream."""
        try:
            await self.run(self.stream.start)
        except BaseException:
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        """End it without anybody who waits for that: what is under way in its thread is told to end first."""
        self.stream.give_up()
        self._executor.submit(self._close)
        self._executor.shutdown(wait=False)

    def _close(self) -> None:
        if self.stream.state is State.RUNNING:
            self.stream.close()

    async def poll(self, timeout: float | None = None) -> AsyncBatch | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = SLICE_SECONDS if deadline is None else min(deadline - loop.time(), SLICE_SECONDS)
            batch = await self.run(lambda left=left: self.stream.poll(max(left, 0)))  # type: ignore[misc]  # a loop's
            if batch is not None:
                return AsyncBatch(self, batch)
            if self.stream.is_at_end or (deadline is not None and loop.time() >= deadline):
                return None

    async def stop(self, *, force: bool = False) -> list[Batch]:
        return await self.run(lambda: self.stream.stop(force=force))

    async def drain(self) -> AsyncIterator[AsyncBatch]:
        batches = await self.run(self.stream.drain)
        while (batch := await self.run(lambda: next(batches, None))) is not None:
            yield AsyncBatch(self, batch)

    async def close(self) -> None:
        """What is not acknowledged comes again at the next start. It ends also if nobody waits for it any more."""
        closed = asyncio.get_running_loop().run_in_executor(self._executor, self.stream.close)
        self._executor.shutdown(wait=False)
        await asyncio.shield(closed)

    async def __aiter__(self) -> AsyncIterator[AsyncBatch]:
        while (batch := await self.poll()) is not None:
            yield batch
