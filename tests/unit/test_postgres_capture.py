"""What capture hands to the log: messages by hand, no server."""

from __future__ import annotations

import pytest

from support.messages import begin, commit, insert, relation, transaction, truncate, type_
from tailrace.errors import DecodeError
from tailrace.model.changes import Changes
from tailrace.model.frames import Frames
from tailrace.model.schema import Column, TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.postgres.capture import PostgresCapture
from tailrace.sources.postgres.departed import Departed, Pair
from tailrace.sources.postgres.describing import UNLIKE_ANY, Descriptions
from tailrace.sources.postgres.pgoutput import decode, parse_relation
from tailrace.sources.postgres.types import column_type


def after(changes: Changes) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in changes.after.to_pylist()]


class WithoutCatalog(Descriptions):
    """A relation's schema comes from the message alone."""

    def resolve(self, message: bytes, offset: int, xid: int) -> TableSchema:
        described = parse_relation(message, offset)
        columns = tuple(Column(name, column_type(oid, modifier, {})) for _, name, oid, modifier in described.columns)
        return TableSchema(described.schema, described.name, columns, relation=described.id)


class StreamStub:
    """Counts how often it was opened."""

    server_end = 0

    def __init__(self) -> None:
        self.opened: list[tuple[str, bool]] = []

    def open(self, after: str, *, binary: bool, known: SourceIdentity) -> tuple[StreamStub, SourceIdentity]:
        self.opened.append((after, binary))
        return self, known

    def close(self) -> None:
        pass


class CaptureWithoutServer(PostgresCapture):
    """Capture of the messages that it is given."""

    def __init__(self, *, binary: bool = False) -> None:
        self._stream = StreamStub()
        self._open_stream = self._stream.open
        self._is_binary, self._tables, self._departed = binary, WithoutCatalog("", {}, 0), Departed("")
        self._next, self._committed, self._open, self._position, self._remarks = 1, 0, None, 0, []
        self._large, self._absent = [], []
        self.identity = SourceIdentity("", "1", "", "")

    def take_of(self, *messages: bytes) -> Frames | None:
        self._messages, self._bytes = list(messages), 0
        taken = self.take()
        return None if taken is None else taken[0]

    def index(self, *messages: bytes) -> Frames:
        frames = self.take_of(*messages)
        assert frames is not None
        return frames


NAMED = relation(5, "public", "a", "d", [(True, "id", 23, -1)])
RENAMED = relation(5, "public", "b", "d", [(True, "id", 23, -1)])


def test_every_frame_carries_the_definitions_that_its_rows_need():
    capture = CaptureWithoutServer()
    first = capture.index(*transaction(NAMED, insert(5, "1")))
    second = capture.index(*transaction(insert(5, "2")))
    third = capture.index(*transaction())
    assert [(d.relation, d.since, d.schema.table) for d in first.definitions] == [(5, 2, "public.a")]
    assert second.definitions == first.definitions
    assert third.definitions == ()
    assert [after(c) for c in decode(second, second.first, second.last)] == [[(2,)]]


def test_a_repeated_description_is_not_a_new_version():
    frames = CaptureWithoutServer().index(*transaction(NAMED, insert(5, "1"), NAMED, insert(5, "2")))
    assert len(frames.definitions) == 1


def test_a_table_renamed_in_the_middle_is_listed_under_both_names():
    capture = CaptureWithoutServer()
    capture.index(*transaction(NAMED, insert(5, "1")))
    frames = capture.index(*transaction(insert(5, "2"), RENAMED, insert(5, "3")))
    assert set(frames.tables) == {"public.a", "public.b"}
    assert [(c.schema.table, after(c)) for c in decode(frames, frames.first, frames.last)] == [
        ("public.a", [(2,)]),
        ("public.b", [(3,)]),
    ]


def test_a_change_that_comes_before_its_description_stops_capture():
    with pytest.raises(DecodeError, match="relation 5"):
        CaptureWithoutServer().index(*transaction(insert(5, "1")))


PLAIN = relation(6, "public", "plain", "d", [(True, "id", 23, -1)])
WITH_MONEY = relation(5, "public", "a", "d", [(True, "id", 23, -1), (False, "m", 790, -1)])


