"""The change log: what was appended is read back exactly, what was damaged or unfinished never."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from support.messages import Feed, begin, commit, frames_of, insert, logical_message, transaction
from tailrace import failpoints
from tailrace.errors import LogCorrupt, OffsetGone, StateError, StateUnavailable
from tailrace.log import blocks, segment
from tailrace.log.reader import LogReader, Slice
from tailrace.log.segment import Header, SegmentName
from tailrace.log.writer import LogWriter
from tailrace.model.frames import PADDING, Frames
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.state import lease
from tailrace.state.storage import Storage

ITEMS = TableSchema(
    "public",
    "items",
    (Column("id", ColumnType(Kind.INT64, "bigint")), Column("name", ColumnType(Kind.TEXT, "text"))),
    ("id",),
)
START = "0/100"


def rows(*numbers: int) -> list[bytes]:
    return [insert(1, str(number), f"name {number}") for number in numbers]


def message(frames: Frames, offset: int) -> bytes:
    at = offset - frames.first
    return frames.buffer[frames.bounds[at] : frames.bounds[at + 1]].tobytes()


def contents(storage: Storage, after: int = 0) -> dict[int, bytes]:
    """Every message that readers see behind `after`, by offset, as a stream of micro-batches would read them."""
    reader = LogReader(storage)
    found = {}
    for piece in reader.slices(after, reader.end()):
        name = SegmentName.parse(piece.name)
        assert name is not None
        _, frames = reader.read(name)
        found |= {offset: message(frames, offset) for offset in range(piece.first, piece.last + 1)}
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A lock on an object store waits for others that come at the same moment; here nobody does."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)


@pytest.fixture(params=["local disk", "object store"])
def storage(request, tmp_path) -> Storage:
    """A local folder, and a file system that is none: the log knows only what `pyarrow.fs` offers."""
    return Storage(str(tmp_path / "log") if request.param == "local disk" else "mock:///log")


@pytest.fixture
def disk(tmp_path) -> Storage:
    return Storage(str(tmp_path / "log"))


def create(storage: Storage) -> Feed:
    return Feed(LogWriter.create(storage, None, START), {1: ITEMS})


def reopen(feed: Feed) -> Feed:
    """What a restarted capture process does."""
    feed.writer.close()
    writer = LogWriter.open(feed.writer.storage)
    assert writer is not None
    return Feed(writer, {1: ITEMS})


# --- segments --------------------------------------------------------------------------------------------------------


def test_a_segment_gives_back_exactly_what_it_was_given(storage):
    feed = create(storage)
    given = feed.append(*transaction(*rows(1, 2), xid=4_000_000_000, at=0x7F00_0000_0000_0001), *transaction(b"O"))
    header, frames = LogReader(storage).read(SegmentName(1, 7, 7))
    assert frames.bounds.tolist() == given.bounds.tolist()
    assert frames.buffer.tobytes() == given.buffer.tobytes()
    assert frames.transactions.equals(given.transactions)
    assert frames.definitions == given.definitions
    assert (frames.first, frames.last, frames.tables) == (1, 7, {"public.items": 2})
    assert (header.log_id, header.position) == (feed.writer.identity.id, feed.writer.position)


def test_a_segment_knows_its_place_its_tables_and_its_times(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1), at=0x2000, time_us=1_000), *transaction(*rows(2), at=0x3000, time_us=2_000))
    header = LogReader(disk).header(SegmentName(1, 6, 6))
    assert header.position == "0/3008"
    assert (header.first_time_us, header.last_time_us) == (1_000, 2_000)
    assert header.tables == {"public.items": 2}
    assert [d.schema for d in header.definitions] == [ITEMS]


def test_messages_that_are_read_back_are_followed_by_padding(disk):
    create(disk).append(*transaction())
    _, frames = LogReader(disk).read(SegmentName(1, 2, 2))
    assert len(frames.buffer) == frames.bounds[-1] + PADDING


def test_an_empty_message_keeps_its_place(disk):
    feed = create(disk)
    given = feed.append(*transaction(logical_message(b"")))
    _, frames = LogReader(disk).read(SegmentName(1, 3, 3))
    assert np.diff(frames.bounds).tolist() == np.diff(given.bounds).tolist()


def test_messages_of_many_blocks_are_read_back_exactly(storage, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 100)
    given = create(storage).append(*transaction(*rows(*range(20)), insert(1, "21", os.urandom(1000).hex())))
    _, frames = LogReader(storage).read(SegmentName(1, 23, 23))
    assert frames.buffer.tobytes() == given.buffer.tobytes()
    assert frames.bounds.tolist() == given.bounds.tolist()


def test_what_can_not_be_made_smaller_is_stored_as_it_is(disk):
    noise = os.urandom(100_000)
    feed = create(disk)
    feed.append(*transaction(insert(1, "1", noise)))
    _, frames = LogReader(disk).read(SegmentName(1, 3, 3))
    assert noise in frames.buffer.tobytes()
    assert noise in (Path(disk.path) / str(SegmentName(1, 3, 3))).read_bytes()


def test_a_segment_of_the_first_format_is_still_read(disk):
    given = create(disk).append(*transaction(*rows(1, 2)))
    name = SegmentName(1, 4, 4)
    path = Path(disk.path) / str(name)
    path.write_bytes(first_format(path.read_bytes(), given))
    header, frames = LogReader(disk).read(name)
    assert (header.position, frames.transactions) == ("0/1008", given.transactions)
    assert (frames.buffer.tobytes(), frames.bounds.tolist()) == (given.buffer.tobytes(), given.bounds.tolist())


def first_format(whole: bytes, frames: Frames) -> bytes:
    """What the first version wrote for `frames`, of which `whole` is the present file."""
    length = int.from_bytes(whole[12:16], "little")
    header = msgspec.msgpack.decode(whole[20 : 20 + length], type=Header)
    transactions = whole[20 + length :][: header.transactions_length]
    values = [pa.py_buffer(frames.bounds.astype(np.int32)), pa.py_buffer(frames.buffer[: int(frames.bounds[-1])])]
    column = pa.Array.from_buffers(pa.binary(), frames.count, [None, *values])
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field("message", pa.binary(), False)])
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([column], schema=schema))
    messages = sink.getvalue().to_pybytes()
    changed = msgspec.structs.replace(header, messages_length=len(messages), messages_crc=zlib.crc32(messages))
    packed = msgspec.msgpack.encode(changed)
    return struct.pack("<8sIII", b"TAILRACE", 1, len(packed), zlib.crc32(packed)) + packed + transactions + messages


@pytest.mark.parametrize("name", ["log.json", "1-2-3.segment", f"{'1' * 20}-{'2' * 20}-{'3' * 20}.segment.part"])
def test_other_files_are_not_segments(name):
    assert SegmentName.parse(name) is None


def test_a_segments_name_can_be_read_back_and_sorts_by_offset():
    names = [SegmentName(1, 9, 9), SegmentName(10, 9, 12), SegmentName(100, 110, 110)]
    assert [SegmentName.parse(str(name)) for name in names] == names
    assert sorted(map(str, reversed(names))) == list(map(str, names))


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_segment(disk) -> tuple[Storage, SegmentName, Path]:
    create(disk).append(*transaction(*rows(1, 2)))
    name = SegmentName(1, 4, 4)
    return disk, name, Path(disk.path) / str(name)


def test_a_damaged_byte_anywhere_in_a_segment_is_noticed(one_segment):
    storage, name, path = one_segment
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(LogCorrupt, match=str(name)):
            segment.read(storage, name)


def test_a_segment_cut_short_anywhere_is_noticed(one_segment):
    storage, name, path = one_segment
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(LogCorrupt, match=str(name)):
            segment.read(storage, name)


def test_bytes_behind_a_segment_are_noticed(one_segment):
    storage, name, path = one_segment
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(LogCorrupt):
        segment.read(storage, name)


def test_a_damaged_header_is_noticed_without_reading_the_body(one_segment):
    storage, name, path = one_segment
    whole = path.read_bytes()
    (length,) = np.frombuffer(whole[12:16], "<u4")
    for place in range(20 + int(length)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        with pytest.raises(LogCorrupt):
            segment.read_header(storage, name)


def test_a_segment_under_another_segments_name_is_noticed(one_segment):
    storage, _, path = one_segment
    path.rename(path.with_name(str(SegmentName(5, 8, 8))))
    with pytest.raises(LogCorrupt):
        segment.read(storage, SegmentName(5, 8, 8))


def test_a_newer_format_is_refused_and_says_which(one_segment):
    storage, name, path = one_segment
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + (3).to_bytes(4, "little") + whole[12:])
    with pytest.raises(LogCorrupt, match="format version is 3"):
        segment.read(storage, name)


def test_a_damaged_identity_is_noticed(disk):
    create(disk).writer.close()
    Path(disk.path, "log.json").write_bytes(b'{"id": ')
    with pytest.raises(LogCorrupt, match=r"log\.json"):
        LogWriter.open(disk)


def test_the_error_of_a_damaged_segment_says_what_to_do_and_survives_pickling(one_segment):
    storage, name, path = one_segment
    path.write_bytes(b"nonsense")
    with pytest.raises(LogCorrupt) as caught:
        segment.read(storage, name)
    assert "delete the state directory" in (pickle.loads(pickle.dumps(caught.value)).hint or "")


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_an_empty_log_begins_and_ends_at_zero(storage):
    create(storage)
    reader = LogReader(storage)
    assert (reader.begin(), reader.end(), reader.slices(0, 0)) == (0, 0, [])


def test_a_folder_that_is_not_there_is_an_empty_log(storage):
    assert LogReader(storage).identity() is None
    assert LogReader(storage).end() == 0
    assert LogWriter.open(storage) is None


def test_offsets_are_dense_across_segments_and_restarts(storage):
    feed = create(storage)
    feed.append(*transaction(*rows(1)))
    feed = reopen(feed)
    feed.append(*transaction(*rows(2, 3)), *transaction(*rows(4)))
    feed = reopen(feed)
    feed.append(*transaction())
    assert list(contents(storage)) == list(range(1, 13))


def test_a_reopened_log_is_the_same_log_at_the_same_place(storage):
    feed = create(storage)
    feed.append(*transaction(*rows(1), at=0xAB00))
    before = feed.writer
    after = reopen(feed).writer
    assert after.identity == before.identity
    assert (after.next_offset, after.end, after.position, after.size) == (4, 3, "0/AB08", before.size)


def test_a_log_without_transactions_stands_where_the_source_started(storage):
    assert reopen(create(storage)).writer.position == START


def test_two_logs_have_different_ids(tmp_path):
    ids = {create(Storage(str(tmp_path / name))).writer.identity.id for name in ("one", "two")}
    assert len(ids) == 2


def test_slices_cover_a_range_and_nothing_else(disk):
    feed = create(disk)
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    names = [str(name) for name in LogReader(disk).names()]
    assert LogReader(disk).slices(2, 7) == [Slice(names[0], 3, 3), Slice(names[1], 4, 6), Slice(names[2], 7, 7)]
    assert LogReader(disk).slices(9, 9) == []


@pytest.mark.parametrize(
    ("after", "last", "said"),
    [
        (0, 6, "no longer holds offset 1: it keeps 4 to 9$"),
        (2, 9, "no longer holds offset 3: it keeps 4 to 9$"),
        (5, 12, "does not hold offset 10 yet: it ends at 9$"),
        (9, 12, "does not hold offset 10 yet: it ends at 9$"),
        (20, 9, "does not hold offset 21 yet: it ends at 9$"),
    ],
)
def test_a_range_that_is_not_there_is_an_error_that_names_the_offset_and_what_is_kept(disk, after, last, said):
    feed = create(disk)
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    with pytest.raises(OffsetGone, match=said):
        LogReader(disk).slices(after, last)


def test_a_range_without_bounds_is_all_that_is_kept(disk):
    feed = create(disk)
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    assert [(piece.first, piece.last) for piece in LogReader(disk).slices(None, None)] == [(4, 6), (7, 9)]


def test_a_segment_that_was_forgotten_meanwhile_is_a_clear_error(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1)))
    feed.append(*transaction(*rows(2)))
    feed.writer.forget(3)
    for read in (segment.read, segment.read_header):
        with pytest.raises(StateError, match="no longer holds the segment"):
            read(disk, SegmentName(1, 3, 3))


def test_a_hole_in_the_middle_of_the_log_is_an_error(disk):
    feed = create(disk)
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    Path(disk.path, str(LogReader(disk).names()[1])).unlink()
    with pytest.raises(StateError, match="offset 4"):
        LogReader(disk).slices(0, 9)


# --- unfinished transactions -----------------------------------------------------------------------------------------


def test_readers_do_not_see_a_transaction_before_its_end(storage):
    feed = create(storage)
    feed.append(*transaction(*rows(1)), begin(701), *rows(2))
    reader = LogReader(storage)
    assert (reader.end(), reader.limit(0, 100)) == (3, 3)
    assert list(contents(storage)) == [1, 2, 3]


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_readers_do_not_see_a_transaction_that_fills_whole_segments_before_its_end(storage, segments):
    feed = create(storage)
    feed.append(*transaction(*rows(1)), begin(701), *rows(2))
    for number in range(segments):
        feed.append(*rows(10 + number))
    reader = LogReader(storage)
    assert (reader.end(), reader.limit(0, 100)) == (3, 3)
    feed.append(commit())
    assert reader.end() == 5 + segments + 1
    assert len(contents(storage)) == reader.end()


@pytest.mark.parametrize("segments", [0, 1, 2, 3])
def test_an_unfinished_transaction_is_void_and_comes_again_at_the_same_offsets(storage, segments):
    feed = create(storage)
    feed.append(*transaction(*rows(1), at=0x2000), begin(701, 0x3000), *rows(2))
    for number in range(segments):
        feed.append(*rows(10 + number))
    feed = reopen(feed)
    assert (feed.writer.next_offset, feed.writer.end, feed.writer.position) == (4, 3, "0/2008")
    again = transaction(*rows(2, 10, 11, 12), xid=701, at=0x3000)
    feed.append(*again)
    assert [contents(storage)[offset] for offset in range(4, 10)] == again
    assert LogReader(storage).end() == 9


@pytest.mark.parametrize("segments", [0, 1, 3])
def test_frames_that_begin_where_the_last_transaction_ended_replace_an_unfinished_one(storage, segments):
    feed = create(storage)
    feed.append(*transaction(*rows(1), at=0x2000), begin(701, 0x3000), *rows(2))
    for number in range(segments):
        feed.append(*rows(10 + number))
    half, _ = frames_of([begin(701, 0x3000), *rows(20)], first=4)
    feed.writer.append(half, "0/2008")
    assert (feed.writer.end, feed.writer.next_offset, LogReader(storage).end()) == (3, 6, 3)
    again = transaction(*rows(20, 21), xid=701, at=0x3000)
    whole, _ = frames_of(again, first=4)
    feed.writer.append(whole, "0/3008")
    assert [contents(storage)[offset] for offset in range(4, 8)] == again
    assert reopen(feed).writer.next_offset == 8


def test_a_log_knows_the_newest_version_of_a_table_after_a_restart(storage):
    feed = create(storage)
    feed.append(*transaction(*rows(1)))
    newer = msgspec.structs.replace(ITEMS, name="renamed")
    feed.redefine(1, newer)
    feed.append(*transaction(*rows(2)))
    assert reopen(feed).writer.definitions() == {1: newer}


def test_what_came_again_in_smaller_segments_is_still_read_once_and_whole(storage):
    feed = create(storage)
    feed.append(*transaction(*rows(1)), begin(701), *rows(2, 3, 4, 5))
    feed = reopen(feed)
    feed.append(begin(702), *rows(20))
    feed.append(*rows(21))
    feed.append(commit())
    assert list(contents(storage).values())[3:] == [begin(702), *rows(20, 21), commit()]


def test_a_log_of_which_nothing_was_finished_starts_over(storage):
    feed = create(storage)
    feed.append(begin(), *rows(1))
    feed.append(*rows(2))
    feed = reopen(feed)
    assert (feed.writer.next_offset, feed.writer.position, feed.writer.size) == (1, START, 0)
    assert LogReader(storage).names() == []


def test_a_reader_that_planned_before_a_restart_reads_the_same_afterwards(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1)), begin(701), *rows(2))
    planned = LogReader(disk).slices(0, 3)
    feed = reopen(feed)
    feed.append(*transaction(*rows(2, 3)))
    assert LogReader(disk).slices(0, 3) == planned


# --- micro-batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "most", "end"), [(0, 1, 3), (0, 3, 3), (0, 8, 6), (0, 9, 9), (0, 1000, 12), (3, 3, 6), (12, 5, 12)]
)
def test_a_limit_is_about_as_large_as_asked_and_never_empty(disk, after, most, end):
    feed = create(disk)
    for number in range(4):
        feed.append(*transaction(*rows(number)))
    assert LogReader(disk).limit(after, most) == end


def test_a_limit_counts_the_bytes_of_segments_too(disk):
    feed = create(disk)
    for number in range(4):
        feed.append(*transaction(insert(1, str(number), os.urandom(5000))))
    reader = LogReader(disk)
    size = (Path(disk.path) / str(SegmentName(1, 3, 3))).stat().st_size
    limits = [reader.limit(after, 1000, most) for after, most in ((0, 1), (0, size * 2 + 50), (3, size), (0, size * 9))]
    assert limits == [3, 6, 6, 12]


def test_a_limit_keeps_a_transaction_of_many_segments_whole(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1)))
    feed.append(begin(701), *rows(2))
    feed.append(*rows(3))
    feed.append(*rows(4), commit())
    feed.append(*transaction(*rows(5)))
    reader = LogReader(disk)
    assert [reader.limit(0, 4), reader.limit(3, 1), reader.limit(8, 1)] == [3, 8, 11]


def test_a_limit_ends_at_a_transaction_end_inside_a_segment(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1)), begin(701), *rows(2))
    feed.append(commit())
    assert [LogReader(disk).limit(0, 1), LogReader(disk).limit(3, 1)] == [3, 6]


# --- retention -------------------------------------------------------------------------------------------------------


def test_forgetting_deletes_whole_segments_that_are_not_needed(storage):
    feed = create(storage)
    for number in range(4):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(7)
    assert LogReader(storage).begin() == 6
    assert (feed.writer.count, list(contents(storage, 6))) == (2, list(range(7, 13)))


def test_forgetting_everything_keeps_the_newest_segment(storage):
    feed = create(storage)
    for number in range(3):
        feed.append(*transaction(*rows(number), at=0x2000 + 16 * number))
    feed.writer.forget(9)
    after = reopen(feed).writer
    assert (after.next_offset, after.position, after.count) == (10, "0/2028", 1)


@pytest.mark.parametrize("segments", [1, 2])
def test_forgetting_during_a_large_transaction_keeps_our_place(storage, segments):
    """The newest segments hold no transaction end; the one that does must stay, or offsets would begin again at 1."""
    feed = create(storage)
    feed.append(*transaction(*rows(1), at=0x2000))
    feed.append(begin(701), *rows(2))
    for number in range(1, segments):
        feed.append(*rows(2 + number))
    feed.writer.forget(3)
    after = reopen(feed).writer
    assert (after.next_offset, after.position) == (4, "0/2008")


def test_size_is_what_lies_on_disk(disk):
    feed = create(disk)
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    assert feed.writer.size == sum(path.stat().st_size for path in Path(disk.path).glob("*.segment"))


# --- crashes and full disks ------------------------------------------------------------------------------------------

CHILD = """
import sys
from tailrace.state.storage import Storage
from tailrace.log.writer import LogWriter
from support.messages import Feed, insert, transaction
Feed(LogWriter.open(Storage(sys.argv[1])), {}).append(*transaction(b"O", b"O", b"O", at=0x9000))
"""


def append_in_a_child(storage: Storage, failpoint: str) -> int:
    environment = {**os.environ, **failpoints.environment(failpoint)}
    return subprocess.run(
        [sys.executable, "-c", CHILD, storage.path], env=environment, check=False, timeout=60
    ).returncode


@pytest.mark.parametrize(
    ("failpoint", "end"), [("log-segment-written", 3), ("log-segment-synced", 3), ("log-segment-published", 8)]
)
def test_a_killed_writer_leaves_no_half_segment(disk, failpoint, end):
    feed = create(disk)
    feed.append(*transaction(*rows(1)))
    feed.writer.close()
    assert append_in_a_child(disk, failpoint) == -signal.SIGKILL
    assert LogReader(disk).end() == end
    assert len(contents(disk)) == end
    assert reopen(feed).writer.next_offset == end + 1
    assert not list(Path(disk.path).glob("*.part"))


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield


def test_a_full_disk_is_one_clear_sentence_and_the_next_append_takes_the_same_offsets(disk, monkeypatch):
    feed = create(disk)
    with (
        full_disk(monkeypatch),
        pytest.raises(
            StateUnavailable, match=f"^cannot write to the state directory {disk.path}: no space left on device$"
        ),
    ):
        feed.append(*transaction(*rows(1)))
    assert LogReader(disk).names() == []
    feed.append(*transaction(*rows(1)))
    assert list(contents(disk)) == [1, 2, 3]


def test_a_segment_that_a_broken_connection_cut_short_never_appears():
    storage = Storage("mock:///log")
    feed = create(storage)
    real = storage.filesystem
    storage.filesystem = Interrupted(real)
    with pytest.raises(StateUnavailable, match="cannot write"):
        feed.append(*transaction(*rows(1)))
    storage.filesystem = real
    assert LogReader(storage).names() == []


class Interrupted:
    """A file system whose connection breaks while a file is written."""

    def __init__(self, real: fs.FileSystem) -> None:
        self._real = real
        self.type_name = real.type_name

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(self._real, name)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[object]:
        with self._real.open_output_stream(path) as stream:
            stream.write(b"TAILRACE, and then")
            raise OSError("connection reset")
            yield stream


# --- who may use the folder ------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(storage):
    feed = create(storage)
    with pytest.raises(StateError, match=f"another tailrace process is using the state directory {storage.path}"):
        LogWriter.open(storage)
    feed.writer.close()
    assert LogWriter.open(storage) is not None


def test_a_writer_whose_folder_was_removed_and_made_anew_writes_nothing(disk):
    feed = create(disk)
    feed.append(*transaction(*rows(1)))
    shutil.rmtree(disk.path)
    with pytest.raises(StateError, match=f"the state directory {disk.path} was removed"):
        feed.append(*transaction(*rows(2)))
    create(disk)
    with pytest.raises(StateError, match=f"another tailrace process took over the state directory {disk.path}"):
        feed.append(*transaction(*rows(2)))
    assert LogReader(disk).names() == []


def test_whether_a_folder_is_in_use_can_be_seen_without_disturbing_anybody(storage):
    storage.create()
    assert storage.is_locked("run.lock") is False
    assert storage.sizes("run.lock") == {}
    lock = storage.lock("run.lock")
    assert lock is not None
    assert storage.is_locked("run.lock") is True
    lock.check()
    lock.close()
    assert storage.is_locked("run.lock") is False


def test_a_writer_that_was_killed_locks_nobody_out(disk):
    feed = create(disk)
    feed.append(*transaction())
    feed.writer.close()
    assert append_in_a_child(disk, "log-segment-published") == -signal.SIGKILL
    assert LogWriter.open(disk) is not None


def test_a_log_is_not_created_over_another(disk):
    feed = create(disk)
    feed.writer.close()
    with pytest.raises(StateError, match="already"):
        LogWriter.create(disk, None, START)
    assert LogWriter.open(disk) is not None


@pytest.fixture
def someone_else() -> Iterator[Path]:
    """A folder that we may read and not write, also when the tests run as root: as `nobody` for the while."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-read-only-"))
    (folder / "log").mkdir()
    writer = LogWriter.create(Storage(str(folder / "log")), None, START)
    writer.close()
    for path in (folder, folder / "log"):
        path.chmod(0o555)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    yield folder
    os.seteuid(was)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.parent.chmod(0o755)
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("name", ["new", "log"])
def test_a_read_only_state_directory_is_one_clear_sentence(someone_else, name):
    path = someone_else / name
    with pytest.raises(StateError, match=f"^cannot write to the state directory {path}: .*permission denied"):
        LogWriter.create(Storage(str(path)), None, START)


