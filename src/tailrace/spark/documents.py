"""The Spark jobs of documents: a small batch is one task, a large one goes through two shuffles.

    touch ─▶ distinct touches ─▶ resolve ─▶ distinct documents ─▶ build and write

A document that is touched many times is built once, whichever tasks saw the touches. Nothing that grows with the batch
comes to the driver, or is held by a task: what a task found besides, and what it staged, travels as a row of its own,
a note.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from tailrace.columns.net import NetChanges
from tailrace.documents.keys import listed, unlisted
from tailrace.errors import TailraceError
from tailrace.log.reader import Slice
from tailrace.model.rows import ReadRows
from tailrace.sinks.base import Receipt
from tailrace.sources.base import TableLocked
from tailrace.spark.datasource import SlicePartition, plan_parts
from tailrace.spark.frames import map_in_arrow
from tailrace.spark.jobs import tagged
from tailrace.tasks.documents import BuildPlan, apply_small, built, resolved, touched
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.stage import Found, PartResult, part_result

SMALL_CHANGES = 20_000
"""A batch of so many changes is one task's work."""
NOTE = ""
"""The name that rows have which are notes. No document has it."""

_TOUCHES = pa.schema([("document", pa.string()), ("node", pa.int32()), ("key", pa.list_(pa.string()))])
_KEYS = pa.schema([("document", pa.string()), ("key", pa.list_(pa.string()))])
_KINDS = {pa.string(): "string", pa.int32(): "int", pa.list_(pa.string()): "array<string>"}


class Note(msgspec.Struct, frozen=True):
    """What a task has to tell: what it found in its `part` of the log, or what it staged."""

    part: int = -1
    found: Found | None = None
    staged: Receipt | None = None


def build_range(spark: SparkSession, plan: BuildPlan, slices: list[Slice], most: int) -> list[PartResult]:
    """Bring the documents of a plan in step with a range of the log; one in trouble of its own is `failed`.

    Of a table that is locked that is trouble which passes (`TableLocked`).
    """
    failed: dict[str, TailraceError] = {}
    while True:
        mine = plan.without(failed)
        try:
            results = _build(spark, mine, slices, most)
        except TailraceError as error:
            is_own = not error.retry or isinstance(error, TableLocked)
            if not is_own or error.table is None or error.table not in mine.documents:
                raise
            failed[error.table] = error
        else:
            return [msgspec.structs.replace(result, failed=failed) for result in results]


def _build(spark: SparkSession, plan: BuildPlan, slices: list[Slice], most: int) -> list[PartResult]:
    if sum(each.last - each.first + 1 for each in slices) <= SMALL_CHANGES:
        with tagged(spark):
            job = spark.sparkContext.parallelize([0], 1).map(lambda _: attempt(lambda: apply_small(plan, slices)))
            (result,) = unwrap(job.collect())
        if result is not None:
            return [result]
    return _build_large(spark, plan, slices, most)


def _build_large(spark: SparkSession, plan: BuildPlan, slices: list[Slice], most: int) -> list[PartResult]:
    parts = cast(list[SlicePartition], plan_parts(slices, most))
    begun = _mapped(spark.range(0, len(parts), 1, len(parts)), partial(_touch, plan, parts), _TOUCHES)
    keys = _mapped(begun.dropDuplicates(), partial(_resolve, plan), _KEYS)
    told = _mapped(keys.dropDuplicates(), partial(_write, plan), _KEYS)
    with tagged(spark):
        rows = told.collect()
    notes: list[Note] = unwrap(pickle.loads(b64decode(row["key"][0])) for row in rows)
    return _results(parts, notes)


def _results(parts: list[SlicePartition], notes: list[Note]) -> list[PartResult]:
    """One a part of the log, in order; what was staged, each document once and so in any order, is told by the last."""
    found = {note.part: note.found for note in notes if note.found is not None}
    results = [part_result(n, part.slices, None, found[n]) for n, part in enumerate(parts)]
    staged = [note.staged for note in notes if note.staged is not None]
    return results + [part_result(len(parts) + n, parts[-1].slices, each, Found()) for n, each in enumerate(staged)]


def _mapped(frame: DataFrame, step: Callable[..., Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
    return map_in_arrow(frame, step, ", ".join(f"{field.name} {_KINDS[field.type]}" for field in schema))


def _note(outcome: tuple[bool, Any], schema: pa.Schema) -> pa.RecordBatch:
    row = {"document": NOTE, "node": 0, "key": [b64encode(pickle.dumps(outcome)).decode()]}
    return pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names}], schema=schema)


def _streamed(
    work: Callable[[], Iterator[pa.RecordBatch]], note: Callable[[], Note], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """What a step gives, and at the end its note, or what went wrong."""
    batches = iter(work())
    while True:
        is_done, given = attempt(lambda: next(batches, None))
        if not is_done:
            yield _note((False, given), schema)
            return
        if given is None:
            yield _note((True, note()), schema)
            return
        yield given


def _touch(plan: BuildPlan, parts: list[SlicePartition], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        found = Found()

        def work(number: int = number, found: Found = found) -> Iterator[pa.RecordBatch]:
            for name, batch in touched(plan, parts[number].slices, found):
                yield pa.RecordBatch.from_arrays([_name(name, batch), *batch.columns], schema=_TOUCHES)

        yield from _streamed(work, partial(Note, number, found), _TOUCHES)


def _resolve(plan: BuildPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    notes: list[pa.RecordBatch] = []

    def work() -> Iterator[pa.RecordBatch]:
        with plan.source.reader(plan.snapshot) as read:
            for name, batch in _documents(batches, notes):
                for keys in resolved(plan, name, batch.select(["node", "key"]), read):
                    yield pa.RecordBatch.from_arrays([_name(name, keys), listed(keys.columns)], schema=_KEYS)

    yield from _streamed(work, Note, _KEYS)
    for _ in batches:  # or the writer at the other end would break
        pass
    yield from (note.select(["document", "key"]) for note in notes)


def _write(plan: BuildPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    notes: list[pa.RecordBatch] = []

    def work() -> Note:
        with plan.source.reader(plan.snapshot) as read:
            return Note(staged=plan.sink.stage(plan.batch, 0, _nets(plan, batches, notes, read)))

    yield _note(attempt(work), _KEYS)
    for _ in batches:  # or the writer at the other end would break
        pass
    yield from notes


def _nets(
    plan: BuildPlan, batches: Iterator[pa.RecordBatch], notes: list[pa.RecordBatch], read: ReadRows
) -> Iterator[NetChanges]:
    for name, batch in _documents(batches, notes):
        keys = unlisted(batch.column("key"), plan.documents[name].tree.key)
        yield from built(plan, name, [keys], read)


def _documents(batches: Iterator[pa.RecordBatch], notes: list[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each batch by their document; notes are put aside."""
    for batch in batches:
        names = batch.column("document")
        for name in names.unique().to_pylist():
            rows = batch.filter(pc.equal(names, name))
            if name == NOTE:
                notes.append(rows)
            else:
                yield name, rows


def _name(name: str, batch: pa.RecordBatch) -> pa.StringArray:
    return pa.repeat(pa.scalar(name), batch.num_rows)
