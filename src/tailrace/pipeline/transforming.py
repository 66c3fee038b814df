"""A sink whose tables with transforms are to it what the transforms make of them. The pipeline knows the source's own.

Crossing over: schemas become those of the columns that the sink has, and statuses keep the source's beside them. Rows
that a commit has read from the source go through the expressions like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.columns.net import NetChanges
from tailrace.errors import TailraceError
from tailrace.model.lifecycle import ASIDE, TableState, TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema, counterpart
from tailrace.model.watermark import SourceIdentity
from tailrace.pipeline.transformable import refuse_untransformable
from tailrace.sinks.base import (
    Batch,
    ChunkMark,
    DatabaseSink,
    Evolved,
    FetchRows,
    Quarantined,
    Receipt,
    Sink,
    SinkState,
)
from tailrace.spark.expressions import Expressions
from tailrace.spark.frames import shaped_rows
from tailrace.transforms.shaping import Shaping


def transforming(sink: Sink, expressions: Expressions) -> Sink:
    """The sink for tables with transforms; raises ConfigError for one that can not have any."""
    refuse_untransformable(sink)
    assert isinstance(sink, DatabaseSink)
    return TransformingSink(sink, expressions)


def as_captured(status: TableStatus) -> TableStatus:
    """A status as the pipeline knows it, of one that a sink has."""
    return status if status.captured is None else msgspec.structs.replace(status, schema=status.captured, captured=None)


class TransformingSink(DatabaseSink):
    """In tasks it is the sink itself: what comes there has gone through the expressions already."""

    is_local_only = False  # as the sink says

    def __init__(self, sink: DatabaseSink, expressions: Expressions) -> None:
        self._sink, self._expressions = sink, expressions
        self.name, self.max_parts, self.atomic = sink.name, sink.max_parts, sink.atomic
        self.is_local_only = sink.is_local_only

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._sink,)

    def held(self, schema: TableSchema) -> TableSchema:
        """What the sink has of this version of a table."""
        return self._expressions.held(schema)

    # --- what crosses over

    def _held(self, status: TableStatus) -> TableStatus:
        """A status as the sink keeps it. Nobody may know the columns of a table that is aside or waits for its copy."""
        if status.table not in self._expressions:
            return status
        is_waiting = status.state is TableState.SNAPSHOT and not status.visibility
        try:
            schema = self._expressions.held(status.schema)
        except TailraceError:
            if status.state not in ASIDE and not is_waiting:
                raise
            schema = status.schema
        return msgspec.structs.replace(status, schema=schema, captured=status.schema)

    def _evolved(self, change: Evolved) -> Evolved:
        """Of columns that came with a value, those that pass as they are."""
        before, after = self._expressions.held(change.before), self._expressions.held(change.schema)
        passing = self._passing(change.schema)
        return Evolved(before, after, change.fills.select([n for n in change.fills.schema.names if n in passing]))

    def _passing(self, schema: TableSchema) -> list[str]:
        if schema.table not in self._expressions:
            return [column.name for column in schema.columns]
        return self._expressions.of(schema).carried(schema)

    def _fetching(self, fetch: FetchRows, evolved: Iterable[Evolved] = ()) -> FetchRows:
        """Reads what the source has, and gives what the sink should have of it.

        Of a table that evolves, the sink asks for those columns of its newest version that an older one had.
        """
        newest = {change.schema.table: change.schema for change in evolved}

        def fetch_shaped(held: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
            if held.table not in self._expressions:
                return fetch(held, keys)
            schema = newest.get(held.table) or self._expressions.captured(held)
            rows = shaped_rows(self._expressions, schema, fetch(schema, keys))
            return rows.select([column.name for column in held.columns])

        return fetch_shaped

    # --- the sink

    def check(self) -> None:
        self._sink.check()

    def is_database(self, identity: SourceIdentity) -> bool:
        return self._sink.is_database(identity)

    def read_state(self) -> SinkState:
        """A table that has lost its transform is as the sink has it: the pipeline has to know."""
        state = self._sink.read_state()
        tables = {t: as_captured(s) if t in self._expressions else s for t, s in state.tables.items()}
        return msgspec.structs.replace(state, tables=tables)

    def claim(self, run: str) -> None:
        self._sink.claim(run)

    def check_claim(self) -> None:
        self._sink.check_claim()

    def held_as(self, schema: TableSchema) -> str:
        own = self._sink.held_as(schema)
        if schema.table not in self._expressions:
            return own
        return msgspec.json.encode([own, self._expressions.said(schema.table)]).decode()

    def stage(self, batch: str, part: int, changes: Iterable[NetChanges]) -> Receipt:
        raise TypeError("rows are staged in tasks, by the sink itself")

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        tables = tuple(self._held(status) for status in batch.tables)
        evolved = tuple(self._evolved(change) for change in batch.evolved)
        held = msgspec.structs.replace(batch, tables=tables, evolved=evolved)
        return self._sink.commit(held, self._fetching(fetch, batch.evolved))

    def clean(self) -> None:
        self._sink.clean()

    def forget(self) -> None:
        self._sink.forget()

    def close(self) -> None:
        self._sink.close()

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        return as_captured(self._sink.begin_snapshot(self._held(status), chunks, clear=clear))

    def chunk_form(self, schema: TableSchema) -> str:
        return self._sink.chunk_form(self._expressions.held(schema))

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        raise TypeError("chunks are loaded in tasks, by the sink itself")

    def finish_snapshot(self, status: TableStatus) -> None:
        self._sink.finish_snapshot(self._held(status))

    def takes_in_place(self, evolved: Evolved) -> bool:
        """Rows that are there are not computed again, and what was left out of them is not there."""
        return self._is_same(evolved) and self._sink.takes_in_place(self._evolved(evolved))

    def _is_same(self, evolved: Evolved) -> bool:
        before, after = evolved.before, evolved.schema
        if before.table not in self._expressions and after.table not in self._expressions:
            return True
        if before.table != after.table:
            return False  # another name has another transform, or none
        shaping = self._expressions.of(after)
        names = {*shaping.read_names, *(column.name for column in shaping.computed)}
        was, now = ({c.name: c.number for c in schema.columns if c.name in names} for schema in (before, after))
        return shaping == self._expressions.of(before) and was == now and not _has_uncovered(shaping, before, after)

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        return self._sink.count_rows(self._expressions.held(schema), seconds)

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        return self._sink.read_table(self._expressions.held(schema))

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        if schema.table in self._expressions:
            batch = shaped_rows(self._expressions, schema, batch)
        return self._sink.expected_rows(self._expressions.held(schema), batch)

    def quarantined(self) -> list[Quarantined]:
        return self._sink.quarantined()

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        return self._sink.replay(entries, self._fetching(fetch))

    def drop_quarantined(self, entries: Sequence[Quarantined]) -> None:
        self._sink.drop_quarantined(entries)

    def tend_ahead(self, tend: Callable[[str, str], str]) -> None:
        self._sink.tend_ahead(tend)


def _has_uncovered(shaping: Shaping, before: TableSchema, after: TableSchema) -> bool:
    """Whether a column passes now that was replaced or dropped: under its old name, as another has by now."""
    passed, passing = set(shaping.carried(before)), set(shaping.carried(after))
    former = [counterpart(before, column) for column in after.columns if column.name in passing]
    return any(known is not None and known.name not in passed for known in former)


def _itself(sink: DatabaseSink) -> DatabaseSink:
    return sink
