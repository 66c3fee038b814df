"""Raw messages of a source, packed, with what the log must know of them.

`Frames` is what capture hands to the change log and what the log hands to decoding. Nothing in it is a Python object
per row: messages lie in one buffer, `bounds` says where each begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.model.schema import TableSchema

Integers = npt.NDArray[np.int64]

PADDING = 16
"""Bytes after the last message, so that a fixed-width window at its end stays inside the buffer."""

TRANSACTIONS = pa.schema(
    [
        pa.field("begin", pa.int64(), False),  # offset of its first message; may lie in an earlier segment
        pa.field("end", pa.int64(), False),  # offset of its last message; 0 while its end has not been seen
        pa.field("time_us", pa.int64(), False),  # commit time, microseconds since 1970
    ]
)
"""What the log must know of a transaction. The source has columns of its own beside them, which only it reads."""


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of `relation` at offset `since` and later have this schema, until the next definition.

    Changes of one with a `root` come as changes of that: it is described, and has no messages of its own.
    """

    relation: int
    since: int
    schema: TableSchema
    root: int = 0


@dataclass(frozen=True, slots=True)
class Frames:
    """Messages of one log in commit order, which have the offsets `first … last`, written by a source of this `kind`.

    A message has an offset for each change in it, and at least one: `widths` says how many, where it is not one each.
    """

    kind: str
    first: int
    buffer: npt.NDArray[np.uint8]  # the messages, then PADDING bytes; one that came alone may lack these
    bounds: Integers  # count + 1 places in the buffer
    transactions: pa.RecordBatch  # TRANSACTIONS and the source's own columns, in order of `begin`
    definitions: tuple[Definition, ...] = ()
    tables: dict[str, int] = field(default_factory=dict)  # changes a table
    widths: npt.NDArray[np.uint32] | None = None

    @property
    def count(self) -> int:
        """The messages."""
        return len(self.bounds) - 1

    @property
    def last(self) -> int:
        return self.first + (self.count if self.widths is None else int(self.widths.sum())) - 1
