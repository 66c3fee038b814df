"""The changes of one part of the stream, of all its tables, brought into commit order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.embedded.pieces import Part
from tailrace.model.changes import Changes, Op
from tailrace.sources.base import LoggedMessage

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Numbering:
    """How many events of a transaction came so far; it goes on from part to part. `begin` is the transaction's."""

    begin: int
    count: int


class Run:
    """`order` are the places of the events, all tables' after one another and then the messages, by their offsets.

    `transaction` (a row of the piece's) and `number` (in its transaction, from 1) are in that order.
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
        self.number = self._numbered(numbering)

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

    def _numbered(self, numbering: Numbering) -> Integers:
        count = len(self.order)
        if not count:
            return np.zeros(0, np.int64)
        firsts = np.flatnonzero(np.diff(self.transaction, prepend=-1))
        lengths = np.diff(firsts, append=count)
        number = np.arange(count) - np.repeat(firsts, lengths) + 1
        if int(self.begins[self.transaction[0]]) == numbering.begin:
            number[: lengths[0]] += numbering.count
        numbering.begin, numbering.count = int(self.begins[self.transaction[-1]]), int(number[-1])
        return number

    def without(self, begin: int, consumed: int) -> Run:
        """Without the first `consumed` events of the transaction that begins there; the others keep their numbers."""
        keep = (self.begins[self.transaction] != begin) | (self.number > consumed)
        if keep.all():
            return self
        flags = np.empty(len(keep), np.bool_)
        flags[self.order] = keep
        self.changes, at = self._kept(flags)
        self.logged = [message for message, kept in zip(self.logged, flags[at:].tolist(), strict=True) if kept]
        renumbered = np.cumsum(flags) - 1
        self.order = renumbered[self.order[keep]]
        self.transaction, self.number = self.transaction[keep], self.number[keep]
        return self

    def _kept(self, flags: Flags) -> tuple[list[Changes], int]:
        found, at = [], 0
        for changes in self.changes:
            kept = changes.keep(flags[at : at + len(changes)])
            at += len(changes)
            if len(kept):
                found.append(kept)
        return found, at
