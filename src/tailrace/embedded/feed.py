"""What is delivered next: tables that come before the stream, chunks that were asked for, and the stream itself.

One run of a stream has one. It is used by the thread that polls.
"""

from __future__ import annotations

import time

from tailrace.embedded.beginning import Beginning, Begun
from tailrace.embedded.buffer import Buffer, Cut
from tailrace.embedded.content import Place, Stretch
from tailrace.embedded.copying import Copying, TableVanished, is_under_way
from tailrace.embedded.cursor import Cursor
from tailrace.embedded.deliveries import Delivery, ReadDelivery, StreamDelivery
from tailrace.embedded.incremental import Incremental
from tailrace.embedded.ledger import Ledger
from tailrace.embedded.options import Options, Transactions
from tailrace.embedded.progress import filters_of, passed
from tailrace.embedded.pump import Pump
from tailrace.embedded.watch import Watch
from tailrace.errors import SourceRefused, SourceUnavailable
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Capture, Source

SILENT_SECONDS = 1.0
"""How often the progress of a stream that has nothing for us is made durable."""
RETRY_SECONDS = 0.5
"""How soon something is read again that could not be."""
FEW = 1000
"""So many changes are decoded to see whether one of them is to be delivered."""


class Live:
    """The stream's own: what a run without a stream has not got."""

    def __init__(self, source: Source, options: Options, begun: Begun, capture: Capture) -> None:
        splits = options.transactions is Transactions.SPLIT
        sizes = (options.max_bytes, options.batch_bytes)
        self.buffer = Buffer(source, *sizes, splits=splits, position=begun.checkpoint.position)
        described = {schema.relation: schema for schema in begun.tables.values()}
        self.pump = Pump(source, self.buffer, capture, described, options)
        self.watch = Watch(source, options.name, begun.tables, begun.checkpoint.memberships)
        self.watch.remark(begun.remarks)

    def start(self) -> None:
        self.pump.start()
        self.watch.start()

    def stop(self, seconds: float) -> None:
        self.watch.stop(seconds)
        self.pump.stop(seconds)

    def abandon(self) -> None:
        """As `stop`, and waits for nobody."""
        self.watch.stop(0)
        self.pump.stop(0)


