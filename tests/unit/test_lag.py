"""Lag is the age of the oldest change that a sink lacks, whatever was before that."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.messages import NOON_US, Feed, insert, transaction
from tailrace.errors import StateUnavailable
from tailrace.log.lag import LagGauge, oldest_commit_after
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentName
from tailrace.log.writer import LogWriter
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres import pgoutput
from tailrace.state.storage import Storage

EVENTS = TableSchema("public", "events", (Column("n", ColumnType(Kind.INT64, "bigint")),), (), Identity.FULL, 1)
NOON = NOON_US / 1e6
HOUR = 3600.0


class Log:
    """A log with a segment for each transaction; `now` is the time."""

    def __init__(self, folder: Path) -> None:
        self.writer = LogWriter.create(Storage(str(folder)), None, "0/100")
        self.feed = Feed(self.writer, {1: EVENTS})
        self.reader = LogReader(Storage(str(folder)))
        self.now = NOON
        self.gauge = LagGauge(self.reader, lambda: self.now)

    def commit(self, *at: float) -> int:
        """Transactions at these times, as one segment; where they end."""
        messages = [m for each in at for m in transaction(insert(1, "1"), time_us=int(each * 1e6))]
        self.feed.append(*messages)
        return self.writer.end

    def mark(self, at: float) -> int:
        """What an idle source leaves in the log."""
        self.feed.append(pgoutput.keepalive_mark(0x2000, int(at * 1e6)))
        return self.writer.end

    def lag(self, offset: int, *, is_captured: bool = True) -> float | None:
        """As a run sees it after a look at the log."""
        self.gauge.seconds(offset, self.writer.end, is_captured=is_captured)
        self.gauge.look()
        return self.gauge.seconds(offset, self.writer.end, is_captured=is_captured)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_a_change_after_a_long_idle_time_is_as_late_as_it_is_old(log: Log) -> None:
    has = log.commit(NOON)
    log.now = NOON + HOUR
    assert log.lag(has) == 0.0
    log.commit(NOON + HOUR)
    log.now += 0.5
    assert log.lag(has) == 0.5


def test_the_lag_is_that_of_the_oldest_change_that_is_missing_and_grows(log: Log) -> None:
    has = log.commit(NOON)
    log.commit(NOON + 1)
    log.commit(NOON + 2)
    log.now = NOON + 5
    assert log.lag(has) == 4.0
    log.now = NOON + 65
    assert log.lag(has) == 64.0


def test_a_sink_in_the_middle_of_a_segment_lacks_its_rest_only(log: Log) -> None:
    """A log that was rebuilt is cut elsewhere."""
    end = log.commit(NOON, NOON + 100)
    assert oldest_commit_after(log.reader, end - 3) == (NOON + 100) * 1e6
    assert oldest_commit_after(log.reader, end) is None


def test_a_mark_of_an_idle_source_is_no_change(log: Log) -> None:
    has = log.commit(NOON)
    log.mark(NOON + 10)
    log.now = NOON + HOUR
    assert log.lag(has) == 0.0
    log.commit(NOON + HOUR - 3)
    log.now += 1
    assert log.lag(has) == 4.0


def test_nobody_knows_the_lag_of_a_sink_that_has_all_while_nothing_is_captured(log: Log) -> None:
    has = log.commit(NOON)
    assert log.lag(has, is_captured=False) is None
    log.commit(NOON + 1)
    log.now = NOON + 10
    assert log.lag(has, is_captured=False) == 9.0


def test_the_log_is_looked_at_once_a_second_at_most(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    names = log.reader.names
    monkeypatch.setattr(log.reader, "names", lambda: (looks.append(log.now), names())[1])
    ends = [log.commit(NOON + number / 10) for number in range(100)]
    for number, end in enumerate(ends[:-1]):
        log.now = NOON + 20 + number / 10
        for _ in range(5):
            assert (log.lag(end) or 0.0) > 10
    assert len(looks) <= 11


def test_a_log_that_can_not_be_read_is_looked_at_later(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    has = log.commit(NOON)
    log.commit(NOON + 1)

    def refuse() -> list[SegmentName]:
        raise StateUnavailable("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(log.reader, "names", refuse)
        assert log.lag(has) is None
    log.now = NOON + 3
    assert log.lag(has) == 2.0


def test_the_end_is_looked_at_at_once(log: Log) -> None:
    has = log.commit(NOON)
    next_ = log.commit(NOON + 1)
    log.now = NOON + 3
    assert log.lag(has) == 2.0
    log.commit(NOON + 2)
    assert log.lag(next_) == 2.0  # as it was: we have just looked
    log.gauge.look(at_once=True)
    assert log.lag(next_) == 1.0
