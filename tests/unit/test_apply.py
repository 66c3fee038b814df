"""What a task does with its slices of the log: every change of its tables, once, in order. Without Spark."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from support.messages import Feed, begin, commit, delete, frames_of, insert, transaction, truncate, update
from tailrace.errors import DecodeError, EngineDisturbed, EngineLost, LogCorrupt
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.frames import Definition
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.null import NullSink
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.source import PostgresSource
from tailrace.spark.datasource import plan_parts
from tailrace.state.storage import Storage
from tailrace.tasks import stage as apply
from tailrace.tasks.outcome import attempt, unwrap
from tailrace.tasks.stage import ApplyPlan, PartResult, TablePlan, stage_part

INT, TEXT = ColumnType(Kind.INT64, "bigint"), ColumnType(Kind.TEXT, "text")
ITEMS = TableSchema("public", "items", (Column("id", INT), Column("name", TEXT)), ("id",))
ORDERS = TableSchema("public", "orders", (Column("id", INT), Column("item", INT)), ("id",))
WIDER = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", TEXT)))


class DecodingSource:
    """The part of the PostgreSQL source that tasks use; it needs no server."""

    decode = staticmethod(pgoutput.decode)

    end_positions = PostgresSource.end_positions
    seen = PostgresSource.seen
    unseen = PostgresSource.unseen

    def captures(self, table) -> bool:
        return True


class ListingSink(NullSink):
    """Its receipt is all that was staged."""

    name = "listing"

    def __init__(self):
        pass

    def stage(self, batch, part, changes):
        return list(changes)


@pytest.fixture
def feed(tmp_path):
    writer = LogWriter.create(Storage(str(tmp_path)), None, "0/0")
    yield Feed(writer, {1: ITEMS, 2: ORDERS})
    writer.close()


def stage(feed: Feed, tables: dict[str, TablePlan], after: int = 0) -> PartResult:
    reader = LogReader(feed.writer.storage)
    plan = ApplyPlan(DecodingSource(), ListingSink(), LogReader(feed.writer.storage), "batch", tables)
    return stage_part(plan, 0, reader.slices(after, reader.end()))


def rows(result: PartResult) -> list[tuple]:
    """The rows that are staged, in order."""
    return [tuple(row.values()) for net in result.staged or [] for row in net.upserts.to_pylist()]


ALL = {"public.items": TablePlan(), "public.orders": TablePlan()}


def test_small_slices_share_a_run(feed):
    feed.append(*transaction(insert(1, "1", "a"), update(1, "1", "b"), insert(2, "5", "1")))
    feed.append(*transaction(update(1, "1", "c")))
    assert rows(stage(feed, ALL)) == [(1, "c"), (5, 1)]


def test_a_part_that_is_longer_than_a_run_is_staged_in_runs(feed, monkeypatch):
    monkeypatch.setattr(apply, "RUN_ROWS", 1)
    feed.append(*transaction(insert(1, "1", "a"), update(1, "1", "b"), insert(2, "5", "1")))
    feed.append(*transaction(update(1, "1", "c")))
    assert rows(stage(feed, ALL)) == [(1, "b"), (5, 1), (1, "c")]


def test_a_run_ends_where_it_would_be_too_large(feed, monkeypatch):
    monkeypatch.setattr(apply, "RUN_BYTES", 300)
    for number, size in enumerate([100, 100, 5000, 100, 100, 100]):
        feed.append(*transaction(insert(1, str(number), "x" * size)))
    result = stage(feed, ALL)
    assert [[row["id"] for row in net.upserts.to_pylist()] for net in result.staged] == [[0, 1], [2], [3, 4], [5]]


def test_a_segment_whose_rows_are_too_large_for_one_run_is_staged_in_several(feed, monkeypatch):
    monkeypatch.setattr(apply, "RUN_BYTES", 300)
    monkeypatch.setattr(pgoutput, "LANE_BYTES", 200)
    feed.append(*transaction(*(insert(1, str(number), "x" * 100) for number in range(6))))
    result = stage(feed, ALL)
    assert [[row["id"] for row in net.upserts.to_pylist()] for net in result.staged] == [[0, 1], [2, 3], [4, 5]]


def test_a_part_says_where_it_ends_and_what_it_has_seen(feed):
    feed.append(*transaction(insert(1, "1", "a"), insert(2, "5", "1"), at=0x2000, time_us=1_000))
    feed.append(*transaction(truncate(1, 2), at=0x3000, time_us=2_000))
    result = stage(feed, {"public.items": TablePlan()})
    assert (result.last, result.position) == (7, "0/3008")
    assert result.seen == {"public.items": 2, "public.orders": 2}
    assert result.schemas == {"public.items": [ITEMS]}


def test_a_part_without_a_wanted_change_stages_nothing_and_still_knows_its_place(feed):
    feed.append(*transaction(insert(2, "5", "1"), at=0x2000))
    result = stage(feed, {"public.items": TablePlan()})
    assert (result.staged, result.position, result.last) == (None, "0/2008", 3)


def test_a_part_in_the_middle_of_a_transaction_has_no_place_of_its_own(feed):
    feed.append(begin(), insert(1, "1", "a"))
    feed.append(insert(1, "2", "b"), commit(end=0x2008))
    first, second = LogReader(feed.writer.storage).slices(0, 4)
    plan = ApplyPlan(DecodingSource(), ListingSink(), LogReader(feed.writer.storage), "batch", ALL)
    assert [stage_part(plan, n, [piece]).position for n, piece in enumerate((first, second))] == ["", "0/2008"]


def test_changes_up_to_a_tables_own_place_are_left_out(feed):
    feed.append(*transaction(insert(1, "1", "a"), insert(2, "1", "1")))
    feed.append(*transaction(insert(1, "2", "b"), insert(2, "2", "2")))
    plans = {"public.items": TablePlan(after=4), "public.orders": TablePlan()}
    assert sorted(rows(stage(feed, plans)), key=str) == [(1, 1), (2, "b"), (2, 2)]


def test_changes_that_a_snapshot_has_seen_are_left_out(feed):
    for xid in (99, 100, 105, 110):
        feed.append(*transaction(insert(1, str(xid), "a"), xid=xid))
    result = stage(feed, {"public.items": TablePlan(visibility="100:110:105")})
    assert [row[0] for row in rows(result)] == [105, 110]


@pytest.fixture
def renamed(feed):
    """A change of the table `items`, whose number is 7, under another name."""
    away = Feed(feed.writer, {7: msgspec.structs.replace(ITEMS, name="renamed", relation=7), 2: ORDERS})
    away.append(*transaction(insert(7, "1", "a"), insert(2, "1", "1"), xid=100))
    return feed


def test_a_change_under_another_name_of_a_table_is_the_table_s_own(renamed):
    result = stage(renamed, {"public.items": TablePlan(relation=7)})
    assert [net.schema.table for net in result.staged] == ["public.items"]
    assert (rows(result), result.strayed) == ([(1, "a")], frozenset())
    assert result.schemas.keys() == {"public.items"}
    assert stage(renamed, {"public.items": TablePlan(relation=8)}).staged is None


def test_a_table_that_was_changed_under_a_name_that_is_not_captured_is_named(renamed, monkeypatch):
    """Unless a snapshot has seen those changes, or the table's own place is behind them."""
    monkeypatch.setattr(DecodingSource, "captures", lambda *_: False)

    def strayed(**plan) -> frozenset[str]:
        return stage(renamed, {"public.items": TablePlan(relation=7, **plan), "public.orders": TablePlan()}).strayed

    assert strayed() == {"public.items"}
    assert strayed(visibility="100:101:100") == {"public.items"}
    assert strayed(visibility="101:101:") == strayed(after=4) == frozenset()


