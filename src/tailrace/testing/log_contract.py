"""The contract of the change log as a test suite: it holds on every storage that a state directory may lie on.

Subclass `LogContract` in a test module and give it one fixture: `storage`, a folder that is fresh and not there yet.

A gap is an override marked `xfail(strict=True)` with its reason.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tailrace.config import Log
from tailrace.errors import OffsetGone, StateError
from tailrace.log import blocks
from tailrace.log.reader import LogReader
from tailrace.log.retention import Retention
from tailrace.log.segment import SegmentName
from tailrace.log.writer import LogWriter
from tailrace.model.frames import PADDING, TRANSACTIONS, Definition, Frames
from tailrace.model.watermark import SourceIdentity, Watermark
from tailrace.state.readers import Readers
from tailrace.state.storage import Storage
from tailrace.testing.sink_changes import ITEMS, ORDERS

START = "the beginning"
SOURCE = SourceIdentity("a server", "1", "shop", "a slot")
PLACES = TRANSACTIONS.append(pa.field("place", pa.string()))

Transactions = Sequence[Sequence[bytes]]


def frames_of(first: int, transactions: Transactions, *, is_open: bool = False, begin: int | None = None) -> Frames:
    """Whole transactions of such messages from offset `first` on; with `is_open` the last one has no end yet.

    The first one began at offset `begin`, in earlier frames.
    """
    messages = [message for transaction in transactions for message in transaction]
    ends = first + np.cumsum([len(transaction) for transaction in transactions]) - 1
    begins = [first if begin is None else begin, *(ends[:-1] + 1).tolist()]
    known = [*ends.tolist()[:-1], 0 if is_open else int(ends[-1])]
    times = [1_700_000_000_000_000 + end for end in known]
    rows = [begins, known, times, [f"at {end}" for end in known]]
    return Frames(
        kind="made",
        first=first,
        buffer=np.frombuffer(b"".join([*messages, bytes(PADDING)]), np.uint8),
        bounds=np.cumsum([0, *map(len, messages)], dtype=np.int64),
        transactions=pa.RecordBatch.from_arrays(
            [pa.array(row, field.type) for row, field in zip(rows, PLACES, strict=True)], schema=PLACES
        ),
        definitions=(Definition(1, 0, ITEMS),),
        tables={ITEMS.table: len(messages)},
    )


def named(*names: str) -> list[bytes]:
    return [f"message {name}".encode() for name in names]


class Feeding:
    """A log and its writer. A segment ends at the position `at OFFSET` of its last transaction end."""

    def __init__(self, storage: Storage) -> None:
        self.writer = LogWriter.open(storage) or LogWriter.create(storage, SOURCE, START)

    def append(self, *transactions: Sequence[bytes], is_open: bool = False) -> Frames:
        frames = frames_of(self.writer.next_offset, transactions, is_open=is_open)
        ends = frames.transactions.column("end").to_numpy()
        self.writer.append(frames, f"at {ends.max()}" if ends.any() else self.writer.position)
        return frames

    def reopened(self) -> Feeding:
        """After a crash, or a restart: another process has the log."""
        self.writer.close()
        return Feeding(self.writer.storage)


def contents(storage: Storage, after: int | None = None) -> dict[int, bytes]:
    """Every message that readers see, by offset."""
    reader, found = LogReader(storage), {}
    for piece in reader.slices(after, None):
        name = SegmentName.parse(piece.name)
        assert name is not None
        _, frames = reader.read(name)
        for offset in range(piece.first, piece.last + 1):
            at = offset - frames.first
            found[offset] = frames.buffer[frames.bounds[at] : frames.bounds[at + 1]].tobytes()
    return found


class LogContract:
    """All of it. It reads the messages back."""

    @pytest.fixture
    def log(self, storage: Storage) -> Iterator[Feeding]:
        log = Feeding(storage)
        yield log
        log.writer.close()

    # --- what is there -----------------------------------------------------------------------------------------------

    def test_a_folder_that_is_not_there_is_no_log(self, storage: Storage) -> None:
        assert LogWriter.open(storage) is None
        reader = LogReader(storage)
        assert (reader.identity(), reader.place(), reader.begin(), reader.end()) == (None, None, 0, 0)

    def test_a_new_log_stands_where_the_source_started(self, log: Feeding, storage: Storage) -> None:
        assert (log.writer.position, log.writer.next_offset) == (START, 1)
        assert LogReader(storage).place() == Watermark(log.writer.identity.id, 0, START, SOURCE)

    def test_a_segment_gives_back_exactly_what_it_was_given(
        self, log: Feeding, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blocks, "BLOCK", 100)  # so that there are many
        given = log.append([bytes(range(256)) * 9, b"", b"ab" * 500], named("next"))
        header, found = LogReader(storage).read(SegmentName(1, 4, 4))
        assert (found.buffer.tobytes(), found.bounds.tolist()) == (given.buffer.tobytes(), given.bounds.tolist())
        assert found.transactions.equals(given.transactions)
        assert (found.kind, found.definitions, found.tables) == (given.kind, given.definitions, given.tables)
        assert (header.position, header.begins_at, header.source) == ("at 4", START, SOURCE)

    def test_offsets_are_dense_across_segments_and_restarts(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a", "b"), named("c"))
        log = log.reopened()
        log.append(named("d"))
        log = log.reopened()
        log.append(named("e"))
        assert list(contents(storage).items()) == list(enumerate(named("a", "b", "c", "d", "e"), 1))
        log.writer.close()

    def test_a_reopened_log_is_the_same_log_at_the_same_place(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a"), named("b"))
        before = log.writer
        after = log.reopened().writer
        assert after.identity == before.identity
        assert (after.position, after.source) == ("at 2", SOURCE)
        assert (after.next_offset, after.end, after.size) == (before.next_offset, before.end, before.size)
        assert LogReader(storage).place() == Watermark(before.identity.id, 2, "at 2", SOURCE)
        after.close()

    def test_a_log_knows_its_tables_also_without_their_segments(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a"))
        changed = msgspec.structs.replace(ITEMS, key=())
        definitions = Definition(1, 2, changed), Definition(2, 2, ORDERS)
        log.writer.append(dataclasses.replace(frames_of(2, [named("b")]), definitions=definitions), "at 2")
        log.writer.forget(1)
        log = log.reopened()
        assert log.writer.definitions() == {1: changed, 2: ORDERS}
        assert LogReader(storage).tables().keys() == {ITEMS.table, ORDERS.table}
        log.writer.close()

    def test_whoever_has_the_storage_pickled_reads_the_same(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a", "b"))
        assert contents(pickle.loads(pickle.dumps(storage))) == contents(storage)

    # --- whole or not at all -----------------------------------------------------------------------------------------

    def test_a_segment_whose_writing_fails_never_appears(
        self, log: Feeding, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.append(named("a"))
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "written", failing(blocks.written))
            with pytest.raises(Failed):
                log.append(named("b"))
        assert contents(storage) == {1: b"message a"}
        log.append(named("c"))
        log = log.reopened()
        assert contents(storage) == {1: b"message a", 2: b"message c"}
        log.writer.close()

    def test_readers_do_not_see_a_transaction_before_its_end(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a"), named("b"), is_open=True)
        log.writer.append(frames_of(3, [named("c")], is_open=True, begin=2), "at 1")
        reader = LogReader(storage)
        assert (reader.end(), reader.limit(0, 100), list(contents(storage))) == (1, 1, [1])
        log.writer.append(frames_of(4, [named("d")], begin=2), "at 4")
        assert (reader.end(), list(contents(storage))) == (4, [1, 2, 3, 4])

    def test_an_unfinished_transaction_is_void_after_a_restart_and_comes_again_at_its_offsets(
        self, log: Feeding, storage: Storage
    ) -> None:
        log.append(named("a"), named("b", "lost"), is_open=True)
        log.writer.append(frames_of(4, [named("lost too")], is_open=True, begin=2), "at 1")
        log = log.reopened()
        assert (log.writer.next_offset, log.writer.position) == (2, "at 1")
        log.append(named("b", "c"))
        assert list(contents(storage).values()) == named("a", "b", "c")
        log.writer.close()

    def test_frames_that_begin_where_the_last_transaction_ended_replace_an_unfinished_one(
        self, log: Feeding, storage: Storage
    ) -> None:
        log.append(named("a"))
        log.append(named("lost", "lost too"), is_open=True)
        log.writer.append(frames_of(2, [named("b")]), "at 2")
        assert list(contents(storage).values()) == named("a", "b")
        assert log.writer.next_offset == 3

    # --- what goes, and what stays -----------------------------------------------------------------------------------

    def test_what_is_forgotten_is_gone_and_the_place_stays(self, log: Feeding, storage: Storage) -> None:
        for name in "abc":
            log.append(named(name))
        log.writer.forget(2)
        assert list(contents(storage)) == [3]
        with pytest.raises(OffsetGone, match="offset 1"):
            LogReader(storage).slices(0, 3)
        log.writer.forget(3)  # all of it: the newest stays, or nobody would know where the log is
        log = log.reopened()
        assert (log.writer.position, log.writer.next_offset) == ("at 3", 4)
        assert (LogReader(storage).begin(), LogReader(storage).end()) == (2, 3)
        log.writer.close()

    def test_a_reader_that_has_a_name_keeps_what_it_needs(self, log: Feeding, storage: Storage) -> None:
        for name in "abcd":
            log.append(named(name))
        readers = Readers(storage.folder("readers"))
        readers.put("report", log.writer.identity.id, 2, ITEMS.table, "a stream")
        retention = Retention(log.writer, readers, Log())
        retention.sinks_have(4)
        retention.apply()
        assert list(contents(storage)) == [3, 4]
        readers.drop("report")
        retention = Retention(log.writer, readers, Log())
        retention.sinks_have(4)
        retention.apply()
        assert list(contents(storage)) == [4]

    def test_merged_segments_have_the_same_content_and_those_who_planned_before_read_it(
        self, log: Feeding, storage: Storage
    ) -> None:
        for name in "abcd":
            log.append(named(name, name * 2))
        reader = LogReader(storage)
        before, names = contents(storage), reader.names()
        assert log.writer.merge(names[:3], 1 << 20)
        assert [(name.first, name.last) for name in reader.names()] == [(1, 6), (7, 8)]
        assert contents(storage) == before
        for planned in names:
            header, frames = reader.read(planned)
            assert (frames.first <= planned.first, planned.last <= frames.last) == (True, True)
            assert header.log_id == log.writer.identity.id
        assert [t for each in reader.transactions(0, 8) for t in each.column("end").to_pylist()] == [2, 4, 6, 8]
        log = log.reopened()
        assert contents(storage) == before
        log.writer.close()

    # --- one writer --------------------------------------------------------------------------------------------------

    def test_a_second_writer_is_kept_out_until_the_first_is_done(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a"))
        with pytest.raises(StateError, match="another tailrace process"):
            LogWriter.open(storage)
        assert contents(storage) == {1: b"message a"}, "readers are not kept out"
        again = log.reopened()
        again.append(named("b"))
        again.writer.close()
        assert list(contents(storage)) == [1, 2]

    def test_a_log_is_not_made_over_another(self, log: Feeding, storage: Storage) -> None:
        log.append(named("a"))
        log.writer.close()
        with pytest.raises(StateError, match="already"):
            LogWriter.create(storage, None, START)
        assert contents(storage) == {1: b"message a"}


class Failed(Exception):
    """Memory has run out, or the disk has."""


def failing(
    written: Callable[[blocks.Bytes], Iterator[blocks.Part]],
) -> Callable[[blocks.Bytes], Iterator[blocks.Part]]:
    """As `written`, but breaks off in the middle."""

    def broken(data: blocks.Bytes) -> Iterator[blocks.Part]:
        yield next(written(data))
        raise Failed

    return broken
