"""`tailrace capture`: the capture of a pipeline on a host of its own, with the sinks' run elsewhere.

It makes the replication slot and the change log, and tells the source to forget what the run has acknowledged: see
`capture_elsewhere`. It knows nothing of the sinks, and needs neither Spark nor Java.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial

import msgspec

from tailrace import config, events, registry
from tailrace.errors import ConfigError, StateError, TailraceError
from tailrace.model.backoff import Backoff
from tailrace.pipeline import preflight
from tailrace.pipeline.beginning import LOOP_SECONDS, Beginning, Stopped
from tailrace.pipeline.capture_elsewhere import BEAT_SECONDS, TELL_SECONDS, Report, read_acknowledged
from tailrace.pipeline.capture_process import Acknowledge, Order, Progress
from tailrace.pipeline.capture_supervisor import CaptureSupervisor
from tailrace.pipeline.continuity import Continuity
from tailrace.state.capture_note import CaptureState
from tailrace.state.layout import CAPTURE_LOCK, CAPTURED
from tailrace.state.storage import Storage
from tailrace.views.view import View, open_view


def capture(pipeline: config.Pipeline, *, view: View | None = None) -> int:
    """Capture until stopped by SIGTERM or SIGINT. 0 when all is well."""
    if pipeline.capture is not config.Capture.ELSEWHERE:
        raise ConfigError(
            "`tailrace run` captures for this pipeline by itself",
            hint="write `capture: elsewhere` in the pipeline file, here and where it runs",
        )
    with nullcontext(view) if view is not None else open_view() as shown:
        alone = CaptureAlone(pipeline, shown)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: alone.stop())
        return alone.run()


class CaptureAlone:
    def __init__(self, pipeline: config.Pipeline, view: View) -> None:
        self.pipeline, self.view = pipeline, view
        self.source = registry.make_source(pipeline)
        self.storage = Storage(pipeline.state)
        self._stopping = threading.Event()
        self._beginning = Beginning(view.say, self._stopping)
        self._told: Report | None = None
        self._heard_at, self._asking = float("-inf"), Backoff(first=0.2, longest=BEAT_SECONDS)
        self._wait_seconds = 0.0
        self._acknowledged: Acknowledge | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> int:
        self.storage.create()
        lock = self.storage.lock(CAPTURE_LOCK)
        supervisor: CaptureSupervisor | None = None
        try:
            supervisor = self._start()
            self._loop(supervisor)
            self.view.say(events.CaptureRemark(message="capture stops; what it has read is in the change log"))
            return 0
        except Stopped:
            return 0
        except TailraceError as error:
            self._say_last(supervisor, CaptureState.DOWN, str(error))
            raise
        finally:
            if supervisor is not None:
                supervisor.stop()
            if self._stopping.is_set():
                self._say_last(supervisor, CaptureState.STOPPED)
            if lock is not None:
                lock.close()

    def _say_last(self, supervisor: CaptureSupervisor | None, state: CaptureState, message: str = "") -> None:
        if supervisor is not None:
            supervisor.note(state, message)
            self._tell(supervisor, supervisor.trouble)

    def _start(self) -> CaptureSupervisor:
        continuity, begin = Continuity(self.pipeline, self.source), self._beginning
        wait = partial(continuity.say_waiting, beginning=begin)
        begin.say("checking the source")
        begin.patiently(lambda: preflight.raise_if_failing(preflight.check_capture(self.pipeline)))
        begin.say("preparing the replication slot")
        identity = begin.patiently(lambda: continuity.identify([], begin.leave_if_stopping))
        start = begin.patiently(lambda: self.source.prepare(wait, lambda: None))
        start = continuity.check(start, [], are_all=False)
        begin.leave_if_stopping()
        supervisor = CaptureSupervisor(Order(self.pipeline, start, identity), self.view.say)
        supervisor.start()
        begin.say("capturing")
        return supervisor

    def _loop(self, supervisor: CaptureSupervisor) -> None:
        while not self._stopping.wait(LOOP_SECONDS):
            if supervisor.error is not None:
                raise supervisor.error
            if supervisor.progress is None:
                continue
            self._report(supervisor, supervisor.progress)
            self._hear(supervisor, supervisor.progress)
            self.view.tick(events.Progress(changes=supervisor.progress.changes, sinks={}, capture=supervisor.trouble))

    def _report(self, supervisor: CaptureSupervisor, progress: Progress) -> None:
        age = time.time() - self._told.at if self._told is not None else BEAT_SECONDS
        is_news = self._told is None or (progress, supervisor.trouble) != (self._told.progress, self._told.trouble)
        if age >= BEAT_SECONDS or age < 0 or (is_news and age >= TELL_SECONDS):
            self._tell(supervisor, supervisor.trouble)

    def _tell(self, supervisor: CaptureSupervisor, trouble: str) -> None:
        progress = supervisor.progress
        if progress is not None:
            self._told = Report(progress.log, progress, trouble, time.time(), self.source.reads_from)
            with suppress(StateError):  # tried again
                self.storage.publish(CAPTURED, msgspec.json.encode(self._told))

    def _hear(self, supervisor: CaptureSupervisor, progress: Progress) -> None:
        """Ask what the sinks have, while they may lack something; the longer nothing comes, the less often."""
        now, known = time.monotonic(), self._acknowledged
        has_all = known is not None and known.log == progress.log and known.offset >= progress.end
        if has_all or now - self._heard_at < self._wait_seconds:
            return
        heard = read_acknowledged(self.storage, progress.log)
        if heard is not None and heard != known:
            self._acknowledged = heard
            supervisor.acknowledge(heard)
            self._asking.reset()
        self._heard_at, self._wait_seconds = now, self._asking.wait()
