"""The start of something long: patient with what is coming up, and over at once when it is to stop."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tailrace import events
from tailrace.errors import SinkUnavailable, SourceUnavailable, StateUnavailable, TailraceError
from tailrace.model.backoff import Backoff

LOOP_SECONDS = 0.05
CONNECT_SECONDS = 15.0
WAITING_SECONDS = 5.0

T = TypeVar("T")


class Stopped(TailraceError):
    """The user stopped it before it had begun."""


class Beginning:
    """Raises Stopped from wherever it waits, once `stopping` is set."""

    def __init__(self, say: events.Say, stopping: threading.Event) -> None:
        self._say, self._stopping = say, stopping
        self._said_waiting_at = -math.inf

    def say(self, doing: str) -> None:
        self._say(events.Starting(doing=doing))

    def leave_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise Stopped("stopped before it began")

    def say_waiting(self, message: str) -> None:
        """Now and then."""
        self.leave_if_stopping()
        if time.monotonic() - self._said_waiting_at >= WAITING_SECONDS:
            self._said_waiting_at = time.monotonic()
            self._say(events.Waiting(message=message))

    def patiently(self, work: Callable[[], T]) -> T:
        """Wait a little for a database or a store that is coming up."""
        deadline, backoff = time.monotonic() + CONNECT_SECONDS, Backoff()
        while True:
            self.leave_if_stopping()
            try:
                return work()
            except (SourceUnavailable, SinkUnavailable, StateUnavailable) as error:
                seconds = backoff.wait()
                if time.monotonic() + seconds > deadline:
                    raise
                self._say(events.SourceRetry(message=str(error), retry_seconds=seconds))
                if self._stopping.wait(seconds):
                    raise Stopped("stopped before it began") from error

    def wait_for(self, find: Callable[[], T | None], check: Callable[[], None], every: float = 0.0) -> T:
        """What `find` finds at last; `check` raises what makes waiting pointless."""
        while not (found := find()):
            check()
            if self._stopping.wait(max(every, LOOP_SECONDS)):
                raise Stopped("stopped before it began")
        return found
