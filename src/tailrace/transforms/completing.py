"""Partial rows that an expression needs more of: they become the rows that the source has.

So do partial rows that move to another key. What they lack would be taken from what the sink has under the old key, and
that may be a later row by now, read from the source like these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial, absent_from
from tailrace.columns.text import to_text
from tailrace.model import shapes
from tailrace.model.schema import TableSchema

FETCH_ROWS = 64
"""Rows that are read from the source together: nobody knows how large they are."""

Fetch = Callable[[TableSchema, pa.RecordBatch], pa.RecordBatch]


def completed(net: NetChanges, reads: Collection[str], fetch: Fetch) -> Iterator[NetChanges]:
    """The same changes, to be applied in order, without partial rows that lack one of `reads`, or that move."""
    lacking = [partial for partial in net.partials if _is_lacking(partial, reads)]
    if not lacking:
        yield net
        return
    kept = tuple(partial for partial in net.partials if not _is_lacking(partial, reads))
    yield dataclasses.replace(net, partials=kept)
    for partial in lacking:
        for first in range(0, partial.rows.num_rows, FETCH_ROWS):
            yield _fetched(net.schema, partial, first, fetch)


def _is_lacking(partial: Partial, reads: Collection[str]) -> bool:
    return partial.old_keys is not None or not set(reads).isdisjoint(partial.unchanged)


def _fetched(schema: TableSchema, partial: Partial, first: int, fetch: Fetch) -> NetChanges:
    """Rows that are gone from the source go from the sink: a change that says so follows."""
    keys = partial.rows.slice(first, FETCH_ROWS).select(list(schema.key_indexes))
    types = {column.name: column.type for column in schema.columns}
    asked = [to_text(array, types[name]) for name, array in zip(keys.schema.names, keys.columns, strict=True)]
    rows = fetch(schema, pa.RecordBatch.from_arrays(asked, keys.schema.names))
    gone = absent_from(keys, rows.select(list(schema.key_indexes)))
    if partial.old_keys is not None:
        gone = _concat(gone, partial.old_keys.slice(first, FETCH_ROWS))
    return NetChanges(schema, False, gone, rows)


def _concat(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    columns = [shapes.concat(list(pair)) for pair in zip(one.columns, other.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=one.schema.names)
