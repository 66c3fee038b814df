"""Row events of one table into columns: what each was (insert, update, delete), the row after it and before it.

FULL images have all columns. Of a MINIMAL or NOBLOB image, what the row after lacks is taken from the row before if
that has it, for then it stayed; else it is marked as unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import DecodeError
from tailrace.model import shapes
from tailrace.model.changes import Flags, Op
from tailrace.model.schema import TableSchema
from tailrace.sources.mysql.decode_maps import MapColumn, TableMap
from tailrace.sources.mysql.decode_rows import Cell, count_rows, present, walk
from tailrace.sources.mysql.events import Bytes, Integers, little_endian
from tailrace.sources.mysql.values.binlog import Values, decode


@dataclass(slots=True)
class Rows:
    """Rows in the order of their events. Those in `before_rows` have a row before, in `before`."""

    event: Integers
    op: npt.NDArray[np.int8]
    after: pa.RecordBatch
    unchanged: Flags | None
    before_rows: Integers
    before: pa.RecordBatch


@dataclass(slots=True)
class _Group:
    """Events of one kind whose images have the same columns; `at` is where the rows of each begin."""

    op: int
    rows: Integers
    at: Integers
    images: list[list[int]]


def count(
    buffer: Bytes, at: Integers, end: Integers, ops: npt.NDArray[np.int8], is_v2: Flags, table: TableMap
) -> Integers:
    """How many rows each event has, whose bodies lie in `at … end`."""
    counts = np.zeros(len(at), np.int64)
    for group in _groups(buffer, at, ops, is_v2, table):
        images = [[table.columns[column] for column in image] for image in group.images]
        counts[group.rows] = count_rows(buffer, group.at, end[group.rows], images)
    return counts


def decode_rows(
    buffer: Bytes,
    at: Integers,
    end: Integers,
    ops: npt.NDArray[np.int8],
    is_v2: Flags,
    table: TableMap,
    schema: TableSchema,
) -> Rows:
    """All rows of these events. Raises DecodeError, ValueRefused."""
    parts = [_decode_group(buffer, end, group, table, schema) for group in _groups(buffer, at, ops, is_v2, table)]
    return parts[0] if len(parts) == 1 else _merged(parts)


def _groups(buffer: Bytes, at: Integers, ops: npt.NDArray[np.int8], is_v2: Flags, table: TableMap) -> Iterator[_Group]:
    count = len(table.columns)
    after_head = at + 8  # the table's number and flags
    if is_v2.any():
        after_head = after_head + np.where(is_v2, little_endian(buffer, after_head, 2), 0)
    after_head = after_head + (1 if count < 251 else 3)
    width = (count + 7) // 8
    for op in np.unique(ops).tolist():
        rows = np.flatnonzero(ops == op)
        size = width * (2 if op == Op.UPDATE else 1)
        bitmaps = np.ndarray((len(buffer) - size + 1, size), np.uint8, buffer, 0, (1, 1))[after_head[rows]]
        first = bitmaps[0]
        if (bitmaps == first).all():
            yield _Group(op, rows, after_head[rows] + size, _images(first, width, count))
            continue
        distinct, codes = np.unique(bitmaps, axis=0, return_inverse=True)
        for number, bits in enumerate(distinct):
            chosen = rows[codes.reshape(-1) == number]
            yield _Group(op, chosen, after_head[chosen] + size, _images(bits, width, count))


def _images(bits: Bytes, width: int, count: int) -> list[list[int]]:
    return [present(bits[first : first + width].tobytes(), count) for first in range(0, len(bits), width)]


def _decode_group(buffer: Bytes, end: Integers, group: _Group, table: TableMap, schema: TableSchema) -> Rows:
    images = [[table.columns[column] for column in image] for image in group.images]
    walked = walk(buffer, group.at, end[group.rows], images)
    if group.op == Op.DELETE and not images[0]:
        raise DecodeError(f"a row of {schema.table} was deleted and nothing of it was sent")
    columns = [_columns(buffer, cells, image, schema) for cells, image in zip(walked.images, images, strict=True)]
    rows = len(walked)
    _require(group.op, columns, schema)
    after, lacking = _whole(columns[-1], columns[0] if group.op == Op.UPDATE else {}, schema, rows)
    before = _before(group.op, after, columns[0], schema)
    unchanged = None
    if lacking and group.op != Op.DELETE:
        unchanged = np.zeros((rows, len(schema.columns)), np.bool_)
        unchanged[:, lacking] = True
    return Rows(
        event=group.rows[walked.event],
        op=np.full(rows, group.op, np.int8),
        after=after,
        unchanged=unchanged,
        before_rows=np.arange(before.num_rows),
        before=before,
    )


def _require(op: int, columns: Sequence[dict[str, pa.Array]], schema: TableSchema) -> None:
    """What nothing else can tell: the defaults of a new row, and the key of an old one."""
    needed = [column.name for column in schema.columns] if op == Op.INSERT else schema.key
    if not all(name in columns[0] for name in needed):
        what = "a new row" if op == Op.INSERT else "the key of a row"
        raise DecodeError(
            f"{what} of {schema.table} was logged without some columns (binlog_row_image of a session is not FULL)",
            hint="let no session set binlog_row_image, and copy the table again",
        )


def _before(op: int, after: pa.RecordBatch, sent: dict[str, pa.Array], schema: TableSchema) -> pa.RecordBatch:
    """What was sent of old rows. A table without a key is told by it which row was deleted, too."""
    if op == Op.INSERT:
        return schema.no_rows()
    return after if op == Op.DELETE else _whole(sent, {}, schema, after.num_rows)[0]


def _columns(
    buffer: Bytes, cells: Sequence[Cell], image: Sequence[MapColumn], schema: TableSchema
) -> dict[str, pa.Array]:
    types = {column.name: column.type for column in schema.columns}
    return {
        column.name: decode(Values(buffer, cell, column, types[column.name], f"{schema.table}.{column.name}"))
        for cell, column in zip(cells, image, strict=True)
        if column.name in types
    }


def _whole(
    found: dict[str, pa.Array], stayed: dict[str, pa.Array], schema: TableSchema, rows: int
) -> tuple[pa.RecordBatch, list[int]]:
    """All columns of a table, and the numbers of those that nobody sent."""
    arrays, lacking = [], []
    for number, (column, field) in enumerate(zip(schema.columns, schema.arrow, strict=True)):
        array = found.get(column.name, stayed.get(column.name))
        if array is None:
            lacking.append(number)
            array = pa.nulls(rows, field.type)
        arrays.append(array)
    return schema.rows(arrays), lacking


def _merged(parts: list[Rows]) -> Rows:
    """Rows of several kinds, put back into the order of their events."""
    event = np.concatenate([part.event for part in parts])
    order = np.argsort(event, kind="stable")
    starts = np.cumsum([0, *(len(part.event) for part in parts[:-1])])
    placed = np.empty(len(order), np.int64)
    placed[order] = np.arange(len(order))
    before_rows = placed[np.concatenate([p.before_rows + start for p, start in zip(parts, starts, strict=True)])]
    by_row = np.argsort(before_rows, kind="stable")
    return Rows(
        event=event[order],
        op=np.concatenate([part.op for part in parts])[order],
        after=_taken([part.after for part in parts], order),
        unchanged=_merged_flags(parts, order),
        before_rows=before_rows[by_row],
        before=_taken([part.before for part in parts], by_row),
    )


def _merged_flags(parts: list[Rows], order: Integers) -> Flags | None:
    if all(part.unchanged is None for part in parts):
        return None
    width = parts[0].after.num_columns
    flags = [np.zeros((len(p.event), width), np.bool_) if p.unchanged is None else p.unchanged for p in parts]
    return np.concatenate(flags)[order]


def _taken(batches: list[pa.RecordBatch], order: Integers) -> pa.RecordBatch:
    together = shapes.concat_batches(batches)
    if (order[1:] > order[:-1]).all():
        return together
    return together.take(pa.array(order))
