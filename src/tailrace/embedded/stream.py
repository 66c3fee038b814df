"""A stream of a database's changes for one consumer, inside its own program.

Order is the whole point: a batch is acknowledged, then the checkpoint is durable, then the source may forget.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from tailrace import failpoints
from tailrace.checkpoints.base import CheckpointStore, TransactionalStore
from tailrace.embedded.batch import Batch
from tailrace.embedded.beginning import Beginning
from tailrace.embedded.control import SnapshotControl
from tailrace.embedded.copying import Copying
from tailrace.embedded.deliveries import Delivery
from tailrace.embedded.feed import Feed
from tailrace.embedded.ledger import Ledger
from tailrace.embedded.options import Options
from tailrace.embedded.requests import Requests
from tailrace.embedded.states import Life, State
from tailrace.embedded.status import Moments, Status, status_of
from tailrace.errors import CheckpointTaken, Misuse
from tailrace.model.checkpoint import Checkpoint
from tailrace.sources.base import Source

if TYPE_CHECKING:
    from tailrace.embedded.asynchronous import AsyncStream

DEFAULTS = Options()
TICK_SECONDS = 0.5
STOP_SECONDS = 10.0


class Within(msgspec.Struct, frozen=True):
    """An acknowledgement that counts once the consumer's own transaction is committed."""

    after: Checkpoint
    rest: Any  # a Delivery: what is left


