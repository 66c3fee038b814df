"""The changes of one part of the stream, of all its tables, brought into commit order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.embedded.pieces import Part
from tailrace.model.changes import Changes, Op
from tailrace.sources.base import LoggedMessage

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Counted:
    """How many events of a transaction came so far, and how many of each table."""

    events: int = 0
    tables: Mapping[str, int] = field(default_factory=dict)


NOTHING = Counted()


@dataclass(slots=True)
class Numbering:
    """What of a transaction came so far; it goes on from part to part. `begin` is the transaction's."""

    begin: int
    counted: Counted


class Run:
    """`order` are the places of the events, all tables' after one another and then the messages, by their offsets.

    `transaction` (a row of the piece's) and `number` (in its transaction, from 1) are in that order. `table_numbers`
    count the events of the same table, and are in the order of `changes`.
    """

    def __init__(
        self, part: Part, changes: Sequence[Changes], logged: Sequence[LoggedMessage], numbering: Numbering
    ) -> None:
        self.part, self.changes, self.logged = part, list(changes), list(logged)
        offset = np.concatenate([*(c.offset for c in changes), np.array([m.offset for m in logged], np.int64)])
        transaction = np.concatenate(
            [*(c.transaction for c in changes), np.array([m.transaction for m in logged], np.int64)]
        )
        self.order = self._order(offset)
        self.transaction: Integers = transaction[self.order].astype(np.int64)
        self.begins: Integers = part.piece.transactions.column("begin").to_numpy()
        self.number, self.table_numbers = self._numbered(numbering)

    def __len__(self) -> int:
        return len(self.order)

    def _order(self, offset: Integers) -> Integers:
        sources = len(self.changes) + bool(self.logged)
        if sources <= 1:
            return np.arange(len(offset))
        if any((changes.op == Op.TRUNCATE).any() for changes in self.changes):  # one may be of several tables
            relation = [np.full(len(c), c.schema.relation) for c in self.changes]
            return np.lexsort((np.concatenate([*relation, np.zeros(len(self.logged), np.int64)]), offset))
        return np.argsort(offset, kind="stable")

    def _numbered(self, numbering: Numbering) -> tuple[Integers, list[Integers]]:
        if not len(self.order):
            return np.zeros(0, np.int64), []
        goes_on = int(self.begins[self.transaction[0]]) == numbering.begin
        before = numbering.counted if goes_on else NOTHING
        first, last = int(self.transaction[0]), int(self.transaction[-1])
        number = _places(self.transaction, first, before.events)
        counts = dict(before.tables) if first == last else {}
        numbers: list[Integers] = []
        seen: dict[str, tuple[int, int]] = {}  # by table: its last transaction in this run, and how many it had there
        for changes in self.changes:
            table = changes.schema.table
            row, count = seen.get(table, (first, before.tables.get(table, 0)))
            numbers.append(_places(changes.transaction, row, count))
            seen[table] = int(changes.transaction[-1]), int(numbers[-1][-1])
        counts |= {table: count for table, (row, count) in seen.items() if row == last}
        numbering.begin, numbering.counted = int(self.begins[last]), Counted(int(number[-1]), counts)
        return number, numbers

    def without(self, begin: int, consumed: int) -> Run:
        """Without the first `consumed` events of the transaction that begins there; the others keep their numbers."""
        keep = (self.begins[self.transaction] != begin) | (self.number > consumed)
        flags = np.empty(len(keep), np.bool_)
        flags[self.order] = keep
        return self._keeping(flags)

    def only(self, wanted: Iterable[Flags | None]) -> Run:
        """Without the changes that are not wanted, table by table; None is all. The others keep their numbers."""
        flags = [np.ones(len(c), np.bool_) if w is None else w for c, w in zip(self.changes, wanted, strict=True)]
        return self._keeping(np.concatenate([*flags, np.ones(len(self.logged), np.bool_)]))

    def _keeping(self, flags: Flags) -> Run:
        """`flags` are in the order of the tables, and then of the messages."""
        if flags.all():
            return self
        keep = flags[self.order]
        self.changes, at = self._kept(flags)
        self.logged = [message for message, kept in zip(self.logged, flags[at:].tolist(), strict=True) if kept]
        renumbered = np.cumsum(flags) - 1
        self.order = renumbered[self.order[keep]]
        self.transaction, self.number = self.transaction[keep], self.number[keep]
        return self

    def _kept(self, flags: Flags) -> tuple[list[Changes], int]:
        found, numbers, at = [], [], 0
        for changes, own in zip(self.changes, self.table_numbers, strict=True):
            some = flags[at : at + len(changes)]
            at += len(changes)
            if some.any():
                found.append(changes.keep(some))
                numbers.append(own[some])
        self.table_numbers = numbers
        return found, at


def _places(transaction: npt.NDArray[np.integer[Any]], row: int, before: int) -> Integers:
    """The place of each event in its transaction, from 1; of the one in `row`, `before` came earlier."""
    firsts = np.flatnonzero(np.diff(transaction, prepend=-1))
    lengths = np.diff(firsts, append=len(transaction))
    places: Integers = np.arange(1, len(transaction) + 1) - np.repeat(firsts, lengths)
    if int(transaction[0]) == row:
        places[: lengths[0]] += before
    return places
