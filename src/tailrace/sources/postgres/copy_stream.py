"""Reading COPY (FORMAT binary) many rows at a time.

libpq hands out one row a call, which costs more than decoding it. On a connection without encryption we therefore
speak the few protocol messages of a COPY ourselves, on libpq's idle socket, and find the rows of a whole block at once.
On an encrypted connection the rows come through libpq, one by one.

Protocol pages: "Message Formats" (CopyData, CopyDone, ErrorResponse) and "COPY", Binary Format.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors as pg

from tailrace.errors import DecodeError
from tailrace.model.frames import PADDING
from tailrace.sources.postgres.pgoutput import pack
from tailrace.sources.postgres.values.lanes import Bytes, Integers, big_endian
from tailrace.sources.readiness import readable

BLOCK = 2 << 20  # handed out together; a larger row comes alone
ROWS = 32_768  # at the most, when they come one by one
HEADER = 19  # signature, flags and an empty extension
_DATA, _DONE, _COMPLETE, _READY, _ERROR = (ord(kind) for kind in "dcCZE")
_TRAILER = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows as COPY sends them: each lies at buffer[start:end]."""

    buffer: Bytes
    starts: Integers
    ends: Integers


def copy_out(connection: psycopg.Connection[Any], query: str, width: int) -> Iterator[CopiedRows]:
    """Run `COPY (query) TO STDOUT` on an idle connection. All of it must be read, or the connection be closed."""
    command = f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()
    if connection.pgconn.ssl_in_use:
        return _through_libpq(connection, command)
    return _from_socket(connection, command, width)


def _through_libpq(connection: psycopg.Connection[Any], command: bytes) -> Iterator[CopiedRows]:
    with connection.cursor() as cursor, cursor.copy(command) as copy:
        rows: list[Any] = []
        size, skipped = 0, HEADER
        for message in copy:
            data, skipped = message[skipped:], 0
            if len(data) and bytes(data[:2]) != _TRAILER:
                if size + len(data) > BLOCK and rows:
                    yield _packed(rows)
                    size = 0
                rows.append(data)
                size += len(data)
            del message, data  # what is decoded must not be held while the next is read
            if len(rows) == ROWS or size > BLOCK:
                yield _packed(rows)
                size = 0
        if rows:
            yield _packed(rows)


def _packed(rows: list[Any]) -> CopiedRows:
    """Leaves `rows` empty."""
    buffer, bounds = pack(rows)
    rows.clear()
    return CopiedRows(buffer, bounds[:-1], bounds[1:])


def _from_socket(connection: psycopg.Connection[Any], command: bytes, width: int) -> Iterator[CopiedRows]:
    with socket.socket(fileno=_duplicate(connection)) as wire:
        wire.setblocking(True)
        wire.sendall(b"Q" + struct.pack(">I", len(command) + 5) + command + b"\0")
        splitter = _Splitter(width)
        while not splitter.is_ready:
            yield from splitter.split(*_filled(wire, splitter))
        wire.setblocking(False)  # as libpq left it; the mode belongs to the socket, not to our descriptor
    if splitter.error is not None:
        raise splitter.error


def _duplicate(connection: psycopg.Connection[Any]) -> int:
    return os.dup(connection.pgconn.socket)


def _filled(wire: socket.socket, splitter: _Splitter) -> tuple[Bytes, int]:
    """A block, full or with all that is waiting, but not with less than a whole message; and how much is in it."""
    block, filled = splitter.block()
    room = block.data[: len(block) - PADDING]
    while filled < len(room):
        count = wire.recv_into(room[filled:])
        if not count:
            raise pg.OperationalError("server closed the connection unexpectedly")
        filled += count
        if filled >= splitter.needed and not readable([wire], 0):
            break
    return block, filled