def test_a_table_that_was_changed_under_the_name_of_another_is_named(renamed):
    result = stage(renamed, {"public.items": TablePlan(relation=7), "public.renamed": TablePlan(relation=9)})
    assert result.strayed == {"public.items"}
    assert result.schemas.keys() == {"public.renamed"}


def test_the_parts_that_changes_of_a_table_went_through_are_named(feed):
    """Unless a snapshot has seen those changes, or the table's own place is behind them."""
    part = Definition(3, 3, ITEMS, root=1)
    messages = transaction(insert(1, "1", "a"), insert(1, "2", "b"), xid=100)
    frames, _ = frames_of(messages, [Definition(1, 0, ITEMS), part], first=feed.writer.next_offset)
    feed.writer.append(frames, "0/1")

    def leaves(**plan) -> dict[str, set[int]]:
        return stage(feed, {"public.items": TablePlan(relation=1, **plan)}).leaves

    assert leaves() == leaves(visibility="100:101:100") == {"public.items": {3}}
    assert leaves(visibility="101:101:") == leaves(after=3) == {}
    assert stage(feed, {"public.items": TablePlan(relation=2)}).leaves == {}


def test_a_key_change_and_a_delete_are_staged_as_deletes(feed):
    feed.append(*transaction(update(1, "2", "a", key=("1", None)), delete(1, key=("9", None))))
    (net,) = stage(feed, ALL).staged
    assert sorted(net.deletes.column("id").to_pylist()) == [1, 9]
    assert net.upserts.to_pylist() == [{"id": 2, "name": "a"}]


