"""Rows of many events and of answers, found together: the same as looked at one by one."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import DecodeError
from tailrace.sources.mysql.decode_maps import MapColumn
from tailrace.sources.mysql.decode_rows import count_rows, walk
from tailrace.sources.mysql.results import CHAINED_BYTES, chained, read_rows

ID = MapColumn("id", 3, 0, 0, 4, 0)
NAME = MapColumn("name", 15, 50, 0, 1, 1)
NOTE = MapColumn("note", 252, 2, 0, 2, 2)
COLUMNS = [ID, NAME, NOTE]
Row = tuple[int | None, bytes | None, bytes | None]


def image_of(row: Row) -> bytes:
    id_, name, note = row
    bits = sum(1 << place for place, value in enumerate(row) if value is None)
    data = bytes([bits | 0xF8]) + (b"" if id_ is None else struct.pack("<i", id_))
    data += b"" if name is None else bytes([len(name)]) + name
    return data + (b"" if note is None else struct.pack("<H", len(note)) + note)


rows = st.tuples(
    st.sampled_from([1, 2, None]), st.sampled_from([b"", b"a", b"bc", None]), st.sampled_from([b"", b"xyz", None])
)
events_of_rows = st.one_of(
    st.lists(st.tuples(rows, rows), max_size=6),
    st.builds(lambda row, count: [row] * count, st.tuples(rows, rows), st.integers(1, 9)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events_of_rows, min_size=1, max_size=8))
def test_rows_that_are_alike_and_others_are_found_where_they_are(found: list[list[tuple[Row, Row]]]) -> None:
    parts = [b"".join(image_of(before) + image_of(after) for before, after in event) for event in found]
    ends = np.cumsum([len(part) for part in parts])
    starts = ends - [len(part) for part in parts]
    buffer = np.frombuffer(b"".join(parts) + bytes(16), np.uint8)
    assert count_rows(buffer, starts, ends, [COLUMNS, COLUMNS]).tolist() == [len(event) for event in found]
    walked = walk(buffer, starts, ends, [COLUMNS, COLUMNS])
    assert walked.event.tolist() == [number for number, event in enumerate(found) for _ in event]
    for number, cells in enumerate(walked.images):
        for column, cell in enumerate(cells):
            wanted = [pair[number][column] for event in found for pair in event]
            assert [cell.null is not None and bool(cell.null[row]) for row in range(len(wanted))] == [
                value is None for value in wanted
            ]
            for row, value in enumerate(wanted):
                if value is not None:
                    data = value if isinstance(value, bytes) else struct.pack("<i", value)
                    length = len(data) if cell.length is None else int(cell.length[row])
                    place = int(cell.place[row])
                    assert buffer[place : place + length].tobytes() == data


def test_an_event_that_is_cut_behind_rows_that_were_alike_is_refused() -> None:
    data = image_of((1, b"abc", b"d")) * 3
    buffer = np.frombuffer(data + bytes(16), np.uint8)
    with pytest.raises(DecodeError, match="shorter"):
        count_rows(buffer, np.array([0]), np.array([len(data) - 2]), [COLUMNS])


def packet(number: int, data: bytes) -> bytes:
    return struct.pack("<I", len(data))[:3] + bytes([number % 256]) + data


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda data: b"\3" + data), max_size=600), st.integers(0, 50))
def test_packets_in_a_chain_are_those_that_follow_each_other(found: list[bytes], cut: int) -> None:
    sent = [*found, bytes(60_000)]
    data = b"".join(packet(number + 250, each) for number, each in enumerate(sent))
    buffer = np.frombuffer(data[: len(data) - 59_900 - cut], np.uint8)
    at, ends = chained(buffer)
    sizes = [len(each) + 4 for each in found][: len(at)]
    assert ends.tolist() == np.cumsum(sizes).tolist()
    assert at.tolist() == (np.cumsum(sizes) - sizes).tolist()


def test_packets_of_text_are_found_as_a_chain_to_the_last_whole_one() -> None:
    texts = [b"\x05%05d" % number for number in range(1000)]
    data = b"".join(packet(number, each) for number, each in enumerate(texts))
    at, ends = chained(np.frombuffer(data[:-1], np.uint8))
    assert len(at) == 999
    assert int(ends[-1]) == 999 * 10


@pytest.mark.parametrize("value", [b"x" * 20, bytes(20), bytes([1, 0, 0, 7]) * 20], ids=["text", "zeros", "headers"])
def test_an_answer_is_read_whole_whatever_is_in_it(value: bytes) -> None:
    count = 4 * CHAINED_BYTES // len(value)
    answer = [b"\1", b"a column", b"\xfe\0\0\0\0", *[bytes([len(value)]) + value] * count, b"\xfe\0\0\0\0"]
    ours, theirs = socket.socketpair()
    sent = b"".join(packet(number + 1, each) for number, each in enumerate(answer))
    sender = threading.Thread(target=theirs.sendall, args=(sent,))
    with ours, theirs:
        sender.start()
        found = [
            part.buffer[start + 1 : end].tobytes()
            for part in read_rows(ours, 1)
            for start, end in zip(part.starts, part.ends, strict=True)
        ]
        sender.join()
    assert found == [value] * count
