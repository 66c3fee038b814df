"""The rows and keys of some changes as a format has them: after, before, and the key, each by its change."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.base import Integers
from tailrace.columns.characters import in_rows
from tailrace.columns.fragments import NULL
from tailrace.model.changes import Changes, Flags, Op


class RowWriter(Protocol):
    """How a format writes the rows of one table: as JSON, or as bytes where it says so to `ChangedRows`."""

    @property
    def has_key(self) -> bool: ...
    def write_rows(self, rows: pa.RecordBatch, unchanged: Flags | None) -> pa.StringArray: ...
    def write_old_rows(self, rows: pa.RecordBatch) -> pa.StringArray: ...
    def write_keys(self, rows: pa.RecordBatch) -> pa.StringArray: ...


class ChangedRows:
    """The rows and keys of changes; null where there is none."""

    def __init__(self, table: RowWriter, changes: Changes, type_: pa.DataType | None = None) -> None:
        self._table, self._changes, self._type = table, changes, type_ or pa.string()

    @cached_property
    def after(self) -> pa.StringArray:
        changes = self._changes
        has_row = changes.op <= Op.UPDATE
        if has_row.all():
            return self._table.write_rows(changes.after, changes.unchanged)
        rows = np.flatnonzero(has_row)
        unchanged = None if changes.unchanged is None else changes.unchanged[rows]
        written = self._table.write_rows(changes.after.take(pa.array(rows)), unchanged)
        return in_rows([written], [rows], len(changes), self._type)

    @cached_property
    def before(self) -> pa.StringArray:
        rows = self._changes.before_rows
        if not len(rows):
            return pa.nulls(len(self._changes), self._type)
        return in_rows([self._table.write_old_rows(self._changes.before)], [rows], len(self._changes), self._type)

    @cached_property
    def keys(self) -> pa.StringArray:
        """Of the row after the change; of a deleted one, its key."""
        if not self._table.has_key:
            return pa.nulls(len(self._changes), self._type)
        has_row = self._changes.op != Op.TRUNCATE
        if has_row.all():
            return self._table.write_keys(self._changes.after)
        rows = np.flatnonzero(has_row)
        written = self._table.write_keys(self._changes.after.take(pa.array(rows)))
        return in_rows([written], [rows], len(self._changes), self._type)

    @cached_property
    def old_keys(self) -> pa.StringArray:
        """Of the rows that have an old one."""
        rows = self._changes.before_rows
        if not len(rows) or not self._table.has_key:
            return pa.nulls(len(self._changes), self._type)
        return in_rows([self._table.write_keys(self._changes.before)], [rows], len(self._changes), self._type)

    @cached_property
    def is_moved(self) -> Flags:
        """Updates that change the key."""
        is_update = self._changes.op == Op.UPDATE
        if not len(self._changes.before_rows) or not self._table.has_key:
            return np.zeros(len(is_update), np.bool_)
        differs = pc.fill_null(pc.not_equal(self.keys, self.old_keys), False)
        found: Flags = is_update & differs.to_numpy(zero_copy_only=False)
        return found


def chosen(texts: pa.StringArray, wanted: Flags | None, change: Integers) -> pa.StringArray:
    """What a record has of its change; `null` where it is not `wanted`, or not there."""
    if len(change) != len(texts):
        texts = texts.take(pa.array(change))
    if wanted is None:
        return texts
    if not wanted.any():
        return pa.repeat(pa.scalar(NULL), len(change))
    if not wanted.all():
        texts = pc.if_else(pa.array(wanted), texts, NULL)
    return pc.fill_null(texts, NULL) if texts.null_count else texts
