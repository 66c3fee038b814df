"""What the log forgets: segments that every sink and every named reader has, unless history is kept.

Guarantee: what a named reader needs is never deleted, and readers are asked again before anything is. History that is
kept for nobody in particular goes first when the log is full.
"""

from __future__ import annotations

import time

from tailrace.config import Log
from tailrace.log.merging import run_to_merge
from tailrace.log.segment import SegmentName
from tailrace.log.writer import LogWriter, SegmentFacts
from tailrace.state.readers import Readers

LOOK_SECONDS = 1.0


class Retention:
    def __init__(self, log: LogWriter, readers: Readers, settings: Log) -> None:
        self._log, self._readers, self._keep = log, readers, settings.kept
        self._max_bytes, self._segment_bytes = settings.max_bytes, settings.segment_bytes
        self._sinks = 0
        self._places: dict[str, int] = {}
        self._large: set[SegmentName] = set()  # what does not become smaller in number
        self._due_at = float("-inf")

    def sinks_have(self, offset: int) -> None:
        self._sinks = offset

    @property
    def needed(self) -> int:
        """Everybody has all up to this offset."""
        return min([self._sinks, *self._places.values()])

    @property
    def is_full(self) -> bool:
        """True while waiting helps: a transaction larger than the log may be must come in whole before it can go."""
        return self._log.size >= self._max_bytes and self._log.end > self.needed

    @property
    def held_by(self) -> str | None:
        """The reader that the log waits for, if it is not a sink."""
        slowest = min(self._places, key=self._places.__getitem__, default=None)
        return slowest if slowest is not None and self._places[slowest] < self._sinks else None

    def apply(self) -> None:
        """Delete what may go. Cheap when that is nothing: readers are looked at now and then."""
        is_due = time.monotonic() >= self._due_at
        if not is_due and not self._may_go():
            return
        self._look()
        if may_go := self._may_go():
            self._log.forget(may_go)
        if is_due:
            self._merge()
            self._due_at = time.monotonic() + max(LOOK_SECONDS, self._log.storage.idle_seconds)

    @property
    def crowd(self) -> int:
        """How many segments the sinks have before them. Those behind are merged, and crowd nobody."""
        return self._log.count_after(self._sinks)

    def _merge(self) -> None:
        fixed = {self._log.place, *self._large}
        sizes = {name: facts.size for name, facts in self._log.segments.items() if name not in fixed}
        run = run_to_merge(sizes, self._sinks, self._segment_bytes)
        if run and not self._log.merge(run, self._segment_bytes):
            self._large.add(run[0])

    def _look(self) -> None:
        here = self._log.identity.id
        self._places = {name: place.offset for name, place in self._readers.all().items() if place.log in (here, "")}

    def _may_go(self) -> int:
        """The last offset that may be forgotten; 0 if none may."""
        size, last, needed = self._log.size, 0, self.needed
        for name, facts in self._log.segments.items():
            if name.last > needed or name == self._log.place or self._is_kept(facts, size):
                break
            last, size = name.last, size - facts.size
        return last

    def _is_kept(self, oldest: SegmentFacts, size: int) -> bool:
        """Whether the oldest segment of a log of `size` bytes is history to keep."""
        if self._keep is None or size >= self._max_bytes:
            return False
        if self._keep.seconds is not None:
            return time.time() - oldest.written_at < self._keep.seconds
        return size - oldest.size < self._keep.bytes
