"""What the log forgets: never what a sink or a named reader needs, and history only when it must."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from support.messages import Feed, commit, insert, logical_message, transaction
from support.messages import begin as begin_of
from tailrace import failpoints
from tailrace.config import Keep, Log
from tailrace.errors import ConfigError
from tailrace.log.merging import FANOUT
from tailrace.log.reader import LogReader, Slice, segment_names
from tailrace.log.retention import Retention
from tailrace.log.segment import SegmentName
from tailrace.log.writer import LogWriter
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.postgres.pgoutput import decode
from tailrace.state.readers import Readers
from tailrace.state.storage import Storage


@pytest.fixture
def feed(tmp_path) -> Feed:
    return Feed(LogWriter.create(Storage(str(tmp_path / "log")), None, "0/0"), {})


@pytest.fixture
def readers(tmp_path) -> Readers:
    return Readers(Storage(str(tmp_path / "readers")))


def fill(feed: Feed, count: int = 5) -> None:
    """Segments of three offsets each, all of one size."""
    for _ in range(count):
        feed.append(*transaction(b"O"))


def begin(feed: Feed) -> int:
    return LogReader(feed.writer.storage).begin()


# --- named readers ---------------------------------------------------------------------------------------------------


def test_what_a_named_reader_needs_stays_though_every_sink_has_it(feed, readers):
    retention = Retention(feed.writer, readers, Log())
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
    retention._due_at = float("-inf")
    retention.apply()


def test_a_reader_that_came_a_moment_ago_is_seen_before_anything_is_deleted(feed, readers):
    """Looking is rare while nothing goes; but what may go is asked for again."""
    retention = Retention(feed.writer, readers, Log())
    fill(feed)
    retention.apply()
    readers.put("new", feed.writer.identity.id, 0, "public.items", "a stream")
    retention.sinks_have(15)
    retention.apply()
    assert begin(feed) == 0


def test_a_reader_that_is_ahead_of_the_sinks_holds_nothing(feed, readers):
    retention = Retention(feed.writer, readers, Log())
    fill(feed)
    readers.put("fast", feed.writer.identity.id, 15, "public.items", "a stream")
    retention.sinks_have(6)
    retention.apply()
    assert (begin(feed), retention.held_by) == (6, None)


def test_a_place_in_another_log_holds_nothing_and_one_that_can_not_be_read_holds_all(feed, readers):
    retention = Retention(feed.writer, readers, Log())
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
    retention = Retention(feed.writer, readers, Log(max_bytes=feed.writer.size))
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
    retention = Retention(feed.writer, readers, Log(max_bytes=1))
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
    retention = Retention(writer, readers, Log(keep="1 h"))
    retention.sinks_have(15)
    retention.apply()
    assert begin(feed) == 6


def test_history_is_kept_up_to_its_size(feed, readers):
    fill(feed, 8)
    one = feed.writer.size // 8
    retention = Retention(feed.writer, readers, Log(keep="3 KiB"))
    retention.sinks_have(24)
    retention.apply()
    left = -(-3072 // one)
    assert (begin(feed), feed.writer.count) == (24 - 3 * left, left)


def test_what_the_sinks_lack_stays_beyond_the_history(feed, readers):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, Log(keep="0 KiB"))
    retention.sinks_have(3)
    retention.apply()
    assert begin(feed) == 3


@pytest.mark.parametrize("text", ["7 d", "1 GiB"])
def test_history_goes_first_when_the_log_is_full(feed, readers, text):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, Log(keep=text, max_bytes=feed.writer.size // 2))
    retention.sinks_have(24)
    retention.apply()
    assert not retention.is_full
    assert feed.writer.count == 3


def test_history_that_a_reader_needs_does_not_go_when_the_log_is_full(feed, readers):
    fill(feed, 8)
    retention = Retention(feed.writer, readers, Log(keep="7 d", max_bytes=feed.writer.size // 2))
    readers.put("slow", feed.writer.identity.id, 6, "public.items", "a stream")
    retention.sinks_have(24)
    retention.apply()
    assert (retention.is_full, begin(feed)) == (True, 6)


# --- few files for much history --------------------------------------------------------------------------------------

ITEMS = TableSchema("public", "items", (Column("id", ColumnType(Kind.INT64, "bigint")),), ("id",))
WIDER = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("v", ColumnType(Kind.TEXT, "text"))))


def write_history(storage: Storage, count: int) -> Feed:
    """Small segments; a new definition, a transaction of several segments and a void tail are among them."""
    feed = Feed(LogWriter.create(storage, None, "0/0"), {1: ITEMS})
    for number in range(count // 2):
        feed.append(*transaction(insert(1, str(number)), at=0x1000 + 16 * number))
    feed.redefine(1, WIDER)
    feed.append(begin_of(701), insert(1, "900", "a"))
    feed.append(insert(1, "901", "b"))
    feed.append(insert(1, "902", "c"), commit(), begin_of(702), insert(1, "0", "void"))
    feed.writer.close()
    writer = LogWriter.open(storage)
    assert writer is not None
    feed = Feed(writer, {})
    feed.redefine(1, WIDER)
    for number in range(count // 2, count):
        feed.append(*transaction(insert(1, str(number), "x"), at=0x9000 + 16 * number))
    return feed


def everything(log: LogReader, planned: list[Slice]) -> list[tuple[object, ...]]:
    """All changes in `planned`, as a task reads them."""
    found: list[tuple[object, ...]] = []
    for piece in planned:
        name = SegmentName.parse(piece.name)
        assert name is not None
        _, frames = log.read(name)
        for changes in decode(frames, piece.first, piece.last, {"public.items"}):
            rows = changes.to_arrow().to_pylist()
            found += [(row["_offset"], row["id"], row.get("v"), row["_xid"], row["_commit_position"]) for row in rows]
    return sorted(found)


def test_small_segments_that_the_sinks_have_are_merged_and_read_the_same(tmp_path, readers):
    feed = write_history(Storage(str(tmp_path / "log")), 3 * FANOUT)
    log, writer = LogReader(feed.writer.storage), feed.writer
    planned = log.slices(None, None)
    before = everything(log, planned)
    retention = Retention(writer, readers, Log(keep="7 d"))
    readers.put("slow", writer.identity.id, 9, "public.items", "a stream")
    retention.sinks_have(writer.end)
    for _ in range(4):
        look_again(retention)
    assert len(log.names()) < FANOUT + 10
    assert writer.size == sum(segment_names(writer.storage).values())
    assert everything(log, log.slices(None, None)) == before, "the same changes at the same offsets"
    assert everything(log, planned) == before, "also for who planned with the names of before"
    assert everything(log, log.slices(9, 30)) == [each for each in before if 9 < each[0] <= 30]
    writer.close()
    again = LogWriter.open(writer.storage)
    assert again is not None
    assert (again.end, again.position, list(again.segments)) == (writer.end, writer.position, list(writer.segments))


def test_what_the_sinks_lack_is_not_merged(feed, readers):
    fill(feed, 2 * FANOUT)
    retention = Retention(feed.writer, readers, Log(keep="7 d"))
    retention.sinks_have(3 * FANOUT - 1)
    look_again(retention)
    assert feed.writer.count == 2 * FANOUT
    assert retention.crowd == FANOUT + 1


def test_no_more_is_merged_than_memory_shall_hold(feed):
    for _ in range(4):
        feed.append(*transaction(logical_message(b"0" * 3000)))
    names = list(feed.writer.segments)
    assert not feed.writer.merge(names, 4000)
    assert feed.writer.count == 4
    assert feed.writer.merge(names, 7000)
    assert (feed.writer.count, next(iter(feed.writer.segments))) == (3, SegmentName(1, 6, 6))


def test_a_writer_killed_while_it_merges_leaves_a_log_that_reads_the_same(tmp_path, readers):
    feed = write_history(Storage(str(tmp_path / "log")), 2 * FANOUT)
    log = LogReader(feed.writer.storage)
    before = everything(log, log.slices(None, None))
    names = [name for name in log.names() if name.committed == name.last][:FANOUT]
    os.environ[failpoints.VARIABLE] = "log-segments-merged:raise"
    try:
        with pytest.raises(failpoints.FailpointRaised):
            feed.writer.merge(names, 1 << 20)
    finally:
        del os.environ[failpoints.VARIABLE]
    assert everything(log, log.slices(None, None)) == before
    assert log.slices(5, 6)
    feed.writer.close()
    again = LogWriter.open(feed.writer.storage)
    assert again is not None
    assert again.size == sum(segment_names(feed.writer.storage).values())
    assert not set(names) & set(again.segments)
    assert everything(log, log.slices(None, None)) == before


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
    assert Keep.parse(text) == Keep(seconds, size)
