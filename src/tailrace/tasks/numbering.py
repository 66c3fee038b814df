"""The place of a change among those of its table in its transaction, also where several tasks read one transaction."""

from __future__ import annotations

import numpy as np

from tailrace.log.reader import LogReader, Slice
from tailrace.log.segment import SegmentName
from tailrace.model.changes import Changes, Integers, Origins
from tailrace.sources.base import Source


class TableNumbers:
    """Counts on over the slices of one task, the first of which begins at offset `first`.

    What lies before that of a transaction is counted by the headers of its segments. Only where part of a segment is
    the transaction's, that part is decoded: at most one of a log that was not repaired.
    """

    def __init__(self, source: Source, log: LogReader, first: int) -> None:
        self._source, self._log, self._first = source, log, first
        self._last: dict[str, tuple[int, int]] = {}  # a table's last transaction, by its begin, and its changes so far

    def of(self, changes: Changes, origins: Origins) -> Integers:
        """Of changes as they come out of the log, all of them."""
        if not len(changes):
            return np.zeros(0, np.int64)
        table, begins = changes.schema.table, origins.begins[changes.transaction]
        starts = np.flatnonzero(np.diff(begins, prepend=begins[0] - 1))
        lengths = np.diff(starts, append=len(begins))
        numbers = np.arange(1, len(begins) + 1) - np.repeat(starts, lengths)
        numbers[: int(lengths[0])] += self._counted(table, int(begins[0]))
        self._last[table] = int(begins[-1]), int(numbers[-1])
        return numbers

    def _counted(self, table: str, begin: int) -> int:
        """How many changes of a table its transaction has had."""
        last, count = self._last.get(table, (0, 0))
        if last == begin:
            return count
        if begin >= self._first:
            return 0
        return sum(self._count(piece, table) for piece in self._log.slices(begin - 1, self._first - 1))

    def _count(self, piece: Slice, table: str) -> int:
        """The changes of a table in a slice."""
        name = SegmentName.parse(piece.name)
        assert name is not None
        header = self._log.header(name)  # it may be that of a larger one by now
        if (header.first, header.last) == (piece.first, piece.last):
            return header.tables.get(table, 0)
        _, frames = self._log.read(name)
        return sum(map(len, self._source.decode(frames, piece.first, piece.last, {table})))
