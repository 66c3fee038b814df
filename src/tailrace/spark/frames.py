"""The DataFrame way, for tables with transforms: decode in Python, expressions in the JVM, stage in Python. One job.

A task has two Python workers, with Catalyst's projections between them: nothing is shuffled, and all three work at the
same time on a bounded number of rows. All tables of a job travel in one DataFrame, each row in the struct of its own
(`transforms.wire`). An expression that fails fails the job: then each table is tried alone, to find whose it was.
"""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from tailrace.errors import ConfigError, EngineDisturbed, TailraceError, ValueRefused
from tailrace.log.reader import Slice
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Snapshots
from tailrace.sources.base import Source
from tailrace.spark.datasource import plan_parts
from tailrace.spark.expressions import Expressions
from tailrace.spark.jobs import tagged
from tailrace.tasks.load import ChunkWork, Loaded, grouped
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.stage import ApplyPlan, PartResult
from tailrace.tasks.transform import (
    Unfit,
    emit_chunks,
    emit_part,
    emit_rows,
    load_emitted,
    stage_emitted,
    take_rows,
)
from tailrace.transforms import wire
from tailrace.transforms.shaping import Shaping
from tailrace.transforms.wire import BRANCH, PASSES, End, made_by, read_by

Emit = Callable[[int], Iterator[pa.RecordBatch]]
Take = Callable[[int, Iterator[pa.RecordBatch]], Any]
Failures = dict[str, TailraceError]
Stage = Callable[[Collection[str]], list[PartResult | Unfit]]

_OUTCOME = "outcome"
_FAILED = re.compile(
    r"Spark(?:Arithmetic|ArrayIndexOutOfBounds|DateTime|IllegalArgument|NumberFormat|Runtime|UnsupportedOperation)"
    r"Exception: \[([A-Z][A-Z0-9_.]+)\]"
)


_OF_EXPRESSIONS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    SparkRuntimeException,
    UnsupportedOperationException,
)


class ExpressionFailed(Exception):
    """An expression can not be computed for some row. Its words may quote the row; Spark's name for why does not."""


def stage_range_shaped(
    spark: SparkSession,
    plan: ApplyPlan,
    slices: list[Slice],
    most: int,
    expressions: Expressions,
    schemas: Mapping[str, TableSchema],
) -> list[PartResult]:
    """Stage a range of the log for tables with transforms, last known by `schemas`; a table's trouble is its own."""
    parts: list[Any] = list(plan_parts(slices, most))

    def stage(tables: Collection[str]) -> list[PartResult | Unfit]:
        mine = msgspec.structs.replace(plan, tables={table: plan.tables[table] for table in tables})
        shapings = [shaping for table in tables for shaping in expressions.known(table)]

        def emit(number: int) -> Iterator[pa.RecordBatch]:
            return emit_part(mine, shapings, parts[number].slices)

        def take(number: int, batches: Iterator[pa.RecordBatch]) -> PartResult | Unfit:
            return stage_emitted(mine, shapings, number, parts[number].slices, batches)

        return _through_catalyst(spark, len(parts), shapings, emit, take)

    failed = _analyse(expressions, schemas.values())
    results = _staged(stage, set(plan.tables) - failed.keys(), expressions, failed)
    for version in (version for result in results for each in result.schemas.values() for version in each):
        expressions.held(version)  # a commit may ask for more rows of it
    return [msgspec.structs.replace(result, failed=failed) for result in results] or [_nothing(slices, failed)]


def _analyse(expressions: Expressions, schemas: Iterable[TableSchema]) -> Failures:
    """Ask for these versions of tables; the tables of which one can not be had."""
    failed: Failures = {}
    for schema in schemas:
        try:
            expressions.of(schema)
        except ConfigError as error:
            failed[schema.table] = error
    return failed


def _staged(stage: Stage, tables: set[str], expressions: Expressions, failed: Failures) -> list[PartResult]:
    """Begun again without the tables that fail, which are added to `failed`, and for versions that nobody expected."""
    while tables:
        try:
            outcomes = stage(sorted(tables))
        except ExpressionFailed as error:
            failed |= _culprits(stage, sorted(tables), error)
        except TailraceError as error:
            if error.retry or error.table not in tables:
                raise
            failed[error.table] = error
        else:
            unfit = [outcome.schema for outcome in outcomes if isinstance(outcome, Unfit)]
            if not unfit:
                return [outcome for outcome in outcomes if isinstance(outcome, PartResult)]
            failed |= _analyse(expressions, unfit)
        tables -= failed.keys()
    return []


def _culprits(stage: Stage, tables: Sequence[str], error: ExpressionFailed) -> Failures:
    """The tables whose expressions fail, each with its reason. What is staged meanwhile is of no use."""
    if len(tables) == 1:
        return {tables[0]: _refused(tables[0], error)}
    found: Failures = {}
    for table in tables:
        try:
            stage([table])
        except ExpressionFailed as own:
            found[table] = _refused(table, own)
    if not found:
        raise EngineDisturbed(f"an expression of {', '.join(tables)} failed ({error}), and did not when asked again")
    return found


def _refused(table: str, error: ExpressionFailed) -> ValueRefused:
    return ValueRefused(
        f"transforms.{table}: an expression can not be computed for some row ({error})",
        hint="let it give NULL there (try_cast, try_divide, nullif …), then `tailrace snapshot` the table",
        table=table,
    )


