"""A stream's hold on the change log, under the name that its option `reader` gives.

Guarantee: from the moment a stream begins, the log keeps what it has not committed to its checkpoint.
"""

from __future__ import annotations

import time
import uuid

from tailrace.errors import OffsetGone, StateError
from tailrace.log.reader import LogReader, gone
from tailrace.state.readers import Readers, check_name

SETTLE_SECONDS = 0.3
"""Longer than retention takes from looking at the readers to deleting a segment."""


class ReaderHold:
    """One stream's. A name has one stream at a time: the one that began last; the other is told at its next commit."""

    def __init__(self, readers: Readers, name: str, table: str) -> None:
        self.name = check_name(name)
        self._readers, self._table = readers, table
        self._owner = uuid.uuid4().hex

    def begin(self, log: LogReader, log_id: str, asked: int | None) -> int:
        """The offset where a stream without a checkpoint begins: `asked`, or where the reader was, or the oldest."""
        known = self._readers.get(self.name)
        if known is not None and asked is None and known.log != log_id:
            raise OffsetGone(
                f"reader {self.name} was at offset {known.offset} of a change log that is gone",
                hint=f"`tailrace readers drop {self.name}` lets it begin anew, at the oldest change that is kept",
            )
        if known is not None and asked is None:
            self._put(log_id, known.offset)
            return known.offset
        _check(log, asked)
        self._put(log_id, asked or 0)
        time.sleep(SETTLE_SECONDS)
        try:
            _check(log, asked)
        except OffsetGone:
            self._readers.drop(self.name)
            raise
        start = log.begin() if asked is None else asked
        self._put(log_id, start)
        return start

    def resume(self, log_id: str, offset: int) -> None:
        """Take the name over, for a stream whose checkpoint is at `offset`."""
        self._put(log_id, offset)

    def move(self, log_id: str, offset: int) -> None:
        known = self._readers.get(self.name)
        if known is not None and known.owner != self._owner:
            raise StateError(f"reader {self.name} is another stream's by now; each stream needs a name of its own")
        self._put(log_id, offset)

    def _put(self, log_id: str, offset: int) -> None:
        self._readers.put(self.name, log_id, offset, self._table, self._owner)


def _check(log: LogReader, asked: int | None) -> None:
    begin, end = log.begin(), log.end()
    if asked is not None and not begin <= asked <= end:
        raise gone(asked + 1, (begin, end), log.storage.path)
