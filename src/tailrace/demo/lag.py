"""How long a committed change takes to become readable, seen as any reader of the SQLite file would see it.

It watches the shop's new orders arrive. An order carries the time at which its transaction began, by the same clock, so
what is measured is that transaction, the pipeline, and up to `POLL_SECONDS` of our own.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

POLL_SECONDS = 0.02


class LagProbe:
    """A thread with a connection of its own. Between an `outage`'s begin and end, orders are counted apart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: list[tuple[float, float]] = []  # when an order was placed, and when it was readable
        self._outage: tuple[float, float] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lag probe", daemon=True)
        self.began_at = 0.0
        self.newest_order = 0
        self.newest_at = time.time()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(10)

    def begin(self) -> None:
        """From now on it counts: orders placed earlier were part of the copy, or waited for it."""
        self.began_at = time.time()

    def mark_outage(self, began: float, ended: float) -> None:
        """The pipeline was dead or behind between these two times, and everybody knows why."""
        self._outage = (began, ended)

    @property
    def age(self) -> float:
        """Seconds since the newest order in the file was placed."""
        return max(time.time() - self.newest_at, 0)

    def live(self) -> list[float]:
        """The waits in seconds, in order, of the orders that no outage touched."""
        began, ended = self._outage or (0.0, 0.0)
        return sorted(seen - placed for placed, seen in self._counted() if seen < began or placed > ended)

    def longest(self) -> float:
        return max((seen - placed for placed, seen in self._counted()), default=0.0)

    def _counted(self) -> list[tuple[float, float]]:
        return [(placed, seen) for placed, seen in list(self._seen) if placed >= self.began_at]

    def _watch(self) -> None:
        with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as file:
            [self.newest_order] = file.execute("SELECT coalesce(max(id), 0) FROM orders").fetchone()
            while not self._stopping.wait(POLL_SECONDS):
                with suppress(sqlite3.OperationalError):
                    self._look(file)

    def _look(self, file: sqlite3.Connection) -> None:
        query = "SELECT id, placed_at FROM orders WHERE id > ? ORDER BY id"
        rows = file.execute(query, [self.newest_order]).fetchall()
        now = time.time()
        for number, placed_at in rows:
            placed = datetime.fromisoformat(placed_at).timestamp()
            self._seen.append((placed, now))
            self.newest_order, self.newest_at = number, placed


def quantile(ordered: list[float], share: float) -> float:
    """The value below which `share` of an ordered list lies."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
