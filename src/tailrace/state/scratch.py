"""What a run keeps on its own machine for as long as it lasts: Spark's checkpoints, and how far the log is.

In a local state directory that is a folder of it, else one of the system's folder for such things: nobody else needs
it, and nothing is lost with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tailrace.errors import StateError
from tailrace.state.layout import SPARK
from tailrace.state.storage import Storage, private

END = "end"


def folder(state: str) -> Path:
    """The same one for each run with this state directory: the next one cleans up after one that was killed."""
    storage = Storage(state)
    if storage.is_local:
        return Path(storage.path) / SPARK
    name = f"tailrace-{os.getuid()}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    return Path(tempfile.gettempdir()) / name


def begin(state: str) -> None:
    """Empty, for a run that holds the lock of the state directory."""
    end(state)
    if Storage(state).is_local:
        return
    place = folder(state)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise StateError(f"{place} belongs to somebody else", hint="remove it, or set TMPDIR to a folder of your own")


def end(state: str) -> None:
    shutil.rmtree(folder(state), ignore_errors=True)


class News:
    """How far the log is, as those on the same machine hear it who must not ask the store all the time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(self, end: int) -> None:
        """Old news would be worse than none: who finds none asks the store."""
        beside = self.path.with_suffix(".new")
        try:
            with open(beside, "w", opener=private) as file:
                file.write(str(end))
            beside.replace(self.path)
        except OSError:
            with suppress(OSError):
                self.path.unlink()

    def read(self) -> int | None:
        try:
            return int(self.path.read_text())
        except (OSError, ValueError):
            return None


def news(state: str) -> News:
    return News(folder(state) / END)
