"""How far a consumer of an embedded stream has come: all that it takes to go on after a restart."""

from __future__ import annotations

import msgspec

from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity


class TableCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of one table under way: `left` are the chunks that nobody has acknowledged."""

    schema: TableSchema
    left: tuple[Chunk, ...]
    visibility: str = ""  # what the first of its chunks was read under: later changes that it sees are not delivered
    where: str = ""
    generation: int = 1
    is_paused: bool = False
    rows: int = 0  # acknowledged so far


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`position` is the first one that is not consumed, in the words of `source`; of the transaction that follows it
    the first `skip` events are consumed already, and it has to be `transaction`.

    `events` counts all that were ever acknowledged: it never shrinks.
    """

    kind: str  # of the source: the scheme of its URL
    position: str
    events: int
    source: SourceIdentity | None = None
    skip: int = 0
    transaction: str = ""
    copies: tuple[TableCopy, ...] = ()
    copied: dict[
        str, str
    ] = {}  # tables whose snapshot is over while the stream has not reached its end: its visibility
    metadata: dict[str, str] = {}  # the user's own
