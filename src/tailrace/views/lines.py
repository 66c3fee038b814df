"""A JSON line an event, for programs. Its form is part of what users rely on."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from tailrace.events import Event, Progress, facts

TICK_SECONDS = 2.0


class JsonLines:
    """`at` and `event` come first, then what the event says. Progress at most every `seconds`, and if it is news."""

    def __init__(self, stream: TextIO, seconds: float = TICK_SECONDS) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._seconds = seconds
        self._ticked_at = float("-inf")
        self._last: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, event: Event) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"at": stamp, **facts(event)})
        with self._lock:
            print(line, file=self._stream, flush=True)

    def tick(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress == self._last or now - self._ticked_at < self._seconds:
            return
        self._ticked_at, self._last = now, progress
        self.say(progress)
