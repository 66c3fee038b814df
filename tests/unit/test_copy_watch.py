"""How far copies are, by the marks of their chunks: said when it is news, and never in the way of anybody."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tailrace.errors import SinkUnavailable
from tailrace.events import Copying, Event
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.pipeline import copy_watch
from tailrace.pipeline.copy_watch import CopyWatch
from tailrace.sinks.base import ChunkMark, SinkState

TABLE = "public.items"


def status(state: TableState = TableState.SNAPSHOT) -> TableStatus:
    return TableStatus(TABLE, state, Watermark("log", 0, ""), TableSchema("public", "items", (), ()), generation=2)


def mark(number: int, *, rows: int | None = None, generation: int = 2) -> ChunkMark:
    return ChunkMark(generation, Chunk(TABLE, number, 100), rows is not None, rows or 0)


class Follower:
    """As much of a sink and its follower as is looked at."""

    name = "replica"

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sink = self
        self.tables = {TABLE: status()}
        self.marks = [mark(0), mark(1), mark(2, rows=7, generation=1)]
        self.said: list[Event] = []
        self.say = self.said.append
        self.looks = 0
        self.error: Exception | None = None

    def read_state(self) -> SinkState:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return SinkState(None, {}, {TABLE: self.marks})


@pytest.fixture
def follower() -> Follower:
    return Follower()


@pytest.fixture
def watch(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> CopyWatch:
    monkeypatch.setattr(copy_watch, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(copy_watch, "LOOK_SHARE", 0)
    monkeypatch.setattr(copy_watch, "LOCK_SECONDS", 0.01)
    seen: Any = follower
    return CopyWatch(seen)


def test_a_copy_is_told_by_the_chunks_of_its_plan_when_it_comes_further(follower: Follower, watch: CopyWatch) -> None:
    watch.step()
    watch.step()
    follower.marks[0] = mark(0, rows=30)
    watch.step()
    at = {"table": TABLE, "sink": "replica", "total_bytes": 200}
    assert follower.said == [Copying(rows=0, bytes=0, **at), Copying(rows=30, bytes=100, **at)]


def test_nobody_looks_while_nothing_is_copied(follower: Follower, watch: CopyWatch) -> None:
    follower.tables = {TABLE: status(TableState.LIVE)}
    watch.step()
    assert follower.looks == 0


def test_a_sink_that_is_busy_or_does_not_answer_is_asked_later(follower: Follower, watch: CopyWatch) -> None:
    follower.error = SinkUnavailable("no answer")
    watch.step()
    follower.error = None
    holder = threading.Thread(target=follower.lock.acquire)
    holder.start()
    holder.join()
    watch.step()
    assert (follower.said, follower.looks) == ([], 1)
