"""A stream of a database's changes for one consumer, inside its own program.

Order is the whole point: a batch is acknowledged, then the checkpoint is durable, then the source may forget.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
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
from tailrace.embedded.remembering import Remembering
from tailrace.embedded.requests import Requests
from tailrace.embedded.states import Life, State
from tailrace.embedded.status import Moments, Status, status_of
from tailrace.embedded.waiting import Waiting
from tailrace.errors import CheckpointTaken, Misuse, TailraceError
from tailrace.history.schema_history import HistoryStore, SchemaHistory
from tailrace.model.checkpoint import Checkpoint
from tailrace.sources.base import Source

if TYPE_CHECKING:
    from tailrace.embedded.asynchronous import AsyncStream

DEFAULTS = Options()
TICK_SECONDS = 0.5
STOP_SECONDS = 10.0


class Asked(msgspec.Struct, frozen=True, eq=False):
    """An acknowledgement: it counts once `after` is in the store.

    With a `connection` that is when the consumer's own transaction on it is committed.
    """

    batch: Batch
    prefix: int | None
    delivery: Any  # a Delivery
    after: Checkpoint
    rest: Any  # a Delivery, or None: what is left
    connection: Any = None


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
        history: HistoryStore | None = None,
        *,
        owns_store: bool = False,
    ) -> None:
        self._source, self.options, self._clock = source, options, clock
        self._ledger = Ledger(store, options.name, is_owned=owns_store)
        self._copying = Copying(source, options.chunk_bytes)
        self._waiting = Waiting(options.name)
        self._beginning = Beginning(source, store, kind, options, self._copying, self._waiting)
        self._requests = Requests(self._ledger)
        self._life = Life()
        self._pid = os.getpid()
        self._polling = threading.Lock()
        self._poller: int | None = None  # the thread that polls
        self._starter: int | None = None  # the thread that starts it
        self._is_stop_wanted = False
        self._feed: Feed | None = None
        self._abandon: weakref.finalize[Any, Any] | None = None  # what becomes of it if we are forgotten
        self._outstanding: Delivery | None = None
        self._batch: Batch | None = None  # the one that can be acknowledged
        self._saving: Asked | None = None  # until it is known to be saved, and all that follows from it is done
        self._within: Asked | None = None
        self._doubtful: list[Asked] = []  # of the same batch, not committed when it was looked: it may be yet
        self._moments = Moments()
        self._history_store, self._remembering = history, cast(Remembering | None, None)
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

    @property
    def history(self) -> SchemaHistory:
        """The versions of all tables that were delivered; to be read by any thread, also when it is stopped."""
        if self._remembering is None:
            raise Misuse("the stream has no schema history", hint="capture(…, history='history.json'), and start it")
        return self._remembering.history

    def start(self) -> Self:
        """Go on at the checkpoint; where there is none, begin. Raises what makes that impossible."""
        self._pid = os.getpid() if self.state is State.IDLE else self._pid
        self._check_process()
        self._life.move(State.RUNNING)
        with self._polling:
            self._waiting.begin()
            self._starter = threading.get_ident()
            try:
                self._begin()
            finally:
                self._starter = None
        return self

    def _begin(self) -> None:
        try:
            self._ledger.claim()
            if self._history_store is not None:
                self._remembering = Remembering(self._history_store, self._source)
            begun = self._beginning.begin()
            self._ledger.note(begun.checkpoint)
            self._feed = Feed(self._source, self.options, self._ledger, begun, self._beginning, self._copying)
            self._moments = Moments(started=self._clock())
            self._feed.start()
            self._abandon = weakref.finalize(self, self._feed.abandon)
            self._abandon.atexit = False
            if self._waiting.is_over:
                raise Misuse("the stream was stopped while it was started")
        except BaseException:
            self._life.move(State.STOPPING)
            self._close()
            raise
        finally:
            self._waiting.end()

    def __enter__(self) -> Self:
        return self.start() if self.state in (State.IDLE, State.STOPPED) else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def give_up(self) -> None:
        """A start that waits for somebody ends at once, with an error; otherwise nothing is done. For any thread."""
        if self._starter is not None:
            self._waiting.is_over = True

    def close(self) -> None:
        """End it, whatever is pending: what is not acknowledged comes again at the next start."""
        self._stop(force=True, returns=False)

    def stop(self, *, force: bool = False) -> list[Batch]:
        """End it. Refused while something is unacknowledged; with `force` that is returned, and what follows it.

        In order; none of it can be acknowledged any more, and all of it comes again at the next start.
        """
        return self._stop(force=force, returns=force)

    def _stop(self, *, force: bool, returns: bool) -> list[Batch]:
        self._check_process()
        if self.state is State.STOPPED:
            return []
        if self.state is State.IDLE:
            raise Misuse("the stream was not started")
        if self._starter is not None:
            self._waiting.is_over = True
            if self._starter == threading.get_ident():  # a signal came
                return []
            with self._polling:
                pass
            return self._stop(force=force, returns=returns)
        if self._poller == threading.get_ident():  # a signal came while it waits: it ends by itself
            self._is_stop_wanted = True
            return []
        with self._ledger.lock:
            with suppress(*((TailraceError,) if force else ())):  # who knows: the next start looks at the store
                self._settle()
            self._refuse_unacknowledged(force=force)
            if self.state is State.RUNNING:
                self._life.move(State.STOPPING)
        if self._feed is not None:
            self._feed.tell()
        with self._polling:
            return [] if self._feed is None else self._end(self._feed, returns=returns)

    def _refuse_unacknowledged(self, *, force: bool) -> None:
        if self._outstanding is None or force:
            return
        events, position = self._outstanding.content.survey().events, self._outstanding.position
        raise Misuse(
            f"a batch of {events} events up to {position} is not acknowledged",
            hint="acknowledge it first, or stop(force=True): it comes again at the next start",
        )

    def _end(self, feed: Feed, *, returns: bool) -> list[Batch]:
        pending: list[Delivery] = []
        try:
            if self._outstanding is None:
                feed.save_silent(at_once=True)
            feed.stop(STOP_SECONDS)
            if returns:
                pending = self._pending(feed)
        finally:
            self._close()
        return [Batch(self, each.content, each.position) for each in pending]

    def _pending(self, feed: Feed) -> list[Delivery]:
        found: list[Delivery] = []
        if self._outstanding is not None:
            feed.took()
            found.append(self._outstanding)
        if feed.is_copying or (feed.live is not None and feed.live.buffer.error is not None):
            return found
        while (delivery := feed.next_stretch()) is not None:
            feed.took()
            found.append(delivery)
        return found

    def _close(self) -> None:
        """Whatever fails on the way, nothing is held afterwards, and it can be started again."""
        feed, self._feed = self._feed, None
        if self._abandon is not None:
            self._abandon.detach()
        self._outstanding = self._batch = self._saving = self._within = None
        self._doubtful = []
        with ExitStack() as ending:  # the last one first
            ending.callback(self._life.move, State.STOPPED)
            ending.callback(self._ledger.release)
            if self._remembering is not None:
                ending.callback(self._remembering.history.close)
            ending.callback(self._copying.close)
            if feed is not None:
                ending.callback(feed.stop, STOP_SECONDS)
            self._is_stop_wanted = False

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
        return [*dropped, f"checkpoint {self.name}"] if self._ledger.delete() else dropped

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
        self._check_process()
        self._refuse_second_thread()
        with self._polling:  # the lock itself: a signal leaves it as it was, whenever it comes
            try:
                self._poller = threading.get_ident()
                batch = self._polled(deadline)
            finally:
                self._poller = None
        if self._is_stop_wanted:
            self.close()
            return None
        return batch

    def _polled(self, deadline: float | None) -> Batch | None:
        if self.state is State.STOPPED:
            return None
        self._life.require(State.RUNNING, State.STOPPING)
        assert self._feed is not None
        with self._ledger.lock:
            self._settle()
        while True:
            if self._outstanding is None:
                found = self._next(self._feed, deadline)
                with self._ledger.lock:
                    self._outstanding, self._moments.delivered = found, self._clock()
                if found is None:
                    return None
            with self._ledger.lock:  # it may be acknowledged meanwhile, by another thread that had it before
                if self._outstanding is not None:
                    return self._handed_out(self._feed, self._outstanding)

    def _handed_out(self, feed: Feed, delivery: Delivery) -> Batch:
        feed.took()
        if self._remembering is not None:
            self._remembering.remember(delivery, self.checkpoint.position)
        self._batch = Batch(self, delivery.content, delivery.position)
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

    def _refuse_second_thread(self) -> None:
        """One that stops the stream is waited for."""
        if self._polling.locked() and (self._poller is not None or self.state is State.RUNNING):
            raise Misuse("two threads poll the stream at once", hint="one thread polls; give others its batches")

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
            if self._was_saved(batch, prefix):
                return
            delivery = self._require_outstanding(batch)
            after, rest = self._accepting(delivery, batch, prefix)
            asked = Asked(batch, prefix, delivery, after, rest, within)
            failpoints.reached("embedded-before-checkpoint")
            if within is None:
                self._saving = asked
                self._ledger.save(after)
                failpoints.reached("embedded-checkpoint-saved")
                self._accept(asked)
            else:
                self._acknowledge_within(asked)

    def _was_saved(self, batch: Batch, prefix: int | None) -> bool:
        """Whether this is one that was broken off, asked for again, and was saved all the same."""
        asked = self._settle_saving()
        return asked is not None and asked.batch is batch and asked.prefix == prefix

    def _acknowledge_within(self, asked: Asked) -> None:
        """Whatever breaks it off, the store is asked before anything else comes: it may be committed all the same."""
        store = self._transactional
        self._within, self._batch = asked, None
        try:
            store.save_within(asked.connection, self.name, asked.after)
        except Exception:  # the store has written nothing
            self._within, self._batch = None, asked.batch
            raise
        failpoints.reached("embedded-checkpoint-saved")

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

    def _accept(self, asked: Asked) -> None:
        """An acknowledgement is durable. A signal may break this off: it is done again then, and does the same."""
        assert self._feed is not None
        self._feed.accepted(asked.delivery, asked.rest)
        self._moments.acknowledged = self._clock()
        self._outstanding, self._doubtful = asked.rest, []  # without a call up to the end: no signal comes in between
        self._batch = self._saving = self._within = None

    def _settle_saving(self) -> Asked | None:
        """Look whether an acknowledgement was saved that a signal, or the store's trouble, has broken off."""
        asked = self._saving
        if asked is None:
            return None
        if self._ledger.store.load(self.name) != asked.after:
            self._saving = None  # it comes again
            return None
        self._ledger.note(asked.after)
        self._accept(asked)
        return asked

    def _settle(self) -> None:
        """Look whether the transaction was committed that the last acknowledgement was a part of.

        One whose connection was lost may be committed long after: until then the batch comes again.
        """
        self._settle_saving()
        if self._within is None and not self._doubtful:
            return
        within, found = self._within, self._ledger.store.load(self.name)
        if within is not None and found != within.after:
            self._refuse_open(within)
            found = self._ledger.store.load(self.name)
        asked = [*self._doubtful, *([] if within is None else [within])]
        committed = next((each for each in asked if each.after == found), None)
        if committed is not None:
            self._ledger.note(committed.after)
            self._accept(committed)
        elif found == self.checkpoint:
            self._within, self._doubtful = None, asked  # it comes again
        else:
            raise CheckpointTaken(f"the checkpoint {self.name} is neither what was acknowledged nor what it was before")

    def _refuse_open(self, within: Asked) -> None:
        """As long as it is open nobody can say whether the batch has to come again: it would be there twice."""
        if self._transactional.is_open(within.connection):
            raise Misuse(
                "the transaction that the last acknowledgement is a part of is still open",
                hint="commit it, or roll it back, before the next poll",
            )

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
        return status_of(self._source, self.state, self._outstanding is not None, *told, self._waiting)

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
