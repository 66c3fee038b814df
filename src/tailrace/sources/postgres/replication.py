"""The replication stream: COPY BOTH through libpq, as few Python steps a message as can be.

Protocol page: "Streaming Replication Protocol", XLogData and Primary keepalive. The stream hands out raw pgoutput
messages; it answers the server's keepalives whatever its caller is waiting for, as long as the caller keeps calling.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq

from tailrace.errors import PositionLost, SourceRefused, SourceUnavailable
from tailrace.sources.postgres.connection import connect, server_of
from tailrace.sources.postgres.pgoutput import EPOCH_US
from tailrace.sources.postgres.positions import format_lsn
from tailrace.sources.readiness import readable

_DATA, _KEEPALIVE = ord("w"), ord("k")
_STATUS = struct.Struct(">cqqqqb")
_PAYLOAD = 25  # bytes of XLogData before the message: kind, start, end, time
_ABOUT_VALUES = ("22", "23")  # classes of errors whose words may show a value
_UNDEFINED, _IN_USE = "42704", "55006"  # by number: the words are in the server's language
BURST = 4096  # messages taken before the caller gets a chance to look at the clock
BURST_BYTES = 8 << 20  # and their size, give or take the last one


class ReplicationStream:
    """A connection for one slot, and the stream on it. `server_end` is how far the server says its log goes for us."""

    def __init__(self, url: str, slot: str, publications: Sequence[str], *, messages: bool = False) -> None:
        self._url, self.slot, self._publications, self._messages = url, slot, publications, messages
        self._connection = connect(url, replication=True, application=f"tailrace {slot}")
        self.pgconn = self._connection.pgconn
        self.server_end = 0
        self.is_reply_requested = False

    def start(self, start: int, *, binary: bool) -> None:
        """Stream the transactions that commit at `start` or later."""
        self.server_end = start
        quoted = ",".join('"' + name.replace('"', '""') + '"' for name in self._publications)
        options = ["proto_version '1'", f"publication_names '{quoted.replace(chr(39), chr(39) * 2)}'"]
        if binary:
            options.append("binary 'true'")
        if self._messages:
            options.append("messages 'true'")
        command = f'START_REPLICATION SLOT "{self.slot}" LOGICAL {format_lsn(start)} ({", ".join(options)})'
        result = self.pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _start_error(self.slot, server_of(self._url), result)

    def another(self) -> ReplicationStream:
        """On a connection of its own."""
        return ReplicationStream(self._url, self.slot, self._publications, messages=self._messages)

    def end(self) -> None:
        """End the stream, and drop what is on its way: afterwards another one has the slot at once."""
        self.pgconn.put_copy_end()
        self.pgconn.flush()
        while self.pgconn.get_copy_data(0)[0] > 0:
            pass
        while self.pgconn.get_result() is not None:
            pass

    def read(self, messages: list[Any]) -> int:
        """Append the messages that are here already, a burst at the most; returns their size in bytes.

        A message larger than BURST_BYTES is the last one of its burst.
        """
        try:
            return self._read(messages)
        except psycopg.Error as error:
            raise self._gone(error) from error

    def _read(self, messages: list[Any]) -> int:
        get, append = self.pgconn.get_copy_data, messages.append
        size = 0
        for _ in range(BURST):
            length, data = get(1)
            if length == 0:  # libpq takes in little at a time: ask it for more before anybody waits
                self.pgconn.consume_input()
                length, data = get(1)
            if length > 0:
                if data[0] == _DATA:
                    append(data[_PAYLOAD:])
                    size += length
                    if size > BURST_BYTES:
                        break
                else:
                    self._keepalive(data)
            elif length == 0:
                break
            else:
                raise self._ended()
        return size

    def wait(self, seconds: float, *wake: Any) -> bool:
        """Wait until something arrives, at most `seconds`; true if there is something to read on the stream."""
        socket = self.pgconn.socket
        if socket in readable([socket, *wake], seconds):
            try:
                self.pgconn.consume_input()
            except psycopg.Error as error:
                raise self._gone(error) from error
            return True
        return False

    def wait_only(self, seconds: float, *wake: Any) -> None:
        """Wait for `wake`, reading nothing from the server: its data stays in its own buffers."""
        readable(wake, seconds)

    def send_status(self, received: int, confirmed: int, *, wants_reply: bool = False) -> None:
        """Tell the server what we have (`received`) and what it may forget (`confirmed`)."""
        now = int(time.time() * 1_000_000) - EPOCH_US
        try:
            self.pgconn.put_copy_data(_STATUS.pack(b"r", received, confirmed, confirmed, now, wants_reply))
            self.pgconn.flush()
        except psycopg.Error as error:
            raise self._gone(error) from error
        self.is_reply_requested = False

    def close(self) -> None:
        self._connection.close()

    def _gone(self, error: psycopg.Error) -> SourceUnavailable:
        return SourceUnavailable(f"PostgreSQL at {server_of(self._url)} went away: {error}".strip())

    def _keepalive(self, data: Any) -> None:
        kind, end, _, wants_reply = struct.unpack(">cqqb", bytes(data))
        if kind[0] != _KEEPALIVE:
            raise SourceUnavailable(f"the replication stream sent an unknown message {kind!r}")
        self.server_end = max(self.server_end, end)
        self.is_reply_requested |= bool(wants_reply)

    def _ended(self) -> SourceUnavailable | PositionLost:
        """Why there is no stream any more: the server's own error, or a connection that is gone."""
        server, result = server_of(self._url), None
        with suppress(psycopg.Error):
            result = self.pgconn.get_result()
        text, code = ("", "") if result is None else _reason(result)
        dropped = [name for name in self._publications if code == _UNDEFINED and f'"{name}"' in text]
        if dropped:
            return PositionLost(
                f"publication {dropped[0]} was dropped at {server}: what changed since is not in the stream"
            )
        if code[:2] in _ABOUT_VALUES:
            text = f"a value was refused (error {code}), as by the row filter of a publication"
        words = text or self.pgconn.get_error_message().strip()
        return SourceUnavailable(f"PostgreSQL at {server} ended the replication stream: {words}".removesuffix(": "))


def _reason(result: Any) -> tuple[str, str]:
    """What the server says, and the code of it."""
    text, code = (result.error_field(f) for f in (pq.DiagnosticField.MESSAGE_PRIMARY, pq.DiagnosticField.SQLSTATE))
    return (text or b"").decode(errors="replace"), (code or b"").decode()


def _start_error(slot: str, server: str, result: Any) -> SourceRefused | SourceUnavailable | PositionLost:
    text, code = _reason(result)
    if code == _UNDEFINED:
        return PositionLost(f"replication slot {slot} is gone from {server}: what the sinks lack is gone with it")
    if code == _IN_USE:
        return SourceUnavailable(f"replication slot {slot} at {server} is in use by another process: {text}")
    return SourceRefused(f"PostgreSQL at {server} refused to stream from slot {slot}: {text}")
