"""Lag: the age of the oldest committed change that a sink does not have.

It is not the age of the newest one that it has: behind a source that was idle for an hour that would be an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace.errors import OffsetGone, TailraceError
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
    """The lag of one sink, for somebody who asks all the time and may not wait: `seconds` reads nothing.

    Somebody else calls `look`, which reads the log, once a second at most. In between, the lag of a sink that has moved
    stays as it was, and that of one that has not grows.
    """

    def __init__(self, log: LogReader, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._looked_at = float("-inf")
        self._wanted = (0, 0)  # where the sink and the log are
        self._known = (-1, -1)  # where they were when we looked
        self._oldest_us: int | None = None
        self._last: float | None = None

    def seconds(self, offset: int, end: int, *, is_captured: bool) -> float | None:
        """Of a sink at `offset` of a log that ends at `end`; 0 if it has every change of it.

        What is committed and not captured is newer than all of the log. So where nothing is captured now, the lag of a
        sink that lacks something is known all the same, and of one that has all of the log it is not.
        """
        self._wanted = (offset, end)
        if offset >= end:
            self._last = 0.0
        elif self._is_known():
            oldest_us = self._oldest_us
            age = 0.0 if oldest_us is None else max(self._clock() - oldest_us / 1e6, 0.1)
            self._last = round(age, 1)
        return self._last if self._last or is_captured else None

    def look(self, *, at_once: bool = False) -> None:
        """Read what `seconds` needs next, if it needs anything. A log that can not be read is looked at later."""
        offset, end = self._wanted
        is_due = at_once or self._clock() - self._looked_at >= LOOK_SECONDS
        if offset >= end or self._is_known() or not is_due:
            return
        self._looked_at = self._clock()
        try:
            self._oldest_us, self._known = oldest_commit_after(self._log, offset), (offset, end)
        except (TailraceError, OSError):  # whoever applies the log says so
            return

    def _is_known(self) -> bool:
        """The oldest change that a sink lacks stays the same for as long as the sink stays where it is."""
        (offset, end), (known_offset, known_end) = self._wanted, self._known
        return offset == known_offset and (self._oldest_us is not None or end == known_end)
