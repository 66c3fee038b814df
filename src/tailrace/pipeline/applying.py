"""One sink of a running pipeline: its streaming query, and what it has durably applied.

The order that matters: stage in tasks, commit data and watermark in the sink, and only then let the source forget.
Spark's checkpoint is made anew by every run and says nothing that the sink does not know better.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tailrace import config, failpoints
from tailrace.errors import EngineLost, TailraceError
from tailrace.log.reader import LogReader
from tailrace.log.storage import Storage
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.pipeline.anchoring import anchored
from tailrace.pipeline.evolution import Evolution, again, evolve
from tailrace.sinks.base import Batch
from tailrace.spark.apply import ApplyPlan, PartResult, TablePlan, stage_batch, stage_range
from tailrace.spark.layout import LOG, SPARK

LOST_TRIES = 5
"""How often in a row work that Spark lost is begun again before the sink is given up."""


class Stopping(Exception):
    """Raised inside a micro-batch that must not begin any more."""


class SinkPipeline:
    """Everything about one sink. `lock` is held while a micro-batch or a hand-over to it is under way.

    It is also held by whoever on the driver writes to the sink or reads its state: a sink has one connection there.
    """

    def __init__(
        self, spark: SparkSession, pipeline: config.Pipeline, name: str, source: Any, sink: Any, log_id: str
    ) -> None:
        self.spark, self.pipeline, self.name = spark, pipeline, name
        self.source, self.sink, self.log_id = source, sink, log_id
        self.storage = Storage(pipeline.state).folder(LOG)
        self.log = LogReader(self.storage)
        self.settings = pipeline.sinks[name]
        self.lock = threading.RLock()
        self.is_stopping = False
        self.error: TailraceError | None = None
        self.query: StreamingQuery | None = None
        self.applied = 0
        self.last_commit_us = 0
        self.committed_at = time.time()
        self.tables: dict[str, TableStatus] = {}
        self.watermark = Watermark(log_id, 0, "")
        self._is_marked = False  # the sink itself holds a watermark
        self.unknown = threading.Event()  # the log holds a table that the sink has never heard of
        self.on_commit: Callable[[], None] = lambda: None
        self._losses = 0  # queries that Spark lost since the last commit
        self.fetched: set[str] = set()  # tables of which rows may have been read that are newer than `snapshot_end`

    def load_state(self, start_position: str) -> None:
        """Read where the sink is, and find that place in the present log."""
        state = self.sink.read_state()
        self._is_marked = state.watermark is not None
        self.watermark = self._beginning(start_position) if state.watermark is None else self._anchor(state.watermark)
        self.tables = {
            name: _with_watermark(status, self._anchor(status.watermark)) for name, status in state.tables.items()
        }
        self.fetched = {name for name, status in self.tables.items() if status.is_ahead}  # by a run that is no more

    def _beginning(self, start_position: str) -> Watermark:
        """Where a sink that has nothing begins: where the log does or, if that is gone, at its end.

        Either will do, because the sink's tables are copied after that.
        """
        if self.log.begin() == 0:
            return Watermark(self.log_id, 0, start_position)
        newest = max(name for name in self.log.names() if name.holds_end)
        return Watermark(self.log_id, newest.committed, self.log.header(newest).position)

    def needed(self) -> Watermark:
        """Where the sink's slowest table is: the source must keep what lies behind."""
        slow = [t.watermark for t in list(self.tables.values()) if t.state is not TableState.LIVE]
        return min([self.watermark, *slow], key=lambda mark: mark.offset)

    @property
    def is_live(self) -> bool:
        return all(status.state is TableState.LIVE for status in list(self.tables.values()))

    def start(self) -> None:
        """Begin to follow the log from the sink's own watermark."""
        self.error = None
        try:
            self.query = self._query()
        except Exception as error:  # a query that does not start is one that is lost
            raise self._lost(said_by(error)) from error

    def _query(self) -> StreamingQuery:
        checkpoint = f"{self.pipeline.state}/{SPARK}/{self.name}/{uuid.uuid4().hex}"
        stream = (
            self.spark.readStream.format("tailrace")
            .option("path", self.pipeline.state)
            .option("startingOffset", str(self.watermark.offset))
            .option("maxRowsPerTrigger", str(self.settings.max_rows))
            .option("maxBytesPerTrigger", str(self.settings.max_bytes))
            .option("numPartitions", str(self._parts))
            .load()
        )
        return (
            stream.writeStream.queryName(f"tailrace {self.pipeline.name} {self.name}")
            .option("checkpointLocation", checkpoint)
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
        self._losses += 1
        return lost(f"the streaming query of sink {self.name} ended: {words}", self._losses)

    def catch_up_to(self, statuses: list[TableStatus], last: int, *, finish: bool) -> None:
        """Apply the changes of some tables up to offset `last` of the log; with `finish` they are live afterwards.

        A live table's place is the sink's watermark: where the source was idle from the beginning, no micro-batch has
        written one yet, so it is written here. One whose copy is torn, and that was not truncated since, begins again.
        """
        first = min(status.watermark.offset for status in statuses)
        results: list[PartResult] = []
        if first < last:
            plans = {s.table: TablePlan(s.watermark.offset, s.visibility) for s in statuses}
            plan = self._plan(plans, f"catch-up-{last}")
            results = stage_range(self.spark, plan, self.log.slices(first, last), self._parts)
        position = results[-1].position if results else ""
        place = Watermark(self.log_id, last, position or statuses[0].watermark.position)
        state = TableState.LIVE if finish else TableState.CATCH_UP
        outcome = evolve(self.source, {s.table: s for s in statuses}, results)
        truncated = {table for result in results for table in result.truncated}
        for status in statuses:
            if status.table not in outcome.held:
                now = outcome.tables[status.table]
                reached = max(place, status.watermark, key=lambda mark: mark.offset)
                is_torn = status.is_torn and status.table not in truncated
                outcome.tables[status.table] = (
                    again(now, reached, now.schema)
                    if finish and is_torn
                    else now.move(state, watermark=reached, is_torn=is_torn)
                )
        mark = self.watermark if finish and not self._is_marked else None
        self.applied += self._commit(results, outcome, mark)
        failpoints.reached("catch-up-step-committed")

    def _anchor(self, mark: Watermark) -> Watermark:
        return anchored(self.log, self.source, mark, self.log_id)

    @property
    def _parts(self) -> int:
        return min(int(self.sink.max_parts), max(self.spark.sparkContext.defaultParallelism, 1))

    def _plan(self, tables: dict[str, TablePlan], batch: str) -> ApplyPlan:
        return ApplyPlan(self.source, self.sink, self.storage, batch, tables)

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self.lock:
            if self.is_stopping:
                raise Stopping
            try:
                self._apply(frame, number)
            except TailraceError as error:
                self.error = error
                raise
            except Exception as error:
                self.error = self._lost(said_by(error))
                raise
        self.on_commit()

    def _apply(self, frame: DataFrame, number: int) -> None:
        live = {t: TablePlan() for t, s in self.tables.items() if s.state is TableState.LIVE}
        results = sorted(stage_batch(frame, self._plan(live, f"batch-{number}")), key=lambda r: r.part)
        if not results:  # Spark begins with a batch whether or not there is anything new
            return
        failpoints.reached("batch-staged")
        position = next((r.position for r in reversed(results) if r.position), self.watermark.position)
        mark = Watermark(self.log_id, results[-1].last, position)
        outcome = evolve(self.source, {t: self.tables[t] for t in live}, results, self.watermark)
        self.applied += self._commit(results, outcome, mark)
        self.watermark = mark
        self.last_commit_us = max((r.time_us for r in results), default=self.last_commit_us)
        self.committed_at = time.time()
        self._losses = 0
        if any(table not in self.tables for result in results for table in result.seen):
            self.unknown.set()

    def _commit(self, results: list[PartResult], outcome: Evolution, mark: Watermark | None) -> int:
        parts = tuple(outcome.keep(r.staged) for r in results if r.staged is not None)
        changed = tuple(s for t, s in outcome.tables.items() if s != self.tables.get(t))
        with self.lock:
            touched = self.sink.commit(Batch(parts, mark, changed), self._fetch)
            self._is_marked |= mark is not None
            for status in changed:
                self.tables[status.table] = status
        return int(touched)

    def _fetch(self, schema: TableSchema, keys: Any) -> Any:
        self.fetched.add(schema.table)
        return self.source.read_rows(schema, keys)


def lost(what: str, times: int) -> EngineLost:
    """Spark's JVM lives, and lost a worker of its own: on a busy machine it may not have come up in time."""
    error = EngineLost(what)
    error.retry = times <= LOST_TRIES
    return error


def said_by(error: object) -> str:
    """The first line of an error, which has its kind."""
    words = (str(error or "").splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {words}" if isinstance(error, Exception) else words


def _with_watermark(status: TableStatus, mark: Watermark) -> TableStatus:
    return msgspec.structs.replace(status, watermark=mark)
