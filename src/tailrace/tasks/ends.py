"""Transactions that are larger than a segment, told whole: their first segments do not know yet where they end."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.log.reader import LogReader
from tailrace.model.frames import Frames


class TransactionEnds:
    """Remembers the one that it looked for last, for the other slices of the same task."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._last: pa.RecordBatch | None = None

    def whole(self, frames: Frames) -> pa.RecordBatch:
        """The transactions of a segment. One that goes on behind it is as the segment has it in which it ends."""
        told = frames.transactions
        begins, ends = (told.column(name).to_numpy() for name in ("begin", "end"))
        if not len(ends) or ends[-1] > 0:
            return told
        found = self._found(int(begins[-1]), frames.last)
        return told if found is None else pa.concat_batches([told.slice(0, len(ends) - 1), found])

    def _found(self, begin: int, after: int) -> pa.RecordBatch | None:
        if self._last is None or int(self._last.column("begin")[0].as_py()) != begin:
            later = (name for name in self._log.names() if name.first > after and name.holds_end)
            ending = next(later, None)
            self._last = None if ending is None else _row(self._log.read(ending)[1].transactions, begin)
        return self._last


def _row(transactions: pa.RecordBatch, begin: int) -> pa.RecordBatch | None:
    found = np.flatnonzero(transactions.column("begin").to_numpy() == begin)
    return transactions.slice(int(found[0]), 1) if len(found) else None
