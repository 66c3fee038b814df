"""Capture from PostgreSQL: the stream's messages, gathered and indexed for the log.

It never looks at a value. Relation messages are resolved against the catalog (on a second connection) when a batch is
handed out, so that every segment carries the table definitions it needs.

Guarantee: no byte goes into the log that can not be decoded. The stream is binary as long as every column it describes
has an exact binary decoder. The transaction in which the first other one comes is not handed out: the stream begins
again before it, as text.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tailrace.errors import DecodeError, PositionLost, SourceRefused, SourceUnavailable
from tailrace.model.frames import Frames
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.base import Capture
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.departed import Departed, Described
from tailrace.sources.postgres.describing import Descriptions, Transaction
from tailrace.sources.postgres.identity import Newest, identity_of
from tailrace.sources.postgres.pgoutput import LARGE, OpenTransaction
from tailrace.sources.postgres.positions import format_lsn, parse_lsn
from tailrace.sources.postgres.publications import existing
from tailrace.sources.postgres.replication import ReplicationStream
from tailrace.sources.postgres.slots import read_slot
from tailrace.sources.postgres.types import has_binary_decoder
from tailrace.sources.postgres.values.lanes import Bytes, Integers, big_endian
from tailrace.sources.postgres.witness import check_same_past

STATUS_SECONDS = 1.0
RELEASE_SECONDS = 10.0  # within which a server notices that a slot's reader is gone
MARK_BYTES = 1 << 20  # an idle stream's progress worth telling the sinks at once
LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of the stream, packed; `first` is the offset of the first."""

    first: int
    buffer: Bytes
    bounds: Integers
    kinds: Bytes

    def message(self, row: int) -> bytes:
        return self.buffer[self.bounds[row] : self.bounds[row + 1]].tobytes()

    def begin_before(self, row: int) -> int | None:
        """The Begin of the transaction that `row` is in, if it is among these messages."""
        begins = np.flatnonzero(self.kinds[:row] == ord("B"))
        return int(begins[-1]) if len(begins) else None


