"""Changes of one table, a column at a time.

`Changes` is the inner form (numpy and Arrow side by side); `to_arrow` gives the flat change columns that Spark and
users see: the table's own columns, then `_op _offset`, what the source tells of a transaction (`_commit_time` at
least), `_unchanged` and `_before`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import ValueRefused, about
from tailrace.model import extremes, shapes
from tailrace.model.schema import TableSchema

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


class Op(IntEnum):
    INSERT = 0
    UPDATE = 1
    DELETE = 2
    TRUNCATE = 3


OP_NAMES = pa.array([op.name.lower() for op in Op])


@dataclass(frozen=True, slots=True)
class Origins:
    """What a source calls each of some transactions, where it is in its log, and the offset of its first message.

    Changes that are `late` catch up with a copy of their table: others of the same transaction were told before.
    """

    ids: Sequence[str]
    positions: Sequence[str]
    begins: Integers
    late: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows in log order, all of one table schema.

    `after` is the state after the change; for a delete, what was sent of the old row. `unchanged` marks the cells the
    source did not send. `before` holds one row for each index in `before_rows`: what was sent of the old row. Each
    change is of the transaction in row `transaction` of `transactions`, whose columns are the source's own. `origins`
    are theirs, where changes are on their way into a sink that takes each of them. `table_number` is the place of each
    change among those of its table in its transaction, from 1, where somebody asked for it.
    """

    schema: TableSchema
    op: npt.NDArray[np.int8]
    offset: Integers
    transaction: Integers
    transactions: pa.RecordBatch
    after: pa.RecordBatch
    unchanged: Flags | None  # rows x columns; None when all was sent
    before_rows: Integers
    before: pa.RecordBatch
    origins: Origins | None = None
    table_number: Integers | None = None

    def __len__(self) -> int:
        return len(self.op)

    @property
    def nbytes(self) -> int:
        """The size of the values."""
        return int(self.after.nbytes + self.before.nbytes)

    def keep(self, mask: Flags) -> Changes:
        """Only the rows where `mask` is true."""
        if mask.all():
            return self
        rows = np.flatnonzero(mask)
        renumbered = np.cumsum(mask) - 1
        kept = mask[self.before_rows]
        return Changes(
            schema=self.schema,
            op=self.op[rows],
            offset=self.offset[rows],
            transaction=self.transaction[rows],
            transactions=self.transactions,
            after=self.after.filter(pa.array(mask)),
            unchanged=None if self.unchanged is None else self.unchanged[rows],
            before_rows=renumbered[self.before_rows[kept]],
            before=self.before.filter(pa.array(kept)),
            origins=self.origins,
            table_number=None if self.table_number is None else self.table_number[rows],
        )

    def slice(self, start: int, stop: int) -> Changes:
        rows = np.arange(len(self))
        return self.keep((rows >= start) & (rows < stop))

    def to_arrow(self) -> pa.RecordBatch:
        """The flat form, with the columns of `change_schema`.

        Raises ValueRefused for a value that only we could read from them: others would take it for another.
        """
        flat = change_schema(self.schema, self.transactions.schema)
        with about(self.schema.table):
            for rows in (self.after, self.before):
                refuse_extremes(rows, self.schema)
        transactions = self.transactions.take(pa.array(self.transaction))
        columns = [
            *self.after.columns,
            OP_NAMES.take(pa.array(self.op)),
            pa.array(self.offset),
            *transactions.columns,
            self._unchanged_names(),
            self._before_struct(),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=flat)

    def _unchanged_names(self) -> pa.Array:
        names = pa.array(self.schema.arrow.names, pa.string())
        if self.unchanged is None:
            zeros = pa.array(np.zeros(len(self) + 1, np.int32))
            return pa.ListArray.from_arrays(zeros, names.slice(0, 0))
        rows, columns = np.nonzero(self.unchanged)
        bounds = np.searchsorted(rows, np.arange(len(self) + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(bounds), names.take(pa.array(columns)))

    def _before_struct(self) -> pa.Array:
        places = np.full(len(self), -1, np.int64)
        places[self.before_rows] = np.arange(len(self.before_rows))
        absent = places < 0
        indexes = pa.array(places, mask=absent)
        fields = [column.take(indexes) for column in self.before.columns]
        return pa.StructArray.from_arrays(fields, fields=list(self.schema.arrow), mask=pa.array(absent))


def change_schema(schema: TableSchema, transactions: pa.Schema) -> pa.Schema:
    """The flat Arrow schema of a table's changes, from a source that has these columns for a transaction."""
    own = schema.arrow
    return pa.schema(
        [
            *own,
            pa.field("_op", pa.string()),
            pa.field("_offset", pa.int64()),
            *transactions,
            pa.field("_unchanged", pa.list_(pa.string())),
            pa.field("_before", pa.struct(list(own))),
        ]
    )


NO_TRANSACTIONS = pa.RecordBatch.from_arrays([pa.array([None], pa.timestamp("us", "UTC"))], names=["_commit_time"])
"""Of changes that have lost theirs: all are of its one row."""


def concat(pieces: list[Changes]) -> Changes:
    """Several runs of the same schema version, in order, as one; in all they have less than 2 GiB of any column."""
    if len(pieces) == 1:
        return pieces[0]
    starts = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
    before_each = np.cumsum([0, *(piece.transactions.num_rows for piece in pieces[:-1])])
    unchanged = None
    if any(piece.unchanged is not None for piece in pieces):
        width = len(pieces[0].schema.columns)
        blanks = [np.zeros((len(p), width), np.bool_) if p.unchanged is None else p.unchanged for p in pieces]
        unchanged = np.concatenate(blanks)
    return Changes(
        schema=pieces[0].schema,
        op=np.concatenate([p.op for p in pieces]),
        offset=np.concatenate([p.offset for p in pieces]),
        transaction=np.concatenate([p.transaction + s for p, s in zip(pieces, before_each, strict=True)]),
        transactions=pa.concat_batches([p.transactions for p in pieces]),
        after=shapes.concat_batches([p.after for p in pieces]),
        unchanged=unchanged,
        before_rows=np.concatenate([p.before_rows + s for p, s in zip(pieces, starts, strict=True)]),
        before=shapes.concat_batches([p.before for p in pieces]),
    )


def refuse_extremes(rows: pa.RecordBatch, schema: TableSchema) -> None:
    """Raise ValueRefused for a value, in these columns of a table, that others would take for another."""
    columns = {column.name: column for column in schema.columns}
    for column, array in ((columns[name], rows.column(name)) for name in rows.schema.names):
        if problem := _extreme(array):
            raise ValueRefused(
                f"column {schema.table}.{column.name} ({column.type.name}): {problem}",
                hint="read the table without this row, or this column, or from a sink",
            )


def _extreme(array: pa.Array) -> str:
    """What a column has that its Arrow type is not made for."""
    if shapes.is_shaped(array.type):
        return "an array has more than one dimension or does not start at 1, which a list can not express"
    if pa.types.is_list(array.type):
        return _extreme(array.flatten())
    if pa.types.is_decimal(array.type) and extremes.is_nan(array).any():
        return "NaN has no place in a decimal"
    if pa.types.is_timestamp(array.type) and extremes.has_late(array.drop_null().view(pa.int64()).to_numpy()):
        return "a timestamp is past the year 294247, the end of 64 bits of microseconds since 1970"
    return ""