class _Splitter:
    """Finds the rows in blocks of the wire. A row that is cut by a block's end is carried into the next.

    `needed` is the length of the message that the next block begins with, as far as it is known. One that is larger
    than a block has a block of its own.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rest = np.zeros(0, np.uint8)
        self.needed = 0
        self._has_header = False
        self.is_ready = False
        self.error: pg.Error | None = None

    def block(self) -> tuple[Bytes, int]:
        """A new block that begins with what was cut off the last one, and how much that is."""
        block = np.empty(max(BLOCK, self.needed) + PADDING, np.uint8)
        block[: len(self._rest)] = self._rest
        return block, len(self._rest)

    def split(self, block: Bytes, filled: int) -> Iterator[CopiedRows]:
        """The rows of a block, if there are any."""
        starts, ends, place = self._find(block, filled)
        self._rest = block[place:filled].copy()
        if starts:
            yield CopiedRows(block, np.concatenate(starts), np.concatenate(ends))

    def _find(self, block: Bytes, filled: int) -> tuple[list[Integers], list[Integers], int]:
        """Where whole rows start and end, and where what is not whole begins."""
        is_single, self.needed = self.needed > BLOCK, 0
        messages, following = self._candidates(block, 0 if is_single else filled)
        breaks = np.flatnonzero(following[:-1] != messages[1:])
        starts: list[Integers] = []
        ends: list[Integers] = []
        place = 0
        while place + 5 <= filled:
            index = int(np.searchsorted(messages, place))
            if index < len(messages) and messages[index] == place:
                at = int(np.searchsorted(breaks, index))
                last = int(breaks[at]) if at < len(breaks) else len(messages) - 1
                starts.append(messages[index : last + 1] + 5)
                ends.append(following[index : last + 1])
                place = int(following[last])
                continue
            after = self._single(block, place, filled, starts, ends)
            if after is None:
                break
            place = after
        return starts, ends, place

    def _candidates(self, block: Bytes, filled: int) -> tuple[Integers, Integers]:
        """Places that look like the beginning of a whole row: CopyData, shorter than 16 MiB, the right column count."""
        places = np.flatnonzero(block[: max(filled - 6, 0)] == _DATA)
        places = places[block[places + 1] == 0]
        places = places[big_endian(block, places + 5, 2) == self._width]
        following = places + 1 + big_endian(block, places + 1, 4)
        whole = (following <= filled) & (following > places + 6)
        return places[whole], following[whole]

    def _single(
        self, block: Bytes, place: int, filled: int, starts: list[Integers], ends: list[Integers]
    ) -> int | None:
        """One message that is not a plain row; None if it is not here whole."""
        kind, length = struct.unpack_from(">BI", block.data, place)
        after = int(place + 1 + length)
        if after > filled:
            self.needed = after - place
            return None
        begin = place + 5
        if kind == _DATA:
            begin += 0 if self._has_header else HEADER
            self._has_header = True
            if after - begin >= 2 and block[begin : begin + 2].tobytes() != _TRAILER:
                starts.append(np.array([begin]))
                ends.append(np.array([after]))
        elif kind == _ERROR:
            self.error = _server_error(block[begin:after].tobytes())
        self.is_ready |= kind == _READY
        return after


def _server_error(body: bytes) -> pg.Error:
    """The driver's own error class for what the server says."""
    fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
    kind: type[pg.Error] = pg.DatabaseError
    with suppress(KeyError):
        kind = pg.lookup(fields.get(b"C", ""))
    return kind(fields.get(b"M", "no reason given"))


def together(rows: CopiedRows) -> pa.Buffer:
    """The bytes of the rows without what lies between them."""
    if len(rows.starts) == 1:
        return pa.py_buffer(rows.buffer).slice(int(rows.starts[0]), int(rows.ends[0] - rows.starts[0]))
    bounds = np.column_stack([rows.starts, rows.ends]).astype(np.int64).ravel()
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(rows.buffer)]
    pieces = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)  # rows, and gaps between
    kept = pieces.take(pa.array(np.arange(0, len(pieces), 2)))
    return kept.buffers()[2].slice(0, int((rows.ends - rows.starts).sum()))


def check_width(rows: CopiedRows, width: int) -> None:
    if (big_endian(rows.buffer, rows.starts, 2) != width).any():
        raise DecodeError(f"a copied row does not have {width} columns")
