"""Running a pipeline: one capture process, one Spark session, one streaming query a sink."""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace import config, events, registry
from tailrace.errors import (
    PositionLost,
    SinkRejected,
    SinkUnavailable,
    SourceError,
    SourceRefused,
    SourceUnavailable,
    StateError,
    StateUnavailable,
    TailraceError,
)
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import CATCHING_UP, COPYING
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.pipeline import preflight
from tailrace.pipeline.anchoring import begins_at, is_in
from tailrace.pipeline.backoff import Backoff
from tailrace.pipeline.capture_process import Order
from tailrace.pipeline.capture_supervisor import CaptureSupervisor
from tailrace.pipeline.follower import SinkFollower
from tailrace.pipeline.progress import progress_of, stopped_at
from tailrace.pipeline.table_supervisor import TableSupervisor
from tailrace.sinks.base import Sink
from tailrace.spark.opening import OpeningSession
from tailrace.state.layout import LOG, RUN_LOCK, SPARK
from tailrace.state.storage import Storage
from tailrace.views.view import View, open_view

LOOP_SECONDS = 0.05
STOP_SECONDS = 10.0
CONNECT_SECONDS = 15.0
ABSENT_SECONDS = 5.0
WAITING_SECONDS = 5.0
RECOVERED_SECONDS = 10.0


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
        self.sinks = {name: registry.make_sink(pipeline, name) for name in pipeline.sinks}
        self.storage = Storage(pipeline.state)
        self._run = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._followers: list[SinkFollower] = []
        self._keepers: list[TableSupervisor] = []
        self._capture: CaptureSupervisor | None = None
        self._retries: dict[str, float] = {}  # sink: when to try again
        self._restarted: dict[str, float] = {}  # sink that was in trouble: when it was started again
        self._backoff: dict[str, Backoff] = {}
        self._given_up: dict[str, TailraceError] = {}
        self._absent: dict[str, float] = {}  # sink that did not answer at the start: when to ask it again
        self._engine: OpeningSession | None = None
        self._identity: SourceIdentity | None = None
        self._log_start = ""
        self._is_log_new = False
        self._has_new_slot = False
        self._has_begun = False  # sinks follow the log
        self._said_waiting_at = -math.inf
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
        shutil.rmtree(Path(self.pipeline.state) / SPARK, ignore_errors=True)
        capture: CaptureSupervisor | None = None
        try:
            self._engine = OpeningSession(self.pipeline, self._host)
            self._start_with("checking the source")
            self._patiently(lambda: preflight.raise_if_failing(preflight.check_without_sinks(self.pipeline)))
            self._start_with("checking the sinks")
            self._check_sinks(must_answer=until_current)
            self._start_with("preparing the replication slot")
            identity = self._patiently(self._check_identity)
            start = self._patiently(lambda: self.source.prepare(self._wait, self._expect_slot))
            self._log_start = self._check_positions(start)
            if until_current:
                self._target = self.source.current_position()
            self._leave_if_stopping()
            capture = self._capture = CaptureSupervisor(Order(self.pipeline, start, identity), self.view.say)
            capture.start()
            self._leave_if_stopping()
            spark = self._engine.wait(self._leave_if_stopping, self._start_with)
            self._start_sinks(spark, capture)
            self._loop(spark, capture, start)
            self.view.say(events.Stopping())
            for error in self._given_up.values():
                raise error
            self._refuse_failures()
            return 0
        except _Stopped:
            return 0
        finally:
            self._shut_down(capture)
            if self._has_new_slot and not self._has_begun:
                self._drop_new_slot()
            if lock is not None:
                lock.close()

    def _start_with(self, doing: str) -> None:
        self.view.say(events.Starting(doing=doing))

    def _leave_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise _Stopped("stopped before it began")

    def _expect_slot(self) -> None:
        self._has_new_slot = True

    def _drop_new_slot(self) -> None:
        """A slot of which nothing has come to a sink, and of which nothing will, would make the source keep its log.

        A log that came of it is of no use without it. The server may take a moment to notice that its reader is gone.
        """
        log = self.storage.folder(LOG)
        if self._is_log_new and log.exists():
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

    def _wait(self, whom: list[str]) -> None:
        """The source waits for somebody: say so now and then, and stop at once when we are to."""
        self._leave_if_stopping()
        if whom and time.monotonic() - self._said_waiting_at >= WAITING_SECONDS:
            self._said_waiting_at = time.monotonic()
            message = f"{self._stream} can not be made before others end: {', '.join(whom)}"
            self.view.say(events.Waiting(message=message))

    @property
    def _stream(self) -> str:
        """What the source streams from, in an operator's words."""
        slot = self._identity.slot if self._identity is not None else ""
        return f"replication slot {slot}" if slot else "the stream"

    def _patiently(self, work: Callable[[], Any]) -> Any:
        """At the start, wait a little for a database that is coming up."""
        deadline, backoff = time.monotonic() + CONNECT_SECONDS, Backoff()
        while True:
            self._leave_if_stopping()
            try:
                return work()
            except (SourceUnavailable, SinkUnavailable, StateUnavailable) as error:
                seconds = backoff.wait()
                if time.monotonic() + seconds > deadline:
                    raise
                self.view.say(events.SourceRetry(message=str(error), retry_seconds=seconds))
                if self._stopping.wait(seconds):
                    raise _Stopped("stopped before it began") from error

    def _check_sinks(self, *, must_answer: bool) -> None:
        """A sink that does not answer is left for later, unless it is the only one, or has to be current at the end."""
        for name in self.sinks:
            try:
                self._patiently(partial(self._check_sink, name))
            except SinkUnavailable as error:
                if must_answer or len(self._absent) == len(self.sinks) - 1:
                    raise
                self._ask_later(name, error)

    def _check_sink(self, name: str) -> None:
        preflight.raise_if_failing([preflight.sink_finding(self.pipeline, name)])

    def _ask_later(self, name: str, error: TailraceError) -> None:
        self.view.say(events.SinkRetry(sink=name, message=str(error), retry_seconds=ABSENT_SECONDS))
        self._absent[name] = time.monotonic() + ABSENT_SECONDS

    def _check_identity(self) -> SourceIdentity:
        """Whom the source is, if the log and the sinks were read from it; before anything is made there."""
        log = LogReader(self.storage.folder(LOG)).place()
        marks = [log] if log is not None else []
        for name in self.sinks.keys() - self._absent.keys():
            marks += self._marks(name)
        for known, position in {(mark.source, mark.position) for mark in marks if mark.source is not None}:
            self.source.check_same(known, position, self._leave_if_stopping)
        self._identity = self.source.identify()
        for name in self.sinks.keys() - self._absent.keys():
            self._refuse_source(name)
        return self._identity

    def _refuse_source(self, name: str) -> None:
        """What is written to the source would be captured again, and be in the way of its own writers."""
        if self._identity is not None and self.sinks[name].is_database(self._identity):
            raise SinkRejected(f"sink {name} is the database that is read", hint="write to another database")

    def _marks(self, name: str) -> list[Watermark]:
        """The places of a sink, and of those of its tables that are on their way, that have to be found in the log."""
        state = self.sinks[name].read_state()
        on_their_way = [s.watermark for s in state.tables.values() if s.state in COPYING | CATCHING_UP]
        marks = [*on_their_way, *([state.watermark] if state.watermark is not None else [])]
        return [mark for mark in marks if mark.position]

    def _check_positions(self, confirmed: str) -> str:
        """Refuse to go on where something is gone that the log or a sink needs. Returns where the log starts."""
        log = LogReader(self.storage.folder(LOG))
        identity, place = log.identity(), log.place()
        self._is_log_new = identity is None
        present = [name for name in self.sinks if name not in self._absent]
        if place is not None and not self.source.reached(place.position, confirmed):
            self._refuse_old_log(place.position, confirmed, present)
        for name in present:
            self._check_position(name, confirmed)
        return confirmed if identity is None else identity.start_position

    def _refuse_old_log(self, reached: str, confirmed: str, sinks: list[str]) -> None:
        """The slot is past the log: either the state directory is an old one, or changes are gone."""
        marks = [mark for name in sinks for mark in self._marks(name)]
        if all(self.source.reached(mark.position, confirmed) for mark in marks):
            raise StateError(
                f"the change log in {self.pipeline.state} ends at {reached}, and the sinks are past that: the state"
                " directory was restored from a backup, or is not the one that was used last",
                hint=f"delete {self.pipeline.state} and run again: the sinks know where they are",
            )
        self._refuse_gap("the change log", reached, confirmed)

    def _check_position(self, name: str, confirmed: str) -> None:
        """A sink's places are in the log, or will be: the log goes on from `confirmed` at the latest."""
        log = LogReader(self.storage.folder(LOG))
        for mark in self._marks(name):
            if self._is_log_new:
                self._refuse_gap(f"sink {name}", mark.position, confirmed)
            elif not is_in(log, self.source, mark) and not self.source.reached(mark.position, begins_at(log)):
                raise PositionLost(
                    f"sink {name} has the changes up to {mark.position}, and the change log begins at"
                    f" {begins_at(log)}: was the sink restored from a backup?"
                )

    def _refuse_gap(self, who: str, has: str, confirmed: str) -> None:
        if has and not self.source.reached(has, confirmed):
            raise PositionLost(
                f"{who} has the changes up to {has}, but {self._stream} begins at {confirmed}: what lies between is"
                " gone"
            )

    def _refuse_failures(self) -> None:
        """A run that is to end when all is current does not end well while a table is not."""
        for follower in self._followers if self._target is not None else []:
            for status in follower.failures:
                raise SinkRejected(f"{status.table} failed in sink {follower.name}: {status.reason}")

    def _start_sinks(self, spark: SparkSession, capture: CaptureSupervisor) -> None:
        self._start_with("waiting for the change log")
        log = LogReader(self.storage.folder(LOG))
        log_id = self._wait_for(capture, lambda: log.identity() and log.identity().id)  # type: ignore[union-attr]
        for name in [name for name in self.sinks if name not in self._absent]:
            self._wait_for(capture, partial(self._has_reached, capture, self.sinks[name], log_id))
            self._add_sink(spark, capture, name, log_id)
        self._has_begun = True
        for follower, keeper in zip(self._followers, self._keepers, strict=True):
            follower.start()
            keeper.start()
        self._acknowledge(capture)  # a log that is full may hold nothing that is still needed
        self._say_running(self._followers)

    def _add_sink(self, spark: SparkSession, capture: CaptureSupervisor, name: str, log_id: str) -> None:
        sink = self.sinks[name]
        follower = SinkFollower(spark, self.pipeline, name, self.source, sink, log_id, self.view.say)
        self._patiently(lambda: sink.claim(self._run))
        sink.clean()
        follower.load_state(self._log_start)
        follower.on_commit = lambda: self._acknowledge(capture)
        self._followers.append(follower)
        self._keepers.append(TableSupervisor(follower))

    def _say_running(self, followers: list[SinkFollower]) -> None:
        tables = sum(len(follower.tables) for follower in followers)
        self.view.say(events.Running(sinks=tuple(follower.name for follower in followers), tables=tables))

    def _ask_absent(self, spark: SparkSession, capture: CaptureSupervisor, confirmed: str) -> None:
        """Take in the sinks that did not answer at the start, once they do."""
        for name in [name for name, due in self._absent.items() if time.monotonic() >= due]:
            try:
                if self._admit(spark, capture, name, confirmed):
                    del self._absent[name]
                    self._begin_late(self._followers[-1], self._keepers[-1])
                else:
                    self._absent[name] = time.monotonic() + ABSENT_SECONDS
            except TailraceError as error:
                if error.retry:
                    self._ask_later(name, error)
                else:
                    self._absent[name] = math.inf
                    self._leave(name, error)

    def _admit(self, spark: SparkSession, capture: CaptureSupervisor, name: str, confirmed: str) -> bool:
        """False while the log is not yet as far as the sink."""
        log_id = self._followers[0].log_id
        self._check_sink(name)
        for mark in self._marks(name):
            if mark.source is not None:
                self.source.check_same(mark.source, mark.position)
        self._refuse_source(name)
        self._check_position(name, confirmed)
        if not self._has_reached(capture, self.sinks[name], log_id):
            return False
        self._add_sink(spark, capture, name, log_id)
        return True

    def _begin_late(self, follower: SinkFollower, keeper: TableSupervisor) -> None:
        try:
            follower.start()
        except TailraceError as error:
            self._retry_later(follower, error)
        keeper.start()
        self._say_running([follower])

    def _has_reached(self, capture: CaptureSupervisor, sink: Sink, log_id: str) -> bool:
        """True once a rebuilt log has come as far as the sink was: only then can its place be found again."""
        log = LogReader(self.storage.folder(LOG))
        foreign = [mark.position for mark in self._marks(sink.name) if not is_in(log, self.source, mark)]
        progress = capture.progress
        return not foreign or (
            progress is not None and all(self.source.reached(progress.received, position) for position in foreign)
        )

    def _wait_for(self, capture: CaptureSupervisor, condition: Callable[[], Any]) -> Any:
        while not (found := condition()):
            if capture.error is not None:
                raise capture.error
            if self._stopping.wait(LOOP_SECONDS):
                raise _Stopped("stopped before it began")
        return found

    def _acknowledge(self, capture: CaptureSupervisor) -> None:
        """What the slowest table of the slowest sink has, the source may forget."""
        if self._absent:
            return  # nobody knows what they have
        slowest = min((follower.needed() for follower in self._followers), key=lambda mark: mark.offset)
        if slowest.position:
            capture.acknowledge(slowest.offset, slowest.position)

    def _loop(self, spark: SparkSession, capture: CaptureSupervisor, start: str) -> None:
        while not self._stopping.wait(LOOP_SECONDS):
            if capture.error is not None:
                raise capture.error
            self._ask_absent(spark, capture, start)
            for follower, keeper in zip(self._followers, self._keepers, strict=True):
                self._tend(follower, keeper)
            self._tell(capture)
            if self._target is not None and self._is_current(capture):
                self.view.say(events.Current(position=self._target))
                return

    def _tend(self, follower: SinkFollower, keeper: TableSupervisor) -> None:
        """Start a sink again when its error may pass; give it up when not, and the run with the last of them."""
        if follower.name in self._given_up:
            return
        try:
            if self._restart_if_due(follower):
                return
            error = keeper.error or follower.failure()
            if error is None:
                self._tell_if_recovered(follower)
                return
            raise error
        except TailraceError as error:
            if error.retry:
                self._retry_later(follower, error)
            else:
                self._give_up(follower, keeper, error)

    def _restart_if_due(self, follower: SinkFollower) -> bool:
        """True while a sink waits for its next try."""
        due = self._retries.get(follower.name)
        if due is None:
            return False
        if time.monotonic() >= due and follower.lock.acquire(blocking=False):  # or else its keeper is at work
            del self._retries[follower.name]
            try:  # the answer to a commit may be what was lost: ask the sink where it is
                follower.load_state(self._log_start)
            finally:
                follower.lock.release()
            follower.start()
            self._restarted[follower.name] = time.time()
        return True

    def _tell_if_recovered(self, follower: SinkFollower) -> None:
        """A sink is well once it has committed something, or had no trouble for a while."""
        since = self._restarted.get(follower.name)
        if since is not None and (follower.committed_at >= since or time.time() - since >= RECOVERED_SECONDS):
            del self._restarted[follower.name]
            follower.tell_recovered(self)

    def _retry_later(self, follower: SinkFollower, error: TailraceError) -> None:
        backoff = self._backoff.setdefault(follower.name, Backoff())
        if time.time() - follower.committed_at < backoff.longest:
            backoff.reset()
        seconds = backoff.wait()
        follower.note_trouble(self)
        self._restarted.pop(follower.name, None)
        self.view.say(events.SinkRetry(sink=follower.name, message=str(error), retry_seconds=seconds))
        self._retries[follower.name] = time.monotonic() + seconds

    def _give_up(self, follower: SinkFollower, keeper: TableSupervisor, error: TailraceError) -> None:
        """One sink's trouble is not the others': they go on, and the source keeps what this one still needs."""
        keeper.stop()
        self._stop_following(follower)
        self._leave(follower.name, error)

    def _stop_following(self, follower: SinkFollower) -> None:
        if not follower.stop(STOP_SECONDS):
            message = (
                f"sink {follower.name} has not answered for {STOP_SECONDS:g} s: what it did not commit is done"
                " again at the next start"
            )
            self.view.say(events.SinkAbandoned(sink=follower.name, message=message))

    def _leave(self, name: str, error: TailraceError) -> None:
        self._given_up[name] = error
        if all(follower.name in self._given_up for follower in self._followers):
            raise error
        self.view.say(events.SinkFailed(sink=name, message=str(error), hint=error.hint))

    def _is_current(self, capture: CaptureSupervisor) -> bool:
        progress = capture.progress
        assert self._target is not None
        if progress is None or not self.source.reached(progress.received, self._target):
            return False
        if self._target_end is None:
            self._target_end = progress.end
        return all(
            follower.watermark.offset >= self._target_end and follower.is_live and keeper.is_settled
            for follower, keeper in zip(self._followers, self._keepers, strict=True)
            if follower.name not in self._given_up
        )

    def _tell(self, capture: CaptureSupervisor) -> None:
        if (now := progress_of(self._followers, capture)) is not None:
            self.view.tick(now)

    def _shut_down(self, capture: CaptureSupervisor | None) -> None:
        for keeper in self._keepers:
            keeper.stop()
        for follower in self._followers:
            self._stop_following(follower)
        if capture is not None and self._followers:
            self._acknowledge(capture)
        if capture is not None:
            capture.stop()
        if self._engine is not None:
            self._engine.stop()
        for keeper in self._keepers:
            keeper.join(STOP_SECONDS)
        for sink in self.sinks.values():
            sink.close()


class _Stopped(TailraceError):
    """The user stopped the run before it had begun."""
