"""Heartbeats while nothing changes: a thread of its own, so that brokers which do not answer hold nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from tailrace.errors import TailraceError


class Heart:
    """Beats when it is told to, and never twice at once. What fails is found, and told, by the next commit."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._wanted, self._is_over = threading.Event(), False
        self._thread: threading.Thread | None = None

    def tell(self) -> None:
        """Returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tailrace heartbeats", daemon=True)
            self._thread.start()
        self._wanted.set()

    def stop(self, seconds: float) -> None:
        self._is_over = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._is_over:
                return
            with suppress(TailraceError):
                self._beat()
