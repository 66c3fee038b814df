"""Holding the sinks of a running pipeline at one place of the log, for as long as somebody looks.

A hold is a small file in the state directory that the stream reads before each micro-batch. It lapses by itself, so
that a holder that dies holds nothing up for long.
"""

from __future__ import annotations

import time

import msgspec

from tailrace.log.storage import Storage
from tailrace.spark.layout import HOLD

LEASE_SECONDS = 60.0


class HoldNote(msgspec.Struct, frozen=True):
    offset: int
    until: float  # seconds since 1970


class Hold:
    def __init__(self, state: str) -> None:
        self._storage = Storage(state)
        self._offset = 0

    def place(self, offset: int) -> None:
        """No micro-batch that begins from now on goes past `offset`."""
        self._offset = offset
        self.renew()

    def renew(self) -> None:
        self._storage.publish(HOLD, msgspec.json.encode(HoldNote(self._offset, time.time() + LEASE_SECONDS)))

    def release(self) -> None:
        self._storage.delete(HOLD)
