"""Whether the log of a server that was started anew is still the one that was read: its last transaction bears witness.

A data directory that was put back from a cold copy has the same system, timeline and slot. Once it has gone on by
itself past the place where we were, its numbers say nothing any more; but the transaction that we read last is not in
its log, or others are where we saw none. So the slot is asked for that transaction once more. A server that was not
started since is not asked: nobody can put another past under it while it runs.

Protocol page: "Streaming Replication Protocol", START_REPLICATION; "Logical Replication Message Formats", Begin.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import msgspec

from tailrace.errors import PositionLost, SourceChanged, SourceUnavailable
from tailrace.model.watermark import SourceIdentity
from tailrace.sources.postgres.identity import Newest, check_same, identity_of, newest_of, rows
from tailrace.sources.postgres.pgoutput import EPOCH_US
from tailrace.sources.postgres.positions import format_lsn, parse_lsn
from tailrace.sources.postgres.replication import ReplicationStream

_SLOT = """
SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots
WHERE slot_name = '{slot}' AND active_pid IS NULL AND wal_status <> 'lost' AND confirmed_flush_lsn IS NOT NULL
"""
_BEGIN = struct.Struct(">cqqI")
_WAIT_SECONDS = 0.5

Wait = Callable[[], None]
"""Called every moment while the server reads its log; it may raise."""


def check_same_past(
    stream: ReplicationStream, known: SourceIdentity, position: str, wait: Wait = lambda: None
) -> SourceIdentity:
    """The present identity, if what was read up to `position` is this database's own past; or SourceChanged.

    On a stream that is not started yet. A slot that is gone, or that somebody reads, is not asked.
    """
    now, last = check_same(stream.pgconn, known, position), newest_of(known)
    if last is None or not last.commit or known.life == now.life:
        return now
    with closing(stream.another()) as other:  # a server does not stream twice on one connection
        if identity_of(other.pgconn, known.slot) != msgspec.structs.replace(now, newest=""):
            raise SourceUnavailable("two servers answer in turn where there was one")
        slot = rows(other.pgconn, _SLOT.format(slot=other.slot))
        if slot:
            with suppress(PositionLost):  # a publication that was made since: what was read through others is not sent
                _require(other, last, parse_lsn(position), parse_lsn(slot[0][0]), wait)
    return now


def _require(stream: ReplicationStream, last: Newest, position: int, confirmed: int, wait: Wait) -> None:
    """Transactions that committed before the slot's `confirmed` place are not sent any more."""
    end = max(last.commit + 1, position)
    if confirmed >= end:
        return
    stream.start(min(last.commit, position), binary=False)
    is_found = False
    for each in _transactions(stream, end, wait):
        is_found |= each == last
        if each.commit < position and each != last:
            at = f"{each.xid} at {format_lsn(each.commit)}, before {format_lsn(position)}"
            raise _changed(f"transaction {at}, was not there when that was read")
    if last.commit >= confirmed and not is_found:
        at = f"{last.xid} at {format_lsn(last.commit)}"
        raise _changed(f"transaction {at}, which was read already, is not in its log")
    stream.end()


def _changed(reason: str) -> SourceChanged:
    words = "the source is not the database that was read before"
    return SourceChanged(f"{words}: {reason}: it was restored from a backup")


def _transactions(stream: ReplicationStream, end: int, wait: Wait) -> Iterator[Newest]:
    """Those that commit before `end`. What they change is not looked at."""
    while True:
        messages: list[Any] = []
        stream.read(messages)
        for message in messages:
            if message[0] == ord("B"):
                _, commit, time, xid = _BEGIN.unpack(message)
                if commit >= end:
                    return
                yield Newest(xid, time + EPOCH_US, commit)
        if not messages and stream.server_end >= end:
            return
        if not messages and not stream.wait(_WAIT_SECONDS):
            stream.send_status(0, 0, wants_reply=True)
        if stream.is_reply_requested:
            stream.send_status(0, 0)
        wait()
