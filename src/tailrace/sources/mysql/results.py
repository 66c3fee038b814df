"""Results of SELECT as they lie on the wire: rows found in blocks, and their columns for all rows at once.

Protocol pages: "Protocol Basics" (packets, length-encoded integers), "Text Resultset".
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pymysql.err import OperationalError, raise_mysql_exception

from tailrace.errors import DecodeError
from tailrace.model.frames import PADDING
from tailrace.sources.mysql.wire import taken

BLOCK = 1 << 20
CHAINED_BYTES = 48 << 10
"""From here on it is quicker to find all packets at once."""
_WHOLE = 0xFFFFFF
"""A packet of this length is continued by the next."""
_END, _ERROR, _NULL = 0xFE, 0xFF, 0xFB
_HEADER = struct.Struct("<I").unpack_from

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextRows:
    """Rows of a text result: each begins at `starts` and ends at `ends` in the buffer, which is padded."""

    buffer: Bytes
    starts: Integers
    ends: Integers


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of many rows: where each value lies. That of NULL has no length."""

    buffer: Bytes
    place: Integers
    length: Integers
    is_null: npt.NDArray[np.bool_] | None  # None if there is none


def read_rows(wire: socket.socket, width: int) -> Iterator[TextRows]:
    """The rows that answer a query, in blocks. All has to be read before the wire is used again."""
    blocks = _Blocks(wire)
    columns = blocks.packet()
    if columns[:1] == b"\xff":
        raise_mysql_exception(columns)
    if _count(columns) != width:
        raise DecodeError(f"a result has {_count(columns)} columns instead of {width}")
    for _ in range(width + 1):  # their descriptions, and the packet that ends these
        blocks.packet()
    yield from blocks.rows()


def _count(packet: bytes) -> int:
    if packet[0] < _NULL:
        return packet[0]
    return int.from_bytes(packet[1:3], "little") if packet[0] == 0xFC else -1


class _Blocks:
    """Reads ahead, so that a system call brings many packets."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._buffer = np.empty(BLOCK + PADDING, np.uint8)
        self._at, self._filled = 0, 0

    def packet(self) -> bytes:
        """One packet; for those that are few."""
        self._need(4)
        length = _HEADER(self._buffer.data, self._at)[0] & _WHOLE
        self._need(4 + length)
        packet = self._buffer[self._at + 4 : self._at + 4 + length].tobytes()
        self._at += 4 + length
        return packet

    def rows(self) -> Iterator[TextRows]:
        """A block's rows together, however few bytes the wire brings at a time."""
        found: list[tuple[Integers, Integers]] = []
        is_done = False
        while not is_done:
            self._find_chained(found)
            is_done, is_large = self._find(found)
            if found and (is_done or is_large or self._is_full()):
                yield self._together(found)
                found = []
                self._move()
            if is_large:
                yield self._large()
            elif not is_done and not (found and self._is_full()):
                self._fill()

    def _together(self, found: list[tuple[Integers, Integers]]) -> TextRows:
        starts, ends = (np.concatenate(each) for each in zip(*found, strict=True))
        if self._buffer[starts[-1]] == _ERROR:
            raise_mysql_exception(self._buffer[starts[-1] : ends[-1]].tobytes())
        return TextRows(self._buffer, starts, ends)

    def _find_chained(self, found: list[tuple[Integers, Integers]]) -> None:
        """Add most of the whole rows that came, if that is quicker than to look at one after the other."""
        if self._filled - self._at < CHAINED_BYTES:
            return
        packets, ends = chained(self._buffer[self._at : self._filled])
        if len(packets):
            found.append((packets + self._at + 4, ends + self._at))
            self._at += int(ends[-1])

    def _find(self, found: list[tuple[Integers, Integers]]) -> tuple[bool, bool]:
        """Add the whole rows that came; whether the last of all is there, and whether one of many packets follows."""
        starts: list[int] = []
        ends: list[int] = []
        data, at, filled = self._buffer.data, self._at, self._filled
        is_done = is_large = False
        while at + 4 <= filled:
            length = _HEADER(data, at)[0] & _WHOLE
            if length == _WHOLE:
                is_large = True
                break
            end = at + 4 + length
            if end > filled:
                break
            first, at = data[at + 4], end
            if first == _END and length < 9:
                is_done = True
                break
            starts.append(end - length)
            ends.append(end)
            if first == _ERROR:
                is_done = True
                break
        self._at = at
        if starts:
            found.append((np.array(starts, np.int64), np.array(ends, np.int64)))
        return is_done, is_large

    def _is_full(self) -> bool:
        """Whether the next packet has no room behind those that are there."""
        return self._at + self._needed() > len(self._buffer) - PADDING

    def _needed(self) -> int:
        rest = self._filled - self._at
        return 4 + (_HEADER(self._buffer.data, self._at)[0] & _WHOLE) if rest >= 4 else 4

    def _large(self) -> TextRows:
        """One row of several packets."""
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == _WHOLE:
            pieces.append(self.packet())
        whole = np.frombuffer(b"".join([*pieces, bytes(PADDING)]), np.uint8)
        return TextRows(whole, np.array([0]), np.array([len(whole) - PADDING]))

    def _need(self, count: int) -> None:
        while self._filled - self._at < count:
            self._fill()

    def _fill(self) -> None:
        """At least one byte more."""
        if self._is_full():
            self._move(self._needed())
        count = taken(self._wire, self._buffer.data[self._filled : len(self._buffer) - PADDING])
        if not count:
            raise OperationalError(2013, "Lost connection to MySQL server during query")
        self._filled += count

    def _move(self, needed: int = 0) -> None:
        """Go on in a new buffer: whoever was given the old one may keep it."""
        rest = self._buffer[self._at : self._filled]
        fresh = np.empty(max(BLOCK, needed, len(rest)) + PADDING, np.uint8)
        fresh[: len(rest)] = rest
        self._buffer, self._at, self._filled = fresh, 0, len(rest)


