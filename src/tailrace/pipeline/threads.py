"""Threads whose death is noticed: what ends one before its time is kept, for whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tailrace.errors import EngineLost, TailraceError


class WatchedThread(threading.Thread):
    """A thread of the driver. `error` is what ended it, if it did not end by itself."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = target
        self.error: TailraceError | None = None

    def run(self) -> None:
        try:
            self._work()
        except TailraceError as error:
            self.error = error
        except BaseException as error:
            self.error = EngineLost(f"the thread for {self.name} ended: {_where(error)}")


def _where(error: BaseException) -> str:
    """The kind of an error and its place in the code; not its words, which may show a value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{place}"
