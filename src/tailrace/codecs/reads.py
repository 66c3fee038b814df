"""Rows that a snapshot found, in the form that codecs take: inserts of no transaction, marked as reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.codecs.base import Facts, Reads
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import TableSchema


def reads_of(
    schema: TableSchema, rows: pa.RecordBatch, position: str, reads: Reads | None = None
) -> tuple[Changes, Facts]:
    """What `encode_changes` takes for these rows; `position` is what their snapshot saw."""
    count = rows.num_rows
    none = np.zeros(count, np.int64)
    changes = Changes(
        schema=schema,
        op=np.full(count, Op.INSERT, np.int8),
        offset=none,
        transaction=none,
        transactions=NO_TRANSACTIONS,
        after=rows,
        unchanged=None,
        before_rows=none[:0],
        before=schema.no_rows(),
    )
    return changes, Facts([""], [position], none, none, reads or Reads())
