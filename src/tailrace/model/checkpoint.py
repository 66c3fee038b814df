"""How far a consumer of an embedded stream has come: all that it takes to go on after a restart."""

from __future__ import annotations

import msgspec

from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity


class TableCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of one table under way: `left` are the chunks that nobody has acknowledged.

    The initial one has a `visibility`, what the first of its chunks was read under: changes that it sees are not
    delivered. No transaction that it sees ends after `until`; once the stream is there, the copy is over. What is read
    under a later snapshot lacks the rows that were updated in between, and lie in pages that were read, or new ones.
    """

    schema: TableSchema
    left: tuple[Chunk, ...]
    visibility: str = ""
    where: str = ""
    generation: int = 1
    is_paused: bool = False
    is_partial: bool = False  # on demand: rows came in part meanwhile; who does not know which begins again
    is_again: bool = False  # what was delivered of the table before is void: its rows begin with a truncate
    rows: int = 0  # acknowledged so far
    chunks: int = 0  # how many it had
    until: str = ""
    moved: tuple[Chunk, ...] = ()  # behind `left`: looked through for rows that were written since the first snapshot


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
    tables: dict[str, str] = {}  # those that are followed: a digest of the columns that they were delivered with last
    memberships: dict[str, str] = {}  # the same: that they were in the source's stream without a break
    snapshots: int = 0  # how many were begun: the generation of the last one
    asked: str = ""  # for which tables, in a few characters: what is counted inside of a transaction depends on it
    metadata: dict[str, str] = {}  # the user's own
