"""One sink of a running pipeline: its streaming query, and what it has durably applied.

The order that matters: stage in tasks, commit data and watermark in the sink, and only then let the source forget.
Spark's checkpoint is made anew by every run and says nothing that the sink does not know better.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import config, events, failpoints
from tailrace.errors import (
    EngineDisturbed,
    EngineLost,
    PositionLost,
    SinkChanged,
    SinkRejected,
    SourceError,
    TailraceError,
)
from tailrace.log.lag import LagGauge
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import ASIDE, CATCHING_UP, COPYING, TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.pipeline.anchoring import anchored
from tailrace.pipeline.evolution import Evolution, evolve, failed
from tailrace.pipeline.outcomes import place_after, stepped, strayed, told, with_watermark
from tailrace.pipeline.staging import staging_of
from tailrace.pipeline.threads import said_by
from tailrace.pipeline.transforming import as_captured, transforming
from tailrace.pipeline.viewpoint import seen_by
from tailrace.sinks.base import Atomic, Batch, Evolved, Evolves, Sink, SinkState, Snapshots
from tailrace.sources.base import Source
from tailrace.spark.expressions import Expressions
from tailrace.spark.jobs import is_stopped
from tailrace.state import scratch
from tailrace.state.layout import LOG
from tailrace.state.storage import Storage
from tailrace.tasks.documented import DocumentedSource
from tailrace.tasks.stage import PartResult, TablePlan

UNSEEN_SECONDS = 0.1


class Stopping(Exception):
    """Raised inside a micro-batch that must not begin any more."""


class SinkFollower:
    """Everything about one sink. `lock` is held while a micro-batch or a hand-over to it is under way.

    It is also held by whoever on the driver writes to the sink or reads its state: a sink has one connection there.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: config.Pipeline,
        name: str,
        source: Source,
        sink: Sink,
        log_id: str,
        say: events.Say,
    ) -> None:
        self.say = say
        self.spark, self.pipeline, self.name = spark, pipeline, name
        self.expressions = Expressions(spark, pipeline.transforms)
        self.sink = transforming(sink, self.expressions) if pipeline.transforms else sink
        self.source, self.log_id = seen_by(sink, source), log_id
        self.storage = Storage(pipeline.state).folder(LOG)
        self.log = LogReader(self.storage, log_id)
        self.staging = staging_of(
            spark, self.source, self.sink, self.log, self.expressions, lambda: self.tables, self._wait_until_shown
        )
        self.lag = LagGauge(self.log)
        self._troubled: set[object] = set()  # who tries something again
        self.settings = pipeline.sinks[name]
        self.lock = threading.RLock()
        self.is_stopping = False
        self.error: TailraceError | None = None
        self.query: StreamingQuery | None = None
        self.applied = 0
        self.committed_at = time.time()
        self.tables: dict[str, TableStatus] = {}
        self.watermark = Watermark(log_id, 0, "")
        self._stored: Watermark | None = None  # as the sink itself holds it, in whatever log
        self._commits = 0  # that this run has made
        self._found_anew: dict[tuple[str, Watermark], Watermark] = {}  # a table's place, and as the sink holds it
        self._start_position = ""
        self._is_unsure = False  # the answer to a commit was lost: only the sink knows where it is
        self._followed = 0  # the offset after which the query's next micro-batch begins
        self.unknown = threading.Event()  # the log holds a table that the sink has never heard of
        self.on_commit: Callable[[], None] = lambda: None
        self._range = (0, 0)  # the offsets of the batch under way
        self.fetched: set[str] = set()  # tables of which rows may have been read that are newer than `snapshot_end`

    def load_state(self, start_position: str) -> None:
        """Read where the sink is, and find that place in the present log. Tables that it never heard of stay."""
        state = self.sink.read_state()
        self._is_unsure, self._start_position = True, start_position
        self._stored, self._commits = state.watermark, state.commits
        self._refuse_placeless(state)
        self.watermark = self._beginning(start_position) if state.watermark is None else self._anchor(state.watermark)
        unheard = {name: s for name, s in self.tables.items() if s.state is TableState.NEW}
        self.tables = unheard | {name: self._reshaped(self._anchored(status)) for name, status in state.tables.items()}
        self._found_anew = {(name, self.tables[name].watermark): s.watermark for name, s in state.tables.items()}
        self._is_unsure = False
        self.fetched = {name for name, s in self.tables.items() if s.state is TableState.AHEAD}  # by a run of before

    def _reshaped(self, status: TableStatus) -> TableStatus:
        """A table that the file transforms in another way than the sink's rows were is copied again.

        Before any change of it is applied: the sink may have other columns.
        """
        if isinstance(self.source, DocumentedSource):
            return self._redescribed(self.source, status)
        has_one, status = status.captured is not None or status.table in self.expressions, as_captured(status)
        is_same = status.held_as == self.sink.held_as(status.schema)
        if not has_one or is_same or status.state in ASIDE | {TableState.NEW}:
            return status
        return status.again(self.watermark, status.schema, reason="its transform was changed in the file")

    def _redescribed(self, source: DocumentedSource, status: TableStatus) -> TableStatus:
        """A document that was described otherwise, or whose tables were others, when it was built, is built anew."""
        if status.state in ASIDE | {TableState.NEW} or source.knows(status.schema):
            return status
        return status.again(self.watermark, status.schema, reason="its description or its tables were changed")

    def _refuse_placeless(self, state: SinkState) -> None:
        """A table becomes live in a commit that has the sink's place: nobody knows what it lacks where that is gone."""
        live = [status.table for status in state.tables.values() if status.state is TableState.LIVE]
        if live and state.watermark is None:
            raise PositionLost(f"sink {self.name} has {live[0]}, and has lost how far its changes were applied")

    def make_sure(self) -> None:
        """Before anything is planned: ask the sink where it is, if the answer to a commit was lost."""
        with self.lock:
            if self._is_unsure:
                self.load_state(self._start_position)

    def _refuse_unsure(self) -> None:
        """Before a status is written that was planned without asking the sink: it may not be true of it."""
        if self._is_unsure:
            self.load_state(self._start_position)
            raise SinkChanged(
                f"sink {self.name} was not sure where it is, and was asked: what was planned may be wrong"
            )

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """A commit, of what was planned when all answers were known. What the sink refuses is not done, for sure."""
        with self.lock:
            if self._is_unsure:
                raise SinkChanged(f"sink {self.name} may not be where it was, and is asked first")
            self._is_unsure = True
            try:
                yield
            except SinkRejected:
                self._is_unsure = False
                raise
            self._commits += 1
            self._is_unsure = False

    @property
    def snapshots(self) -> Snapshots | None:
        """The sink, if it can be loaded with the rows that are there already."""
        return self.sink if isinstance(self.sink, Snapshots) else None

    @property
    def _has_places(self) -> bool:
        """Live tables have their own."""
        return self.sink.atomic is Atomic.TABLE

    def _anchored(self, status: TableStatus) -> TableStatus:
        is_live = status.state is TableState.LIVE and not self._has_places
        is_follower = status.state in ASIDE or is_live  # its own place is of no use
        return status if is_follower else with_watermark(status, self._anchor(status.watermark))

    def _beginning(self, start_position: str) -> Watermark:
        """Where a sink that has nothing begins: where the log does or, if that is gone, at its end.

        Either will do, because the sink's tables are copied after that.
        """
        if self.log.begin() == 0:
            identity = self.log.identity()
            return Watermark(self.log_id, 0, start_position, identity.source if identity else None)
        place = self.log.place()
        assert place is not None
        return place

    def needed(self) -> Watermark:
        """Where the sink's slowest table is: the source must keep what lies behind.

        Nothing is kept for a table that is set aside: it comes back with a new copy.
        """
        behind = COPYING | CATCHING_UP | {TableState.NEW}
        slow = [t.watermark for t in list(self.tables.values()) if t.state in behind]
        return min([self.watermark, *slow], key=lambda mark: mark.offset)

    @property
    def is_live(self) -> bool:
        """No table is on its way."""
        return all(s.state is TableState.LIVE or s.state in ASIDE for s in list(self.tables.values()))

    @property
    def has_unseen(self) -> bool:
        """The stream has told of parts of a live table that nobody has looked at yet."""
        live = (s for s in list(self.tables.values()) if s.state is TableState.LIVE)
        return any(status.stored is not None and status.stored.has_unseen for status in live)

    @property
    def failures(self) -> list[TableStatus]:
        return [status for status in list(self.tables.values()) if status.state is TableState.FAILED]

    def start(self) -> None:
        """Begin to follow the log from the sink's own watermark."""
        self.error = None
        self._followed = self.watermark.offset
        try:
            self.query = self._query()
        except Exception as error:  # a query that does not start is one that is lost
            raise self._lost(said_by(error)) from error

    def _query(self) -> StreamingQuery:
        checkpoint = scratch.folder(self.pipeline.state).absolute() / self.name / uuid.uuid4().hex
        news = {} if self.storage.is_local else {"news": str(scratch.news(self.pipeline.state).path)}
        stream = (
            self.spark.readStream.format("tailrace")
            .option("path", self.pipeline.state)
            .option("startingOffset", str(self.watermark.offset))
            .option("maxRowsPerTrigger", str(self.settings.max_rows))
            .option("maxBytesPerTrigger", str(self.settings.max_bytes))
            .option("numPartitions", str(self.staging.parts))
            .options(**news)
            .load()
        )
        return (
            stream.writeStream.queryName(f"tailrace {self.pipeline.name} {self.name}")
            .option("checkpointLocation", checkpoint.as_uri())
            .foreachBatch(self._on_batch)
            .start()
        )

    def stop(self, seconds: float) -> bool:
        """Let the micro-batch under way finish, and begin no other. False if it does not finish in time."""
        self.is_stopping = True
        if not self.lock.acquire(timeout=seconds):
            return False
        self.lock.release()
        if self.query is not None:
            with suppress(Exception):  # its JVM may be gone
                self.query.stop()
        return True

    def failure(self) -> TailraceError | None:
        """Why the query ended, if it did."""
        if self.query is None or self.is_stopping:
            return None
        try:
            if self.query.isActive:
                return None
            words = said_by(self.query.exception())
        except Exception as error:
            return EngineLost(f"Spark's JVM is gone: {type(error).__name__}")
        return self.error or self._lost(words)

    def _lost(self, words: str) -> EngineLost:
        if is_stopped(self.spark):
            return EngineLost("the Spark session was stopped, by its owner or by the cluster's master")
        return EngineDisturbed(f"the streaming query of sink {self.name} ended: {words}")

    def catch_up_to(self, statuses: list[TableStatus], last: int, *, finish: bool) -> None:
        """Apply the changes of some tables up to offset `last` of the log; with `finish` they are live afterwards.

        A live table's place is the sink's watermark: where the source was idle from the beginning, no micro-batch has
        written one yet, so it is written here. One whose copy is torn, and that was not truncated since, begins again.
        """
        first = min(status.watermark.offset for status in statuses)
        results: list[PartResult] = []
        if first < last:
            plans = {
                s.table: TablePlan(s.watermark.offset, s.visibility, s.schema.relation, late=True) for s in statuses
            }
            results = self.staging.stage_range(plans, f"catch-up-{last}", first, last)
            for error in (error for result in results for error in result.failed.values() if error.retry):
                raise error
        self._range = (first, last)
        place = place_after(results, last, statuses[0].watermark)
        outcome = evolve(self.source, self.sink, {s.table: s for s in statuses}, results)
        outcome = told(strayed(outcome, statuses, results), results)
        truncated = {table for result in results for table in result.truncated}
        for status in statuses:
            if status.table not in outcome.held:
                now = outcome.tables[status.table]
                reached = max(place, status.watermark, key=lambda mark: mark.offset)
                is_whole = status.state is not TableState.TORN or status.table in truncated
                outcome.tables[status.table] = stepped(now, reached, is_whole=is_whole, finish=finish)
        mark = self.watermark if finish and self._stored is None else None
        self.applied += self._commit(results, outcome, mark)
        failpoints.reached("catch-up-step-committed")

    def _anchor(self, mark: Watermark) -> Watermark:
        return anchored(self.log, self.source, mark, self.log_id)

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self.lock:
            if self.is_stopping:
                raise Stopping
            try:
                self.make_sure()
                self._refuse_gap()
                self.isolated(lambda: self._apply(frame, number))
            except TailraceError as error:
                self.error = error
                raise
            except Exception as error:
                self.error = self._lost(said_by(error))
                raise
        self.on_commit()

    def _refuse_gap(self) -> None:
        """A sink that was asked again may be elsewhere: what lies between is not in the next micro-batch."""
        if self.watermark.offset != self._followed:
            raise SinkChanged(f"sink {self.name} is at offset {self.watermark.offset}, and was at {self._followed}")

    def isolated(self, work: Callable[[], None]) -> None:
        """Do something for many tables; one that the sink refuses is set aside, and it is done for the others.

        Nothing of what was tried is left behind by a refusal.
        """
        while True:
            try:
                return work()
            except TailraceError as error:
                if not self.is_tables_own(error):
                    raise
                self.became(failed(self.tables[str(error.table)], error))

    def is_tables_own(self, error: TailraceError) -> bool:
        """Whether an error stops its table only."""
        isolates = self.settings.on_table_error is config.OnTableError.ISOLATE
        known = self.tables.get(error.table or "")
        return isolates and not error.retry and known is not None and known.state not in ASIDE

    def became(self, status: TableStatus, rows: int | None = None) -> None:
        """Make a table's new state durable, and say it."""
        self.write(status)
        self.say_table(status, rows)

    def write(self, *statuses: TableStatus) -> None:
        """Make statuses durable; what the sink has of the tables stays as it is."""
        with self.lock:
            self._refuse_unsure()
            with self._answered():
                self.sink.commit(Batch(tables=statuses, commits=self._commits), self._fetch)
            for status in statuses:
                self.tables[status.table] = status

    def take_in(self, status: TableStatus, change: Evolved) -> bool:
        """Change a live table in place; false if the sink can not."""
        with self.lock:
            self._refuse_unsure()
            if not isinstance(self.sink, Evolves) or not self.sink.takes_in_place(change):
                return False
            with self._answered():
                batch = Batch(tables=(status,), evolved=(change,), commits=self._commits)
                self.sink.commit(batch, self._fetch)
            self.tables.pop(change.before.table, None)
            self.tables[status.table] = status
            return True

    def note_trouble(self, who: object) -> None:
        """What is told of the trouble is the caller's."""
        self._troubled.add(who)

    def tell_retry(self, who: object, error: TailraceError, seconds: float) -> None:
        """That something is tried again."""
        self.note_trouble(who)
        kind = events.SourceRetry if isinstance(error, SourceError) else events.SinkRetry
        self.say(kind(sink=self.name, message=str(error), retry_seconds=seconds))

    def tell_recovered(self, who: object) -> None:
        """That it is well; said once nobody of this sink is in trouble."""
        if who in self._troubled:
            self._troubled.discard(who)
            if not self._troubled:
                self.say(events.Recovered(sink=self.name))

    def say_table(self, status: TableStatus, rows: int | None = None) -> None:
        is_waiting = status.state is TableState.SNAPSHOT and not status.visibility
        state = "is copied again" if is_waiting else str(status.state)
        self.say(events.Table(table=status.table, sink=self.name, state=state, rows=rows, reason=status.reason))

    def _live_plan(self, status: TableStatus) -> TablePlan:
        """What a table has already, of a sink whose tables go on one by one, is not staged again after a crash."""
        return TablePlan(status.watermark.offset if self._has_places else 0, relation=status.schema.relation)

    def _apply(self, frame: DataFrame, number: int) -> None:
        live = {t: self._live_plan(s) for t, s in self.tables.items() if s.state is TableState.LIVE}
        results = self.staging.stage_batch(frame, live, f"batch-{number}", self.watermark.offset)
        if not results:  # Spark begins with a batch whether or not there is anything new
            return
        failpoints.reached("batch-staged")
        self._range = (self.watermark.offset, results[-1].last)
        mark = place_after(results, results[-1].last, self.watermark)
        known = {t: self.tables[t] for t in live}
        outcome = evolve(self.source, self.sink, known, results, self.watermark)
        outcome = told(strayed(outcome, known.values(), results, self.watermark), results)
        self._refuse_failures(results)
        if self._has_places:
            self._move_tables(outcome, results, mark)
        before = {t: self.tables[t].state for t in live}
        self.applied += self._commit(results, outcome, mark)
        self.watermark, self._followed = mark, mark.offset
        self.committed_at = time.time()
        for table in (t for t, state in before.items() if self.tables[t].state is not state):
            self.say_table(self.tables[table])
        if any(table not in self.tables for result in results for table in result.seen) or self.has_unseen:
            self.unknown.set()

    def _move_tables(self, outcome: Evolution, results: list[PartResult], mark: Watermark) -> None:
        """The tables that changed are at the end of the batch."""
        for table in {table for result in results for table in result.schemas} - outcome.held:
            outcome.tables[table] = with_watermark(outcome.tables[table], mark)

    def _refuse_failures(self, results: list[PartResult]) -> None:
        """Where a table's trouble is to stop the sink, it does."""
        if self.settings.on_table_error is config.OnTableError.STOP:
            for error in (error for result in results for error in result.failed.values()):
                raise error

    def _commit(self, results: list[PartResult], outcome: Evolution, mark: Watermark | None) -> int:
        parts = tuple(outcome.keep(r.staged) for r in results if r.staged is not None)
        changed = tuple(s for t, s in outcome.tables.items() if s != self.tables.get(t))
        with self._answered():
            places = self._stored_places(changed)
            batch = Batch(parts, mark, changed, self._stored, places, outcome.evolved, self._commits)
            touched = self.sink.commit(batch, self._fetch)
            self._stored = mark or self._stored
            for status in changed:
                self.tables[status.table] = status
        return int(touched)

    def _stored_places(self, statuses: Iterable[TableStatus]) -> dict[str, Watermark]:
        """Where the sink has these tables, before a commit moves them."""
        places = {s.table: self.tables[s.table].watermark for s in statuses if s.table in self.tables}
        return {table: self._found_anew.get((table, place), place) for table, place in places.items()}

    def _fetch(self, schema: TableSchema, keys: Any) -> Any:
        """Rows as the source has them, once it shows what the batch tells of them.

        A commit that waits for a synchronous standby is streamed before anybody sees it.
        """
        self.fetched.add(schema.table)
        self._wait_until_shown(*self._range)
        return self.source.read_rows(schema, keys)

    def _wait_until_shown(self, after: int, last: int) -> None:
        """Until everybody sees the transactions of a range at the source."""
        while not self.source.is_shown(self.log.transactions(after, last)):
            if self.is_stopping:
                raise Stopping
            time.sleep(UNSEEN_SECONDS)
