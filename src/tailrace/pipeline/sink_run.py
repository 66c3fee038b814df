"""One sink of a run: whether it answers, follows the log, waits for its next try, or is given up."""

from __future__ import annotations

import time
from enum import StrEnum

from tailrace import events
from tailrace.errors import TailraceError
from tailrace.model.backoff import Backoff
from tailrace.pipeline.follower import SinkFollower
from tailrace.pipeline.table_supervisor import TableSupervisor
from tailrace.sinks.base import Beats, Sink

ABSENT_SECONDS = 5.0
RECOVERED_SECONDS = 10.0
STOP_SECONDS = 10.0


class SinkPhase(StrEnum):
    PRESENT = "present"  # it answers
    ABSENT = "absent"  # it did not answer at the start, and is asked again
    FOLLOWING = "following"
    RETRYING = "retrying"  # it was in trouble that may pass, and is started again
    GIVEN_UP = "given up"


class SinkRun:
    """`follower` and `tables` are None until the sink has joined; `error` is why it was given up."""

    def __init__(self, sink: Sink, say: events.Say) -> None:
        self.name, self.sink, self._say = sink.name, sink, say
        self.phase = SinkPhase.PRESENT
        self.follower: SinkFollower | None = None
        self.tables: TableSupervisor | None = None
        self.error: TailraceError | None = None
        self._due_at = 0.0
        self._restarted_at: float | None = None
        self._backoff = Backoff()

    @property
    def is_absent(self) -> bool:
        return self.phase is SinkPhase.ABSENT

    @property
    def is_given_up(self) -> bool:
        return self.phase is SinkPhase.GIVEN_UP

    @property
    def is_due(self) -> bool:
        """It is time to ask it again, or to start it again."""
        return time.monotonic() >= self._due_at

    def did_not_answer(self, error: TailraceError) -> None:
        self._say(events.SinkRetry(sink=self.name, message=str(error), retry_seconds=ABSENT_SECONDS))
        self.ask_later()

    def ask_later(self) -> None:
        self.phase, self._due_at = SinkPhase.ABSENT, time.monotonic() + ABSENT_SECONDS

    def join(self, follower: SinkFollower) -> None:
        """It is ready to follow the log."""
        self.phase = SinkPhase.FOLLOWING
        self.follower, self.tables = follower, TableSupervisor(follower)

    def start(self) -> None:
        follower, tables = self._joined
        follower.start()
        tables.start()

    def start_late(self) -> None:
        """While others follow the log already: one that can not be started yet is tried again as any other."""
        follower, tables = self._joined
        try:
            follower.start()
        except TailraceError as error:
            self._retry_later(error)
        tables.start()

    def look(self, log_start: str) -> None:
        """Start it again when its error may pass; give it up when not."""
        if self.is_given_up or self.follower is None:
            return
        try:
            if self.phase is SinkPhase.RETRYING:
                self._restart_if_due(log_start)
            elif (error := self._trouble()) is not None:
                raise error
            else:
                self._say_if_recovered()
        except TailraceError as error:
            if error.retry:
                self._retry_later(error)
            else:
                self._give_up(error)

    def beat(self) -> None:
        """All is well with the source, and with us."""
        if self.phase is SinkPhase.FOLLOWING and isinstance(self.sink, Beats):
            self.sink.beat()

    def is_current(self, end: int) -> bool:
        """It has all up to offset `end`, and no table is on its way."""
        follower, tables = self._joined
        return follower.watermark.offset >= end and follower.is_live and tables.is_settled

    def refuse(self, error: TailraceError) -> None:
        """It will not be asked again; nothing of it runs."""
        self.phase, self.error = SinkPhase.GIVEN_UP, error

    def stop_tables(self) -> None:
        if self.tables is not None:
            self.tables.stop()

    def stop_following(self) -> None:
        if self.follower is not None and not self.follower.stop(STOP_SECONDS):
            message = (
                f"sink {self.name} has not answered for {STOP_SECONDS:g} s: what it did not commit is done again at"
                " the next start"
            )
            self._say(events.SinkAbandoned(sink=self.name, message=message))

    def close(self) -> None:
        if self.tables is not None:
            self.tables.join(STOP_SECONDS)
        self.sink.close()

    @property
    def _joined(self) -> tuple[SinkFollower, TableSupervisor]:
        assert self.follower is not None
        assert self.tables is not None
        return self.follower, self.tables

    def _trouble(self) -> TailraceError | None:
        follower, tables = self._joined
        return tables.error or follower.failure()

    def _restart_if_due(self, log_start: str) -> None:
        follower, _ = self._joined
        if not self.is_due or not follower.lock.acquire(blocking=False):  # a table's copy or hand-over is at work
            return
        self.phase = SinkPhase.FOLLOWING
        try:  # the answer to a commit may be what was lost: ask the sink where it is
            follower.load_state(log_start)
        finally:
            follower.lock.release()
        follower.start()
        self._restarted_at = time.time()

    def _say_if_recovered(self) -> None:
        """A sink is well once it has committed something, or had no trouble for a while."""
        follower, since = self._joined[0], self._restarted_at
        if since is not None and (follower.committed_at >= since or time.time() - since >= RECOVERED_SECONDS):
            self._restarted_at = None
            follower.tell_recovered(self)

    def _retry_later(self, error: TailraceError) -> None:
        follower, _ = self._joined
        if time.time() - follower.committed_at < self._backoff.longest:
            self._backoff.reset()
        seconds = self._backoff.wait()
        follower.note_trouble(self)
        self._restarted_at = None
        self._say(events.SinkRetry(sink=self.name, message=str(error), retry_seconds=seconds))
        self.phase, self._due_at = SinkPhase.RETRYING, time.monotonic() + seconds

    def _give_up(self, error: TailraceError) -> None:
        """One sink's trouble is not the others': they go on, and the source keeps what this one still needs."""
        self.stop_tables()
        self.stop_following()
        self.refuse(error)
