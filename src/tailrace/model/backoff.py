"""How long to wait before the next try: twice as long each time, up to a limit."""

from __future__ import annotations

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 30.0


class Backoff:
    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first, self.longest = first, longest
        self._next = first

    def wait(self) -> float:
        """The seconds to wait now."""
        seconds, self._next = self._next, min(self._next * 2, self.longest)
        return seconds

    def reset(self) -> None:
        """It went well."""
        self._next = self._first
