"""The Spark jobs of a pipeline: one a micro-batch or catch-up step, one a group of chunks. No row enters the JVM."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from tailrace.log.reader import Slice
from tailrace.sinks.base import Snapshots
from tailrace.sources.base import Source
from tailrace.spark.datasource import plan_parts
from tailrace.tasks.load import ChunkWork, Loaded, grouped, load_all
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.stage import ApplyPlan, PartResult, stage_part

POOL = "snapshots"
RUN = "tailrace.run"
"""A setting of our session: the tag of its jobs, by which they are told from those of others in the same context."""


def own_jobs(spark: SparkSession) -> None:
    spark.conf.set(RUN, f"tailrace-{uuid.uuid4().hex}")


def cancel_jobs(spark: SparkSession) -> None:
    """Those that this session has under way."""
    spark.sparkContext.cancelJobsWithTag(_tag(spark))


def _tag(spark: SparkSession) -> str:
    return str(spark.conf.get(RUN, "tailrace"))


def is_stopped(spark: SparkSession) -> bool:
    """Nothing more can be done in this session: its context has ended, with or without its JVM."""
    context = spark.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


@contextmanager
def tagged(spark: SparkSession) -> Iterator[None]:
    """Jobs of this thread are the session's own."""
    tag = _tag(spark)
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)


def stage_batch(frame: DataFrame, plan: ApplyPlan) -> list[PartResult]:
    """Stage a micro-batch of the pipeline's stream."""

    def run(rows: Iterable[Any]) -> Iterator[Any]:
        found = list(rows)
        if found:
            slices = [Slice(row["name"], row["first"], row["last"]) for row in found]
            yield attempt(lambda: stage_part(plan, found[0]["part"], slices))

    return unwrap(frame.rdd.mapPartitions(run).collect())


def stage_range(spark: SparkSession, plan: ApplyPlan, slices: list[Slice], most: int) -> list[PartResult]:
    """Stage any range of the log: a table's catch-up."""
    parts = plan_parts(slices, most)

    def run(part: Any) -> Any:
        return attempt(lambda: stage_part(plan, part.part, part.slices))

    with tagged(spark):
        return unwrap(spark.sparkContext.parallelize(parts, len(parts)).map(run).collect())


def load_chunks(
    spark: SparkSession, source: Source, sink: Snapshots, snapshot: str, work: Sequence[ChunkWork], pool: str = POOL
) -> list[Loaded]:
    """Load all chunks; a table that was rewritten meanwhile, or can not be copied, is reported, not raised."""
    tasks = grouped(work, spark.sparkContext.defaultParallelism)

    def run(group: list[ChunkWork]) -> Any:
        return attempt(lambda: list(load_all(source, sink, snapshot, group)))

    with tagged(spark), in_pool(spark.sparkContext, pool):
        found = unwrap(spark.sparkContext.parallelize(tasks, len(tasks)).map(run).collect())
    return [loaded for group in found for loaded in group]


@contextmanager
def in_pool(context: SparkContext, pool: str) -> Iterator[None]:
    """Spark shares slots out between pools, but first come, first served within one: a copy would be served first."""
    context.setLocalProperty("spark.scheduler.pool", pool)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # how pyspark removes one
