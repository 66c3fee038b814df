"""Running a pipeline: one capture process, one Spark session, one streaming query a sink."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from tailrace import config, events, registry
from tailrace.errors import SinkRejected, SinkUnavailable, SourceError, SourceRefused, TailraceError
from tailrace.log.reader import LogReader
from tailrace.model.watermark import SourceIdentity
from tailrace.pipeline import capture_elsewhere, preflight
from tailrace.pipeline.beginning import LOOP_SECONDS, Beginning, Stopped
from tailrace.pipeline.capture_elsewhere import CaptureElsewhere, Capturing
from tailrace.pipeline.capture_process import Acknowledge, Order
from tailrace.pipeline.capture_supervisor import CaptureSupervisor
from tailrace.pipeline.continuity import Continuity
from tailrace.pipeline.follower import SinkFollower
from tailrace.pipeline.progress import progress_of, stopped_at
from tailrace.pipeline.sink_run import STOP_SECONDS, SinkRun
from tailrace.sinks.base import Sink
from tailrace.spark.opening import OpeningSession
from tailrace.state import scratch
from tailrace.state.layout import LOG, RUN_LOCK
from tailrace.state.storage import Storage
from tailrace.views.view import View, open_view

T = TypeVar("T")


def run(pipeline: config.Pipeline, *, until_current: bool = False, view: View | None = None) -> int:
    """Run until stopped by SIGTERM or SIGINT, or until the sinks are current. 0 when all is well."""
    with nullcontext(view) if view is not None else open_view() as shown:
        runner = Runner(pipeline, shown)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: runner.stop())
        return runner.run(until_current=until_current)


class Runner:
    def __init__(self, pipeline: config.Pipeline, view: View, session: SparkSession | None = None) -> None:
        self.pipeline, self.view = pipeline, view
        self._host = session  # somebody's, if he gave it to us
        self.source = registry.make_source(pipeline)
        self.sinks = [SinkRun(registry.make_sink(pipeline, name), view.say) for name in pipeline.sinks]
        self.storage = Storage(pipeline.state)
        self._continuity = Continuity(pipeline, self.source)
        self._run = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._beginning = Beginning(view.say, self._stopping)
        self._capture: Capturing | None = None
        self._engine: OpeningSession | None = None
        self._log_start = ""
        self._has_new_slot = False
        self._has_begun = False  # sinks follow the log
        self._target: str | None = None
        self._target_end: int | None = None

    def stop(self) -> None:
        self._stopping.set()

    def run(self, *, until_current: bool) -> int:
        code = self._run_to_the_end(until_current=until_current)
        self.view.say(stopped_at(self._followers, self._capture))
        return code

    def _run_to_the_end(self, *, until_current: bool) -> int:
        self.storage.create()
        lock = self.storage.lock(RUN_LOCK)
        scratch.begin(self.pipeline.state)
        try:
            self._engine = OpeningSession(self.pipeline, self._host)
            capture = self._start_capture(until_current=until_current)
            self._beginning.leave_if_stopping()
            spark = self._engine.wait(self._beginning.leave_if_stopping, self._beginning.say)
            self._start_sinks(spark, capture)
            self._loop(spark, capture)
            self.view.say(events.Stopping())
            self._refuse_failures()
            return 0
        except Stopped:
            return 0
        finally:
            self._shut_down()
            if self._has_new_slot and not self._has_begun:
                self._drop_new_slot()
            if lock is not None:
                lock.close()

    # --- the start

    def _start_capture(self, *, until_current: bool) -> Capturing:
        """Everything that has to be sure before the first change is read."""
        begin = self._beginning
        begin.say("checking the source")
        begin.patiently(lambda: preflight.raise_if_failing(preflight.check_without_sinks(self.pipeline)))
        begin.say("checking the sinks")
        self._check_sinks(must_answer=until_current)
        identity = begin.patiently(lambda: self._continuity.identify(self._present, begin.leave_if_stopping))
        if self.pipeline.capture is config.Capture.ELSEWHERE:
            capture = self._find_capture()
        else:
            capture = self._begin_capture(identity)
        if until_current:
            self._target = self.source.current_position()
        return capture

    def _begin_capture(self, identity: SourceIdentity) -> Capturing:
        begin, wait = self._beginning, partial(self._continuity.say_waiting, beginning=self._beginning)
        begin.say("preparing the replication slot")
        start = begin.patiently(lambda: self.source.prepare(wait, self._expect_slot))
        present = self._present
        self._log_start = self._continuity.check(start, present, are_all=len(present) == len(self.sinks))
        begin.leave_if_stopping()
        self._capture = CaptureSupervisor(Order(self.pipeline, self._log_start, identity), self.view.say)
        self._capture.start()
        return self._capture

    def _find_capture(self) -> Capturing:
        """That of somebody else; it makes the slot and the log."""
        self.view.say(capture_elsewhere.remark())
        capture = self._capture = CaptureElsewhere(self.pipeline, self.source.reads_from)
        capture.start()

        def is_there() -> bool:
            if capture.progress is None:
                self._beginning.say_waiting(capture.trouble)
            return capture.progress is not None

        self._wait_for(capture, is_there)
        self._beginning.patiently(lambda: self._continuity.identify(self._present, self._beginning.leave_if_stopping))
        self._log_start = self._continuity.check_log(self._present)
        return capture

    @property
    def _present(self) -> list[Sink]:
        return [each.sink for each in self.sinks if not each.is_absent]

    @property
    def _followers(self) -> list[SinkFollower]:
        return [each.follower for each in self.sinks if each.follower is not None]

    def _expect_slot(self) -> None:
        self._has_new_slot = True

    def _drop_new_slot(self) -> None:
        """A slot of which nothing has come to a sink, and of which nothing will, would make the source keep its log.

        A log that came of it is of no use without it. The server may take a moment to notice that its reader is gone.
        """
        log = self.storage.folder(LOG)
        if self._continuity.is_log_new and log.exists():
            log.remove()
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            try:
                self.source.drop_slot()
                return
            except SourceRefused:
                if time.monotonic() > deadline:
                    return
                time.sleep(LOOP_SECONDS)
            except SourceError:
                return

    def _check_sinks(self, *, must_answer: bool) -> None:
        """A sink that does not answer is left for later, unless it is the only one, or has to be current at the end."""
        for each in self.sinks:
            try:
                self._beginning.patiently(partial(self._check_sink, each))
            except SinkUnavailable as error:
                if must_answer or sum(other.is_absent for other in self.sinks) == len(self.sinks) - 1:
                    raise
                each.did_not_answer(error)

    def _check_sink(self, each: SinkRun) -> None:
        preflight.raise_if_failing([preflight.sink_finding(self.pipeline, each.name)])

    def _start_sinks(self, spark: SparkSession, capture: Capturing) -> None:
        self._beginning.say("waiting for the change log")
        log = LogReader(self.storage.folder(LOG))
        log_id = self._wait_for(capture, log.identity).id
        present = [each for each in self.sinks if not each.is_absent]
        for each in present:
            self._wait_for(capture, partial(self._has_reached, capture, each.sink), self.storage.idle_seconds / 10)
            self._join(spark, capture, each, log_id)
        self._has_begun = True
        for each in present:
            each.start()
        self._acknowledge(capture)  # a log that is full may hold nothing that is still needed
        self._say_running(self._followers)

    def _wait_for(self, capture: Capturing, find: Callable[[], T | None], every: float = 0.0) -> T:
        def refuse_if_ended() -> None:
            if capture.error is not None:
                raise capture.error

        return self._beginning.wait_for(find, refuse_if_ended, every)

    def _has_reached(self, capture: Capturing, sink: Sink) -> bool:
        progress = capture.progress
        return self._continuity.has_reached(sink, None if progress is None else progress.received)

    def _join(self, spark: SparkSession, capture: Capturing, each: SinkRun, log_id: str) -> None:
        sink = each.sink
        follower = SinkFollower(spark, self.pipeline, each.name, self.source, sink, log_id, self.view.say)
        self._beginning.patiently(lambda: sink.claim(self._run))
        sink.clean()
        follower.load_state(self._log_start)
        follower.on_commit = lambda: self._acknowledge(capture)
        each.join(follower)

    def _say_running(self, followers: list[SinkFollower]) -> None:
        tables = sum(len(follower.tables) for follower in followers)
        self.view.say(events.Running(sinks=tuple(follower.name for follower in followers), tables=tables))

    # --- while it runs

    def _loop(self, spark: SparkSession, capture: Capturing) -> None:
        while not self._stopping.wait(LOOP_SECONDS):
            if capture.error is not None:
                raise capture.error
            for each in self.sinks:
                self._look_after(spark, capture, each)
            if (now := progress_of(self._followers, capture)) is not None:
                self.view.tick(now)
            if self._target is not None and self._is_current(capture):
                self.view.say(events.Current(position=self._target))
                return

    def _look_after(self, spark: SparkSession, capture: Capturing, each: SinkRun) -> None:
        """Take in a sink that answers at last, keep those that joined going; the run ends with the last of them."""
        known = each.error
        if each.is_absent:
            self._ask_again(spark, capture, each)
        else:
            each.look(self._log_start)
            if not capture.trouble:
                each.beat()
        if each.error is not known:
            self._go_on_without(each)

    def _ask_again(self, spark: SparkSession, capture: Capturing, each: SinkRun) -> None:
        if not each.is_due:
            return
        try:
            if self._admit(spark, capture, each):
                each.start_late()
                self._say_running([each.follower] if each.follower else [])
            else:
                each.ask_later()
        except TailraceError as error:
            if error.retry:
                each.did_not_answer(error)
            else:
                each.refuse(error)

    def _admit(self, spark: SparkSession, capture: Capturing, each: SinkRun) -> bool:
        """False while the log is not yet as far as the sink."""
        self._check_sink(each)
        self._continuity.check_late(each.sink)
        if not self._has_reached(capture, each.sink):
            return False
        self._join(spark, capture, each, self._followers[0].log_id)
        return True

    def _go_on_without(self, each: SinkRun) -> None:
        assert each.error is not None
        if all(other.is_given_up for other in self.sinks if other.follower is not None):
            raise each.error
        self.view.say(events.SinkFailed(sink=each.name, message=str(each.error), hint=each.error.hint))

    def _acknowledge(self, capture: Capturing) -> None:
        """What the slowest table of the slowest sink has, the source may forget."""
        followers = self._followers
        if len(followers) < len(self.sinks):
            return  # nobody knows what the others have
        slowest = min((follower.needed() for follower in followers), key=lambda mark: mark.offset)
        if slowest.position:
            capture.acknowledge(Acknowledge(followers[0].log_id, slowest.offset, slowest.position))

    def _is_current(self, capture: Capturing) -> bool:
        progress = capture.progress
        assert self._target is not None
        if progress is None or progress.log != self._followers[0].log_id:  # offsets of another log mean nothing
            return False
        if not self.source.reached(progress.received, self._target):
            return False
        if self._target_end is None:
            self._target_end = progress.end
        return all(each.is_current(self._target_end) for each in self.sinks if not each.is_given_up)

    # --- the end

    def _refuse_failures(self) -> None:
        """A run does not end well without one of its sinks, nor one that is to be current while a table is not."""
        for error in (each.error for each in self.sinks if each.error is not None):
            raise error
        for follower in self._followers if self._target is not None else []:
            for status in follower.failures:
                raise SinkRejected(f"{status.table} failed in sink {follower.name}: {status.reason}")

    def _shut_down(self) -> None:
        for each in self.sinks:
            each.stop_tables()
        for each in self.sinks:
            each.stop_following()
        if self._capture is not None and self._followers:
            self._acknowledge(self._capture)
        if self._capture is not None:
            self._capture.stop()
        if self._engine is not None:
            self._engine.stop()
        for each in self.sinks:
            each.close()
        if not self.storage.is_local:
            scratch.end(self.pipeline.state)
