"""The ways that a batch's changes go into a sink, up to its commit: as rows and changes, or as documents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol, cast

from pyspark.sql import DataFrame, SparkSession

from tailrace.errors import TailraceError
from tailrace.log.reader import LogReader, Slice
from tailrace.model.lifecycle import TableStatus
from tailrace.sinks.base import Sink
from tailrace.sources.base import Source
from tailrace.spark.documents import build_range
from tailrace.spark.expressions import Expressions
from tailrace.spark.frames import stage_range_shaped
from tailrace.spark.jobs import stage_batch, stage_range
from tailrace.tasks.documented import DocumentedSource
from tailrace.tasks.documents import BuildPlan, DocumentPlan, DocumentSink
from tailrace.tasks.stage import ApplyPlan, PartResult, TablePlan

Plans = dict[str, TablePlan]


class Staging(Protocol):
    """What a follower asks for. `plans` are the tables whose changes are wanted."""

    @property
    def parts(self) -> int:
        """How many tasks a batch has at most."""

    def stage_batch(self, frame: DataFrame, plans: Plans, batch: str, after: int) -> list[PartResult]:
        """A micro-batch of the stream, which begins after offset `after`; in the order of its parts."""

    def stage_range(self, plans: Plans, batch: str, first: int, last: int) -> list[PartResult]:
        """Any range of the log."""


class RowStaging:
    """Rows and changes. `tables` are the follower's own."""

    def __init__(
        self,
        spark: SparkSession,
        source: Source,
        sink: Sink,
        log: LogReader,
        expressions: Expressions,
        tables: Callable[[], Mapping[str, TableStatus]],
    ) -> None:
        self._spark, self._source, self._sink, self._log = spark, source, sink, log
        self._expressions, self._tables = expressions, tables

    @property
    def parts(self) -> int:
        """In each of the two ways that its tables may go."""
        ways = 2 if self._expressions.has_any else 1
        return min(max(int(self._sink.max_parts) // ways, 1), max(self._spark.sparkContext.defaultParallelism, 1))

    def stage_batch(self, frame: DataFrame, plans: Plans, batch: str, after: int) -> list[PartResult]:
        direct = {table: plan for table, plan in plans.items() if table not in self._expressions}
        results = sorted(stage_batch(frame, self._plan(direct, batch)), key=lambda result: result.part)
        if results and self._may_change(plans.keys() - direct.keys(), results):
            results += self._stage_shaped(plans, batch, after, results[-1].last)
        return results

    def stage_range(self, plans: Plans, batch: str, first: int, last: int) -> list[PartResult]:
        direct = {table: plan for table, plan in plans.items() if table not in self._expressions}
        results: list[PartResult] = []
        if direct:
            results = stage_range(self._spark, self._plan(direct, batch), self._log.slices(first, last), self.parts)
        return results + self._stage_shaped(plans, batch, first, last)

    def _stage_shaped(self, plans: Plans, batch: str, first: int, last: int) -> list[PartResult]:
        """The DataFrame way, for the tables that have transforms."""
        shaped = {table: plan for table, plan in plans.items() if table in self._expressions}
        if not shaped:
            return []
        plan, slices = self._plan(shaped, f"{batch}-shaped"), self._log.slices(first, last)
        schemas = {table: self._tables()[table].schema for table in shaped}
        return stage_range_shaped(self._spark, plan, slices, self.parts, self._expressions, schemas)

    def _may_change(self, tables: Collection[str], results: list[PartResult]) -> bool:
        """Whether there are changes of these tables in what was read, under whatever name they were made."""
        relations = {self._tables()[table].schema.relation for table in tables}
        return any(not relations.isdisjoint(r.relations) or not r.seen.keys().isdisjoint(tables) for r in results)

    def _plan(self, tables: Plans, batch: str) -> ApplyPlan:
        return ApplyPlan(self._source, self._sink, self._log, batch, tables)


class DocumentStaging:
    """Documents, built anew under one snapshot that shows the whole batch.

    `wait_until_shown` waits for that: a commit that waits for a synchronous standby is streamed before anybody sees it.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: DocumentedSource,
        sink: DocumentSink,
        log: LogReader,
        tables: Callable[[], Mapping[str, TableStatus]],
        wait_until_shown: Callable[[int, int], None],
    ) -> None:
        self._spark, self._source, self._sink, self._log = spark, source, sink, log
        self._tables, self._wait_until_shown = tables, wait_until_shown

    @property
    def parts(self) -> int:
        return min(max(int(self._sink.max_parts), 1), max(self._spark.sparkContext.defaultParallelism, 1))

    def stage_batch(self, frame: DataFrame, plans: Plans, batch: str, after: int) -> list[PartResult]:
        rows = sorted(frame.collect(), key=lambda row: (row["part"], row["first"]))
        slices = [Slice(row["name"], row["first"], row["last"]) for row in rows]
        return self._stage(plans, batch, slices) if slices else []

    def stage_range(self, plans: Plans, batch: str, first: int, last: int) -> list[PartResult]:
        return self._stage(plans, batch, self._log.slices(first, last))

    def _stage(self, plans: Plans, batch: str, slices: list[Slice]) -> list[PartResult]:
        self._wait_until_shown(slices[0].first - 1, slices[-1].last)
        documents, failed = self._planned(plans)
        self._sink.begin_build(documents)
        with self._source.export_snapshot() as snapshot:
            plan = BuildPlan(self._source.source, self._sink, self._log, batch, documents, snapshot.id)
            results = build_range(self._spark, plan, slices, self.parts)
        results[0].failed.update(failed)
        return results

    def _planned(self, plans: Plans) -> tuple[dict[str, DocumentPlan], dict[str, TailraceError]]:
        """The documents as their indexes were made; and those of a version that nobody knows any more."""
        found: dict[str, DocumentPlan] = {}
        failed: dict[str, TailraceError] = {}
        for table, plan in plans.items():
            schema = self._tables()[table].schema
            try:
                found[table] = DocumentPlan(schema, self._source.tree(schema), plan)
            except TailraceError as error:
                failed[table] = error
        return found, failed


def staging_of(
    spark: SparkSession,
    source: Source,
    sink: Sink,
    log: LogReader,
    expressions: Expressions,
    tables: Callable[[], Mapping[str, TableStatus]],
    wait_until_shown: Callable[[int, int], None],
) -> Staging:
    """The way that suits the sink."""
    if isinstance(source, DocumentedSource):
        return DocumentStaging(spark, source, cast(DocumentSink, sink), log, tables, wait_until_shown)
    return RowStaging(spark, source, sink, log, expressions, tables)
