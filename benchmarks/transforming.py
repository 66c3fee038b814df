"""What transforms cost: the same changes staged by the direct way and through Catalyst, in several ways.

A log with the changes of four tables is captured once; what is timed is reading, decoding, netting and (but for the
direct way) an expression and a filter, up to a sink that keeps nothing. No capture, no database.
"""

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from benchmarks import ours
from benchmarks.backlog import COLUMNS, NEW_ROW
from tailrace import config, registry
from tailrace.log.reader import LogReader, Slice
from tailrace.model.schema import TableSchema
from tailrace.spark import frames
from tailrace.spark.expressions import Expressions
from tailrace.spark.jobs import stage_range
from tailrace.state.layout import LOG
from tailrace.state.storage import Storage
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.stage import ApplyPlan, TablePlan
from tailrace.testing.postgres import PostgresServer
from tailrace.transforms import wire
from tailrace.transforms.shaping import Shaping

TABLES: Sequence[LiteralString] = ("measured_1", "measured_2", "measured_3", "measured_4")
PUBLICATION: LiteralString = "transforms_bench"
FEW = config.Transform(where="n <> 3", columns={"label": "upper(label)"})
ALL = config.Transform(
    where="n <> 3 and id is not null and amount is not null and at is not null and flag is not null",
    columns={"label": "upper(label)"},
)
"""The same, but for reading every column: all of them become Spark's."""
TASKS = 2


class Staging:
    """A captured log of `changes`, and the ways to stage it. Each returns its seconds."""

    def __init__(self, spark: SparkSession, pipeline: config.Pipeline, changes: int) -> None:
        self.spark, self.pipeline, self.changes = spark, pipeline, changes
        self._source = registry.make_source(pipeline)
        self._log = Storage(pipeline.state).folder(LOG)
        reader = LogReader(self._log)
        self._slices: list[Slice] = reader.slices(0, reader.end())
        self._schemas = {schema.table: schema for schema in self._source.tables()}

    def direct(self) -> float:
        return self._timed(lambda: stage_range(self.spark, self._plan(self._schemas), self._slices, TASKS))

    def through_catalyst(self, transform: config.Transform = FEW) -> float:
        """As the product does: `mapInArrow` in and out, all tables in one job."""
        return self._timed(lambda: self._shaped(self._schemas, transform))

    def with_every_column(self) -> float:
        return self.through_catalyst(ALL)

    def a_job_a_table(self) -> float:
        return self._timed(lambda: [self._shaped({name: schema}, FEW) for name, schema in self._schemas.items()])

    def through_rdds(self) -> float:
        """In and out by RDD functions: a Python object a row and value, pickled, on either side of the JVM."""
        with _replaced(frames, "_through_catalyst", _through_rdds):
            return self.through_catalyst()

    def _shaped(self, schemas: dict[str, TableSchema], transform: config.Transform) -> object:
        expressions = Expressions(self.spark, dict.fromkeys(schemas, transform))
        plan = self._plan(schemas)
        results = frames.stage_range_shaped(self.spark, plan, self._slices, TASKS, expressions, schemas)
        assert not any(result.failed for result in results)
        return results

    def _plan(self, schemas: dict[str, TableSchema]) -> ApplyPlan:
        sink = registry.make_sink(self.pipeline, "sink")
        return ApplyPlan(self._source, sink, LogReader(self._log), "bench", dict.fromkeys(schemas, TablePlan()))

    def _timed(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began


def _through_rdds(
    spark: SparkSession, tasks: int, shapings: Sequence[Shaping], emit: frames.Emit, take: frames.Take
) -> list[Any]:
    form = wire.wire_schema(shapings)

    def first(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        for number in numbers:
            for batch in itertools.chain(wire.packed(wire.End(number=number), form), emit(number)):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    entered = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(first)
    schema = from_arrow_schema(form, prefer_timestamp_ntz=True)
    made = frames._made(spark.createDataFrame(entered, schema, verifySchema=False), shapings)
    arrow = to_arrow_schema(made.schema, timezone="UTC")

    def second(rows: Iterable[Any]) -> Iterator[Any]:
        number, rest = frames._number(_batches(iter(rows), arrow))
        yield attempt(lambda: take(number, rest))

    return unwrap(made.rdd.mapPartitions(second).collect())


def _batches(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    while few := [row.asDict(recursive=True) for row in itertools.islice(rows, wire.PIECE_ROWS)]:
        yield pa.RecordBatch.from_pylist(few, schema=schema)


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def captured_log(server: PostgresServer, rows: int) -> Iterator[Staging]:
    """`rows` inserted, half of them updated, over all tables; captured into a log, and staged by nobody yet."""
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        tables = tuple(f"public.{table}" for table in TABLES)
        source = config.Source(server.url, tables, own={"slot": "transforms_bench", "publication": PUBLICATION})
        pipeline = config.Pipeline("bench", source, {"sink": config.Sink("null://")}, state=folder)
        with psycopg.connect(server.url, autocommit=True) as connection:
            for table in TABLES:
                connection.execute(f"CREATE TABLE {table} ({COLUMNS})")
            connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(TABLES)}")
            with ours._capturing(pipeline) as progress:
                changes = sum(_change(connection, table, rows // len(TABLES)) for table in TABLES)
                row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0]
                ours._wait(lambda: (p := progress()) is not None and ours._lsn(p.received) >= ours._lsn(row[0]))
            yield Staging(ours._warm_spark(pipeline), pipeline, changes)


def _change(connection: psycopg.Connection[Any], table: LiteralString, rows: int, per_transaction: int = 1000) -> int:
    for lowest in range(1, rows + 1, per_transaction):
        between = [lowest, min(lowest + per_transaction - 1, rows)]
        connection.execute(f"INSERT INTO {table} SELECT {NEW_ROW} FROM generate_series(%s::int, %s::int) i", between)
    for lowest in range(1, rows // 2 + 1, per_transaction):
        between = [lowest, min(lowest + per_transaction - 1, rows // 2)]
        connection.execute(f"UPDATE {table} SET n = n + 1, label = label || '.' WHERE id BETWEEN %s AND %s", between)
    return rows + rows // 2