class Feed:
    """`tables` are those that are followed, as they are now."""

    def __init__(
        self, source: Source, options: Options, ledger: Ledger, begun: Begun, beginning: Beginning, copying: Copying
    ) -> None:
        self._source, self._ledger, self._beginning, self._copying = source, ledger, beginning, copying
        self.tables: dict[str, TableSchema] = begun.tables
        self.live = None if begun.capture is None else Live(source, options, begun, begun.capture)
        self._incremental = Incremental(source, options.chunk_bytes, ledger)
        skip, transaction = begun.checkpoint.skip, begun.checkpoint.transaction
        self._cursor = self._next_cursor = Cursor(skip, transaction) if skip else Cursor()
        self._silent: tuple[str, SourceIdentity] | None = None  # up to there, nothing more was for us
        self._saved_at = time.monotonic()
        self._tried_at = 0.0

    @property
    def _checkpoint(self) -> Checkpoint:
        return self._ledger.checkpoint

    def start(self) -> None:
        if self.live is not None:
            self.live.start()

    def stop(self, seconds: float) -> None:
        """What was acknowledged is passed on to the source first."""
        if self.live is not None:
            self.live.stop(seconds)
        self._copying.close()

    def abandon(self) -> None:
        """Nobody will ever poll again: the threads end by themselves, soon."""
        if self.live is not None:
            self.live.abandon()

    def rest(self) -> None:
        """Take nothing more in."""
        if self.live is not None:
            self.live.pump.is_resting = True
            self.live.pump.wake()

    # --- waiting

    @property
    def version(self) -> int:
        """It has another one when there may be something new."""
        return 0 if self.live is None else self.live.buffer.version

    def wait(self, version: int, seconds: float) -> None:
        if self.live is None:
            time.sleep(min(seconds, RETRY_SECONDS))
        else:
            self.live.buffer.wait(version, seconds)

    @property
    def _identity(self) -> SourceIdentity | None:
        return None if self.live is None else self.live.pump.identity

    def tell(self) -> None:
        """Wake whoever waits."""
        if self.live is not None:
            self.live.buffer.tell()

    # --- what comes next

    @property
    def is_copying(self) -> bool:
        """Tables are being read that come before the stream."""
        return any(map(is_under_way, self._checkpoint.copies))

    @property
    def is_over(self) -> bool:
        """All tables are read, and there is no stream."""
        return self.live is None and not self.is_copying

    def next(self) -> Delivery | None:
        """It comes again until it is `took`, whatever an exception has broken off."""
        if self.live is not None and self.live.buffer.offered is not None:
            return self._next_observed()
        if (chunk := self._next_chunk()) is not None or self.is_copying:
            return chunk
        self._copying.close()
        if self._take_news():
            return self.next()
        if (asked := self._next_on_demand()) is not None:
            return asked
        return self._next_observed()

    def _next_observed(self) -> Delivery | None:
        delivery = self.next_stretch()
        if delivery is not None:
            self._incremental.observe(delivery.content)
        return delivery

    def took(self) -> None:
        """What came last is in the consumer's hands: what follows comes next."""
        if self.live is not None and self.live.buffer.offered is not None:
            self._cursor = self._next_cursor
            self.live.buffer.offered = None

    def _take_news(self) -> bool:
        """Tables that came since, and those that were not in the source's stream for a time.

        Raises what became of one that is followed, and whose changes do not come any more.
        """
        if self.live is None:
            return False
        if self.live.watch.lost is not None:
            raise self.live.watch.lost
        if self.live.watch.news is None:
            return False
        facts = self.live.watch.news
        try:
            with self._ledger.lock:
                self._ledger.save(self._beginning.with_tables(self._checkpoint, facts, is_settled=True))
        except SourceUnavailable:
            return False  # tried again
        self.tables = {each.schema.table: each.schema for each in facts}
        self.live.watch.follow(self.tables, self._checkpoint.memberships)
        return True

    def _next_chunk(self) -> Delivery | None:
        while self.is_copying and time.monotonic() - self._tried_at >= RETRY_SECONDS:
            try:
                read = self._copying.next(self._checkpoint, self.tables)
            except SourceUnavailable:
                self._tried_at = time.monotonic()
                return None
            except TableVanished as error:
                self._ledger.give_up(error.table)
                continue
            if read is None:
                return None
            delivery = ReadDelivery(read, self._identity)
            if len(read.reads):
                return delivery
            with self._ledger.lock:
                self._ledger.note(delivery.whole(self._checkpoint, read.reads.survey()))
        return None

    def _next_on_demand(self) -> Delivery | None:
        if self.live is None:
            return None
        try:
            while (read := self._incremental.next(self._checkpoint, self._border(self.live.buffer))) is not None:
                delivery = ReadDelivery(read, self._identity)
                if len(read.reads):
                    return delivery
                with self._ledger.lock:
                    self._ledger.save(delivery.whole(self._checkpoint, read.reads.survey()))
        except SourceRefused as error:
            if error.table is not None:
                self._ledger.drop_copy(error.table)
            raise
        return None

    def _border(self, buffer: Buffer) -> str:
        """How far the stream was consumed: up to where the source's log was read, if nothing of it is left."""
        with buffer.lock:
            if buffer.given >= buffer.committed:
                return buffer.received
        return self._checkpoint.position if self._silent is None else self._silent[0]

    # --- the stream

    def next_stretch(self) -> StreamDelivery | None:
        """The next transactions that have something for the consumer."""
        if self.live is None:
            return None
        while (cut := self._cut(self.live.buffer)) is not None:
            self._forget_strayed(self.live, cut)
            stretch = self._stretch(cut)
            if not _is_silent(stretch):
                return StreamDelivery(self._source, stretch, cut.position)
            self._pass_silently(self.live, cut)
        return None

    def _forget_strayed(self, live: Live, cut: Cut) -> None:
        """Changes came of a table under another name than the one that it is followed by: it lacks them.

        One that is copied now has them from there.
        """
        copied = {copy.schema.table for copy in self._checkpoint.copies}
        names = {schema.relation: table for table, schema in self.tables.items() if table not in copied}
        told = {(each.relation, each.schema.table) for part in cut.parts for each in part.piece.definitions}
        for relation, name in told:
            table = names.get(relation)
            if table is not None and table != name and self._checkpoint.memberships.get(table):
                self._ledger.give_up(table)
                live.watch.forget(table)

    def _cut(self, buffer: Buffer) -> Cut | None:
        with buffer.lock:
            cut = buffer.cut()
            if cut is None and buffer.error is not None:
                raise buffer.error
            return cut

    def _stretch(self, cut: Cut) -> Stretch:
        """As much of it as was not consumed yet."""
        before = self._checkpoint
        begins_at = before.position if self._silent is None else self._silent[0]
        filters = filters_of(self._source, before)
        stretch, self._next_cursor = self._cursor.stretch(self._source, cut, begins_at, filters, before.tables)
        return stretch

    def _pass_silently(self, live: Live, cut: Cut) -> None:
        """Nothing of it is for the consumer: the stream is past it all the same."""
        self.took()
        if not cut.inside and not self._cursor.again:
            self._silent = (cut.position, cut.identity)
        live.buffer.release(cut.last)
        live.pump.wake()

    def save_silent(self, *, at_once: bool = False) -> None:
        """Make the progress of a stream durable that had nothing for us, and tell the source."""
        is_due = at_once or time.monotonic() - self._saved_at >= SILENT_SECONDS
        if self._silent is None or self.live is None or not is_due:
            return
        self._saved_at = time.monotonic()
        with self._ledger.lock:
            position, identity = self._silent
            self._ledger.save(passed(self._source, self._checkpoint, Place(position, 0), identity, 0))
            self._silent = None
        self.live.pump.acknowledge(position)

    def accepted(self, delivery: Delivery, rest: Delivery | None) -> None:
        """The checkpoint is durable: nobody needs what lies before it."""
        if self.live is None or not isinstance(delivery, StreamDelivery):
            return
        self._silent, self._saved_at = None, time.monotonic()
        begin = delivery.last + 1 if not isinstance(rest, StreamDelivery) else rest.content.parts[0].first
        self.live.buffer.release(begin - 1)
        self.live.pump.acknowledge(self._checkpoint.position)


def _is_silent(stretch: Stretch) -> bool:
    """Whether nothing of it is for the consumer. Of a large one that nothing is left out of, something is."""
    if not stretch.has_events:
        return True
    is_filtered = bool(stretch.filters) or stretch.leaves_out
    return (is_filtered or stretch.changes < FEW) and stretch.is_empty()
