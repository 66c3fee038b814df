"""The place of the log that a snapshot shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from support import messages
from tailrace import config
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.pipeline.moments import offset_seen
from tailrace.pipeline.verify import _is_met
from tailrace.sources.base import ExportedSnapshot
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.positions import format_lsn
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.storage import Storage


@pytest.fixture
def source() -> Any:
    return PostgresSource(config.Pipeline("any", config.Source("postgresql://nowhere", ("*.*",)), {}))


@pytest.fixture
def log(tmp_path: Path) -> LogReader:
    """Transactions 700 to 703 end at offsets 2, 4, 6 and 9, and a mark stands at 7; positions are 0x1008 and so on."""
    storage = Storage(str(tmp_path))
    feed = messages.Feed(LogWriter.create(storage, None, "0/1000"), {})
    for number in range(3):
        feed.append(*messages.transaction(xid=700 + number, at=0x1000 * (number + 1)))
    feed.append(pgoutput.keepalive_mark(0x3800, messages.NOON_US), *messages.transaction(xid=703, at=0x4000))
    return LogReader(storage)


def seen(source: Any, log: LogReader, snapshot: str, position: int) -> int | None:
    return offset_seen(log, source, ExportedSnapshot("any", snapshot, format_lsn(position)))


@pytest.mark.parametrize(
    ("snapshot", "position", "expected"),
    [
        ("704:704:", 0x5000, 9),
        ("703:703:", 0x5000, 7),
        ("703:703:", 0x3FFF, 7),
        ("702:704:702,703", 0x5000, 4),
        ("701:704:701,702,703", 0x5000, 2),
        ("704:704:", 0x2FFF, 4),
    ],
    ids=["all", "all-but-the-last", "up-to-a-mark", "two-not-yet", "one", "older-position"],
)
def test_the_place_is_behind_the_last_transaction_that_is_seen(
    source: Any, log: LogReader, snapshot: str, position: int, expected: int
) -> None:
    assert seen(source, log, snapshot, position) == expected


@pytest.mark.parametrize("snapshot", ["701:704:701", "700:704:700,702", "700:704:700,701,702,703"])
def test_a_snapshot_that_sees_a_later_transaction_and_not_an_earlier_one_shows_no_place(
    source: Any, log: LogReader, snapshot: str
) -> None:
    assert seen(source, log, snapshot, 0x5000) is None


def test_an_empty_log_shows_its_beginning(source: Any, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    LogWriter.create(storage, None, "0/1000")
    assert seen(source, LogReader(storage), "700:700:", 0x5000) == 0


def test_what_was_committed_long_ago_is_not_read_again(source: Any, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    feed = messages.Feed(LogWriter.create(storage, None, "0/1000"), {})
    feed.append(*messages.transaction(xid=700, at=0x1000))
    feed.append(*messages.transaction(xid=701, at=0x2000, time_us=messages.NOON_US + 3_600_000_000))
    assert seen(source, LogReader(storage), "700:702:700", 0x5000) == 4
    (old, new) = LogReader(storage).transactions(0, 4)
    assert [source.seen(each, "700:702:700").to_pylist() for each in (old, new)] == [[False], [True]]


def test_a_segment_that_is_removed_while_it_is_looked_at_is_no_error(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sinks had it: a later snapshot will do."""
    pipeline = config.Pipeline("any", config.Source("postgresql://nowhere", ("*.*",)), {}, state=str(tmp_path))
    storage = Storage(str(tmp_path)).folder("log")
    feed = messages.Feed(LogWriter.create(storage, None, "0/100"), {})
    for number in range(2):
        feed.append(*messages.transaction(xid=700 + number, at=0x1000 * (number + 1)))
    listed = LogReader(storage).names()
    monkeypatch.setattr(LogReader, "names", lambda _: listed)
    storage.delete(str(listed[0]))
    nobody: Any = None
    snapshot = ExportedSnapshot("any", "702:702:", "0/2008")
    assert not _is_met(pipeline, source, nobody, nobody, snapshot, math.inf)
