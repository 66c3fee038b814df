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
from tailrace.embedded.beginning import Beginning, Begun
from tailrace.embedded.buffer import Buffer, Cut
from tailrace.embedded.content import Place, Stretch
from tailrace.embedded.copying import Copying
from tailrace.embedded.deliveries import Delivery, ReadDelivery, StreamDelivery
from tailrace.embedded.options import Options, Transactions
from tailrace.embedded.progress import filters_of, passed
from tailrace.embedded.pump import Pump
from tailrace.embedded.states import Life, State
from tailrace.errors import CheckpointRefused, CheckpointTaken, Misuse, SourceUnavailable
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Source, TableLocked

if TYPE_CHECKING:
    from tailrace.embedded.asynchronous import AsyncStream

DEFAULTS = Options()
TICK_SECONDS = 0.5
SILENT_SECONDS = 1.0
"""How often the progress of a stream that has nothing for us is made durable."""
STOP_SECONDS = 10.0
FEW = 1000
"""So many changes are decoded to see whether one of them is to be delivered."""

failpoints.declare("embedded-before-checkpoint", "a batch is acknowledged, its checkpoint is not durable")
failpoints.declare("embedded-checkpoint-saved", "a checkpoint is durable, nothing else is done about it")


class Within(msgspec.Struct, frozen=True):
    """An acknowledgement that counts once the consumer's own transaction is committed."""

    after: Checkpoint
    rest: Any  # what is left of the delivery


