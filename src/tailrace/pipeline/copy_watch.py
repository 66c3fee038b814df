"""How far the copies into one sink are, by the marks of their chunks: what the sink itself remembers."""

from __future__ import annotations

import time

from tailrace import events
from tailrace.errors import TailraceError
from tailrace.model.lifecycle import COPYING, TableStatus
from tailrace.pipeline.follower import SinkFollower
from tailrace.sinks.base import ChunkMark

LOOK_SECONDS = 1.0
LOOK_SHARE = 20
"""Marks of many chunks are read less often: one part in so many of the time."""
LOCK_SECONDS = 1.0


class CopyWatch:
    """Stepped by a thread of its own: a sink that hangs holds up nobody else. It looks while something is copied."""

    def __init__(self, follower: SinkFollower) -> None:
        self._follower = follower
        self._due_at = 0.0
        self._told: dict[str, events.Copying] = {}

    def step(self) -> bool:
        """Say how far each table is that came further; always false, since there is no hurry."""
        copying = {s.table: s for s in list(self._follower.tables.values()) if s.state in COPYING}
        self._told = {table: told for table, told in self._told.items() if table in copying}
        if copying and time.monotonic() >= self._due_at:
            began = time.monotonic()
            marks = self._marks()
            took = time.monotonic() - began
            self._due_at = time.monotonic() + max(LOOK_SECONDS, LOOK_SHARE * took)
            for status in copying.values():
                self._say_if_new(copied(status, self._follower.name, marks.get(status.table, [])))
        return False

    def _say_if_new(self, now: events.Copying) -> None:
        if now.total_bytes and self._told.get(now.table) != now:
            self._told[now.table] = now
            self._follower.say(now)

    def _marks(self) -> dict[str, list[ChunkMark]]:
        """Nothing while somebody else is at the sink, or it does not answer: that is for others to say."""
        if not self._follower.lock.acquire(timeout=LOCK_SECONDS):
            return {}
        try:
            return self._follower.sink.read_state().chunks
        except TailraceError:
            return {}
        finally:
            self._follower.lock.release()


def copied(status: TableStatus, sink: str, marks: list[ChunkMark]) -> events.Copying:
    """By the marks of the plan that is being carried out."""
    mine = [mark for mark in marks if mark.generation == status.generation]
    loaded = [mark for mark in mine if mark.is_loaded]
    return events.Copying(
        table=status.table,
        sink=sink,
        rows=sum(mark.rows for mark in loaded),
        bytes=sum(mark.chunk.bytes for mark in loaded),
        total_bytes=sum(mark.chunk.bytes for mark in mine),
    )
