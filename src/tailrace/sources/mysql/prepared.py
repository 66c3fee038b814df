"""XA transactions: their rows are held from their XA PREPARE on, and told at the place of their XA COMMIT.

In the binary log it is two groups: its rows, which end with XA PREPARE, and later, from whichever session
and after whatever else, XA COMMIT or XA ROLLBACK. `settled` makes of both what they mean: the first has no rows any
more, the second has them. Nothing is stored: while a transaction is open, places of the stream say where to read from
to come by its rows again (`model.positions`).

Protocol pages: "XA_prepare_log_event"; MariaDB: "GTID_EVENT", whose flags say that an XA transaction begins.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from tailrace.sources.mysql import events as kinds
from tailrace.sources.mysql import queries
from tailrace.sources.mysql.events import BODY, HEADER, Events, Integers, little_endian, rebuilt

_PREPARED = 64
"""A flag of MariaDB's GTID event: the group is an XA transaction that is prepared."""


class Turn(msgspec.Struct, frozen=True):
    """An XA transaction is prepared, or ended. One that is `unknown` was prepared before the stream began."""

    xid: str
    is_prepared: bool
    is_unknown: bool = False


class Prepared:
    """The rows of transactions that are prepared and not ended, and of the one that is being prepared."""

    def __init__(self) -> None:
        self._held: dict[str, list[bytes]] = {}
        self._open: list[bytes] | None = None

    def settled(self, events: Events) -> tuple[Events, dict[int, Turn]]:
        """The events, with rows where they are committed; and what happens at which of them."""
        if self._open is None and not _has_any(events):
            return events, {}
        found: list[bytes] = []
        turns: dict[int, Turn] = {}
        for row, kind in enumerate(events.types.tolist()):
            event = events.event(row)
            event = event[:9] + struct.pack("<I", len(event)) + event[13:]
            if kind == kinds.MARIADB_GTID:
                self._open = [] if event[HEADER + 12] & _PREPARED else None
                found.append(event)
            elif kind == kinds.XA_PREPARE:
                self._prepare(event, found, turns)
            elif kind == kinds.QUERY:
                self._query(event, found, turns)
            elif self._open is not None and kind not in kinds.IGNORED:
                self._open.append(event)
            else:
                found.append(event)
        return rebuilt(found), turns

    def _prepare(self, event: bytes, found: list[bytes], turns: dict[int, Turn]) -> None:
        is_one_phase, form, global_size, branch_size = struct.unpack_from("<BIII", event, HEADER)
        start = HEADER + 13
        parts = event[start : start + global_size], event[start + global_size : start + global_size + branch_size]
        rows, self._open = self._open or [], None
        if is_one_phase:
            found += rows
        else:
            xid = f"X'{parts[0].hex()}',X'{parts[1].hex()}',{form}"
            self._held[xid] = rows
            turns[len(found)] = Turn(xid, is_prepared=True)
        found.append(event)

    def _query(self, event: bytes, found: list[bytes], turns: dict[int, Turn]) -> None:
        words = queries.parse(event[HEADER:]).text.split(maxsplit=2)
        if words[0].upper() != "XA" or len(words) < 3:
            (found if self._open is None else self._open).append(event)
        elif words[1].upper() == "START":
            self._open = []
        elif words[1].upper() in ("COMMIT", "ROLLBACK"):
            xid = words[2].lower().replace("x'", "X'").replace(" ", "")
            rows = self._held.pop(xid, None)
            is_commit = words[1].upper() == "COMMIT"
            found += rows or [] if is_commit else []
            turns[len(found)] = Turn(xid, is_prepared=False, is_unknown=is_commit and rows is None)
            found.append(event)


def _has_any(events: Events) -> bool:
    """Whether there is anything of an XA transaction: hardly ever."""
    types = events.types
    if (types == kinds.XA_PREPARE).any():
        return True
    gtids = np.flatnonzero(types == kinds.MARIADB_GTID)
    if len(gtids) and (events.number(gtids, HEADER + 12, 1) & _PREPARED).any():
        return True
    rows = np.flatnonzero(types == kinds.QUERY)
    return bool(len(rows)) and _begins_with_xa(events, rows)


def _begins_with_xa(events: Events, rows: Integers) -> bool:
    starts = events.starts[rows] + BODY
    text = starts + 14 + little_endian(events.buffer, starts + 11, 2) + events.buffer[starts + 8]
    return bool((little_endian(events.buffer, text, 3) == int.from_bytes(b"XA ", "little")).any())
