"""Net changes: what a run of changes amounts to, key by key.

Within one run of one table the last state of each key wins; columns the source did not send are filled from earlier
changes of the same key; a key-changing update is a delete of the old key and an insert of the new; a truncate is a
barrier. A table without a key is a multiset of whole rows: what counts is how many copies come and go.

Guarantee: applying the net changes of consecutive runs, in order, leaves the same rows as applying every change. No
step loops over rows in Python, except over the rare updates that change a key without sending the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import SourceRefused
from tailrace.model import shapes
from tailrace.model.changes import Changes, Flags, Integers, Op, concat
from tailrace.model.schema import Identity, TableSchema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partial:
    """Rows of which the columns `unchanged` were not sent. With `old_keys`, row i lives under that key until now."""

    unchanged: tuple[str, ...]
    rows: pa.RecordBatch
    old_keys: pa.RecordBatch | None = None


@dataclass(frozen=True, slots=True)
class NetChanges:
    """To be applied in this order: truncate, deletes, upserts, partials.

    For a table without a key `deletes` are whole rows, each standing for `delete_counts` copies, and `upserts` are
    inserts that may repeat.
    """

    schema: TableSchema
    truncate: bool
    deletes: pa.RecordBatch
    upserts: pa.RecordBatch
    partials: tuple[Partial, ...] = ()
    delete_counts: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def count(self) -> int:
        """How many rows of the sink this touches, a truncate aside."""
        return int(self.deletes.num_rows + self.upserts.num_rows + sum(p.rows.num_rows for p in self.partials))


def net_changes(pieces: list[Changes]) -> list[NetChanges]:
    """What `pieces` (one table, one schema version, in order) amount to; several results are to be applied in order."""
    changes = concat(pieces)
    truncates = np.flatnonzero(changes.op == Op.TRUNCATE)
    truncate = len(truncates) > 0
    if truncate:
        changes = changes.slice(int(truncates[-1]) + 1, len(changes))
    if not changes.schema.key:
        return [_net_of_rows(changes, truncate)]
    moves = _partial_moves(changes)
    if not len(moves):
        return [_net_of_keys(changes, truncate)]
    return _around_moves(changes, truncate, moves)


def drained(first: list[T], rest: Iterator[T]) -> Iterator[T]:
    """Those, then the others. A piece that was given out is not held here."""
    while first:
        yield first.pop(0)
    yield from rest


def _partial_moves(changes: Changes) -> Integers:
    """Updates that change the key and leave out columns: the row they speak of is still under its old key."""
    if changes.unchanged is None or not len(changes.before_rows):
        return np.zeros(0, np.int64)
    rows = changes.before_rows
    moves: Integers = rows[(changes.op[rows] == Op.UPDATE) & changes.unchanged[rows].any(axis=1)]
    return moves


def _around_moves(changes: Changes, truncate: bool, moves: Integers) -> list[NetChanges]:
    """Cut the run at every partial move, so that the sink still has the old row when the move comes."""
    results = []
    begin = 0
    for row in moves.tolist():
        results.append(_net_of_keys(changes.slice(begin, row), truncate))
        results.append(_move(changes.slice(row, row + 1)))
        begin, truncate = row + 1, False
    results.append(_net_of_keys(changes.slice(begin, len(changes)), truncate))
    return [result for result in results if result.truncate or result.count]


def _move(change: Changes) -> NetChanges:
    schema = change.schema
    assert change.unchanged is not None
    missing = tuple(c.name for c, absent in zip(schema.columns, change.unchanged[0], strict=True) if absent)
    partial = Partial(missing, change.after, _select(change.before, schema.key_indexes))
    return NetChanges(schema, False, _no_keys(schema), change.after.slice(0, 0), (partial,))


def _net_of_keys(changes: Changes, truncate: bool) -> NetChanges:
    schema = changes.schema
    if not len(changes):
        return NetChanges(schema, truncate, _no_keys(schema), changes.after)
    keys, row_of, is_old = _keys_in_order(changes)
    codes, count = _codes(keys)
    last = np.full(count, -1, np.int64)
    last[codes] = np.arange(len(codes))  # a repeated index keeps the last value
    last.sort()
    winners = row_of[last]
    gone = is_old[last] | (changes.op[winners] == Op.DELETE)
    deletes = _take(keys, last[gone])
    alive = winners[~gone]
    if changes.unchanged is None or not changes.unchanged[alive].any():
        return NetChanges(schema, truncate, deletes, _take(changes.after, alive))
    filled, missing = _fill(changes, codes, row_of, is_old, last[~gone])
    upserts, partials = _by_missing(schema, filled, missing)
    return NetChanges(schema, truncate, deletes, upserts, partials)


def _keys_in_order(changes: Changes) -> tuple[pa.RecordBatch, Integers, Flags]:
    """Every key that a row speaks of, in order: an update's old key comes just before its new one."""
    indexes = changes.schema.key_indexes
    keys = _select(changes.after, indexes)
    rows = np.arange(len(changes))
    is_update = changes.op[changes.before_rows] == Op.UPDATE
    olds = changes.before_rows[is_update]
    if not len(olds):
        return keys, rows, np.zeros(len(rows), np.bool_)
    old_keys = _select(changes.before, indexes).filter(pa.array(is_update))
    both = [shapes.concat([new, old]) for new, old in zip(keys.columns, old_keys.columns, strict=True)]
    order = np.argsort(np.concatenate([rows * 2 + 1, olds * 2]), kind="stable")
    combined = pa.RecordBatch.from_arrays(both, names=keys.schema.names)
    is_old = np.concatenate([np.zeros(len(rows), np.bool_), np.ones(len(olds), np.bool_)])
    return _take(combined, order), np.concatenate([rows, olds])[order], is_old[order]


