"""What the log forgets: never what a sink or a named reader needs, and history only when it must."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailrace.config import Keep
from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.log.readers import Readers
from tailrace.log.retention import Retention
from tailrace.log.storage import Storage
from tailrace.log.writer import LogWriter
from tailrace.testing.messages import Feed, transaction

NO_LIMIT = 1 << 40


@pytest.fixture
def feed(tmp_path) -> Feed:
    return Feed(LogWriter.create(Storage(str(tmp_path / "log")), "a source", "0/0"), {})


@pytest.fixture
def readers(tmp_path) -> Readers:
    return Readers(Storage(str(tmp_path / "readers")))


def fill(feed: Feed, count: int = 5) -> None:
    """Segments of three offsets each, all of one size."""
    for _ in range(count):
        feed.append(*transaction(b"M"))


def begin(feed: Feed) -> int:
    return LogReader(feed.writer.storage).begin()


def keep(text: str) -> Keep:
    return Keep.parse(text)


# --- named readers ---------------------------------------------------------------------------------------------------


def test_what_a_named_reader_needs_stays_though_every_sink_has_it(feed, readers):
    retention = Retention(feed.writer, readers, None, NO_LIMIT)
    fill(feed)
    readers.put("slow", feed.writer.identity.id, 3, "public.items", "a stream")
    readers.put("fast", feed.writer.identity.id, 12, "public.items", "a stream")
    retention.sinks_have(15)
    retention.apply()
    assert (begin(feed), retention.needed, retention.held_by) == (3, 3, "slow")
    readers.put("slow", feed.writer.identity.id, 9, "public.items", "a stream")
    look_again(retention)
    assert (begin(feed), retention.needed) == (9, 9)
    readers.drop("slow")
    look_again(retention)
    assert (begin(feed), retention.held_by) == (12, "fast")


def look_again(retention: Retention) -> None:
    retention._looked_at = float("-inf")
    retention.apply()


def test_a_reader_that_came_a_moment_ago_is_seen_before_anything_is_deleted(feed, readers):
    """Looking is rare while nothing goes; but what may go is asked for again."""
    retention = Retention(feed.writer, readers, None, NO_LIMIT)
    fill(feed)
    retention.apply()
    readers.put("new", feed.writer.identity.id, 0, "public.items", "a stream")
    retention.sinks_have(15)
    retention.apply()
    assert begin(feed) == 0


def test_a_reader_that_is_ahead_of_the_sinks_holds_nothing(feed, readers):
    retention = Retention(feed.writer, readers, None, NO_LIMIT)
    fill(feed)
    readers.put("fast", feed.writer.identity.id, 15, "public.items", "a stream")
    retention.sinks_have(6)
    retention.apply()
    assert (begin(feed), retention.held_by) == (6, None)


def test_a_place_in_another_log_holds_nothing_and_one_that_can_not_be_read_holds_all(feed, readers):
    retention = Retention(feed.writer, readers, None, NO_LIMIT)
    fill(feed)
    readers.put("lost", "another log", 3, "public.items", "a stream")
    retention.sinks_have(6)
    retention.apply()
    assert begin(feed) == 6
    readers.storage.publish("damaged.json", b"{")
    retention.sinks_have(15)
    retention.apply()
    assert (begin(feed), retention.held_by) == (6, "damaged")


def test_a_reader_that_is_not_there_can_not_be_dropped(readers):
    readers.put("one", "log", 3, "public.items", "a stream")
    with pytest.raises(ConfigError, match="there is no reader two in") as caught:
        readers.drop("two")
    assert caught.value.hint == "there are: one"


# --- a full log ------------------------------------------------------------------------------------------------------


def test_a_full_log_waits_for_a_reader_and_says_for_which(feed, readers):
    fill(feed, 3)
    retention = Retention(feed.writer, readers, None, feed.writer.size)
    readers.put("slow", feed.writer.identity.id, 3, "public.items", "a stream")
    retention.sinks_have(9)
    retention.apply()
    assert not retention.is_full
    fill(feed, 1)
    assert (retention.is_full, retention.held_by) == (True, "slow")
    readers.put("slow", feed.writer.identity.id, 6, "public.items", "a stream")
    look_again(retention)
    assert not retention.is_full


def test_a_transaction_larger_than_the_log_does_not_wait_for_a_reader_that_has_the_rest(feed, readers):
    fill(feed, 3)
    retention = Retention(feed.writer, readers, None, 1)
    readers.put("quick", feed.writer.identity.id, 9, "public.items", "a stream")
    retention.sinks_have(9)
    retention.apply()
    assert not retention.is_full


# --- history ---------------------------------------------------------------------------------------------------------


def test_history_is_kept_for_its_time_also_across_a_restart(feed, readers):
    fill(feed)
    folder = Path(feed.writer.storage.path)
    for age, path in zip((7200, 3700, 3500, 60, 0), sorted(folder.glob("*.segment")), strict=True):
        os.utime(path, (time.time() - age,) * 2)
    feed.writer.close()
    writer = LogWriter.open(feed.writer.storage)
    assert writer is not None
    retention = Retention(writer, readers, keep("1 h"), NO_LIMIT)
    retention.sinks_have(15)
    retention.apply()
    assert begin(feed) == 6


def test_history_is_kept_up_to_its_size(feed, readers):
    fill(feed, 8)
    one = feed.writer.size // 8
    retention = Retention(feed.writer, readers, Keep(None, 3 * one), NO_LIMIT)
    retention.sinks_have(24)
    retention.apply()
    assert (begin(feed), feed.writer.count) == (15, 3)


def test_what_the_sinks_lack_stays_beyond_the_history(feed, readers):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, Keep(None, 1), NO_LIMIT)
    retention.sinks_have(3)
    retention.apply()
    assert begin(feed) == 3


@pytest.mark.parametrize("text", ["7 d", "1 GiB"])
def test_history_goes_first_when_the_log_is_full(feed, readers, text):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, keep(text), feed.writer.size // 2)
    retention.sinks_have(24)
    retention.apply()
    assert not retention.is_full
    assert feed.writer.count == 3


def test_history_that_a_reader_needs_does_not_go_when_the_log_is_full(feed, readers):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, keep("7 d"), feed.writer.size // 2)
    readers.put("slow", feed.writer.identity.id, 6, "public.items", "a stream")
    retention.sinks_have(24)
    retention.apply()
    assert (retention.is_full, begin(feed)) == (True, 6)


# --- the pipeline file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds", "size"),
    [
        ("30 s", 30, 0),
        ("30min", 1800, 0),
        (" 24 h ", 86_400, 0),
        ("1.5 d", 129_600, 0),
        ("10 GiB", None, 10 << 30),
        ("500MB", None, 500_000_000),
    ],
)
def test_history_is_a_time_or_a_size(text, seconds, size):
    assert keep(text) == Keep(seconds, size)