class Stream:
    """Made by `tailrace.capture`. A context manager, and an iterator of batches that ends when it is stopped.

    `poll` and the iterator are for one thread at a time; `stop` and `status` are for any.
    """

    def __init__(
        self,
        source: Source,
        store: CheckpointStore,
        kind: str,
        options: Options = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._store, self._kind, self.options = source, store, kind, options
        self._clock = clock
        self._life = Life()
        self._lock = threading.RLock()
        self._polling = threading.Lock()
        self._poller: int | None = None
        self._is_stop_wanted = False
        self._pid = os.getpid()
        self._copying = Copying(source, options.chunk_bytes)
        self._buffer: Buffer | None = None
        self._pump: Pump | None = None
        self._checkpoint: Checkpoint | None = None
        self._tables: dict[str, TableSchema] = {}
        self._forget()

    def _forget(self) -> None:
        """What belongs to one run."""
        self._outstanding: Delivery | None = None
        self._batch: Batch | None = None
        self._within: Within | None = None
        self._silent: tuple[str, SourceIdentity] | None = None
        self._saved_at = self._clock()
        self._open_count = 0  # of the transaction that was handed out in part
        self._open_id = ""
        self._sent_again: tuple[int, str] | None = None  # of the next transaction: so many events were consumed
        self._polled_at: float | None = None
        self._delivered_at = self._acked_at = self._clock()

    # --- its life

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def state(self) -> State:
        return self._life.state

    def start(self) -> Self:
        """Go on at the checkpoint; where there is none, begin. Raises what makes that impossible."""
        self._pid = os.getpid() if self.state is State.IDLE else self._pid
        self._check_process()
        self._life.move(State.RUNNING)
        self._forget()
        try:
            self._store.claim(self.name)
            self._open(Beginning(self._source, self._store, self._kind, self.options, self._copying).begin())
        except BaseException:
            self._life.move(State.STOPPING)
            self._close()
            raise
        return self

    def _open(self, begun: Begun) -> None:
        self._checkpoint, self._tables = begun.checkpoint, begun.tables
        if begun.checkpoint.skip:
            self._sent_again = (begun.checkpoint.skip, begun.checkpoint.transaction)
        if begun.capture is None:
            return
        splits = self.options.transactions is Transactions.SPLIT
        sizes = (self.options.max_bytes, self.options.batch_bytes)
        self._buffer = Buffer(self._source, *sizes, splits=splits, position=begun.checkpoint.position)
        described = {schema.relation: schema for schema in begun.tables.values()}
        self._pump = Pump(self._source, self._buffer, begun.capture, described, self.name)
        self._pump.start()

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
        with self._lock:
            self._settle()
            if self._outstanding is not None and not force:
                raise Misuse(
                    f"{self._described(self._outstanding)} is not acknowledged",
                    hint="acknowledge it first, or stop(force=True): it comes again at the next start",
                )
            if self.state is State.RUNNING:
                self._life.move(State.STOPPING)
        if self._buffer is not None:
            self._buffer.tell()
        with self._polling:
            return self._end(force=force)

    def _end(self, *, force: bool) -> list[Batch]:
        pending: list[Batch] = []
        try:
            if self._outstanding is None:
                self._save_silent(at_once=True)
            if self._pump is not None:
                self._pump.stop(STOP_SECONDS)
            if force:
                pending = self._pending()
        finally:
            self._close()
        return pending

    def _pending(self) -> list[Batch]:
        found: list[Delivery] = [] if self._outstanding is None else [self._outstanding]
        while (delivery := self._next_stretch()) is not None:
            found.append(delivery)
        return [Batch(self, each.content, each.position) for each in found]

    def _close(self) -> None:
        if self._pump is not None:
            self._pump.stop(STOP_SECONDS)
        self._copying.close()
        self._outstanding = self._batch = self._pump = None
        self._store.release(self.name)
        self._is_stop_wanted = False
        self._life.move(State.STOPPED)

    def drain(self) -> Iterator[Batch]:
        """Read nothing more from the source; the batches that are left, each to be acknowledged, and then it stops."""
        self._check_process()
        self._life.require(State.RUNNING)
        self._life.move(State.STOPPING)
        if self._pump is not None:
            self._pump.is_resting = True
            self._pump.wake()
        return self._drained()

    def _drained(self) -> Iterator[Batch]:
        while (batch := self.poll(0)) is not None:
            yield batch
        self.stop()

    # --- taking

    def __iter__(self) -> Iterator[Batch]:
        while True:
            batch = self.poll()
            if batch is None:
                return
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
        self._life.require(State.RUNNING, State.STOPPING)
        self._polled_at = self._clock()
        with self._lock:
            self._settle()
        if self._outstanding is None:
            found = self._next(deadline)
            with self._lock:
                self._outstanding, self._delivered_at = found, self._clock()
        if self._outstanding is None:
            return None
        self._batch = Batch(self, self._outstanding.content, self._outstanding.position)
        return self._batch

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._check_process()
        if not self._polling.acquire(blocking=False):
            raise Misuse("two threads poll the stream at once", hint="one thread polls; give others its batches")
        self._poller = threading.get_ident()
        try:
            yield
        finally:
            self._poller = None
            self._polling.release()

    def _next(self, deadline: float | None) -> Delivery | None:
        while not self._is_stop_wanted:
            seen = 0 if self._buffer is None else self._buffer.version
            if (delivery := self._next_chunk()) is not None:
                return delivery
            if not self._is_copying and (found := self._next_stretch()) is not None:
                return found
            if self.is_at_end:
                return None
            self._save_silent()
            left = TICK_SECONDS if deadline is None else deadline - self._clock()
            if left <= 0:
                return None
            self._wait(seen, min(left, TICK_SECONDS))
            self._polled_at = self._clock()
        return None

    def _wait(self, seen: int, seconds: float) -> None:
        if self._buffer is None:
            time.sleep(min(seconds, 0.1))
        else:
            self._buffer.wait(seen, seconds)

    @property
    def is_at_end(self) -> bool:
        """Nothing will come any more: it stops, or there is no stream and all tables are read."""
        return self.state is not State.RUNNING or (self._buffer is None and not self._is_copying)

    # --- snapshots

    @property
    def _is_copying(self) -> bool:
        """Tables are being read, which come before the stream."""
        return any(copy.visibility and copy.left for copy in self.checkpoint.copies)

    def _next_chunk(self) -> Delivery | None:
        while self._is_copying and self.state is State.RUNNING:
            try:
                read = self._copying.next(self.checkpoint, self._tables)
            except (SourceUnavailable, TableLocked):
                return None  # tried again
            if read is None:
                return None
            delivery = ReadDelivery(read)
            if read.reads.count or read.reads.truncates:
                return delivery
            with self._lock:
                self._checkpoint = delivery.whole(self.checkpoint, read.reads.survey())
        return None

    # --- the stream

    def _next_stretch(self) -> Delivery | None:
        """The next transactions that have something for the consumer."""
        while (cut := self._cut()) is not None:
            stretch = self._stretch(cut)
            if not self._is_silent(stretch):
                return StreamDelivery(self._source, stretch, cut.position)
            self._pass_silently(stretch, cut)
        return None

    def _cut(self) -> Cut | None:
        if self._buffer is None:
            return None
        with self._buffer.changed:
            cut = self._buffer.cut()
            if cut is None and self._buffer.error is not None:
                raise self._buffer.error
            return cut

    def _stretch(self, cut: Cut) -> Stretch:
        """As much of it as was not consumed yet."""
        before = self.checkpoint
        if cut.is_resent:
            self._sent_again = (self._open_count, self._open_id)
        counted = 0 if self._sent_again else self._open_count
        stretch = Stretch(
            source=self._source,
            parts=cut.parts,
            begins_at=before.position if self._silent is None else self._silent[0],
            filters=filters_of(self._source, before),
            tables=before.tables,
            counted=counted,
            consumed=self._consumed_of(cut) or counted,
            inside=cut.inside,
        )
        if stretch.has_events:
            self._open_id = cut.inside
            self._open_count = stretch.numbered() if cut.inside else 0
            self._sent_again = None
        return stretch

    def _consumed_of(self, cut: Cut) -> int:
        """How many events of the first transaction were consumed before it was sent again."""
        if self._sent_again is None or not any(part.piece.has_events for part in cut.parts):
            return 0
        count, name = self._sent_again
        found = self._source.transaction_ids(cut.parts[0].piece.transactions.slice(0, 1))[0]
        if found != name:
            raise CheckpointRefused(
                f"the checkpoint {self.name} is inside of transaction {name}, and the source sends {found} there",
                hint="the source or its tables are others than those that were read: delete it to begin anew",
            )
        return count

    def _is_silent(self, stretch: Stretch) -> bool:
        if not stretch.has_events:
            return True
        is_filtered = bool(stretch.filters) or stretch.consumed > stretch.counted
        return (is_filtered or stretch.changes < FEW) and stretch.is_empty()

    def _pass_silently(self, stretch: Stretch, cut: Cut) -> None:
        """Nothing of it is for the consumer: the stream is past it all the same."""
        assert self._buffer is not None
        if not cut.inside and self._sent_again is None:
            self._silent = (cut.position, cut.identity)
        self._buffer.release(stretch.last)
        if self._pump is not None:
            self._pump.wake()

    def _save_silent(self, *, at_once: bool = False) -> None:
        """Make the progress of a stream durable that had nothing for us, and tell the source."""
        if self._silent is None or not (at_once or self._clock() - self._saved_at >= SILENT_SECONDS):
            return
        with self._lock:
            position, identity = self._silent
            after = passed(self._source, self.checkpoint, Place(position, 0), identity, 0)
            self._save(after)
            self._silent = None
        if self._pump is not None:
            self._pump.acknowledge(position)

    # --- acknowledging

    @property
    def checkpoint(self) -> Checkpoint:
        """What is durable, but for chunks without rows."""
        assert self._checkpoint is not None
        return self._checkpoint

    def acknowledge(self, batch: Batch, prefix: int | None = None, within: Any = None) -> None:
        """`Batch.ack` calls it."""
        self._check_process()
        with self._lock:
            delivery = self._require_outstanding(batch)
            after, rest = self._accepting(delivery, batch, prefix)
            failpoints.reached("embedded-before-checkpoint")
            if within is None:
                self._save(after)
                failpoints.reached("embedded-checkpoint-saved")
                self._accept(after, rest)
            else:
                cast(TransactionalStore, self._store).save_within(within, self.name, after)
                failpoints.reached("embedded-checkpoint-saved")
                self._within, self._batch = Within(after, rest), None

    def _require_outstanding(self, batch: Batch) -> Delivery:
        self._life.require(State.RUNNING, State.STOPPING)
        if self._outstanding is None or batch is not self._batch:
            raise Misuse(
                "the batch was acknowledged before, or polled again since",
                hint="acknowledge each batch once, the one that was polled last",
            )
        return self._outstanding

    def _accepting(self, delivery: Delivery, batch: Batch, prefix: int | None) -> tuple[Checkpoint, Delivery | None]:
        if prefix is None:
            return delivery.whole(self.checkpoint, batch.survey), None
        if not 0 < prefix <= len(batch):
            raise Misuse(f"a prefix of {prefix} events, and the batch has {len(batch)}")
        if prefix == len(batch):
            return delivery.whole(self.checkpoint, batch.survey), None
        return delivery.first(self.checkpoint, prefix)

    def _accept(self, after: Checkpoint, rest: Delivery | None) -> None:
        """An acknowledgement is durable."""
        delivery = self._outstanding
        assert delivery is not None
        self._checkpoint, self._acked_at = after, self._clock()
        self._outstanding, self._batch, self._within = rest, None, None
        if delivery.last and self._pump is not None and self._buffer is not None:
            self._silent = None
            self._buffer.release(delivery.last if rest is None else _before(rest))
            self._pump.acknowledge(after.position)

    def _settle(self) -> None:
        """Look whether the transaction was committed that the last acknowledgement was a part of."""
        if self._within is None:
            return
        within, found = self._within, self._store.load(self.name)
        if found == within.after:
            self._accept(within.after, within.rest)
        elif found == self.checkpoint:
            self._within = None  # it comes again
        else:
            raise CheckpointTaken(f"the checkpoint {self.name} is neither what was acknowledged nor what it was before")

    def _save(self, after: Checkpoint) -> None:
        self._store.save(self.name, after)
        self._checkpoint, self._saved_at = after, self._clock()

    # --- misuse

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Misuse(
                "the stream belongs to the process that started it, and this one was forked from it",
                hint="make a stream in the process that uses it",
            )

    def _described(self, delivery: Delivery) -> str:
        return f"a batch of {delivery.content.survey().events} events up to {delivery.position}"

    # --- async

    async def __aenter__(self) -> AsyncStream:
        from tailrace.embedded.asynchronous import AsyncStream

        return await AsyncStream(self).start()


def _before(rest: Delivery) -> int:
    """The offset before what is left."""
    return rest.content.parts[0].first - 1 if isinstance(rest.content, Stretch) else 0
