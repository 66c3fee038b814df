"""The replication stream: a replica of our own over PyMySQL's connection, that reads its socket in large pieces.

Protocol pages: COM_REGISTER_SLAVE, COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID; MariaDB: "Connecting as a replica".
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
import uuid
from typing import Any

import numpy as np
import pymysql

from tailrace.errors import PositionLost, SourceError, SourceRefused, SourceUnavailable
from tailrace.model.positions import Binlog, GtidSet
from tailrace.sources.mysql import events
from tailrace.sources.mysql.connection import Server, connect, read_server, rows, server_of, source_error, source_errors
from tailrace.sources.mysql.events import Events
from tailrace.sources.mysql.gtid import encoded
from tailrace.sources.mysql.positions import parse
from tailrace.sources.readiness import readable

CHUNK_BYTES = 8 << 20
SOCKET_BYTES = 4 << 20
READ_BYTES = 2 << 20  # at once, before anybody else has a turn
LEAST_BYTES = 256 << 10  # of room in a chunk that is worth reading into
HEARTBEAT_NS = 1_000_000_000
SILENCE_SECONDS = 60.0
_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
_FATAL = 1236  # ER_SOURCE_FATAL_ERROR_READING_BINLOG: many things
PADDING = 16


class BinlogStream:
    """An open stream behind a place. `file` is the binlog file that the last events were of."""

    def __init__(self, url: str, server_id: int, name: str) -> None:
        self.url, self._server_id, self._name = url, server_id, name
        self._connection: Any = connect(url, read_seconds=SILENCE_SECONDS)
        with source_errors(url, "asking who it is"):
            self.server: Server = read_server(self._connection)
        self._socket: Any = None
        self._begin = self._whole = self._filled = 0
        self._heard_at = time.monotonic()
        self._chunks: list[tuple[np.ndarray, list[int], int]] = []
        self._begin_chunk(b"")
        self.has_checksums = False

    @property
    def connection(self) -> Any:
        return self._connection

    def start(self, after: str) -> None:
        """Ask for what follows. Raises PositionLost, SourceRefused."""
        if self._server_id == self.server.id:
            raise SourceRefused(
                f"the server id {self._server_id} of this pipeline is that of the server at {server_of(self.url)}",
                hint="choose another with source.server_id in the pipeline file",
            )
        with source_errors(self.url, "beginning the stream"):
            self._introduce()
            self._dump(after)
        self._socket = self._connection._sock
        if isinstance(self._socket, socket.socket):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self._socket.settimeout(0)
        self._heard_at = time.monotonic()

    def _introduce(self) -> None:
        """As a replica does: checksums as the server has them, a sign of life each second, and who we are."""
        known = uuid.uuid5(uuid.NAMESPACE_URL, f"tailrace/{self._name}/{self._server_id}")
        sets = [f"@{each}_binlog_checksum = @@global.binlog_checksum" for each in ("master", "source")]
        sets += [f"@{each}_heartbeat_period = {HEARTBEAT_NS}" for each in ("master", "source")]
        sets += [f"@slave_uuid = '{known}'", f"@replica_uuid = '{known}'", "net_write_timeout = 3600"]
        sets += ["@mariadb_slave_capability = 4"] if self.server.is_mariadb else []
        rows(self._connection, "SET " + ", ".join(sets))
        [(alg,)] = rows(self._connection, "SELECT @master_binlog_checksum")
        self.has_checksums = _text(alg) != "NONE"
        host = f"tailrace {self._name}".encode()[:60]
        self._command(_REGISTER, struct.pack("<IB", self._server_id, len(host)) + host + bytes(2) + bytes(10))
        self._connection._read_packet()

    def _dump(self, after: str) -> None:
        place = parse(after)
        if isinstance(place, Binlog):
            if place.offset >= 1 << 32:
                raise PositionLost(f"{after} can not be asked for: the protocol has 4 bytes for it")
            name = f"{place.name}.{place.digits}".encode()
            self._command(_DUMP, struct.pack("<IHI", place.offset, 0, self._server_id) + name)
        elif isinstance(place, GtidSet):
            if self.server.is_mariadb or not self.server.has_gtids:
                raise PositionLost(f"{server_of(self.url)} has no GTIDs of MySQL, and is to go on after {after}")
            data = encoded(place)
            head = struct.pack("<HIIQI", 4, self._server_id, 0, 4, len(data))
            self._command(_DUMP_GTID, head + data)
        else:
            if not self.server.is_mariadb:
                raise PositionLost(f"{server_of(self.url)} has no GTIDs of MariaDB, and is to go on after {after}")
            sets = ["@slave_gtid_strict_mode = 0", "@slave_gtid_ignore_duplicates = 0"]
            rows(self._connection, f"SET @slave_connect_state = '{place}', " + ", ".join(sets))
            self._command(_DUMP, struct.pack("<IHI", 4, 0, self._server_id))

    def _command(self, command: int, arguments: bytes) -> None:
        self._connection._next_seq_id = 0
        self._connection._execute_command(command, arguments)

    def wait(self, seconds: float, *wake: Any) -> bool:
        """Whether there is something to read for us, within that time."""
        if getattr(self._socket, "pending", int)():
            return True
        return self._socket in readable([self._socket, *wake], seconds)

    def wait_only(self, seconds: float, *wake: Any) -> None:
        """Wait, whatever comes. The server waits as well, until somebody reads."""
        self._heard_at = time.monotonic()
        if wake:
            readable(wake, seconds)
        else:
            time.sleep(seconds)

    def read(self) -> int:
        """Take in what has come; how much. Raises SourceUnavailable if the server has been silent for long."""
        taken = 0
        while taken < READ_BYTES:
            if len(self._buffer) - PADDING - self._filled < LEAST_BYTES:
                self._next_chunk()
            try:
                size = self._socket.recv_into(self._view[self._filled : len(self._buffer) - PADDING])
            except (BlockingIOError, ssl.SSLWantReadError):
                break
            except OSError as error:
                raise source_error(self.url, "streaming", error) from error
            if not size and not taken and not self._starts and not self._chunks:
                raise SourceUnavailable(f"{server_of(self.url)} has closed the stream")
            if not size:
                break  # it may have said why
            self._filled += size
            taken += size
        if taken:
            self._heard_at = time.monotonic()
            self._whole = events.packets(self._view, self._whole, self._filled, self._starts)
        return taken

    def check_alive(self) -> None:
        """A server with nothing to send sends a sign of life each second."""
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            raise SourceUnavailable(f"{server_of(self.url)} has sent nothing for {SILENCE_SECONDS:.0f} s")

    def _begin_chunk(self, rest: bytes | memoryview) -> None:
        self._buffer = np.empty(max(CHUNK_BYTES, 2 * len(rest)) + PADDING, np.uint8)
        self._view = memoryview(self._buffer)  # type: ignore[arg-type]  # an array has a buffer
        self._view[: len(rest)] = rest
        self._begin, self._whole, self._filled = 0, 0, len(rest)
        self._starts: list[int] = []

    def _next_chunk(self) -> None:
        self._whole = events.packets(self._view, self._whole, self._filled, self._starts)
        if self._starts:
            self._chunks.append((self._buffer, self._starts, self._whole))
        rest = self._view[self._whole : self._filled]
        self._begin_chunk(rest)
        self._whole = events.packets(self._view, 0, self._filled, self._starts)

    @property
    def pending_bytes(self) -> int:
        return sum(end - starts[0] for _, starts, end in self._chunks) + self._filled - self._begin

    def take(self) -> Events | None:
        """The next whole events, in order; None if there is not one. Those of one chunk at most."""
        if self._chunks:
            return self._events(*self._chunks.pop(0))
        if self._starts:
            found = self._events(self._buffer, self._starts, self._whole)
            self._starts, self._begin = [], self._whole
            return found
        return self._take_large()

    def _take_large(self) -> Events | None:
        if (found := events.joined(self._view, self._whole, self._filled)) is None:
            return None
        buffer, end = found
        self._begin = self._whole = end
        self._whole = events.packets(self._view, end, self._filled, self._starts)
        return self._events(buffer, [0], len(buffer) - PADDING)

    def _events(self, buffer: np.ndarray, starts: list[int], end: int) -> Events:
        places = np.array(starts, np.int64)
        ends = np.append(places[1:], end)
        status = buffer[places + 4]
        if status.any():
            row = int(np.flatnonzero(status)[0])
            if row:
                places, ends = places[:row], ends[:row]
                self._chunks.insert(0, (buffer, starts[row:], end))
            else:
                raise self._refusal(buffer[places[0] + 4 : ends[0]].tobytes())
        trailers = np.full(len(places), events.TRAILER if self.has_checksums else 0, np.uint8)
        return Events(buffer, places, ends, trailers)

    def _refusal(self, packet: bytes) -> SourceError:
        if packet[0] != 0xFF:
            return SourceUnavailable(f"{server_of(self.url)} has ended the stream")
        code, text = struct.unpack_from("<H", packet, 1)[0], packet[3:].decode("utf-8", "replace")
        return self._explained(code, text[6:] if text.startswith("#") else text)

    def _explained(self, code: int, text: str) -> SourceError:
        lowered = text.lower()
        if "same server_uuid/server_id" in lowered:
            return SourceRefused(
                f"another replica of {server_of(self.url)} has the server id {self._server_id} too, and took our place",
                hint="choose another with source.server_id in the pipeline file, or stop the other one",
            )
        if code == _FATAL or "could not find first log" in lowered or "not in the master" in lowered:
            if "could not open log" in lowered or "read error" in lowered:
                return SourceUnavailable(f"{server_of(self.url)} can not read its binary log: {text}")
            return PositionLost(f"{server_of(self.url)} can not go on from where we are: {text}")
        return source_error(self.url, "streaming", pymysql.OperationalError(code, text))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection._force_close()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
