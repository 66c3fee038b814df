"""How capture is, for others to see: a small file in the state directory, written when that changes.

A run that is going has just written it, or nothing has changed since; without a run it means nothing.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import StrEnum

import msgspec

from tailrace.errors import StateError
from tailrace.state.layout import CAPTURE, LOG, WRITER_LOCK
from tailrace.state.storage import Storage

SILENT_SECONDS = 10.0
"""A capture that has not shown itself for so long is at work no more, whatever its note says."""

UNKNOWN = "how capture is, is not known: it has not begun yet, or can not write to the state directory"

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


class CaptureState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  # the log is full
    DOWN = "down"  # and tried again
    STOPPED = "stopped"  # by its operator, on a host of its own


class CaptureNote(msgspec.Struct, frozen=True):
    state: CaptureState
    message: str = ""
    since: float = 0.0  # seconds since 1970
    retry_at: float | None = None

    @property
    def sentence(self) -> str:
        """What is not as it should be; empty if all is well."""
        match self.state:
            case CaptureState.RUNNING:
                return ""
            case CaptureState.STARTING:
                return "capture has not begun yet"
            case CaptureState.STOPPED:
                return stopped(self.since)
            case CaptureState.WAITING:
                return f"capture is waiting since {_time(self.since)}: {self.message}"
            case CaptureState.DOWN:
                again = "" if self.retry_at is None else f"; next try at {_time(self.retry_at)}"
                return f"capture is down since {_time(self.since)}: {self.message}{again}"


class Notice:
    """The note of one run. Thread-safe enough: only the supervisor writes it."""

    def __init__(self, state: str) -> None:
        self._storage = Storage(state)
        self._become(CaptureNote(CaptureState.STARTING, since=time.time()))

    def write(self, state: CaptureState, message: str = "", retry_at: float | None = None) -> None:
        if (state, message, retry_at) == (self.now.state, self.now.message, self.now.retry_at):
            return
        since = self.now.since if state is self.now.state else time.time()
        self._become(CaptureNote(state, message, since, retry_at))

    def _become(self, note: CaptureNote) -> None:
        """A disk that is full has room for the new note in place of the old one, or for none: never for a stale one."""
        self.now = note
        text = msgspec.json.encode(note)
        try:
            self._storage.publish(CAPTURE, text)
        except StateError:
            with suppress(StateError):
                self._storage.delete(CAPTURE)
                self._storage.publish(CAPTURE, text)


def read(state: str) -> CaptureNote | None:
    """The note that the run in this state directory has written; None where there is none."""
    try:
        return msgspec.json.decode(Storage(state).read(CAPTURE), type=CaptureNote)
    except (OSError, msgspec.MsgspecError):
        return None


def silence(state: str) -> str:
    """That the capture process of the run in this state directory is not heard of; empty if it is.

    What was said in the future, by a clock that is wrong, may be long ago.
    """
    at = Storage(state).folder(LOG).touched_at(WRITER_LOCK)
    return "" if at is None or abs(time.time() - at) < SILENT_SECONDS else silent(at)


def stopped(at: float) -> str:
    return f"capture was stopped at {_time(at)}"


def silent(at: float) -> str:
    return f"capture is silent since {_time(at)}: its process is stopped, or cut off from the state directory"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def full(max_bytes: int) -> str:
    unit = next((unit for unit, size in _UNITS.items() if max_bytes >= size), "KiB")
    return f"the log is full ({max_bytes / _UNITS[unit]:.4g} {unit})"
