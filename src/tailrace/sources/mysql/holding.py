"""Lending the sessions of a moment to tasks, which are in other processes.

The driver holds the sessions, and a small server beside them. A task connects to it, is lent a session, and sends
queries; what the database answers goes to it as it is. Chunks and questions have sessions of their own: who asks while
a chunk is read does not wait for other chunks. A session whose answer was not read to its end is not lent again.

A lender is known by its address and a secret, both of which are in the snapshot's id.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from pymysql.connections import Connection

from tailrace.errors import SourceUnavailable
from tailrace.model.stored import from_json
from tailrace.sources.mysql.wire import taken
from tailrace.sources.readiness import readable

CHUNK, QUESTION = b"C", b"Q"
ANSWERED = 0
_LENGTH = struct.Struct("<I")
_FORWARD_BYTES = 1 << 18
_SECRET_BYTES = 32
CONNECT_SECONDS = 10.0
_QUERY = b"\x03"
LEND_SECONDS = 3600.0


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of a snapshot: where its lender listens, and whether all of its sessions see the same."""

    host: str
    port: int
    secret: str
    is_exact: bool


class Lender:
    """Serves until it is closed."""

    def __init__(self, host: str, chunks: Sequence[Connection[Any]], questions: Sequence[Connection[Any]]) -> None:
        self.secret = secrets.token_hex(_SECRET_BYTES // 2)
        self._free: dict[bytes, queue.Queue[Any]] = {CHUNK: queue.Queue(), QUESTION: queue.Queue()}
        self._left = {CHUNK: len(chunks), QUESTION: len(questions)}
        for kind, sessions in ((CHUNK, chunks), (QUESTION, questions)):
            for session in sessions:
                self._free[kind].put(session)
        self._listening = socket.create_server((host, 0))
        self.port = int(self._listening.getsockname()[1])
        self._borrowers: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="tailrace lender", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            loans = dict(self._borrowers)
        for free in self._free.values():
            free.put(None)  # whoever still waits
        for borrower, loan in loans.items():
            with contextlib.suppress(OSError):
                borrower.shutdown(socket.SHUT_RDWR)
            loan.join(CONNECT_SECONDS)

    def _accept(self) -> None:
        while True:
            try:
                borrower, _ = self._listening.accept()
            except OSError:
                return
            loan = threading.Thread(target=self._serve, args=(borrower,), name="tailrace loan", daemon=True)
            with self._lock:
                self._borrowers[borrower] = loan
            loan.start()

    def _serve(self, borrower: socket.socket) -> None:
        try:
            with borrower:
                borrower.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                secret, kind = _exactly(borrower, _SECRET_BYTES), _exactly(borrower, 1)
                if hmac.compare_digest(secret, self.secret.encode()) and kind in self._free:
                    self._lend(borrower, kind)
        except OSError:
            pass  # the borrower says what happened to it
        finally:
            with self._lock:
                self._borrowers.pop(borrower, None)

    def _lend(self, borrower: socket.socket, kind: bytes) -> None:
        free = self._free[kind]
        session = free.get() if self._left[kind] else None
        if session is None:
            free.put(None)
            return
        is_clean = False
        try:
            is_clean = _forwarded(borrower, session._sock)
        finally:
            if is_clean:
                free.put(session)
            else:
                self._lose(kind, session)

    def _lose(self, kind: bytes, session: Any) -> None:
        session._force_close()
        with self._lock:
            self._left[kind] -= 1
        if not self._left[kind]:
            self._free[kind].put(None)


def _forwarded(borrower: socket.socket, database: Any) -> bool:
    """Pass queries on, and answers back, until the borrower goes; true if it had all that it asked for."""
    buffer, is_answered = memoryview(bytearray(_FORWARD_BYTES)), True
    while True:
        ready = readable([borrower, database], LEND_SECONDS)
        if database in ready:
            count = taken(database, buffer)
            if not count or is_answered:  # it went away: nobody has asked
                return False
            borrower.sendall(buffer[:count])
            continue
        header = borrower.recv(_LENGTH.size, socket.MSG_WAITALL)
        if len(header) < _LENGTH.size:
            return is_answered
        (length,) = _LENGTH.unpack(header)
        is_answered = length == ANSWERED
        if not is_answered:
            database.sendall(_LENGTH.pack(length + 1)[:3] + b"\0" + _QUERY + _exactly(borrower, length))


def _exactly(wire: socket.socket, count: int) -> bytes:
    found = wire.recv(count, socket.MSG_WAITALL)
    if len(found) < count:
        raise ConnectionError("the other side is gone")
    return found


class Loan:
    """A session that a task was lent. One query at a time."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire

    def ask(self, query: str) -> None:
        sent = query.encode()
        self.wire.sendall(_LENGTH.pack(len(sent)) + sent)

    def answered(self) -> None:
        """All of the answer was read."""
        self.wire.sendall(_LENGTH.pack(ANSWERED))


@contextmanager
def borrowed(snapshot: str, kind: bytes) -> Iterator[Loan]:
    """A session of a moment. One that is gone is as a connection that is lost."""
    address = from_json(snapshot, Address)
    try:
        wire = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    except OSError as error:
        raise SourceUnavailable(
            f"the snapshot held at {address.host}:{address.port} is gone, or can not be reached from here",
            hint="where Spark's workers are on other hosts, set source.copy_address to the driver's address",
        ) from error
    with wire:
        wire.settimeout(LEND_SECONDS)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.sendall(address.secret.encode() + kind)
        yield Loan(wire)
