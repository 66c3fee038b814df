"""Binlog events as the server sends them and as the log keeps them: where they begin, what they are, whether whole.

Protocol pages: "Binlog Network Stream", "Binlog Event". A packet is five bytes (its length, a number, a status) and an
event: a header of 19 bytes (time, type, server, size, end, flags), a body, and a checksum. A message of the log is the
same with other five bytes: `trailer` (how long the checksum is), and a number that `decode_maps` gives to tables.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

GAP = 5
HEADER = 19
BODY = GAP + HEADER
TRAILER = 4
WHOLE_PACKET = 0xFFFFFF
"""A packet of this length goes on in the next one."""

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP = 2, 3, 4, 15, 16, 19
INTVAR, RAND, USER_VAR, INCIDENT, HEARTBEAT, ROWS_QUERY = 5, 13, 14, 26, 27, 29
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, XA_PREPARE, PARTIAL_UPDATE, PAYLOAD, GTID_TAGGED = 33, 34, 35, 38, 39, 40, 42
HEARTBEAT_V2, TRANSACTION_CONTEXT, VIEW_CHANGE = 41, 36, 37
ANNOTATE_ROWS, CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = 160, 161, 162, 163, 164, 165
ROWS = {23: 0, 24: 1, 25: 2, 30: 0, 31: 1, 32: 2}
"""Insert, update, delete: of version 1 and of version 2."""
COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
IGNORED = {
    *(STOP, ROTATE, FORMAT, HEARTBEAT, ROWS_QUERY, PREVIOUS_GTIDS, HEARTBEAT_V2, TRANSACTION_CONTEXT, VIEW_CHANGE),
    *(ANNOTATE_ROWS, CHECKPOINT, GTID_LIST),
}
GTIDS = (GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID)
STATEMENTS = {INTVAR: "an Intvar", RAND: "a Rand", USER_VAR: "a User_var"}

_CHAIN = bytes.fromhex("04993996ac")
_RESIDUE = 0x2144DF1C
"""What CRC-32 gives for any bytes and their own CRC-32. From there `_CHAIN` leads back to where it starts with nothing:
with these five bytes before each event, one sweep over many events tells whether all are whole."""

_word = struct.Struct("<I").unpack_from


def packets(view: memoryview, at: int, end: int, starts: list[int]) -> int:
    """Note where the packets that lie whole in `at … end` begin; where the rest begins. Stops at one in parts."""
    append, word = starts.append, _word
    while at + 4 <= end:
        length = word(view, at)[0] & 0xFFFFFF
        if at + 4 + length > end or length == WHOLE_PACKET:
            break
        append(at)
        at += 4 + length
    return at


def joined(view: memoryview, at: int, end: int) -> tuple[Bytes, int] | None:
    """A packet in parts as one with five bytes before it, and where it ends; None while it is not whole."""
    parts, place = [], at
    while place + 4 <= end:
        length = _word(view, place)[0] & 0xFFFFFF
        if place + 4 + length > end:
            return None
        parts.append(view[place + 4 : place + 4 + length])
        place += 4 + length
        if length < WHOLE_PACKET:
            return np.frombuffer(b"".join([bytes(4), *parts, bytes(16)]), np.uint8).copy(), place
    return None


@dataclass(frozen=True, slots=True)
class Events:
    """Events with the five bytes before each; `starts` are of those, and `ends` behind the checksum."""

    buffer: Bytes
    starts: Integers
    ends: Integers
    trailers: Bytes  # how long the checksum of each is

    @property
    def types(self) -> Bytes:
        return self.buffer[self.starts + GAP + 4]

    def number(self, rows: Integers, at: int, width: int) -> Integers:
        """The unsigned number at this place of each event."""
        return little_endian(self.buffer, self.starts[rows] + GAP + at, width)

    def event(self, row: int) -> bytes:
        """The whole event, header included, without its checksum."""
        return self.buffer[self.starts[row] + GAP : self.ends[row] - self.trailers[row]].tobytes()

    def body(self, row: int) -> bytes:
        return self.event(row)[HEADER:]

    def part(self, first: int, last: int) -> Events:
        cut = slice(first, last)
        return Events(self.buffer, self.starts[cut], self.ends[cut], self.trailers[cut])


def little_endian(buffer: Bytes, at: Integers, width: int) -> Integers:
    """The unsigned integer of so many bytes at each of the places."""
    if width == 1:
        return buffer[at].astype(np.int64)
    stored = {2: 2, 3: 4, 4: 4, 6: 8, 7: 8, 8: 8}[width]
    everywhere = np.ndarray((len(buffer) - stored + 1,), f"<u{stored}", buffer, 0, (1,))
    values = everywhere[at].astype(np.int64)
    return values & ((1 << 8 * width) - 1) if width < stored else values


def check_whole(events: Events) -> None:
    """Raise DecodeError unless all events lie one behind the other and have the checksum that they say."""
    sizes = events.number(np.arange(len(events.starts)), 9, 4)
    if (sizes != events.ends - events.starts - GAP).any():
        raise DecodeError("an event of the binary log is not as long as it says")
    summed = np.flatnonzero(events.trailers == TRAILER)
    for run in np.split(summed, np.flatnonzero(np.diff(summed) != 1) + 1) if len(summed) else []:
        first, last = int(events.starts[run[0]]), int(events.ends[run[-1]])
        window = np.lib.stride_tricks.sliding_window_view(events.buffer, GAP, writeable=True)
        window[events.starts[run]] = np.frombuffer(_CHAIN, np.uint8)
        if _crc(events.buffer[first:last], _RESIDUE) != _RESIDUE:
            raise DecodeError(f"the checksum of {_damaged(events, run)} does not match")


def _crc(data: Bytes, value: int = 0) -> int:
    return zlib.crc32(data.data, value)


def _damaged(events: Events, run: Integers) -> str:
    for row in run.tolist():
        start, end = int(events.starts[row]) + GAP, int(events.ends[row])
        if _crc(events.buffer[start:end]) != _RESIDUE:
            kind, place = (int(events.number(np.array([row]), at, width)[0]) for at, width in ((4, 1), (13, 4)))
            return f"an event of type {kind} that ends at {place} of its binlog file"
    return "some event"


def rebuilt(events: list[bytes]) -> Events:
    """Events that were unpacked, as messages without a checksum."""
    data = b"".join([*(bytes(GAP) + event for event in events), bytes(16)])
    ends = np.cumsum([GAP + len(event) for event in events])
    starts = ends - [GAP + len(event) for event in events]
    return Events(np.frombuffer(data, np.uint8).copy(), starts, ends, np.zeros(len(events), np.uint8))


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where it ends. Protocol page "Integer Types"."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
