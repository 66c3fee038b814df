"""Pieces of the stream: frames as the pump took them, in memory or in the spool, and parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from tailrace.model.frames import Definition, Frames
from tailrace.model.watermark import SourceIdentity


class Kept(Protocol):
    """Where the frames of a piece are."""

    def frames(self) -> Frames: ...
    def free(self) -> None:
        """Nobody reads them again."""


class InMemory:
    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def frames(self) -> Frames:
        return self._frames

    def free(self) -> None:
        """The batches that have it still hold it."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Frames with the offsets `first … last`.

    `position` is where its last transaction ends, or the one before it; `identity` is whom it was read from.
    """

    first: int
    last: int
    bytes: int
    position: str
    identity: SourceIdentity
    transactions: pa.RecordBatch
    changes: int
    has_messages: bool  # of applications
    kept: Kept
    in_memory: bool
    definitions: tuple[Definition, ...] = ()

    def up_to(self, offset: int) -> Piece:
        """Without what lies behind an offset: it will come again."""
        begins = self.transactions.column("begin").to_numpy()
        known = self.transactions.slice(0, int(np.searchsorted(begins, offset, side="right")))
        return replace(self, last=offset, transactions=known)

    @property
    def has_events(self) -> bool:
        return self.has_messages or bool(self.changes)

    @property
    def last_end(self) -> int:
        """The offset of the last transaction end in it; 0 if it has none."""
        return int(self.transactions.column("end").to_numpy().max(initial=0))

    def ending_at(self, offset: int) -> pa.RecordBatch:
        """The transaction that ends there."""
        row = int(np.flatnonzero(self.transactions.column("end").to_numpy() == offset)[-1])
        return self.transactions.slice(row, 1)

    @property
    def open_at_end(self) -> pa.RecordBatch | None:
        """The transaction that goes on in the next piece."""
        last = self.transactions.num_rows - 1
        is_open = last >= 0 and self.transactions.column("end")[last].as_py() == 0
        return self.transactions.slice(last, 1) if is_open else None


def first_transaction(parts: Sequence[Part]) -> pa.RecordBatch:
    """The one that these parts begin with. A mark of the source's progress may come before it, and is none."""
    return next((part for part in parts if part.piece.has_events), parts[0]).transaction


@dataclass(frozen=True, slots=True)
class Part:
    """The offsets `first … last` of a piece."""

    piece: Piece
    first: int
    last: int

    @property
    def transaction(self) -> pa.RecordBatch:
        """The one that it begins with, or inside of."""
        begins = self.piece.transactions.column("begin").to_numpy()
        row = int(np.searchsorted(begins, self.first, side="right")) - 1
        return self.piece.transactions.slice(max(row, 0), 1)
