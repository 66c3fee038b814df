"""The events of some changes, one by one and without haste: what a codec's two ways are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.codecs.base import Facts, Reads
from tailrace.columns.text import to_text
from tailrace.model import extremes, shapes
from tailrace.model.changes import Changes, Op
from tailrace.model.event import Event, EventOp, Row, Transaction
from tailrace.model.schema import Identity, TableSchema
from tailrace.model.types import ColumnType, Kind

_OPS = {Op.INSERT: EventOp.INSERT, Op.UPDATE: EventOp.UPDATE, Op.DELETE: EventOp.DELETE, Op.TRUNCATE: EventOp.TRUNCATE}


def facts_of(changes: Changes, positions: Sequence[str] | None = None) -> Facts:
    """Numbers as if all changes of the transactions were these."""
    numbers = np.array(
        [np.count_nonzero(changes.transaction[: row + 1] == each) for row, each in enumerate(changes.transaction)],
        np.int64,
    )
    ids = [str(xid) for xid in changes.transactions.column("_xid").to_pylist()]
    return Facts(ids, positions or [f"0/{(row + 1) * 4096:X}" for row in range(len(ids))], numbers, numbers)


def events_of(changes: Changes, facts: Facts) -> list[Event]:
    before: list[Row | None] = [None] * len(changes)
    for row, values in zip(changes.before_rows.tolist(), _rows(changes.before, changes.schema), strict=True):
        before[row] = values if changes.schema.identity is Identity.FULL else _key(values, changes.schema)
    after = _rows(changes.after, changes.schema)
    if facts.reads is not None:
        return _read_events(changes.schema, after, facts.positions[0], facts.reads)
    return [_event(changes, facts, row, before[row], after[row]) for row in range(len(changes))]


def _read_events(schema: TableSchema, rows: list[dict[str, Any]], position: str, reads: Reads) -> list[Event]:
    marks = [reads.marks[place] for place in reads.places(len(rows)).tolist()]
    table, op = schema.table, EventOp.READ
    return [
        Event(op, table, _key(row, schema), None, row, position, None, None, schema=schema, snapshot=mark)
        for row, mark in zip(rows, marks, strict=True)
    ]


def _event(changes: Changes, facts: Facts, row: int, before: Row | None, after: dict[str, Any]) -> Event:
    op, schema = Op(int(changes.op[row])), changes.schema
    at = changes.transactions.column("_commit_time")[int(changes.transaction[row])].as_py()
    is_row = op is not Op.TRUNCATE
    unchanged: tuple[str, ...] = ()
    if changes.unchanged is not None:
        unchanged = tuple(name for name, flag in zip(after, changes.unchanged[row], strict=True) if flag)
    return Event(
        _OPS[op],
        schema.table,
        _key(after, schema) if is_row else None,
        before,
        {name: after[name] for name in after if name not in unchanged} if op in (Op.INSERT, Op.UPDATE) else None,
        facts.positions[int(changes.transaction[row])],
        Transaction(facts.ids[int(changes.transaction[row])], int(facts.numbers[row]), _in_table(facts, row)),
        at,
        unchanged,
        schema,
    )


def _in_table(facts: Facts, row: int) -> int:
    return 0 if facts.table_numbers is None else int(facts.table_numbers[row])


def _key(row: Row, schema: TableSchema) -> Row | None:
    return {name: row[name] for name in schema.key} if schema.key else None


def _rows(batch: pa.RecordBatch, schema: TableSchema) -> list[dict[str, Any]]:
    columns = {column.name: values_of(batch.column(column.name), column.type) for column in schema.columns}
    return [{name: values[row] for name, values in columns.items()} for row in range(batch.num_rows)]


def values_of(array: pa.Array, type_: ColumnType) -> list[Any]:
    """As `model.event` has them: what Python has no value for is its canonical text."""
    return [_value(array.slice(row, 1), type_) for row in range(len(array))]


def _value(one: pa.Array, type_: ColumnType) -> Any:
    if one.null_count:
        return None
    if shapes.is_shaped(one.type):
        return _shaped(one, type_)
    if type_.element is not None:
        return values_of(one.flatten(), type_.element)
    if type_.kind is Kind.DECIMAL and extremes.is_nan(one).any():
        return Decimal("NaN")
    if _is_beyond(one):
        return to_text(one, type_)[0].as_py()
    try:
        return one[0].as_py()
    except (OverflowError, ValueError):
        return to_text(one, type_)[0].as_py()


def _is_beyond(one: pa.Array) -> bool:
    """What `as_py` would take for another value: a late timestamp, and 24:00."""
    if pa.types.is_time(one.type):
        return bool(one.view(pa.int64())[0].as_py() >= 86_400_000_000)
    return pa.types.is_timestamp(one.type) and extremes.has_late(one.view(pa.int64()).to_numpy())


def _shaped(one: pa.Array, type_: ColumnType) -> Any:
    assert type_.element is not None
    elements, (shape,) = values_of(shapes.elements_of(one).flatten(), type_.element), shapes.shapes_of(one)
    if shape is None:
        return elements
    bounds = shapes.bounds_of(shape)
    return shapes.nested(elements, bounds) if shapes.starts_at_1(bounds) else to_text(one, type_)[0].as_py()
