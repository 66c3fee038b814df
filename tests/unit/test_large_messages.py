"""Large messages and values: cut, decoded and copied by their bytes, and not copied where that can be avoided."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from support.messages import begin, commit, frames_of, insert, relation, transaction
from tailrace.columns.characters import spans
from tailrace.errors import DecodeError
from tailrace.model.changes import Changes
from tailrace.model.frames import Definition
from tailrace.model.schema import Column, TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.postgres import capture as capturing
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.capture import PostgresCapture
from tailrace.sources.postgres.departed import Departed
from tailrace.sources.postgres.describing import Descriptions
from tailrace.sources.postgres.pgoutput import decode
from tailrace.sources.postgres.types import column_type
from tailrace.sources.postgres.values.cells import Cells

TEXT = column_type(25, -1, {})
TEXTS = TableSchema("public", "texts", (Column("a", TEXT), Column("b", TEXT)), ("a",))
DESCRIBED = relation(5, "public", "texts", "d", [(True, "a", 25, -1), (False, "b", 25, -1)])


def after(changes: Changes) -> list[str]:
    return [row["a"] for row in changes.after.to_pylist()]


class Bursts:
    """A replication stream whose messages are here already: `read` gives one burst a call."""

    server_end, is_reply_requested = 0, True

    def __init__(self, *bursts: Sequence[bytes]) -> None:
        self._bursts = list(bursts)

    def read(self, messages: list[bytes]) -> int:
        burst = self._bursts.pop(0)
        messages += burst
        return sum(map(len, burst))

    def send_status(self, *positions: int, wants_reply: bool) -> None: ...


class WithoutCatalog(Descriptions):
    def resolve(self, message: bytes, offset: int, xid: int) -> TableSchema:
        return msgspec.structs.replace(TEXTS, relation=5)


class CaptureOfBursts(PostgresCapture):
    """Capture of the messages that it is given."""

    def __init__(self, *bursts: Sequence[bytes]) -> None:
        self._stream, self._messages, self._large, self._bytes = Bursts(*bursts), [], [], 0
        self._next, self._committed, self._open, self._absent = 1, 0, None, []
        self._is_binary, self._tables, self._departed = False, WithoutCatalog("", {}, 0), Departed("")
        self.identity = SourceIdentity("", "1", "", "")
        self._position = self._confirmed = 0
        self._has_asked, self._status_at = True, 0.0


def test_a_large_message_has_a_segment_of_its_own_and_is_not_copied(monkeypatch):
    for module in (pgoutput, capturing):
        monkeypatch.setattr(module, "LARGE", 1000)
    large, larger = insert(5, "2" * 1000, None), insert(5, "3" * 2000, None)
    capture = CaptureOfBursts(
        [begin(), DESCRIBED, insert(5, "1", None), large], [larger], [insert(5, "4", None), commit()]
    )
    for _ in range(3):
        capture.poll(0)
    taken = []
    while capture.pending_bytes:
        taken.append(capture.take()[0])
    assert [(frames.first, frames.count) for frames in taken] == [(1, 3), (4, 1), (5, 1), (6, 2)]
    assert np.shares_memory(taken[1].buffer, np.frombuffer(large, np.uint8))
    found = [after(changes) for frames in taken for changes in decode(frames, frames.first, frames.last)]
    assert found == [["1"], ["2" * 1000], ["3" * 2000], ["4"]]


def test_rows_are_decoded_together_as_long_as_they_are_small(monkeypatch):
    monkeypatch.setattr(pgoutput, "LANE_BYTES", 100)
    values = ["a" * 30, "b" * 30, "c" * 500, "d" * 30, "e" * 30, "f" * 70]
    frames, _ = frames_of(transaction(*(insert(1, value, None) for value in values)), [Definition(1, 0, TEXTS)])
    found = [after(changes) for changes in decode(frames, 1, frames.last)]
    assert found == [["a" * 30, "b" * 30], ["c" * 500], ["d" * 30, "e" * 30], ["f" * 70]]


@pytest.mark.parametrize("missing", range(1, 8))
def test_a_large_message_that_is_cut_short_is_refused_and_not_read_past(missing, monkeypatch):
    monkeypatch.setattr(pgoutput, "LARGE", 10)
    frames, _ = frames_of(transaction(insert(1, "a", "bc")), [Definition(1, 0, TEXTS)])
    alone = insert(1, "a", "bc")[:-missing]
    buffer, bounds = pgoutput.pack([alone])
    cut = type(frames)(frames.kind, 2, buffer, bounds, frames.transactions, frames.definitions, frames.tables)
    with pytest.raises(DecodeError):
        list(decode(cut, 2, 2))


@pytest.mark.parametrize("length", [1, 3, 8, 9, 40])
def test_a_window_at_the_end_of_a_buffer_is_filled_up_without_a_copy_of_the_buffer(length):
    buffer = np.arange(length, dtype=np.uint8)
    place = np.arange(length)
    found = Cells(buffer, place, np.ones(length, np.int64), TEXT, "t.a").window(">u8")
    padded = bytes(buffer) + bytes(8)
    assert found.tolist() == [int.from_bytes(padded[at : at + 8]) for at in range(length)]


def test_a_value_that_is_most_of_its_buffer_is_not_copied():
    buffer = np.frombuffer(b"..value", np.uint8)
    [large] = spans(buffer, np.array([2]), np.array([5])).buffers()[2:]
    assert large.to_pybytes() == b"value"
    assert large.address == buffer.ctypes.data + 2
    [small] = spans(buffer, np.array([2]), np.array([2])).buffers()[2:]
    assert not buffer.ctypes.data <= small.address < buffer.ctypes.data + len(buffer)
