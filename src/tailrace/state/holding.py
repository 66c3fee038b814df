"""Holding the sinks of a running pipeline at one place of the log, for as long as somebody looks.

A hold is a small file in the state directory that the stream reads before each micro-batch. Its holder renews it for as
long as it lives; it lapses by itself, so that one that dies holds nothing up for long. There is one at a time.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from tailrace.errors import StateError
from tailrace.state.layout import HOLD
from tailrace.state.storage import Storage

LEASE_SECONDS = 60.0
RENEWALS = 4
"""In the time of a lease."""


class HoldNote(msgspec.Struct, frozen=True):
    offset: int
    until: float  # seconds since 1970


class Hold:
    """As a context manager: begun at an offset, renewed by a thread, let go at the end."""

    def __init__(self, state: str, offset: int) -> None:
        self._storage = Storage(state)
        self._offset = offset
        self._writing = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name="hold", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._alone = self._storage.lock(f"{HOLD}.lock")
        except StateError as error:
            raise StateError(
                f"somebody else holds the pipeline at this moment: {error}", hint="is a verify running?"
            ) from error
        self.place(self._offset)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        with suppress(StateError):  # it lapses
            self._storage.delete(HOLD)
        if self._alone is not None:
            self._alone.close()

    def place(self, offset: int) -> None:
        """No micro-batch that begins from now on goes past `offset`."""
        with self._writing:
            self._offset = offset
            self._storage.publish(HOLD, msgspec.json.encode(HoldNote(offset, time.time() + LEASE_SECONDS)))

    def _renew_always(self) -> None:
        while not self._done.wait(LEASE_SECONDS / RENEWALS):
            with suppress(StateError):  # a full disk, perhaps: tried again before it lapses
                self.place(self._offset)
