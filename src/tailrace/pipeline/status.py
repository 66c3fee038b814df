"""What can be seen of a pipeline from outside: its change log, what its sinks remember, and how far its source is.

Guarantee: nothing is created or changed, and a run that is going is not disturbed. It works as well when the source is
down, or the state directory gone: what can not be known is None.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from tailrace import config, registry
from tailrace.errors import SinkError, SourceError
from tailrace.log.lag import oldest_commit_after
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import ASIDE, COPYING, TableState, TableStatus
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark, HasTopics, Sink, SinkState, TopicEnd, Verifies
from tailrace.state import capture_note
from tailrace.state.layout import LOG, RUN_LOCK
from tailrace.state.storage import Storage

COUNT_SECONDS = 0.5  # a table


class RunState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    UNKNOWN = "unknown"  # we may not look at its lock


class TableLine(msgspec.Struct, frozen=True):
    """One table in one sink.

    `rows` were counted just now; None if that would take long. `copied` are those that the snapshot has loaded.
    `offset` and `position` are the table's watermark. `lag_seconds` is the age of the oldest captured commit that the
    table lacks, 0 when it has all; None without a run, or a log that the watermark belongs to, and where the table has
    all of the log and nothing is captured at the moment.
    `reason` says why the table is not live, or what is to be known of it; `capture` why nothing is captured now.
    `topic` and `end_offset` (summed over partitions; None: it is gone) are those of a table in Kafka.
    `behind_bytes` is the source's log between `position` and its present end, also where that holds nothing for us.
    """

    sink: str
    table: str
    state: TableState
    rows: int | None
    copied: int
    chunks_loaded: int | None
    chunks: int | None
    offset: int
    position: str
    run: RunState
    lag_seconds: float | None
    behind_bytes: int | None
    source_error: str | None
    reason: str = ""
    capture: str = ""
    topic: str = ""
    end_offset: int | None = None


def read(pipeline: config.Pipeline) -> list[TableLine]:
    """A line a sink and table, in the order of the file and the alphabet. Raises if a sink can not be asked."""
    lines, errors = look(pipeline)
    for error in errors.values():
        raise error
    return lines


def look(pipeline: config.Pipeline) -> tuple[list[TableLine], dict[str, SinkError]]:
    """As `read`, for the sinks that answer; and why the others do not."""
    around = _Surroundings(pipeline)
    lines: list[TableLine] = []
    errors: dict[str, SinkError] = {}
    for name in pipeline.sinks:
        try:
            lines += _sink_lines(pipeline, name, around)
        except SinkError as error:
            errors[name] = error
    return lines, errors


class _Surroundings:
    """What all lines share: the log, the run, the source."""

    def __init__(self, pipeline: config.Pipeline) -> None:
        self.log = LogReader(Storage(pipeline.state).folder(LOG))
        identity = self.log.identity()
        self.log_id = identity.id if identity else None
        self.run = run_state(pipeline.state)
        self.capture = capture_trouble(pipeline.state)
        self.source = registry.make_source(pipeline)
        self.source_error: str | None = None
        self.source_position: str | None = None
        try:
            self.source_position = self.source.current_position()
        except SourceError as error:
            self.source_error = str(error)

    def behind_bytes(self, mark: Watermark) -> int | None:
        if self.source_position is None or not mark.position:
            return None
        return int(self.source.distance(mark.position, self.source_position))

    def lag_seconds(self, mark: Watermark) -> float | None:
        if self.run is RunState.STOPPED or mark.log_id != self.log_id:
            return None
        oldest_us = oldest_commit_after(self.log, mark.offset)
        if oldest_us is None:
            return None if self.capture else 0.0
        return max(time.time() - oldest_us / 1e6, 0.0)


def capture_trouble(state: str) -> str:
    """Why a run that is going captures nothing at this moment; empty if it does, or if there is none."""
    if run_state(state) is RunState.STOPPED:
        return ""
    note = capture_note.read(state)
    return (capture_note.UNKNOWN if note is None else note.sentence) or capture_note.silence(state)


def run_state(state: str) -> RunState:
    """Whether a run holds the lock."""
    is_locked = Storage(state).is_locked(RUN_LOCK)
    return {True: RunState.RUNNING, False: RunState.STOPPED, None: RunState.UNKNOWN}[is_locked]


def _sink_lines(pipeline: config.Pipeline, name: str, around: _Surroundings) -> list[TableLine]:
    sink = registry.make_sink(pipeline, name)
    try:
        state = sink.read_state()
        schemas = [status.schema for status in state.tables.values()]
        topics = sink.topic_ends(schemas) if isinstance(sink, HasTopics) else {}
        return [_line(name, sink, status, state, around, topics) for _, status in sorted(state.tables.items())]
    finally:
        sink.close()


def _line(
    name: str,
    sink: Sink,
    status: TableStatus,
    state: SinkState,
    around: _Surroundings,
    topics: Mapping[str, TopicEnd],
) -> TableLine:
    topic = topics.get(status.table, TopicEnd("", None))
    is_live = status.state is TableState.LIVE
    mark = state.watermark if is_live and state.watermark is not None else status.watermark
    chunks = [chunk for chunk in state.chunks.get(status.table, []) if chunk.generation == status.generation]
    is_copying = status.state in COPYING
    return TableLine(
        sink=name,
        table=status.table,
        state=status.state,
        rows=sink.count_rows(status.schema, COUNT_SECONDS) if isinstance(sink, Verifies) else None,
        copied=_copied(status, chunks),
        chunks_loaded=sum(chunk.is_loaded for chunk in chunks) if is_copying else None,
        chunks=len(chunks) if is_copying else None,
        offset=mark.offset,
        position=mark.position,
        run=around.run,
        lag_seconds=None if is_copying or status.state in ASIDE else around.lag_seconds(mark),
        behind_bytes=around.behind_bytes(mark),
        source_error=around.source_error,
        reason=status.reason,
        capture=around.capture,
        topic=topic.topic,
        end_offset=topic.end,
    )


def _copied(status: TableStatus, chunks: list[ChunkMark]) -> int:
    return sum(chunk.rows for chunk in chunks if chunk.is_loaded) or status.rows
