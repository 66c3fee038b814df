"""Transactions of a simple source as messages of the log, and back: one message each, in whatever bytes it likes.

Rows are Python objects here. A source of millions of changes a minute decodes columns, as `postgres.pgoutput` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.changes import Changes, Op
from tailrace.model.frames import PADDING, TRANSACTIONS, Definition, Frames
from tailrace.model.schema import TableSchema

TOLD = pa.schema([pa.field("_commit_position", pa.int64()), pa.field("_commit_time", pa.timestamp("us", "UTC"))])
"""What users see of a transaction."""

Row = Mapping[str, Any]
"""A row by the names of its columns; what it lacks is null."""


class Transaction(NamedTuple):
    """`message` is whatever `decode` understands; `tables` names the table of each change in it, in order.

    Whoever asks again is told the same transaction with the same position.
    """

    position: int
    time_us: int
    message: bytes
    tables: Sequence[str]


class RowChange(NamedTuple):
    """`row` is the row after the change; of a deleted one, its key at least. `before` has the old key if it changed."""

    table: str
    op: Op
    row: Row
    before: Row | None = None


def frames_of(kind: str, first: int, transactions: Sequence[Transaction], schemas: Iterable[TableSchema]) -> Frames:
    """Transactions as the log wants them, with the tables that they may be of."""
    known = {schema.table: schema for schema in schemas}
    widths = np.array([max(len(each.tables), 1) for each in transactions], np.uint32)
    ends = first + np.cumsum(widths, dtype=np.int64) - 1
    facts = [ends - widths + 1, ends, [each.time_us for each in transactions], [each.position for each in transactions]]
    told = TRANSACTIONS.append(pa.field("position", pa.int64(), False))
    changed = [table for each in transactions for table in each.tables if table in known]
    return Frames(
        kind=kind,
        first=first,
        buffer=np.frombuffer(b"".join([*(each.message for each in transactions), bytes(PADDING)]), np.uint8),
        bounds=np.cumsum([0, *(len(each.message) for each in transactions)], dtype=np.int64),
        transactions=pa.RecordBatch.from_arrays([pa.array(fact, pa.int64()) for fact in facts], schema=told),
        definitions=tuple(Definition(known[table].relation, first, known[table]) for table in dict.fromkeys(changed)),
        tables={table: changed.count(table) for table in dict.fromkeys(changed)},
        widths=widths,
    )


def decode_each(
    frames: Frames, first: int, last: int, tables: Collection[str] | None, parse: Callable[[bytes], Iterable[RowChange]]
) -> Iterator[Changes]:
    """`decode` of a simple source; `parse` gives the changes of one message, in order."""
    schemas = {each.schema.table: each.schema for each in frames.definitions}
    wanted = schemas.keys() if tables is None else schemas.keys() & set(tables)
    found: dict[str, list[tuple[int, int, RowChange]]] = {}
    begins, ends = (frames.transactions.column(name).to_numpy() for name in ("begin", "end"))
    for number in np.flatnonzero((begins <= last) & (ends >= first)).tolist():
        message = frames.buffer[frames.bounds[number] : frames.bounds[number + 1]].tobytes()
        for offset, change in enumerate(_parsed(message, parse, int(begins[number])), int(begins[number])):
            if first <= offset <= last and change.table in wanted:
                found.setdefault(change.table, []).append((offset, number, change))
    for table, changes in found.items():
        yield _changes(frames, schemas[table], changes)


def rows_of(schema: TableSchema, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of a table as columns. Raises ValueRefused for a value that is not of its column's type."""
    columns = []
    for column, field in zip(schema.columns, schema.arrow, strict=True):
        try:
            columns.append(pa.array([row.get(column.name) for row in rows], field.type))
        except (pa.ArrowException, OverflowError) as error:
            where = f"column {schema.table}.{column.name} ({column.type.name})"
            raise ValueRefused(f"{where}: a value is no {field.type}", table=schema.table) from error
    return schema.rows(columns)


def _parsed(message: bytes, parse: Callable[[bytes], Iterable[RowChange]], offset: int) -> list[RowChange]:
    try:
        return list(parse(message))
    except (ValueError, TypeError, KeyError) as error:
        raise DecodeError(f"the message at offset {offset} can not be read: {type(error).__name__}") from None


def _changes(frames: Frames, schema: TableSchema, found: Sequence[tuple[int, int, RowChange]]) -> Changes:
    position, time_us = (frames.transactions.column(name) for name in ("position", "time_us"))
    told = [position, time_us.cast(pa.timestamp("us", "UTC"))]
    moved = [(row, change.before) for row, (_, _, change) in enumerate(found) if change.before is not None]
    return Changes(
        schema=schema,
        op=np.array([change.op for _, _, change in found], np.int8),
        offset=np.array([offset for offset, _, _ in found], np.int64),
        transaction=np.array([number for _, number, _ in found], np.int64),
        transactions=pa.RecordBatch.from_arrays(told, schema=TOLD),
        after=rows_of(schema, [change.row for _, _, change in found]),
        unchanged=None,
        before_rows=np.array([row for row, _ in moved], np.int64),
        before=rows_of(schema, [before for _, before in moved]),
    )
