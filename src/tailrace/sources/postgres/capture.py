"""Capture from PostgreSQL: the stream's messages, gathered and indexed for the log.

It never looks at a value. Relation messages are resolved against the catalog (on a second connection) when a batch is
handed out, so that every segment carries the table definitions it needs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import psycopg

from tailrace.errors import DecodeError
from tailrace.model.frames import Definition, Frames
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.catalog import described_schema
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.lanes import Bytes, Integers
from tailrace.sources.postgres.pgoutput import LARGE, OpenTransaction, Relation
from tailrace.sources.postgres.positions import format_lsn, parse_lsn
from tailrace.sources.postgres.replication import ReplicationStream

STATUS_SECONDS = 1.0
MARK_BYTES = 1 << 20  # an idle stream's progress worth telling the sinks at once


class PostgresCapture:
    def __init__(
        self, url: str, slot: str, publication: str, after: str, first_offset: int, *, binary: bool, mark_seconds: float
    ) -> None:
        self._url = url
        self._stream = ReplicationStream(url, slot, publication, parse_lsn(after), binary=binary)
        self._messages: list[Any] = []
        self._large: list[int] = []  # which of them are large
        self._bytes = 0
        self._next = first_offset
        self._open: OpenTransaction | None = None
        self._position = self._confirmed = parse_lsn(after)
        self._definitions: dict[int, Definition] = {}
        self._catalog: psycopg.Connection[Any] | None = None
        self._status_at = self._marked_at = time.monotonic()
        self._mark_seconds = mark_seconds
        self._has_asked = False

    @property
    def pending_bytes(self) -> int:
        return self._bytes

    @property
    def received(self) -> str:
        """The server's end once all before it is in the log; until then the last transaction end."""
        is_idle = not self._messages and self._open is None
        return format_lsn(max(self._stream.server_end, self._position) if is_idle else self._position)

    def poll(self, seconds: float, *wake: object) -> None:
        size = self._stream.read(self._messages)
        if not size and not self._stream.is_reply_requested and self._stream.wait(seconds, *wake):
            size = self._stream.read(self._messages)
        if size >= LARGE and len(self._messages[-1]) >= LARGE:
            self._large.append(len(self._messages) - 1)
        self._bytes += size
        self._has_asked &= not size
        self._answer()

    def idle(self, seconds: float, *wake: object) -> None:
        """Take nothing in (the log is full), but keep the connection alive."""
        self._stream.wait_only(seconds, *wake)
        self._answer()

    def take(self) -> tuple[Frames, str] | None:
        self._mark_idle()
        if not self._messages:
            return None
        frames = self._index(*pgoutput.pack(self._cut()))
        self._next = frames.last + 1
        ends = frames.transactions.column("end_position").to_numpy()
        self._position = int(ends.max(initial=self._position))
        return frames, format_lsn(self._position)

    def _cut(self) -> list[Any]:
        """The messages of the next segment: all that are pending, but a large one has a segment of its own."""
        end = max(self._large[0], 1) if self._large else len(self._messages)
        messages, self._messages = self._messages[:end], self._messages[end:]
        self._large = [place - end for place in self._large if place >= end]
        self._bytes = sum(map(len, self._messages))
        return messages

    def acknowledge(self, position: str) -> None:
        self._confirmed = max(self._confirmed, parse_lsn(position))
        self._send_status()

    def close(self) -> None:
        self._stream.close()
        if self._catalog is not None:
            self._catalog.close()

    def _mark_idle(self) -> None:
        """Let an idle publication's progress flow through the log to the sinks, so that the server may forget."""
        ahead = self._stream.server_end - self._position
        if self._messages or self._open is not None or ahead <= 0:
            return
        now = time.monotonic()
        if ahead >= MARK_BYTES or now - self._marked_at >= self._mark_seconds:
            self._marked_at = now
            self._messages.append(pgoutput.keepalive_mark(self._stream.server_end, int(time.time() * 1_000_000)))

    def _answer(self) -> None:
        """Keep the server informed; once all it sent is in the log, ask how far its log goes."""
        is_idle = not self._messages and self._open is None
        if is_idle and not self._has_asked:
            self._has_asked = True
            self._send_status(wants_reply=True)
        elif self._stream.is_reply_requested or time.monotonic() - self._status_at >= STATUS_SECONDS:
            self._send_status(wants_reply=is_idle)

    def _send_status(self, *, wants_reply: bool = False) -> None:
        self._status_at = time.monotonic()
        self._stream.send_status(max(self._position, self._confirmed), self._confirmed, wants_reply=wants_reply)

    def _index(self, buffer: Bytes, bounds: Integers) -> Frames:
        kinds = pgoutput.kinds_of(buffer, bounds, self._next)
        carried = dict(self._definitions)
        described = [
            self._describe(buffer[bounds[row] : bounds[row + 1]].tobytes(), self._next + row)
            for row in np.flatnonzero(kinds == ord("R")).tolist()
        ]
        transactions, self._open = pgoutput.index_transactions(buffer, bounds, kinds, self._next, self._open)
        counts = pgoutput.count_changes(buffer, bounds, kinds)
        definitions = [carried[r] for r in counts if r in carried] + [d for d in described if d is not None]
        tables: dict[str, int] = {}
        for relation, count in counts.items():
            names = {d.schema.table for d in definitions if d.relation == relation}  # two, if it was renamed
            if not names:
                raise DecodeError(f"changes of relation {relation} came before its description")
            tables |= {name: tables.get(name, 0) + count for name in names}
        return Frames(self._next, buffer, bounds, transactions, tuple(definitions), tables)

    def _describe(self, message: bytes, offset: int) -> Definition | None:
        """A new definition, or None when the server only repeats what we know."""
        relation = pgoutput.parse_relation(message, offset)
        definition = Definition(relation.id, offset, self._resolve(relation))
        known = self._definitions.get(relation.id)
        if known is not None and known.schema == definition.schema:
            return None
        self._definitions[relation.id] = definition
        return definition

    def _resolve(self, relation: Relation) -> Any:
        if self._catalog is None or self._catalog.closed:
            self._catalog = connect(self._url)
        with source_errors(self._url, "reading the catalog"):
            return described_schema(self._catalog, relation)