def chained(data: Bytes) -> tuple[Integers, Integers]:
    """Where packets of rows begin and end that lie one behind the other from the beginning on; not always all of them.

    Packets are taken for such where the third byte of a length could be, if the next one follows with the next number;
    and believed where these make an unbroken chain: then each begins where the one before ends, as it says itself.
    """
    size = len(data)
    at = np.flatnonzero(data[2 : size - 2] == 0)
    ends = at + 4 + np.ndarray((size - 1,), "<u2", data, 0, (1,))[at]
    at, ends = _where(ends <= size, at, ends)
    after = np.minimum(ends, size - 4)
    has_next = (data[after + 2] == 0) & (data[after + 3] == data[at + 3] + np.uint8(1))
    at, ends = _where(has_next | (ends > size - 4), at, ends)
    is_end = np.zeros(size + 1, np.bool_)
    is_end[0] = is_end[ends] = True
    at, ends = _where(is_end[at], at, ends)
    is_broken = np.append(0, ends[:-1]) != at if len(at) else np.zeros(0, np.bool_)
    is_broken |= data[at + 4] >= _END  # no row
    count = int(is_broken.argmax()) if is_broken.any() else len(at)
    return at[:count], ends[:count]


def _where(mask: npt.NDArray[np.bool_], *arrays: Integers) -> tuple[Integers, ...]:
    return tuple(array[mask] for array in arrays)


def walk(rows: TextRows, width: int) -> list[Cells]:
    """The columns of rows: each value has its length before it, that of NULL being a byte of its own."""
    buffer, cursor = rows.buffer, rows.starts
    cells = []
    for _ in range(width):
        first = buffer[cursor]
        length, cursor = first.astype(np.int64), cursor + 1
        is_null = None
        if len(first) and int(first.max()) >= _NULL:
            length, cursor, is_null = _unusual(buffer, first, cursor, length)
        cells.append(Cells(buffer, cursor, length, is_null))
        cursor = cursor + length
        if (cursor > rows.ends).any():
            raise DecodeError("a row of a result is shorter than its contents claim")
    if (cursor != rows.ends).any():
        raise DecodeError("a row of a result is longer than its contents")
    return cells


def _unusual(
    buffer: Bytes, first: Bytes, cursor: Integers, length: Integers
) -> tuple[Integers, Integers, npt.NDArray[np.bool_] | None]:
    """Lengths of more than one byte, and NULL."""
    cursor = cursor.copy()
    is_null = first == _NULL
    length[is_null] = 0
    for mark, bytes_ in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        at = np.flatnonzero(first == mark)
        if len(at):
            places = cursor[at]
            length[at] = sum(
                buffer[np.minimum(places + k, len(buffer) - 1)].astype(np.int64) << (8 * k) for k in range(bytes_)
            )
            cursor[at] += bytes_
    return length, cursor, is_null if is_null.any() else None
