"""The contract of a codec: events into bytes, one at a time or a table's changes at once.

`testing.codec_contract` holds it. A codec is a pure function of what it is given, its settings and the clock: it
remembers nothing of earlier events, so any part of a stream may be encoded anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.model.changes import Changes
from tailrace.model.event import Event

Headers = tuple[tuple[str, bytes], ...]
Integers = npt.NDArray[np.int64]


class Record(NamedTuple):
    """One message: of a key without a value (a tombstone), of a value without a key, or of both."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Reads:
    """That rows are those of a table's snapshot, which has the number `generation`: of no transaction.

    `is_first` and `is_last`: its first row is the first of these, its last row the last of these.
    """

    generation: int = 1
    is_first: bool = False
    is_last: bool = False

    @property
    def marks(self) -> list[str]:
        """What an event has as its `snapshot`: of a row amidst, of the first, and of the last."""
        return [f"{self.generation}:{word}" for word in ("", "first", "last")]

    def places(self, count: int) -> Integers:
        """Which of the `marks` each of so many rows has."""
        found = np.zeros(count, np.int64)
        found[:1] = self.is_first
        if self.is_last:
            found[-1:] = 2
        return found


@dataclass(frozen=True, slots=True)
class Facts:
    """What changes do not tell of themselves.

    `ids` and `positions` are what the source calls each row of `changes.transactions`, and where it ends; `numbers` is
    the place of each change in its transaction, from 1, and `table_numbers` the same among those of its table. Where
    the changes are `reads` (`codecs.reads` makes such), they have a position and nothing else. Changes that are `late`
    are told apart from others of their transactions: nobody may count them among those.
    """

    ids: Sequence[str]
    positions: Sequence[str]
    numbers: Integers
    table_numbers: Integers | None = None
    reads: Reads | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """The records of some changes, in their order; `change` is the row of the change that each is of.

    `keys` and `values` are binary, null where a record has none. Few records have `headers`: those are by record.
    """

    keys: pa.BinaryArray
    values: pa.BinaryArray
    change: Integers
    headers: dict[int, Headers] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.change)


class Codec(Protocol):
    content_type: str
    """The media type of a value."""

    def encode(self, event: Event) -> list[Record]:
        """What is sent for an event: in most cases one record, and none where the format has no word for it."""

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        """What `encode` gives for the events of these changes, all at once; of several values that are refused, any is
        named."""