def _fill(
    changes: Changes, codes: Integers, row_of: Integers, is_old: Flags, last: Integers
) -> tuple[list[pa.Array], Flags]:
    """The winning rows, each missing cell taken from the latest earlier change of its key that has it."""
    assert changes.unchanged is not None
    previous = _previous_of_same_key(codes)
    columns, missing = [], np.zeros((len(last), len(changes.schema.columns)), np.bool_)
    for index, column in enumerate(changes.after.columns):
        at = last.copy()
        unsent = changes.unchanged[:, index]
        while True:
            looking = (at >= 0) & ~is_old[at] & unsent[row_of[at]]
            if not looking.any():
                break
            at = np.where(looking, previous[at], at)
        missing[:, index] = (at < 0) | is_old[at]
        columns.append(column.take(pa.array(row_of[np.where(missing[:, index], last, at)])))
    return columns, missing


def _previous_of_same_key(codes: Integers) -> Integers:
    order = np.argsort(codes, kind="stable")
    previous = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _by_missing(
    schema: TableSchema, columns: list[pa.Array], missing: Flags
) -> tuple[pa.RecordBatch, tuple[Partial, ...]]:
    """Whole rows apart from partial ones, these grouped by the columns they lack."""
    rows = schema.rows(columns)
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    which = which.reshape(-1)
    upserts, partials = rows.slice(0, 0), []
    for number, pattern in enumerate(patterns):
        members = rows.filter(pa.array(which == number))
        if pattern.any():
            names = tuple(c.name for c, absent in zip(schema.columns, pattern, strict=True) if absent)
            partials.append(Partial(names, members))
        else:
            upserts = members
    return upserts, tuple(partials)


def _net_of_rows(changes: Changes, truncate: bool) -> NetChanges:
    """A multiset: +1 for each row that comes, -1 for each that goes."""
    schema = changes.schema
    if schema.identity is not Identity.FULL:
        if (changes.op != Op.INSERT).any():
            raise SourceRefused(
                f"an update or a delete of {schema.table} does not say which row it is about: the table has no key",
                hint="ALTER TABLE … REPLICA IDENTITY FULL, then copy the table again",
                table=schema.table,
            )
        return NetChanges(schema, truncate, changes.after.slice(0, 0), changes.after)
    comes = (changes.op == Op.INSERT) | (changes.op == Op.UPDATE)
    arrivals = changes.after.filter(pa.array(comes))
    rows = schema.rows([shapes.concat([a, b]) for a, b in zip(arrivals.columns, changes.before.columns, strict=True)])
    codes, count = _codes(rows)
    signs = np.ones(len(codes), np.int64)
    signs[arrivals.num_rows :] = -1
    balance = np.zeros(count, np.int64)
    np.add.at(balance, codes, signs)
    example = np.zeros(count, np.int64)
    example[codes] = np.arange(len(codes))
    more, less = np.flatnonzero(balance > 0), np.flatnonzero(balance < 0)
    inserts = _take(rows, np.repeat(example[more], balance[more]))
    return NetChanges(schema, truncate, _take(rows, example[less]), inserts, (), -balance[less])


def absent_from(keys: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Those of `keys` that are not among `rows`, which have the same columns."""
    both = [shapes.concat([one, other]) for one, other in zip(keys.columns, rows.columns, strict=True)]
    codes, _ = _codes(pa.RecordBatch.from_arrays(both, names=keys.schema.names))
    return keys.filter(pa.array(~np.isin(codes[: keys.num_rows], codes[keys.num_rows :])))


def _codes(rows: pa.RecordBatch) -> tuple[Integers, int]:
    """A dense number for each distinct row, NULL being equal to NULL."""
    codes, count = np.zeros(rows.num_rows, np.int64), 1
    for column in rows.columns:
        encoded = pc.dictionary_encode(_hashable(column), null_encoding="encode")
        width = max(len(encoded.dictionary), 1)
        codes = codes * width + encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        count *= width
        if rows.num_columns > 1:
            distinct, codes = np.unique(codes, return_inverse=True)
            codes, count = codes.reshape(-1).astype(np.int64), len(distinct)
    return codes, count


def _hashable(column: pa.Array) -> pa.Array:
    """A form that Arrow can hash and that is equal exactly when the values are the same bits."""
    if pa.types.is_float64(column.type):
        return column.view(pa.int64())
    if pa.types.is_float32(column.type):
        return column.view(pa.int32())
    if pa.types.is_struct(column.type):
        fields = column.flatten()
        codes, _ = _codes(pa.RecordBatch.from_arrays(fields, [str(place) for place in range(len(fields))]))
        return pa.array(codes, mask=column.is_null().to_numpy(zero_copy_only=False))
    return _list_of_codes(column) if pa.types.is_list(column.type) else column


def _list_of_codes(column: pa.ListArray) -> pa.BinaryArray:
    """Each list as the bytes of its elements' codes."""
    codes, _ = _codes(pa.RecordBatch.from_arrays([column.flatten()], ["element"]))
    lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths)]) * codes.itemsize
    buffers = [None, pa.py_buffer(bounds.astype(np.int64)), pa.py_buffer(codes)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.large_binary()))


def _select(rows: pa.RecordBatch, indexes: tuple[int, ...]) -> pa.RecordBatch:
    return rows.select(list(indexes))


def _take(rows: pa.RecordBatch, indexes: Integers) -> pa.RecordBatch:
    """Rows by their places; all of them, in order, are not copied."""
    if len(indexes) == rows.num_rows and (np.diff(indexes, prepend=-1) == 1).all():
        return rows
    return rows.take(pa.array(indexes))


def _no_keys(schema: TableSchema) -> pa.RecordBatch:
    return schema.no_rows().select(list(schema.key_indexes))
