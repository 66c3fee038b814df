"""What is known of a run from its events: all that the live display shows, and nothing of how it looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from tailrace import events
from tailrace.events import Event

RATE_SECONDS = 10.0
"""Rates are of so long a time."""
COPYING = ("snapshot", "resumed")
ASIDE = ("paused", "failed")


@dataclass
class Copy:
    """A table that is being copied. What was there when it began is nothing that this copy has done."""

    table: str
    sink: str
    began_at: float
    rows: int = 0
    bytes: int = 0
    total_bytes: int = 0
    resumed_bytes: int | None = None

    @property
    def share(self) -> float:
        return self.bytes / self.total_bytes if self.total_bytes else 0.0

    def seconds_left(self, now: float) -> float | None:
        """None before the first chunk is loaded."""
        done = self.bytes - (self.resumed_bytes or 0)
        return (now - self.began_at) / done * (self.total_bytes - self.bytes) if done > 0 else None


@dataclass
class Trouble:
    """`retry_at` is when it is tried again, if it is."""

    text: str
    since: float
    is_bad: bool = False
    retry_at: float | None = None


@dataclass
class Sink:
    progress: events.SinkProgress
    samples: deque[tuple[float, int]] = field(default_factory=deque)  # when, and rows applied

    def take(self, progress: events.SinkProgress, now: float) -> None:
        self.progress = progress
        self.samples.append((now, progress.applied))
        while len(self.samples) > 2 and now - self.samples[1][0] >= RATE_SECONDS:
            self.samples.popleft()

    @property
    def rate(self) -> float:
        """Rows applied a second."""
        (first, before), (last, after) = self.samples[0], self.samples[-1]
        return (after - before) / (last - first) if last > first else 0.0


Key = tuple[str, ...]


class Board:
    """Times are monotonic seconds. Troubles stay until an event says that they are over."""

    def __init__(self, now: float) -> None:
        self.began_at = self.doing_since = now
        self.doing = ""
        self.is_running = False
        self.is_stopping = False
        self._captured = self._captured_before = 0
        self.sinks: dict[str, Sink] = {}
        self.copies: dict[Key, Copy] = {}
        self._copied: set[Key] = set()  # tables whose copy is over
        self.troubles: dict[Key, Trouble] = {}

    @property
    def changes(self) -> int:
        """Captured in this run."""
        return self._captured_before + self._captured

    def hear(self, event: Event, now: float) -> None:
        match event:
            case events.Starting(doing=doing):
                self._do(doing, now)
            case events.Running(sinks=sinks):
                self._run(sinks)
            case events.Progress():
                self._progress(event, now)
            case events.Table():
                self._table(event, now)
            case events.Copying():
                self._copying(event, now)
            case events.Published(sink=sink, tables=tables):
                self._over(*(("unpublished", sink, table) for table in tables))
            case events.Recovered(sink=sink):
                self._over(("source", sink), ("sink", sink))
            case events.Stopping():
                self.is_stopping = True
                self._do("finishing what is under way", now)
            case events.CaptureRemark() | events.Current() | events.Stopped():
                pass  # what happens once is a line, and no state
            case _:
                self._trouble(event, now)

    def _do(self, doing: str, now: float) -> None:
        self.doing, self.doing_since = doing, now
        self._over(("source", ""), ("waiting",))

    def _run(self, sinks: tuple[str, ...]) -> None:
        self.is_running = True
        self._over(("source", ""), ("waiting",), *(("sink", sink) for sink in sinks))

    def _progress(self, event: events.Progress, now: float) -> None:
        if event.changes < self._captured:
            self._captured_before += self._captured  # a capture process that was started anew counts anew
        self._captured = event.changes
        for name, progress in event.sinks.items():
            self.sinks.setdefault(name, Sink(progress)).take(progress, now)
        if event.capture:
            self._begin(("capture",), event.capture, now)
        else:
            self._over(("capture",), ("full",))

    def _table(self, event: events.Table, now: float) -> None:
        key = (event.sink, event.table)
        self._over(("table", *key), ("unpublished", *key))
        if event.state in COPYING:
            self._copied.discard(key)
            self.copies.setdefault(key, Copy(event.table, event.sink, now))
        else:
            self._copied.add(key)
            self.copies.pop(key, None)
        if event.state in ASIDE:
            text = f"{event.table} is {event.state}: {event.reason}"
            self._begin(("table", *key), text, now, is_bad=event.state == "failed")

    def _copying(self, event: events.Copying, now: float) -> None:
        if (event.sink, event.table) in self._copied:
            return  # it was said by somebody who did not know yet
        copy = self.copies.setdefault((event.sink, event.table), Copy(event.table, event.sink, now))
        if copy.resumed_bytes is None or event.bytes < copy.bytes:
            copy.resumed_bytes, copy.began_at = event.bytes, now
        copy.rows, copy.bytes, copy.total_bytes = event.rows, event.bytes, event.total_bytes

    def _trouble(self, event: events.Trouble, now: float) -> None:
        match event:
            case events.SourceRetry(sink=sink, message=message, retry_seconds=seconds):
                self._begin(("source", sink), message, now, retry_at=now + seconds)
            case events.SinkRetry(sink=sink, message=message, retry_seconds=seconds):
                self._begin(("sink", sink), message, now, retry_at=now + seconds)
            case events.CaptureRestart(message=message, retry_seconds=seconds):
                self._begin(("capture",), message, now, retry_at=now + seconds)
            case events.LogFull(message=message):
                self._begin(("full",), message, now)
            case events.Waiting(message=message):
                self._begin(("waiting",), message, now)
            case events.NotPublished(sink=sink, table=table, reason=reason):
                self._begin(("unpublished", sink, table), f"{table} is not published: {reason}", now)
            case events.SinkFailed(sink=sink, message=message):
                self._over(("sink", sink), ("source", sink))
                self._begin(("given up", sink), f"sink {sink} is given up: {message}", now, is_bad=True)
            case events.SinkAbandoned(sink=sink, message=message):
                self._begin(("abandoned", sink), message, now, is_bad=True)
            case _:
                assert_never(event)

    def _begin(self, key: Key, text: str, now: float, *, is_bad: bool = False, retry_at: float | None = None) -> None:
        known = self.troubles.get(key)
        self.troubles[key] = Trouble(text, known.since if known else now, is_bad, retry_at)

    def _over(self, *keys: Key) -> None:
        for key in keys:
            self.troubles.pop(key, None)