def _nothing(slices: list[Slice], failed: Failures) -> PartResult:
    return PartResult(0, slices[-1].last, None, "", None, {}, {}, failed=failed)


def load_chunks_shaped(
    spark: SparkSession,
    source: Source,
    sink: Snapshots,
    snapshot: str,
    work: Sequence[ChunkWork],
    expressions: Expressions,
) -> list[Loaded]:
    """Load chunks of tables with transforms; a table whose expression fails is reported, not raised."""
    tables = sorted({item.schema.table for item in work})
    try:
        return _loaded(spark, source, sink, snapshot, work, expressions)
    except ExpressionFailed as error:
        if len(tables) == 1:
            return [Loaded(tables[0], 0, error=_refused(tables[0], error))]
    return [
        loaded
        for table in tables
        for loaded in load_chunks_shaped(
            spark, source, sink, snapshot, [item for item in work if item.schema.table == table], expressions
        )
    ]


def _loaded(
    spark: SparkSession,
    source: Source,
    sink: Snapshots,
    snapshot: str,
    work: Sequence[ChunkWork],
    expressions: Expressions,
) -> list[Loaded]:
    groups = grouped(work, spark.sparkContext.defaultParallelism)
    versions = {item.schema.table: item.schema for item in work}
    shapings = [expressions.of(schema) for schema in versions.values()]

    def emit(number: int) -> Iterator[pa.RecordBatch]:
        return emit_chunks(source, shapings, snapshot, groups[number])

    def take(number: int, batches: Iterator[pa.RecordBatch]) -> list[Loaded]:
        return load_emitted(sink, shapings, groups[number], batches)

    return [loaded for group in _through_catalyst(spark, len(groups), shapings, emit, take) for loaded in group]


def shaped_rows(expressions: Expressions, schema: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of this version of a table that are here, on the driver, as a sink should have them. For few."""
    shaping = expressions.of(schema)
    if not rows.num_rows:
        return shaping.schema(schema).no_rows()

    def emit(_: int) -> Iterator[pa.RecordBatch]:
        return emit_rows(shaping, schema, rows)

    def take(_: int, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        return take_rows(shaping, schema, batches)

    try:
        (shaped,) = _through_catalyst(expressions.spark, 1, [shaping], emit, take)
    except ExpressionFailed as error:
        raise _refused(schema.table, error) from None
    return shaped


def _through_catalyst(
    spark: SparkSession, tasks: int, shapings: Sequence[Shaping], emit: Emit, take: Take
) -> list[Any]:
    """One job of so many tasks: what each emits goes through the expressions, and is taken. What they made of it."""

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from wire.packed(End(number=number), form)
                yield from emit(number)

    def second(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, rest = _number(batches)
        outcome = attempt(lambda: take(number, rest))
        for _ in rest:  # or the writer at the other end would break
            pass
        yield pa.RecordBatch.from_pydict({_OUTCOME: pa.array([pickle.dumps(outcome)], pa.binary())})

    form = wire.wire_schema(shapings)
    entered = map_in_arrow(spark.range(0, tasks, 1, tasks), first, from_arrow_schema(form, prefer_timestamp_ntz=True))
    left = map_in_arrow(_made(entered, shapings), second, f"{_OUTCOME} binary")
    try:
        with tagged(spark):
            rows = left.collect()
    except Exception as error:  # of py4j or of pyspark
        if (condition := _failure(error)) is not None:
            raise ExpressionFailed(condition) from None
        raise
    return unwrap(pickle.loads(row[0]) for row in rows)


def _failure(error: Exception) -> str | None:
    """Spark's name for why an expression failed, if that is what happened: an error of the engine's is none."""
    if isinstance(error, _OF_EXPRESSIONS):
        return error.getCondition() or type(error).__name__
    found = _FAILED.search(str(error))
    return None if found is None else found[1]


def _number(batches: Iterator[pa.RecordBatch]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """A task's number, which comes first, and all that follows."""
    for batch in batches:
        message, _ = next(wire.received([batch.slice(0, 1)]))
        return message.number, itertools.chain([batch.slice(1)], batches)
    raise EngineDisturbed("a task with transforms was given nothing")


def _made(frame: DataFrame, shapings: Sequence[Shaping]) -> DataFrame:
    """What the expressions make of the rows of their branch, instead of what they read.

    Each branch has the names of its own table to itself: they are columns for its expressions alone. Of a row that
    `where` is not true of nothing else is computed: it may be there to keep such rows from failing.
    """
    for branch, shaping in enumerate(shapings):
        others = [F.col(name) for name in frame.columns if name != read_by(branch)]
        read = F.col(read_by(branch))
        names = [read.getField(wire.field(place)).alias(name) for place, name in enumerate(shaping.read_names)]
        where, texts = shaping.transform.where, shaping.transform.columns
        passes = F.lit(True) if where is None else F.coalesce(F.expr(where), F.lit(False))
        computed = [F.when(passes, F.expr(texts[column.name])) for column in shaping.computed]
        fields = [column.alias(wire.field(place)) for place, column in enumerate(computed)]
        made = F.when(F.col(BRANCH) == branch, F.struct(passes.alias(PASSES), *fields)).alias(made_by(branch))
        frame = frame.select(*others, *names).select(*others, made)
    return frame.drop(BRANCH)


def map_in_arrow(frame: DataFrame, function: Callable[..., Any], schema: StructType | str) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas in its first line and needs it nowhere else."""
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
