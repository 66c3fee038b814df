"""Threads whose death is noticed: what ends one before its time is kept, for whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tailrace.errors import EngineDisturbed, EngineLost, TailraceError
from tailrace.model.backoff import Backoff

IDLE_SECONDS = 0.05


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


class Teller(Protocol):
    """Hears who is in trouble that may pass, and who is not."""

    def tell_retry(self, who: object, error: TailraceError, seconds: float) -> None: ...

    def tell_recovered(self, who: object) -> None:
        """Also of somebody who was not in trouble."""


class RepeatingThread:
    """Does a step again and again until it is stopped; a step that returns false found nothing to do.

    Trouble that may pass is told and tried again, with backoff, for as long as the run lasts; other trouble is in
    `error` and ends it. Errors that are not ours are `what` has stopped: Spark's, mostly, which pass.
    """

    def __init__(self, step: Callable[[], bool], what: str, teller: Teller) -> None:
        self._step, self._what, self._teller = step, what, teller
        self.stopping = threading.Event()
        self._thread = WatchedThread(self._run, what)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def error(self) -> TailraceError | None:
        return self._thread.error

    def _run(self) -> None:
        backoff = Backoff()
        while not self.stopping.is_set():
            try:
                worked = self._step()
                self._teller.tell_recovered(self)
                if not worked:
                    self.stopping.wait(IDLE_SECONDS)
                backoff.reset()
            except Exception as error:
                if self.stopping.is_set():
                    return
                trouble = error if isinstance(error, TailraceError) else _disturbed(self._what, error)
                if not trouble.retry:
                    raise trouble from error
                seconds = backoff.wait()
                self._teller.tell_retry(self, trouble, seconds)
                self.stopping.wait(seconds)


def _disturbed(what: str, error: Exception) -> EngineDisturbed:
    return EngineDisturbed(f"{what} stopped: {said_by(error)}")


def said_by(error: object) -> str:
    """The first line of an error, which has its kind."""
    words = (str(error or "").splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {words}" if isinstance(error, Exception) else words


def _where(error: BaseException) -> str:
    """The kind of an error and its place in the code; not its words, which may show a value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}{place}"