def with_versions(feed: Feed, messages: list[bytes], *versions: tuple[int, TableSchema]) -> None:
    """One segment in which the table changes its shape at the given offsets."""
    definitions = [Definition(1, since, schema) for since, schema in versions]
    frames, _ = frames_of(messages, definitions, first=feed.writer.next_offset)
    feed.writer.append(frames, "0/1")


def test_versions_of_a_table_are_staged_in_the_order_of_the_log(feed):
    messages = transaction(insert(1, "1", "first"), update(1, "1", "second", "x"))
    with_versions(feed, messages, (0, ITEMS), (3, WIDER))
    result = stage(feed, ALL)
    assert rows(result) == [(1, "first"), (1, "second", "x")]
    assert result.schemas["public.items"] == [ITEMS, WIDER]


def test_a_version_that_comes_back_does_not_overtake_the_one_between(feed):
    messages = transaction(insert(1, "1", "first"), update(1, "1", "second", "x"), update(1, "1", "third"))
    with_versions(feed, messages, (0, ITEMS), (3, WIDER), (4, ITEMS))
    result = stage(feed, ALL)
    assert rows(result) == [(1, "first"), (1, "second", "x"), (1, "third")]
    assert result.schemas["public.items"] == [ITEMS, WIDER, ITEMS]


def test_a_truncate_is_a_barrier_between_runs_too(feed, monkeypatch):
    monkeypatch.setattr(apply, "RUN_ROWS", 1)
    feed.append(*transaction(insert(1, "1", "a")))
    feed.append(*transaction(truncate(1)))
    feed.append(*transaction(insert(1, "2", "b")))
    assert [(net.truncate, net.upserts.num_rows) for net in stage(feed, ALL).staged] == [
        (False, 1),
        (True, 0),
        (False, 1),
    ]


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_parts_are_runs_of_slices_that_cover_everything_in_order(feed, most):
    for number in range(7):
        feed.append(*transaction(*(insert(1, str(n), "a") for n in range(number * 3))))
    slices = LogReader(feed.writer.storage).slices(0, feed.writer.end)
    parts = plan_parts(slices, most)
    assert [piece for part in parts for piece in part.slices] == slices
    assert [part.part for part in parts] == list(range(len(parts)))
    assert 1 <= len(parts) <= most
    assert all(part.slices for part in parts)


def test_no_slices_are_no_parts():
    assert plan_parts([], 8) == []


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_of_ours_reaches_the_driver_with_its_type():
    def work() -> None:
        raise LogCorrupt("a segment is damaged")

    with pytest.raises(LogCorrupt, match="damaged"):
        unwrap([(True, 1), attempt(work)])


def test_any_other_error_reaches_the_driver_with_its_place():
    with pytest.raises(EngineLost, match=r"ZeroDivisionError.*test_apply\.py"):
        unwrap([attempt(lambda: 1 / 0)])


def test_what_the_system_refuses_a_task_may_pass_and_is_tried_again():
    def work() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(EngineDisturbed, match="No space left on device"):
        unwrap([attempt(work)])


def test_what_went_well_comes_back_in_order():
    assert unwrap([attempt(lambda: 1), attempt(lambda: 2)]) == [1, 2]


def test_a_change_that_can_not_be_read_is_the_trouble_of_its_table_only(feed):
    feed.append(*transaction(insert(2, "5", "1"), insert(1, "not a number", "a")))
    result = stage(feed, ALL)
    assert rows(result) == [(5, 1)]
    assert set(result.failed) == {"public.items"}
    assert isinstance(result.failed["public.items"], DecodeError)
    assert "offset 3" in str(result.failed["public.items"])


def test_segments_that_are_merged_after_they_were_planned_are_read_all_the_same(feed):
    for number in range(1, 4):
        feed.append(*transaction(insert(1, str(number), "a"), at=0x1000 * number))
    reader = LogReader(feed.writer.storage)
    planned = reader.slices(3, reader.end())
    assert feed.writer.merge(list(feed.writer.segments), 1 << 20)
    plan = ApplyPlan(DecodingSource(), ListingSink(), LogReader(feed.writer.storage), "batch", ALL)
    result = stage_part(plan, 0, planned)
    assert (rows(result), result.position) == ([(2, "a"), (3, "a")], "0/3008")