class PostgresCapture(Capture):
    def __init__(
        self,
        url: str,
        slot: str,
        publications: Sequence[str],
        absent: Sequence[str],
        after: str,
        first_offset: int,
        described: Mapping[int, TableSchema],
        *,
        binary: bool,
        mark_seconds: float,
        known: SourceIdentity | None = None,
        messages: bool = False,
    ) -> None:
        self._url = url
        self._connect = functools.partial(ReplicationStream, url, slot, publications, messages=messages)
        self._stream, self.identity = self._open_stream(after, binary=binary, known=known)
        self._is_binary = binary
        self._messages: list[Any] = []
        self._large: list[int] = []  # which of them are large
        self._bytes = 0
        self._next = first_offset
        self._committed = first_offset - 1
        self._open: OpenTransaction | None = None
        self._position = parse_lsn(after)
        self._confirmed = 0  # nothing is told to the server before the sinks have said what they have
        self._departed = Departed(url)
        self._remarks: list[str] = []
        self._status_at = self._marked_at = time.monotonic()
        self._mark_seconds = mark_seconds
        self._has_asked = False
        self._absent, self._looked_at = absent, time.monotonic()
        self._tables = Descriptions(url, described, self._horizon_of(slot, after))

    def _open_stream(
        self, after: str, *, binary: bool, known: SourceIdentity | None
    ) -> tuple[ReplicationStream, SourceIdentity]:
        stream = self._connect()
        try:
            identity = check_same_past(stream, known, after) if known else identity_of(stream.pgconn, stream.slot)
            stream.start(parse_lsn(after), binary=binary)
        except BaseException:
            stream.close()
            raise
        return stream, identity

    def _horizon_of(self, slot: str, after: str) -> int:
        """The transactions before it had ended where the slot begins. Raises PositionLost if that is behind `after`.

        The server starts at the slot's own place where that lies ahead of ours, and says nothing. The slot is ours
        while we stream: nobody can put another in its place after this look.
        """
        with source_errors(self._url, "reading the slot"), connect(self._url) as connection:
            found = read_slot(connection, slot)
        if found is None or found.confirmed is None or parse_lsn(found.confirmed) > parse_lsn(after):
            self._stream.close()
            begins = "is gone" if found is None or found.confirmed is None else f"begins at {found.confirmed}"
            raise PositionLost(f"replication slot {slot} {begins}, and what follows {after} is needed")
        return found.catalog_xmin or 0

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
        self._look_for_absent()
        self._mark_idle()
        if not self._messages:
            return None
        messages = self._cut()
        batch = self._packed(messages)
        described, odd = self._described(batch)
        described = self._departed.mark(batch.buffer, batch.bounds, batch.kinds, described)
        if odd is None:
            return self._hand_out(self._index(batch, described))
        begin = batch.begin_before(odd) or 0
        whole = [(row, schema) for row, schema in described if row < begin]
        taken = self._hand_out(self._index(self._packed(messages[:begin]), whole)) if begin else None
        self._go_on_as_text()
        return taken

    def _hand_out(self, frames: Frames) -> tuple[Frames, str]:
        self._next = frames.last + 1
        self._committed = int(frames.transactions.column("end").to_numpy().max(initial=self._committed))
        ends = frames.transactions.column("end_position").to_numpy()
        self._position = int(ends.max(initial=self._position))
        self._remember_newest(frames)
        return frames, format_lsn(self._position)

    def _remember_newest(self, frames: Frames) -> None:
        """Of the transactions that end here; a mark of an idle stream is none."""
        xids, ends = (frames.transactions.column(name).to_numpy() for name in ("xid", "end"))
        ended = np.flatnonzero((ends > 0) & (xids > 0))
        if len(ended):
            names = ("xid", "time_us", "commit_position")
            newest = Newest(*(frames.transactions.column(name)[int(ended[-1])].as_py() for name in names))
            self.identity = msgspec.structs.replace(self.identity, newest=newest.text)

    def _go_on_as_text(self) -> None:
        """Begin again behind the last whole transaction. What is in the log of an unfinished one will be replaced."""
        self._stream.close()
        deadline = time.monotonic() + RELEASE_SECONDS
        while True:
            try:
                after = format_lsn(self._position)
                self._stream, self.identity = self._open_stream(after, binary=False, known=self.identity)
                break
            except SourceUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._is_binary = self._has_asked = False
        self._messages, self._large, self._bytes = [], [], 0
        self._next, self._open = self._committed + 1, None
        self._tables.begin_stream()
        self._departed.begin_stream()

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

    def remarks(self) -> list[str]:
        remarks, self._remarks = self._remarks, []
        return remarks

    def close(self) -> None:
        self._stream.close()
        self._tables.close()

    def _look_for_absent(self) -> None:
        """A publication that comes while we stream without it publishes changes that we never see."""
        if not self._absent or time.monotonic() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = time.monotonic()
        with connect(self._url) as connection, source_errors(self._url, "looking for publications"):
            found = existing(connection, self._absent)
        if found:
            raise SourceRefused(
                f"publication {found[0]} was made while capture ran without it: some of its changes are lost",
                hint="run `tailrace drop` on this pipeline, then `tailrace run`: every table is copied again",
            )

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

    def _packed(self, messages: list[Any]) -> Batch:
        buffer, bounds = pgoutput.pack(messages)
        return Batch(self._next, buffer, bounds, pgoutput.kinds_of(buffer, bounds, self._next))

    def _described(self, batch: Batch) -> tuple[Described, int | None]:
        """The tables that a batch describes, up to the first one that must not come in a binary stream; its row."""
        described: Described = []
        wanted = b"RYB" if self._tables.has_doubts else b"RY"
        for row in np.flatnonzero(np.isin(batch.kinds, np.frombuffer(wanted, np.uint8))).tolist():
            if batch.kinds[row] == ord("B"):
                described += [(row, schema) for schema in self._tables.settle(self._transaction_at(batch, row + 1))]
                continue
            message, offset = batch.message(row), batch.first + row
            if batch.kinds[row] == ord("Y"):
                self._tables.name_type(message, offset)
                continue
            schema = self._tables.resolve(message, offset, self._transaction_at(batch, row))
            if self._is_binary and (odd := [c for c in schema.columns if not has_binary_decoder(c.type)]):
                self._remarks.append(
                    f"{schema.table}.{odd[0].name} ({odd[0].type.name}) has no exact binary form:"
                    " the stream goes on as text"
                )
                return described, row
            described.append((row, schema))
        return described, None

    def _transaction_at(self, batch: Batch, row: int) -> Transaction:
        begin = batch.begin_before(row)
        if begin is None:
            return Transaction(0, 0) if self._open is None else Transaction(self._open.xid, self._open.commit_position)
        position, xid = (int(big_endian(batch.buffer, batch.bounds[[begin]] + at, n)[0]) for at, n in ((1, 8), (17, 4)))
        return Transaction(xid & 0xFFFFFFFF, position)

    def _index(self, batch: Batch, described: Described) -> Frames:
        buffer, bounds, kinds = batch.buffer, batch.bounds, batch.kinds
        carried = dict(self._tables.definitions)
        roots = self._departed.roots
        defined = [
            self._tables.define(schema, batch.first + row, roots.get((row, schema.relation), 0))
            for row, schema in described
        ]
        transactions, self._open = pgoutput.index_transactions(buffer, bounds, kinds, batch.first, self._open)
        counts = pgoutput.count_changes(buffer, bounds, kinds)
        definitions = [carried[r] for r in counts if r in carried] + [d for d in defined if d is not None]
        tables: dict[str, int] = {}
        for relation, count in counts.items():
            names = {d.schema.table for d in definitions if d.relation == relation}  # two, if it was renamed
            if not names:
                raise DecodeError(f"changes of relation {relation} came before its description")
            tables |= {name: tables.get(name, 0) + count for name in names}
        return Frames(pgoutput.KIND, batch.first, buffer, bounds, transactions, tuple(definitions), tables)
