"""Which records some changes become, a column at a time: one, two with a tombstone, or three where a key changes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.base import Encoded, Integers
from tailrace.codecs.rows import ChangedRows, chosen
from tailrace.columns.characters import Array
from tailrace.model.changes import Changes, Flags, Op

OLD_KEY, NEW_KEY = "__debezium.oldkey", "__debezium.newkey"
_LETTERS = "cudtr"
OP_LETTERS = pa.array(list(_LETTERS))
_C, _U, _D, _T, _R = range(5)
_LETTER_OF = np.array([_C, _U, _D, _T], np.int8)  # by Op
assert [Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE] == [0, 1, 2, 3]


class RecordPlan:
    """For each record: the `change` that it is of, its `letter`, and whether it is a tombstone."""

    def __init__(self, changes: Changes, is_moved: Flags, *, tombstones: bool, are_reads: bool = False) -> None:
        is_delete = changes.op == Op.DELETE
        count = 1 + is_moved + (is_delete | is_moved) * tombstones
        self.change: Integers = np.repeat(np.arange(len(changes)), count)
        nth = np.arange(len(self.change)) - np.repeat(np.cumsum(count) - count, count)
        self._is_moved = is_moved[self.change]
        is_last = nth == np.repeat(count - 1, count)
        self.is_created: Flags = self._is_moved & is_last
        self.is_tombstone: Flags = (nth == 1) & tombstones
        plain = _LETTER_OF[changes.op][self.change]
        self.letter: Array = np.where(self._is_moved, np.where(self.is_created, _C, _D), plain).astype(np.int8)
        if are_reads:
            self.letter[:] = _R
        self.has_before: Flags = (self.letter == _U) | (self.letter == _D)
        self.has_after: Flags = (self.letter <= _U) | (self.letter == _R)

    @property
    def is_deleted(self) -> Flags:
        found: Flags = self.letter == _D
        return found

    def encoded(self, rows: ChangedRows, values: pa.Array, *, has_headers: bool = True) -> Encoded:
        """`has_headers`: a move tells of the other key in a header."""
        values = values.cast(pa.binary())
        keys = chosen(rows.keys, None, self.change)
        is_old = self._is_moved & ~self.is_created
        if is_old.any():
            keys = pc.if_else(pa.array(is_old), chosen(rows.old_keys, None, self.change), keys)
        if self.is_tombstone.any():
            values = pc.if_else(pa.array(self.is_tombstone), pa.scalar(None, pa.binary()), values)
        moved = np.flatnonzero(self._is_moved).tolist() if has_headers else []
        headers = {record: self._header(rows, record) for record in moved}
        return Encoded(keys.cast(pa.binary()), values, self.change, headers)

    def _header(self, rows: ChangedRows, record: int) -> tuple[tuple[str, bytes], ...]:
        name, keys = (OLD_KEY, rows.old_keys) if self.is_created[record] else (NEW_KEY, rows.keys)
        return ((name, keys[int(self.change[record])].cast(pa.binary()).as_py()),)
