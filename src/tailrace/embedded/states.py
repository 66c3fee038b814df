"""The life of a stream: its states, and the moves between them."""

from __future__ import annotations

import threading
from enum import StrEnum

from tailrace.errors import Misuse


class State(StrEnum):
    IDLE = "idle"  # made, not started
    RUNNING = "running"
    STOPPING = "stopping"  # nothing more is read from the source; what was read may still be taken
    STOPPED = "stopped"


MOVES: dict[State, frozenset[State]] = {
    State.IDLE: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset({State.RUNNING}),
}
"""Every move there is. A stream that was stopped may be started again, and goes on at its checkpoint."""


class Life:
    """The present state. Safe to be asked and moved by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = State.IDLE

    @property
    def state(self) -> State:
        return self._state

    def move(self, to: State) -> None:
        """Raises Misuse for a move that there is not."""
        with self._lock:
            if to not in MOVES[self._state]:
                raise Misuse(f"the stream is {self._state}, and can not become {to}")
            self._state = to

    def require(self, *states: State) -> None:
        if self._state not in states:
            raise Misuse(f"the stream is {self._state}", hint=_HINTS.get(self._state))


_HINTS = {
    State.IDLE: "start it first: `with tailrace.capture(…) as stream`, or `stream.start()`",
    State.STOPPED: "start it again with `stream.start()`",
}