def test_a_state_directory_below_a_file_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "log")
    with pytest.raises(StateError, match=f"^cannot write to the state directory {path}: "):
        LogWriter.create(Storage(path), None, START)


def test_a_state_directory_that_may_not_be_read_is_one_clear_sentence(someone_else):
    os.seteuid(os.getuid())
    (someone_else / "log").chmod(0o000)
    os.seteuid(65_534 if os.getuid() == 0 else os.getuid())
    with pytest.raises(StateError, match=r"^cannot read the state directory"):
        LogReader(Storage(str(someone_else / "log"))).end()


# --- storage ---------------------------------------------------------------------------------------------------------


def test_storage_travels_to_tasks_by_its_address(tmp_path):
    for address in (str(tmp_path), f"file://{tmp_path}", "mock:///log"):
        copy = pickle.loads(pickle.dumps(Storage(address)))
        assert (copy.path, copy.is_local) == (Storage(address).path, Storage(address).is_local)


def test_a_folder_inside_a_storage_has_the_same_file_system():
    assert Storage("mock:///state/").folder("log").path == "state/log"
    assert Storage("/state").folder("log").path == "/state/log"
    assert Storage("/what?/state").folder("log").path == "/what?/state/log"
    assert Storage("s3://bucket/state?region=us-east-1").folder("log").path == "bucket/state/log"