def test_a_binary_stream_hands_out_what_lies_before_a_type_that_it_can_not_decode_and_begins_again_as_text():
    capture = CaptureWithoutServer(binary=True)
    before = transaction(NAMED, insert(5, b"\0\0\0\1"), at=0x10)
    frames = capture.index(
        *before, *transaction(insert(5, b"\0\0\0\2"), WITH_MONEY, insert(5, b"\0\0\0\3", b"x"), at=0x20)
    )
    assert (frames.first, frames.last) == (1, len(before))
    assert capture._stream.opened == [("0/18", False)]
    assert [remark.split(" ")[0] for remark in capture.remarks()] == ["public.a.m"]
    assert capture.remarks() == []
    again = capture.index(*transaction(NAMED, insert(5, "2"), WITH_MONEY, insert(5, "3", "$1.00"), at=0x20))
    assert again.first == frames.last + 1
    assert [after(c) for c in decode(again, again.first, again.last)] == [[(2,)], [(3, "$1.00")]]
    assert [d.since for d in again.definitions] == [again.first + 1, again.first + 3]


def test_a_transaction_whose_beginning_was_handed_out_in_binary_is_handed_out_again_from_its_beginning():
    capture = CaptureWithoutServer(binary=True)
    capture.index(*transaction(PLAIN, insert(6, b"\0\0\0\1")))
    half = capture.index(begin(), NAMED, insert(5, b"\0\0\0\1"))
    assert capture.take_of(insert(5, b"\0\0\0\2"), WITH_MONEY, insert(5, b"\0\0\0\3", b"x"), commit()) is None
    again = capture.index(begin(), NAMED, insert(5, "1"))
    rest = capture.index(insert(5, "2"), WITH_MONEY, insert(5, "3", "$1.00"), commit())
    assert (half.first, again.first, rest.first) == (5, 5, 8)
    assert [after(c) for frames in (again, rest) for c in decode(frames, frames.first, frames.last)] == [
        [(1,)],
        [(2,)],
        [(3, "$1.00")],
    ]
    assert len(capture._stream.opened) == 1


def test_a_stream_that_is_text_already_takes_any_type():
    capture = CaptureWithoutServer()
    capture.index(*transaction(WITH_MONEY, insert(5, "1", "$1.00")))
    assert capture._stream.opened == []


class DepartedByHand(Departed):
    """The partition 6 is gone, the partition 7 is not."""

    def _gone(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if pair.leaf == 6]


LEAF = relation(7, "public", "leaf", "d", [(True, "id", 23, -1)])


def unlike(*batches: list[bytes]) -> list[tuple[int, bool]]:
    """The offsets at which relation 5 is described anew, and whether by columns that nobody knows."""
    capture = CaptureWithoutServer()
    capture._departed = DepartedByHand("")
    found = [each for batch in batches for each in capture.index(*batch).definitions if each.relation == 5]
    return sorted({(each.since, each.schema.columns[0].number == UNLIKE_ANY) for each in found})


@pytest.mark.parametrize("cut", range(2, 8))
def test_changes_through_a_partition_that_is_gone_have_a_description_of_their_own_up_to_the_next_transaction(cut):
    messages = transaction(NAMED, type_(), PLAIN, insert(5, "1"), insert(5, "2"))
    following = transaction(LEAF, insert(7, "3"), NAMED, LEAF, insert(5, "4"))
    assert unlike(messages + following) == [(2, False), (4, True), (8, False)]
    assert unlike(messages[:cut], messages[cut:] + following) == [(2, False), (4, True), (8, False)]


def test_a_partition_is_described_with_its_root_and_without_one_once_it_is_a_table_by_itself():
    capture = CaptureWithoutServer()
    capture._departed = DepartedByHand("")
    frames = capture.index(
        *transaction(NAMED, LEAF, insert(5, "1"), insert(5, "2")), *transaction(LEAF, insert(7, "3"))
    )
    assert [(each.relation, each.since, each.root) for each in frames.definitions] == [(5, 2, 0), (7, 3, 5), (7, 8, 0)]


def test_a_description_that_follows_another_is_not_always_a_partition_s():
    assert unlike(transaction(NAMED, PLAIN, truncate(5, 6))) == [(2, False)]
    assert unlike(transaction(NAMED, insert(5, "1"), PLAIN, insert(6, "1"), insert(5, "1"))) == [(2, False)]
    assert unlike(transaction(NAMED, LEAF, insert(5, "1"))) == [(2, False)]


def test_a_root_that_is_altered_after_its_partition_was_gone_stays_as_it_was_altered():
    wide = relation(5, "public", "a", "d", [(True, "id", 23, -1), (False, "n", 23, -1)])
    capture = CaptureWithoutServer()
    capture._departed = DepartedByHand("")
    capture.index(begin(), NAMED, PLAIN, insert(5, "1"))
    capture.index(wide, insert(5, "2", "2"))
    frames = capture.index(commit(), *transaction(insert(5, "3", "3")))
    assert [after(changes) for changes in decode(frames, frames.first, frames.last)] == [[(3, 3)]]
