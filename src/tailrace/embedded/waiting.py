"""Whom the start of a stream waits for: said aloud after a moment, and given up when the stream is stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from tailrace.errors import Misuse

ALOUD_SECONDS = 3.0
logger = logging.getLogger("tailrace.embedded")


class Waiting:
    """`words` are empty while nobody is waited for. Written by the thread that starts the stream, read by any."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.words, self.since, self._is_said = "", 0.0, False
        self.is_over = False  # somebody has stopped the stream meanwhile

    def begin(self) -> None:
        self.words, self._is_said, self.is_over = "", False, False

    def end(self) -> None:
        self.words = ""

    def tell(self, what: str, whom: Collection[str]) -> None:
        """Called every moment. Raises Misuse once nobody wants the stream any more."""
        if self.is_over:
            raise Misuse("the stream was stopped while it was started")
        self.since = self.since if self.words else time.monotonic()
        self.words = f"{what} {', '.join(whom) or 'somebody'}"
        if not self._is_said and whom and time.monotonic() - self.since >= ALOUD_SECONDS:
            self._is_said = True
            logger.warning("the start of stream %s has to wait: %s", self._name, self.words)
