"""Rows of a snapshot as the content of a batch: one chunk of one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tailrace.columns.plain import rows_of
from tailrace.embedded.content import Survey
from tailrace.embedded.versions import version_of
from tailrace.model.changes import change_schema, refuse_extremes
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema

READ = "read"


@dataclass(frozen=True, slots=True)
class Reads:
    """`position` is what the rows' snapshot saw. `truncates`: what was read of the table before is void.

    `is_first` and `is_last` are of the chunk in its table's snapshot, which has the number `generation`. `is_news`: the
    table was delivered with other columns before, which is told first.
    """

    schema: TableSchema
    rows: tuple[pa.RecordBatch, ...]
    position: str
    generation: int
    transactions: pa.Schema  # what the source tells of a transaction: these have none
    truncates: bool = False
    is_first: bool = False
    is_last: bool = False
    is_news: bool = False

    @property
    def count(self) -> int:
        """The rows."""
        return sum(each.num_rows for each in self.rows)

    def __len__(self) -> int:
        """The events."""
        return self.count + self.truncates + self.is_news

    def arrow(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.truncates:
            yield self.schema.table, self._flat(_nothing(self.schema, 1), "truncate")
        for rows in self.rows:
            refuse_extremes(rows, self.schema)
            yield self.schema.table, self._flat(rows, READ)

    def _flat(self, rows: pa.RecordBatch, op: str) -> pa.RecordBatch:
        count, flat = rows.num_rows, change_schema(self.schema, self.transactions)
        told = [pa.nulls(count, field.type) for field in self.transactions]
        unchanged = pa.array([[]] * count, pa.list_(pa.string()))
        before = pa.nulls(count, flat.field("_before").type)
        ops = pa.array([op] * count, pa.string())
        columns = [*rows.columns, ops, pa.nulls(count, pa.int64()), *told, unchanged, before]
        return pa.RecordBatch.from_arrays(columns, schema=flat)

    def events(self) -> Iterator[Event]:
        schema, table, left = self.schema, self.schema.table, self.count
        heads = [EventOp.SCHEMA] * self.is_news + [EventOp.TRUNCATE] * self.truncates
        for op in heads:
            yield Event(op, table, None, None, None, self.position, None, None, schema=schema)
        marks = {0: "first"} if self.is_first else {}
        at = 0
        for batch in self.rows:
            keys = rows_of(batch, schema, schema.key) if schema.key else [None] * batch.num_rows
            for key, row in zip(keys, rows_of(batch, schema), strict=True):
                word = "last" if self.is_last and at == left - 1 else marks.get(at, "")
                mark = f"{self.generation}:{word}"
                yield Event(
                    EventOp.READ, table, key, None, row, self.position, None, None, schema=schema, snapshot=mark
                )
                at += 1

    def survey(self) -> Survey:
        return Survey(len(self), {self.schema.table: version_of(self.schema)})

    def rest(self, count: int) -> Reads:
        """What follows the first `count` events; there is something."""
        truncates = self.truncates and count <= self.is_news  # only its columns were told
        left = consumed = max(count - self.is_news - self.truncates, 0)
        rows: list[pa.RecordBatch] = []
        for batch in self.rows:
            if left < batch.num_rows:
                rows.append(batch.slice(left))
            left -= min(left, batch.num_rows)
        is_first = self.is_first and not consumed
        return replace(self, rows=tuple(rows), truncates=truncates, is_news=False, is_first=is_first)


def _nothing(schema: TableSchema, count: int) -> pa.RecordBatch:
    return schema.rows([pa.nulls(count, field.type) for field in schema.arrow])
