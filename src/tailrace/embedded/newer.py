"""What was delivered of a table while its rows are read on demand, and what becomes of the rows that were read by then.

A row of which a newer state was delivered is left out: the consumer has it. But a change may tell a part of its row
only: PostgreSQL does not send a large value that stayed as it was. Then the consumer may have that part and nothing
else, so the row is handed out after all: as it was read, with all that was delivered since put over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tailrace.columns.plain import values_of
from tailrace.embedded.versions import version_of
from tailrace.model import shapes
from tailrace.model.changes import Changes, Op
from tailrace.model.schema import TableSchema

Key = tuple[Any, ...]


class Told(NamedTuple):
    """One change, in the order of the log: the key that the row has behind it, and the one that it had before."""

    key: Key
    old: Key
    row: int
    op: int
    is_whole: bool  # the change has all of the row's values, or there is no row any more


def told_of(changes: Changes, key: Iterable[str]) -> Iterator[Told]:
    keys = keys_of(changes.after, changes.schema, key)
    olds = dict(zip(changes.before_rows.tolist(), keys_of(changes.before, changes.schema, key), strict=False))
    in_part = set() if changes.unchanged is None else {*np.flatnonzero(changes.unchanged.any(axis=1)).tolist()}
    for row, (one, op) in enumerate(zip(keys, changes.op.tolist(), strict=True)):
        yield Told(one, olds.get(row, one), row, op, row not in in_part)


class Newer:
    """Since a chunk was read. `is_cleared`: a TRUNCATE came; `is_altered`: the table has other columns by now."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._changed: set[Key] = set()
        self._patches: dict[Key, dict[int, pa.Array]] = {}  # by the key in the chunk: values put over it, by column
        self._origins: dict[Key, Key] = {}  # rows that have a patch: their key now, and in the chunk
        self.is_cleared = self.is_altered = False

    def learn(self, changes: Changes) -> None:
        self.is_altered |= version_of(changes.schema) != version_of(self._schema)
        self.is_cleared |= bool((changes.op == Op.TRUNCATE).any())
        if self.is_altered or self.is_cleared:
            return
        for told in told_of(changes, self._schema.key):
            self._learn(told, changes)

    def _learn(self, told: Told, changes: Changes) -> None:
        """A row that is in the chunk and not changed so far, or in part, may be in part again."""
        origin = self._origins.pop(told.old, None)
        if origin is None and told.old not in self._changed:
            origin, self._patches[told.old] = told.old, {}
        if (other := self._origins.pop(told.key, None)) is not None:
            del self._patches[other]
        self._changed |= {told.old, told.key}
        if origin is not None and (told.is_whole or told.op != Op.UPDATE):
            del self._patches[origin]
        elif origin is not None:
            assert changes.unchanged is not None
            for column in np.flatnonzero(~changes.unchanged[told.row]).tolist():
                self._patches[origin][column] = changes.after.column(column).slice(told.row, 1)
            self._origins[told.key] = origin

    def left(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Of rows that were read: those that nobody has delivered a newer state of, and those in part."""
        if self.is_cleared:
            return []
        if not self._changed:
            return [rows] if rows.num_rows else []
        keys = keys_of(rows, self._schema, self._schema.key)
        mask = np.fromiter((key not in self._changed for key in keys), np.bool_, rows.num_rows)
        found = [rows.filter(pa.array(mask))]
        found += [self._patched(rows, row, self._patches[key]) for row, key in enumerate(keys) if key in self._patches]
        return [each for each in found if each.num_rows]

    def _patched(self, rows: pa.RecordBatch, row: int, patch: dict[int, pa.Array]) -> pa.RecordBatch:
        columns = [patch.get(number, column.slice(row, 1)) for number, column in enumerate(rows.columns)]
        return self._schema.rows([shapes.concat([column]) for column in columns])


class Partial:
    """Rows that were delivered in part since a table's first chunk was read: by their key, which is kept.

    A row that is updated moves within its table, so that no chunk may see it: with the last one it is read by its key.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._keys: dict[Key, pa.RecordBatch] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def learn(self, changes: Changes) -> None:
        if not self._keys and changes.unchanged is None:
            return
        names = [column.name for column in changes.schema.columns]
        if any(name not in names for name in self._schema.key):
            return
        for told in told_of(changes, self._schema.key):
            self._keys.pop(told.old, None)
            self._keys.pop(told.key, None)
            if told.op == Op.TRUNCATE:
                self._keys.clear()
            elif told.op == Op.UPDATE and not told.is_whole:
                self._keys[told.key] = changes.after.select(list(self._schema.key)).take(pa.array([told.row]))

    def read(self, read: Callable[[TableSchema, pa.RecordBatch], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are still in part, a few at a time."""
        keys = [*self._keys.values()]
        for first in range(0, len(keys), 1000):
            some = pa.Table.from_batches(keys[first : first + 1000]).combine_chunks().to_batches()[0]
            yield read(self._schema, some)


def keys_of(rows: pa.RecordBatch, schema: TableSchema, key: Iterable[str]) -> list[Key]:
    """The keys of rows, as values that can be compared. A table whose key was renamed has none of that name."""
    columns = {column.name: column for column in schema.columns}
    if not rows.num_rows or any(name not in columns for name in key):
        return []
    found = [[_comparable(v) for v in values_of(rows.column(name), columns[name].type)] for name in key]
    return list(zip(*found, strict=True))


def _comparable(value: Any) -> Any:
    """A NaN is a NaN here, and what has parts is its text."""
    return repr(value) if isinstance(value, dict | list) or value != value else value
