"""Fewer and larger pieces: consecutive net changes of a table become one, as long as memory stays bounded.

A task nets its slices of the log one by one. Put together, their rows need one staging table instead of many, and a
row that changed in several slices is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tailrace.columns.net import NetChanges, net_changes
from tailrace.model import shapes
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import TableSchema

MOST_BYTES = 64 << 20
"""Held back at a time, by all tables together."""
LARGE_ROW = 8192
"""Rows that are larger gain nothing by being put together: they neither wait nor are copied for it."""


def composed(changes: Iterable[NetChanges], most_bytes: int = MOST_BYTES) -> Iterator[NetChanges]:
    """The same effect in fewer pieces. The order of one table's pieces is kept; tables do not wait for each other."""
    waiting: dict[str, list[NetChanges]] = {}
    size = 0
    for piece in changes:
        if size + nbytes(piece) > most_bytes:
            yield from _all(waiting)
            size = 0
        table = piece.schema.table
        if waiting.get(table) and not _can_follow(waiting[table][-1], piece):
            yield compose(waiting.pop(table))
        waiting.setdefault(table, []).append(piece)
        size += nbytes(piece)
        is_due = size > most_bytes or _is_large(piece)
        del piece  # what is given out must not be held while the next is made
        if is_due:
            yield from _all(waiting)
            size = 0
    yield from _all(waiting)


def nbytes(piece: NetChanges) -> int:
    rows = [piece.upserts, piece.deletes, *(partial.rows for partial in piece.partials)]
    return sum(int(batch.nbytes) for batch in rows)


def _is_large(piece: NetChanges) -> bool:
    return nbytes(piece) > LARGE_ROW * max(piece.count, 128)


def _all(waiting: dict[str, list[NetChanges]]) -> Iterator[NetChanges]:
    """Nothing waits any more, and nobody holds what was given out."""
    while waiting:
        yield compose(waiting.pop(next(iter(waiting))))


def _can_follow(first: NetChanges, second: NetChanges) -> bool:
    if first.schema != second.schema or first.partials or second.partials or _is_large(first) or _is_large(second):
        return False
    return bool(first.schema.key) or second.truncate or not (second.deletes.num_rows or first.deletes.num_rows)


def compose(pieces: list[NetChanges]) -> NetChanges:
    """What pieces that may follow each other amount to."""
    start = max((place for place, piece in enumerate(pieces) if piece.truncate), default=0)
    truncate = any(piece.truncate for piece in pieces)
    pieces = [piece for piece in pieces[start:] if piece.count or piece.partials] or pieces[-1:]
    schema = pieces[0].schema
    if len(pieces) == 1:
        only = pieces[0]
        return NetChanges(schema, truncate, only.deletes, only.upserts, only.partials, only.delete_counts)
    if not schema.key:
        upserts = _concat([piece.upserts for piece in pieces])
        return NetChanges(schema, truncate, pieces[0].deletes, upserts)
    (result,) = net_changes([_as_changes(pieces)])
    return NetChanges(schema, truncate, result.deletes, result.upserts)


def _as_changes(pieces: list[NetChanges]) -> Changes:
    """As if every key of every piece had changed once."""
    schema = pieces[0].schema
    both = [pair for p in pieces for pair in ((_padded(schema, p.deletes), Op.DELETE), (p.upserts, Op.UPDATE))]
    ops = np.concatenate([np.full(batch.num_rows, op, np.int8) for batch, op in both])
    nothing = np.zeros(len(ops), np.int64)
    rows = _concat([batch for batch, _ in both])
    return Changes(schema, ops, nothing, nothing, NO_TRANSACTIONS, rows, None, nothing[:0], rows.slice(0, 0))


def _padded(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        keys.column(field.name) if field.name in schema.key else pa.nulls(keys.num_rows, field.type)
        for field in schema.arrow
    ]
    return schema.rows(columns)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    columns = [shapes.concat([b.column(i) for b in batches]) for i in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, names=batches[0].schema.names)


def few_of(pieces: Iterator[NetChanges], most_bytes: int) -> tuple[list[NetChanges], bool]:
    """The first pieces, and whether they are too large for a receipt, or followed by more."""
    few: list[NetChanges] = []
    size = 0
    for piece in pieces:
        few.append(piece)
        size += nbytes(piece)
        if size > most_bytes:
            return few, True
    return few, False
