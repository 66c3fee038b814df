"""Lag: the age of the oldest committed change that a sink does not have.

It is not the age of the newest one that it has: behind a source that was idle for an hour that would be an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.errors import OffsetGone
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentName

LOOK_SECONDS = 1.0


def oldest_commit_after(log: LogReader, offset: int) -> int | None:
    """When the first change after `offset` was committed, in microseconds; None if there is none.

    Of whole transactions; the marks that an idle source leaves in the log change nothing.
    """
    for name in log.names():
        if name.committed <= offset or not name.holds_end:
            continue
        try:
            found = _first_commit(log, name, offset)
        except OffsetGone:  # every sink has it by now, and retention took it away
            continue
        if found is not None:
            return found
    return None


def _first_commit(log: LogReader, name: SegmentName, offset: int) -> int | None:
    header = log.header(name)
    if header.first > offset and header.tables:
        return header.first_time_us
    transactions = log.read(name)[1].transactions
    ends = transactions.column("end").to_numpy()
    wanted = ends > offset
    if not header.tables:  # what ends here and has changes began before
        wanted &= transactions.column("begin").to_numpy() < header.first
    times = transactions.column("time_us").to_numpy()[wanted]
    return int(times[0]) if len(times) else None


class LagGauge:
    """The lag of one sink, for somebody who asks all the time: the log is looked at once a second at most.

    In between, the lag of a sink that has moved stays as it was, and that of one that has not grows.
    """

    def __init__(self, log: LogReader, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._looked_at = float("-inf")
        self._place = (-1, -1)  # where the sink and the log were then
        self._oldest_us: int | None = None
        self._last = 0.0

    def seconds(self, offset: int, end: int, *, is_captured: bool) -> float | None:
        """Of a sink at `offset` of a log that ends at `end`; 0 if it has every change of it.

        What is committed and not captured is newer than all of the log. So where nothing is captured now, the lag of a
        sink that lacks something is known all the same, and of one that has all of the log it is not.
        """
        self._last = self._measured(offset, end)
        return self._last if self._last or is_captured else None

    def _measured(self, offset: int, end: int) -> float:
        if offset >= end:
            return 0.0
        now = self._clock()
        if not self._knows(offset, end):
            if now - self._looked_at < LOOK_SECONDS:
                return self._last
            self._oldest_us = oldest_commit_after(self._log, offset)
            self._looked_at, self._place = now, (offset, end)
        return 0.0 if self._oldest_us is None else round(max(now - self._oldest_us / 1e6, 0.1), 1)

    def _knows(self, offset: int, end: int) -> bool:
        """The oldest change that a sink lacks stays the same for as long as the sink stays where it is."""
        return offset == self._place[0] and (self._oldest_us is not None or end == self._place[1])