class Stream:
    """Made by `tailrace.capture`. A context manager, and an iterator of batches that ends when it is stopped.

    `poll` and the iterator are for one thread at a time; `stop`, `snapshot` and `status` are for any.
    """

    def __init__(
        self,
        source: Source,
        store: CheckpointStore,
        kind: str,
        options: Options = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self.options, self._clock = source, options, clock
        self._ledger = Ledger(store, options.name)
        self._copying = Copying(source, options.chunk_bytes)
        self._beginning = Beginning(source, store, kind, options, self._copying)
        self._requests = Requests(self._ledger)
        self._life = Life()
        self._pid = os.getpid()
        self._polling = threading.Lock()
        self._poller: int | None = None  # the thread that polls
        self._is_stop_wanted = False
        self._feed: Feed | None = None
        self._outstanding: Delivery | None = None
        self._batch: Batch | None = None  # the one that can be acknowledged
        self._within: Within | None = None
        self._moments = Moments()
        self._asynchronous: AsyncStream

    # --- its life

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def checkpoint(self) -> Checkpoint:
        """What was acknowledged."""
        return self._ledger.checkpoint

    def start(self) -> Self:
        """Go on at the checkpoint; where there is none, begin. Raises what makes that impossible."""
        self._pid = os.getpid() if self.state is State.IDLE else self._pid
        self._check_process()
        self._life.move(State.RUNNING)
        try:
            self._ledger.store.claim(self.name)
            begun = self._beginning.begin()
            self._ledger.note(begun.checkpoint)
            self._feed = Feed(self._source, self.options, self._ledger, begun, self._beginning, self._copying)
        except BaseException:
            self._life.move(State.STOPPING)
            self._close()
            raise
        self._moments = Moments(started=self._clock())
        self._feed.start()
        return self

    def __enter__(self) -> Self:
        return self.start() if self.state in (State.IDLE, State.STOPPED) else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is not acknowledged comes again at the next start."""
        self.stop(force=True)

    def stop(self, *, force: bool = False) -> list[Batch]:
        """End it. Refused while something is unacknowledged; with `force` that is returned, and what follows it.

        In order; none of it can be acknowledged any more, and all of it comes again at the next start.
        """
        self._check_process()
        if self.state is State.STOPPED:
            return []
        if self.state is State.IDLE:
            raise Misuse("the stream was not started")
        if self._poller == threading.get_ident():  # a signal came while it waits: it ends by itself
            self._is_stop_wanted = True
            return []
        with self._ledger.lock:
            self._settle()
            self._refuse_unacknowledged(force=force)
            if self.state is State.RUNNING:
                self._life.move(State.STOPPING)
        if self._feed is not None:
            self._feed.tell()
        with self._polling:
            return [] if self._feed is None else self._end(self._feed, force=force)

    def _refuse_unacknowledged(self, *, force: bool) -> None:
        if self._outstanding is None or force:
            return
        events, position = self._outstanding.content.survey().events, self._outstanding.position
        raise Misuse(
            f"a batch of {events} events up to {position} is not acknowledged",
            hint="acknowledge it first, or stop(force=True): it comes again at the next start",
        )

    def _end(self, feed: Feed, *, force: bool) -> list[Batch]:
        pending: list[Delivery] = []
        try:
            if self._outstanding is None:
                feed.save_silent(at_once=True)
            feed.stop(STOP_SECONDS)
            if force:
                pending = self._pending(feed)
        finally:
            self._close()
        return [Batch(self, each.content, each.position) for each in pending]

    def _pending(self, feed: Feed) -> list[Delivery]:
        found: list[Delivery] = [] if self._outstanding is None else [self._outstanding]
        if not feed.is_copying and (feed.live is None or feed.live.buffer.error is None):
            found += iter(feed.next_stretch, None)
        return found

    def _close(self) -> None:
        if self._feed is not None:
            self._feed.stop(STOP_SECONDS)
        self._copying.close()
        self._feed = self._outstanding = self._batch = self._within = None
        self._ledger.store.release(self.name)
        self._is_stop_wanted = False
        self._life.move(State.STOPPED)

    def drain(self) -> Iterator[Batch]:
        """Read nothing more from the source; the batches that are left, each to be acknowledged, and then it stops."""
        self._check_process()
        self._life.require(State.RUNNING)
        self._life.move(State.STOPPING)
        assert self._feed is not None
        self._feed.rest()
        return self._drained()

    def _drained(self) -> Iterator[Batch]:
        while (batch := self.poll(0)) is not None:
            yield batch
        self.stop()

    def drop(self) -> list[str]:
        """Remove what was made in the source, and the checkpoint: nobody consumes the stream any more.

        Says what was removed. A slot that is left behind keeps the source from ever forgetting anything.
        """
        self._check_process()
        self._life.require(State.IDLE, State.STOPPED)
        dropped = self._source.drop()
        return [*dropped, f"checkpoint {self.name}"] if self._ledger.store.delete(self.name) else dropped

    # --- taking

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.poll()) is not None:
            yield batch

    def poll(self, timeout: float | None = None) -> Batch | None:
        """The next batch, waiting for it at most `timeout` seconds; the same one again until it is acknowledged.

        None when there was none in time, or when the stream is stopped, or at its end. Raises what ended the source's
        stream, once all that came before is delivered.
        """
        deadline = None if timeout is None else self._clock() + timeout
        with self._alone():
            batch = self._polled(deadline)
        if self._is_stop_wanted:
            self.stop(force=True)
            return None
        return batch

    def _polled(self, deadline: float | None) -> Batch | None:
        if self.state is State.STOPPED:
            return None
        self._life.require(State.RUNNING, State.STOPPING)
        assert self._feed is not None
        with self._ledger.lock:
            self._settle()
        if self._outstanding is None:
            found = self._next(self._feed, deadline)
            with self._ledger.lock:
                self._outstanding, self._moments.delivered = found, self._clock()
        if self._outstanding is None:
            return None
        self._batch = Batch(self, self._outstanding.content, self._outstanding.position)
        return self._batch

    def _next(self, feed: Feed, deadline: float | None) -> Delivery | None:
        while not self._is_stop_wanted:
            self._moments.polled, version = self._clock(), feed.version
            delivery = feed.next() if self.state is State.RUNNING else feed.next_stretch()
            if delivery is not None or self.is_at_end:
                return delivery
            feed.save_silent()
            left = TICK_SECONDS if deadline is None else deadline - self._clock()
            if left <= 0:
                return None
            feed.wait(version, min(left, TICK_SECONDS))
        return None

    @property
    def is_at_end(self) -> bool:
        """Nothing will come any more: it stops, or there is no stream and all tables are read."""
        return self.state is not State.RUNNING or (self._feed is not None and self._feed.is_over)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._check_process()
        if not self._polling.acquire(blocking=False):
            if self._poller is not None or self.state is State.RUNNING:
                raise Misuse("two threads poll the stream at once", hint="one thread polls; give others its batches")
            self._polling.acquire()  # another thread stops it: wait for that
        self._poller = threading.get_ident()
        try:
            yield
        finally:
            self._poller = None
            self._polling.release()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse(
                "the stream belongs to the process that started it, and this one was forked from it",
                hint="make a stream in the process that uses it",
            )

    # --- acknowledging

    def acknowledge(self, batch: Batch, prefix: int | None = None, within: Any = None) -> None:
        """`Batch.ack` calls it."""
        self._check_process()
        with self._ledger.lock:
            delivery = self._require_outstanding(batch)
            after, rest = self._accepting(delivery, batch, prefix)
            failpoints.reached("embedded-before-checkpoint")
            if within is None:
                self._ledger.save(after)
                failpoints.reached("embedded-checkpoint-saved")
                self._accept(rest)
            else:
                self._transactional.save_within(within, self.name, after)
                failpoints.reached("embedded-checkpoint-saved")
                self._within, self._batch = Within(after, rest), None

    @property
    def _transactional(self) -> TransactionalStore:
        store = self._ledger.store
        if not hasattr(store, "save_within"):
            raise Misuse(
                f"{type(store).__name__} can not be written within a transaction of yours",
                hint="keep the checkpoint in the database that you write to: checkpoint='postgresql://…'",
            )
        return cast(TransactionalStore, store)

    def _require_outstanding(self, batch: Batch) -> Delivery:
        self._life.require(State.RUNNING, State.STOPPING)
        if self._outstanding is None or batch is not self._batch:
            raise Misuse(
                "the batch was acknowledged before, or polled again since",
                hint="acknowledge each batch once, the one that was polled last",
            )
        return self._outstanding

    def _accepting(self, delivery: Delivery, batch: Batch, prefix: int | None) -> tuple[Checkpoint, Delivery | None]:
        if prefix is not None and not 0 < prefix <= len(batch):
            raise Misuse(f"a prefix of {prefix} events, and the batch has {len(batch)}")
        if prefix is None or prefix == len(batch):
            return delivery.whole(self.checkpoint, batch.survey), None
        return delivery.first(self.checkpoint, prefix)

    def _accept(self, rest: Delivery | None) -> None:
        """An acknowledgement is durable."""
        delivery, self._outstanding = self._outstanding, rest
        assert delivery is not None
        assert self._feed is not None
        self._batch = self._within = None
        self._moments.acknowledged = self._clock()
        self._feed.accepted(delivery, rest)

    def _settle(self) -> None:
        """Look whether the transaction was committed that the last acknowledgement was a part of."""
        if self._within is None:
            return
        within, found = self._within, self._ledger.store.load(self.name)
        if found == within.after:
            self._ledger.note(within.after)
            self._accept(within.rest)
        elif found == self.checkpoint:
            self._within = None  # it comes again
        else:
            raise CheckpointTaken(f"the checkpoint {self.name} is neither what was acknowledged nor what it was before")

    # --- snapshots on demand, and how it is

    def snapshot(self, table: str, where: str = "") -> SnapshotControl:
        """Have a table's rows read again while the stream flows: all of them, or those of a condition in SQL.

        They come as `read` events between the batches of the stream, each exactly as new as what was delivered before
        it. The request is durable when this returns: what is left of it goes on after a restart.
        """
        self._check_process()
        with self._ledger.lock:
            self._life.require(State.RUNNING)
            self._settle()
            assert self._feed is not None
            if self._feed.live is None:
                raise Misuse("the stream reads tables only", hint="snapshot='initial' has a stream as well")
            return self._requests.add(table, where, self._feed.tables)

    @property
    def snapshots(self) -> list[SnapshotControl]:
        """Those on demand that are under way, also from before a restart."""
        return self._requests.under_way()

    def status(self) -> Status:
        """How it is. It asks nobody."""
        told = (self._ledger.known, self._feed, self._moments, self._clock(), self.options.stall_seconds)
        return status_of(self._source, self.state, self._outstanding is not None, *told)

    # --- async

    async def __aenter__(self) -> AsyncStream:
        """The same for asyncio, in a thread of its own."""
        from tailrace.embedded.asynchronous import AsyncStream

        self._asynchronous = AsyncStream(self)
        return await self._asynchronous.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._asynchronous.close()
