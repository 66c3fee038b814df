"""What other processes write to the terminal by themselves: it is caught, so that it does not tear the display.

The capture process and Spark's JVM inherit our standard error. While a display is up that is a pipe, and a thread
hands on what comes out of it, line by line.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

STANDARD_ERROR = 2
JOIN_SECONDS = 0.2


class StrayOutput:
    """Does nothing where standard error is no terminal."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._terminal: int | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if not os.isatty(STANDARD_ERROR):
            return
        reading, writing = os.pipe()
        self._terminal = os.dup(STANDARD_ERROR)
        os.dup2(writing, STANDARD_ERROR)
        os.close(writing)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="stray output", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Standard error is the terminal again; of a process that is left, nothing more is heard."""
        if self._terminal is None or self._thread is None:
            return
        os.dup2(self._terminal, STANDARD_ERROR)
        os.close(self._terminal)
        self._terminal = None
        self._thread.join(JOIN_SECONDS)

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._show(line.rstrip())
