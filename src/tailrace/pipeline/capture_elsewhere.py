"""A capture on a host of its own, as the run sees it: through two small objects in the state directory.

`captured.json` is the capture's word of how far it is, and that it lives; `acknowledged.json` the run's of what every
sink has. Both name the log that they are about. The order that matters: an acknowledgement is written after the sinks'
commits, and read before the source is told, so one that is late makes the source keep more, and never less.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

import msgspec

from tailrace import config, events
from tailrace.errors import ConfigError, StateError, StateUnavailable, TailraceError
from tailrace.log.reader import LogReader, made_anew
from tailrace.model.backoff import Backoff
from tailrace.pipeline.capture_process import Acknowledge, Progress
from tailrace.pipeline.threads import WatchedThread
from tailrace.state import scratch
from tailrace.state.capture_note import silent
from tailrace.state.layout import ACKNOWLEDGED, CAPTURED, LOG
from tailrace.state.storage import Storage

BEAT_SECONDS = 5.0  # a report is renewed so often, though there is nothing new
SILENT_SECONDS = 3 * BEAT_SECONDS
TELL_SECONDS = 1.0  # between reports, and between acknowledgements
ABSENT = "nothing is captured: no `tailrace capture` has begun with this state directory"


class Capturing(Protocol):
    """A capture as a run has it, its own or one elsewhere. `progress` is its latest word."""

    progress: Progress | None

    @property
    def error(self) -> TailraceError | None:
        """Why it has ended for good, if it did."""

    @property
    def trouble(self) -> str:
        """Why nothing is captured at this moment; empty if all is well."""

    def start(self) -> None: ...

    def acknowledge(self, said: Acknowledge) -> None:
        """Every sink has all up to here."""

    def stop(self) -> None: ...


class Report(msgspec.Struct, frozen=True):
    """What capture says to a run elsewhere; `at` is when, in seconds since 1970, by its own clock.

    `reads_from` is what its pipeline file makes it read: the run's tables are followed as if it were the same.
    """

    log: str
    progress: Progress
    trouble: str
    at: float
    reads_from: str = ""
    version: int = 1


def read_report(storage: Storage) -> Report | None:
    """None if there is none that can be read at the moment."""
    try:
        return storage.decode(CAPTURED, Report)
    except (OSError, StateError, msgspec.MsgspecError):
        return None


def read_acknowledged(storage: Storage, log: str) -> Acknowledge | None:
    """What was acknowledged of the log `log`; None if nothing was, or that can not be read at the moment."""
    try:
        found = storage.decode(ACKNOWLEDGED, Acknowledge)
    except (OSError, StateError, msgspec.MsgspecError):
        return None
    return found if found.log == log else None


class CaptureElsewhere:
    """A thread of the driver that listens, and passes the acknowledgements on."""

    def __init__(self, pipeline: config.Pipeline, reads_from: str) -> None:
        self._reads_from = reads_from
        self._storage = Storage(pipeline.state)
        self._log = LogReader(self._storage.folder(LOG))
        self._news = scratch.news(pipeline.state)
        self.progress: Progress | None = None
        self._report: Report | None = None
        self._heard_at: float | None = None
        self._error: TailraceError | None = None
        self._wanted: Acknowledge | None = None
        self._written: Acknowledge | None = None
        self._written_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = WatchedThread(self._run, "capture elsewhere")

    def start(self) -> None:
        self._thread.start()

    @property
    def error(self) -> TailraceError | None:
        return self._error or self._thread.error

    @property
    def trouble(self) -> str:
        if self._report is None:
            return ABSENT
        if self._report.trouble:
            return self._report.trouble
        is_heard = self._heard_at is not None and time.monotonic() - self._heard_at < SILENT_SECONDS
        return "" if is_heard else silent(self._report.at)

    def acknowledge(self, said: Acknowledge) -> None:
        self._wanted = said

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(SILENT_SECONDS)
        with suppress(StateError):  # then the source keeps more than it needs, until the next run
            self._write()

    def _run(self) -> None:
        backoff = Backoff(first=0.1, longest=TELL_SECONDS)
        while not self._stopping.is_set() and self._error is None:
            with suppress(StateUnavailable):  # tried again
                if self._listen():
                    backoff.reset()
            with suppress(StateError):  # tried again
                self._write_if_due()
            self._stopping.wait(backoff.wait())

    def _listen(self) -> bool:
        """True if there is something new."""
        report = read_report(self._storage)
        if report is None or report == self._report or not self._is_of_the_log(report):
            return False
        if report.reads_from not in ("", self._reads_from):
            self._error = _of_another_file(report.reads_from, self._reads_from)
            return False
        is_first = self._report is None
        if not is_first or abs(time.time() - report.at) < SILENT_SECONDS:
            self._heard_at = time.monotonic()  # the first may be the last word of one that is dead
        is_news = is_first or self._report is None or report.progress != self._report.progress
        self._report, self.progress = report, report.progress
        self._news.write(report.progress.end)
        return is_news

    def _is_of_the_log(self, report: Report) -> bool:
        """Another log may be one that is gone, and this the last word about it; or one that was made anew meanwhile."""
        if self._report is not None and report.log == self._report.log:
            return True
        identity = self._log.identity()
        if self._report is not None and identity is not None and identity.id != self._report.log:
            self._error = made_anew(self._log.storage)
        return self._error is None and identity is not None and identity.id == report.log

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written_at >= TELL_SECONDS:
            self._write()

    def _write(self) -> None:
        wanted = self._wanted
        if wanted is None or wanted == self._written:
            return
        self._storage.publish(ACKNOWLEDGED, msgspec.json.encode(wanted))
        self._written, self._written_at = wanted, time.monotonic()


def _of_another_file(captured: str, wanted: str) -> ConfigError:
    return ConfigError(
        f"`tailrace capture` reads {captured}, and this pipeline file says {wanted}",
        hint="give the two files the same name and the same source",
    )


def remark() -> events.CaptureRemark:
    return events.CaptureRemark(message="the changes are captured elsewhere, by `tailrace capture`")