def test_part_of_a_file_can_be_read(storage):
    storage.create()
    storage.publish("a.txt", b"0123456789")
    assert (storage.read("a.txt", 3, 2), storage.read("a.txt")) == (b"234", b"0123456789")
    assert storage.sizes(".txt") == {"a.txt": 10}


def test_a_file_that_is_not_there_is_not_found(storage):
    storage.create()
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")


def test_what_is_written_is_for_its_owner_alone(tmp_path):
    """Whatever the umask: the log holds every captured row."""
    before = os.umask(0)
    try:
        storage = Storage(str(tmp_path / "state"))
        storage.create()
        storage.lock("run.lock").close()
        writer = LogWriter.create(storage.folder("log"), None, START)
        Feed(writer, {1: ITEMS}).append(*transaction(*rows(1)))
        writer.close()
    finally:
        os.umask(before)
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in found}
    assert len(modes) > 4
    assert modes == {path.name: 0o700 if path.is_dir() else 0o600 for path in found}


# --- messages of several changes -------------------------------------------------------------------------------------


def test_a_message_may_have_several_offsets(disk):
    feed = create(disk)
    frames, _ = frames_of(transaction(*rows(1)))
    feed.writer.append(widened(frames, 1, 3, 1), "0/2")
    (name,) = LogReader(disk).names()
    header, found = LogReader(disk).read(name)
    assert (name.first, name.last, found.last, found.count) == (1, 5, 5, 3)
    assert found.widths.tolist() == [1, 3, 1]
    assert (header.kind, found.kind) == (frames.kind, frames.kind)
    assert feed.writer.next_offset == 6


def test_merged_segments_keep_the_offsets_of_their_messages(disk):
    feed = create(disk)
    first, _ = frames_of(transaction(*rows(1)))
    feed.writer.append(widened(first, 1, 3, 1), "0/2")
    second, _ = frames_of(transaction(*rows(1)), first=6)
    feed.writer.append(second, "0/3")
    assert feed.writer.merge(list(feed.writer.segments), 1 << 20)
    (name,) = LogReader(disk).names()
    _, found = LogReader(disk).read(name)
    assert (name.first, name.last, found.widths.tolist()) == (1, 8, [1, 3, 1, 1, 1, 1])


def widened(frames, *widths):
    """The same messages, with so many offsets each; the one transaction ends with the last."""
    at = frames.transactions.schema.get_field_index("end")
    end = pa.array([frames.first + sum(widths) - 1], pa.int64())
    transactions = frames.transactions.set_column(at, frames.transactions.schema.field(at), end)
    return dataclasses.replace(frames, widths=np.array(widths, np.uint32), transactions=transactions)
