"""Whether the log and the sinks can go on from where the source's stream begins: nothing in between may be gone.

Guarantee: who asks here before anything is applied never skips a change in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailrace import config
from tailrace.errors import PositionLost, SinkRejected, StateError
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import CATCHING_UP, COPYING
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.pipeline.anchoring import begins_at, is_in
from tailrace.pipeline.beginning import Beginning
from tailrace.sinks.base import Sink
from tailrace.sources.base import Source
from tailrace.state.layout import LOG
from tailrace.state.storage import Storage


def marks_of(sink: Sink) -> list[Watermark]:
    """The places of a sink, and of those of its tables that are on their way, that have to be found in the log."""
    state = sink.read_state()
    on_their_way = [s.watermark for s in state.tables.values() if s.state in COPYING | CATCHING_UP]
    marks = [*on_their_way, *([state.watermark] if state.watermark is not None else [])]
    return [mark for mark in marks if mark.position]


class Continuity:
    """Of one run. `identity` is whom the source is, `confirmed` from where on its stream has all."""

    def __init__(self, pipeline: config.Pipeline, source: Source) -> None:
        self._state, self._source = pipeline.state, source
        self._log = LogReader(Storage(pipeline.state).folder(LOG))
        self.identity: SourceIdentity | None = None
        self.confirmed = ""
        self.is_log_new = False

    @property
    def stream(self) -> str:
        """What the source streams from, in an operator's words."""
        slot = self.identity.slot if self.identity is not None else ""
        return f"replication slot {slot}" if slot else "the stream"

    def say_waiting(self, whom: list[str], beginning: Beginning) -> None:
        """The source waits for somebody before it can make its stream."""
        beginning.leave_if_stopping()
        if whom:
            beginning.say_waiting(f"{self.stream} can not be made before others end: {', '.join(whom)}")

    def identify(self, sinks: Iterable[Sink], meanwhile: Callable[[], None]) -> SourceIdentity:
        """Whom the source is, if the log and the sinks were read from it; before anything is made there."""
        log, sinks = self._log.place(), list(sinks)
        marks = [*([log] if log is not None else []), *(mark for sink in sinks for mark in marks_of(sink))]
        for known, position in {(mark.source, mark.position) for mark in marks if mark.source is not None}:
            self._source.check_same(known, position, meanwhile)
        self.identity = self._source.identify()
        for sink in sinks:
            self._refuse_source(sink)
        return self.identity

    def check(self, confirmed: str, sinks: Iterable[Sink], *, are_all: bool) -> str:
        """Refuse to go on where something is gone that the log or a sink needs. Returns where the log starts.

        Sinks that are not here yet may need more than those that are, unless these `are_all`.
        """
        self.confirmed, sinks = confirmed, list(sinks)
        identity, place = self._log.identity(), self._log.place()
        self.is_log_new = identity is None
        if place is not None and not self._source.reached(place.position, confirmed):
            self._refuse_old_log(place.position, sinks)
        for sink in sinks:
            self._check_places(sink)
        if identity is not None:
            return identity.start_position
        needed = [mark.position for sink in sinks for mark in marks_of(sink)]
        return self._source.new_start(confirmed, needed if are_all else None)

    def check_log(self, sinks: Iterable[Sink]) -> str:
        """As `check`, where somebody else captures and has a log already, whose stream is theirs to check."""
        identity = self._log.identity()
        for sink in sinks:
            self._check_places(sink)
        return "" if identity is None else identity.start_position

    def check_late(self, sink: Sink) -> None:
        """As `identify` and `check`, for a sink that comes when the others follow the log already."""
        for mark in marks_of(sink):
            if mark.source is not None:
                self._source.check_same(mark.source, mark.position)
        self._refuse_source(sink)
        self._check_places(sink)

    def has_reached(self, sink: Sink, received: str | None) -> bool:
        """True once a rebuilt log has come as far as the sink was: only then can its place be found again."""
        foreign = [mark.position for mark in marks_of(sink) if not is_in(self._log, self._source, mark)]
        return not foreign or (
            received is not None and all(self._source.reached(received, position) for position in foreign)
        )

    def _refuse_source(self, sink: Sink) -> None:
        """What is written to the source would be captured again, and be in the way of its own writers."""
        if self.identity is not None and sink.is_database(self.identity):
            raise SinkRejected(f"sink {sink.name} is the database that is read", hint="write to another database")

    def _refuse_old_log(self, reached: str, sinks: Iterable[Sink]) -> None:
        """The slot is past the log: either the state directory is an old one, or changes are gone."""
        marks = [mark for sink in sinks for mark in marks_of(sink)]
        if all(self._source.reached(mark.position, self.confirmed) for mark in marks):
            raise StateError(
                f"the change log in {self._state} ends at {reached}, and the sinks are past that: the state"
                " directory was restored from a backup, or is not the one that was used last",
                hint=f"delete {self._state} and run again: the sinks know where they are",
            )
        self._refuse_gap("the change log", reached)

    def _check_places(self, sink: Sink) -> None:
        """A sink's places are in the log, or will be: the log goes on from `confirmed` at the latest."""
        for mark in marks_of(sink):
            if self.is_log_new:
                self._refuse_gap(f"sink {sink.name}", mark.position)
            elif not is_in(self._log, self._source, mark) and not self._source.reached(
                mark.position, begins_at(self._log)
            ):
                raise PositionLost(
                    f"sink {sink.name} has the changes up to {mark.position}, and the change log begins at"
                    f" {begins_at(self._log)}: was the sink restored from a backup?"
                )

    def _refuse_gap(self, who: str, has: str) -> None:
        if has and not self._source.reached(has, self.confirmed):
            raise PositionLost(
                f"{who} has the changes up to {has}, but {self.stream} begins at {self.confirmed}: what lies between"
                " is gone"
            )
