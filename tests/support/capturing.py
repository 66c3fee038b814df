"""Capture under test without a process of its own: from a real server into a log, and back out of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace import config
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.changes import Changes
from tailrace.sources.postgres.positions import reached
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.storage import Storage


class Captured:
    """A source, and the log that it is captured into. `follow` is one life of the capture process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.source = PostgresSource(config.Pipeline("described", config.Source(url, ("*.*",)), {}))
        self.storage = Storage(str(folder / "log"))
        self._start = self.source.prepare()
        self.remarks: list[str] = []
        self.is_replaced = False  # what was in the log of an unfinished transaction

    @contextmanager
    def follow(self, *, segment_bytes: int = 0) -> Iterator[None]:
        """Capture what is committed in the context, and all before it. Segments are closed at `segment_bytes`."""
        log = LogWriter.open(self.storage) or LogWriter.create(self.storage, None, self._start)
        capture = self.source.capture(log.position, log.next_offset, log.definitions())
        try:
            yield
            target = self.source.current_position()
            while not reached(capture.received, target):
                before = capture.pending_bytes
                capture.poll(0.05)
                is_due = capture.pending_bytes >= segment_bytes or capture.pending_bytes == before
                if is_due and (taken := capture.take()) is not None:
                    self.is_replaced |= taken[0].first < log.next_offset
                    log.append(*taken)
            self.remarks += capture.remarks()
        finally:
            capture.close()
            log.close()

    def changes(self, table: str = "public.t") -> Iterator[Changes]:
        log = LogReader(self.storage)
        for piece in log.slices(log.begin(), log.end()):
            name = next(name for name in log.names() if str(name) == piece.name)
            _, frames = log.read(name)
            yield from self.source.decode(frames, piece.first, piece.last, {table})

    def rows(self, table: str = "public.t") -> list[dict[str, Any]]:
        """The row of every change in the log."""
        return [row for changes in self.changes(table) for row in changes.after.to_pylist()]
