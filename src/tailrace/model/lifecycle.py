"""The life of a table in one sink: its states, the moves between them, and what the sink remembers of it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark


class TableState(StrEnum):
    NEW = "new"  # to be copied
    SNAPSHOT = "snapshot"  # its chunks are being loaded, all under one snapshot
    RESUMED = "resumed"  # its chunks are being loaded, some under a later snapshot than others
    CATCH_UP = "catch_up"  # copied; what changed since its watermark is being applied
    AHEAD = "ahead"  # as CATCH_UP, but some of its rows are newer than its watermark
    TORN = "torn"  # as CATCH_UP, but rows are missing: copied again, unless a truncate comes along
    LIVE = "live"  # the sink's watermark is its own
    PAUSED = "paused"  # not ours to follow at the moment: excluded, not published, or gone from the source
    FAILED = "failed"  # it can not be decoded, copied or written


COPYING = frozenset({TableState.SNAPSHOT, TableState.RESUMED})
CATCHING_UP = frozenset({TableState.CATCH_UP, TableState.AHEAD, TableState.TORN})
ASIDE = frozenset({TableState.PAUSED, TableState.FAILED})
"""Nothing is applied to such a table and nothing is kept for it: it comes back with a new copy."""

_ALWAYS = frozenset({TableState.SNAPSHOT, TableState.PAUSED, TableState.FAILED})

MOVES: dict[TableState, frozenset[TableState]] = {
    TableState.NEW: _ALWAYS,
    TableState.SNAPSHOT: _ALWAYS | {TableState.RESUMED, TableState.CATCH_UP, TableState.TORN},
    TableState.RESUMED: _ALWAYS | {TableState.RESUMED, TableState.AHEAD},
    TableState.CATCH_UP: _ALWAYS | {TableState.CATCH_UP, TableState.LIVE},
    TableState.AHEAD: _ALWAYS | {TableState.AHEAD, TableState.CATCH_UP},
    TableState.TORN: _ALWAYS | {TableState.TORN, TableState.CATCH_UP},
    TableState.LIVE: _ALWAYS | {TableState.LIVE, TableState.CATCH_UP},
    TableState.PAUSED: _ALWAYS,
    TableState.FAILED: _ALWAYS,
}
"""Every move there is. A table is copied again from any state."""


UNSEEN = 0
"""No file has this number."""


class StoredAs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a source stores a table in, at the time of its copy: what changes without a change event shows here.

    `files` are its relations (a table, or each leaf of a partitioned one), each with the number of its file; `columns`
    changes whenever a column was altered. `marks` are the source's words for what was undone again since: for the
    table itself, and for each leaf. An earlier version stored none. The file of a leaf that the stream has told of, and
    that nobody has looked at yet, is UNSEEN.
    """

    files: dict[str, int]
    columns: str
    marks: dict[str, str] = {}

    @property
    def has_unseen(self) -> bool:
        return UNSEEN in self.files.values()

    def told_of(self, leaves: Iterable[int]) -> StoredAs:
        """With leaves that changes went through, whether or not they are still there."""
        unseen = {str(leaf): UNSEEN for leaf in leaves if str(leaf) not in self.files}
        return msgspec.structs.replace(self, files=self.files | unseen) if unseen else self


class TableStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sink remembers of a table, stored in the sink beside the data.

    `watermark` is the table's own place: its changes up to there are in the sink, or were in its snapshot's past.
    While the table is LIVE the sink's watermark speaks for it. `visibility` is what the earliest of its snapshots saw,
    and `snapshot_end` the position after which no transaction is visible to any of them.

    `membership` is the source's word for its being published without a break, and `stored` where its rows were when
    they were copied: a table of which either has changed is not what it was, whatever the stream says. With
    `is_beside` the copy is in a table beside the one that readers see, until it is live. `held_as` is the sink's word
    for the names under which it was copied. Where transforms make other columns of the source's own, a sink remembers
    what it holds as `schema`, and those as `captured`.
    """

    table: str
    state: TableState
    watermark: Watermark
    schema: TableSchema
    generation: int = 0
    visibility: str = ""
    snapshot_end: str = ""
    rows: int = 0
    reason: str = ""
    membership: str = ""
    stored: StoredAs | None = None
    is_beside: bool = False
    held_as: str = ""
    captured: TableSchema | None = None

    def move(self, state: TableState, **fields: object) -> TableStatus:
        """The same table in another state. Raises on a move that the life cycle does not have."""
        if state not in MOVES[self.state]:
            raise ValueError(f"{self.table} cannot move from {self.state} to {state}")
        reason = fields.pop("reason", "")
        return msgspec.structs.replace(self, state=state, reason=reason, **fields)

    def again(self, start: Watermark, schema: TableSchema, *, reason: str = "") -> TableStatus:
        """To be copied anew; its changes from `start` on are kept for it. `reason` says why."""
        return self.move(
            TableState.SNAPSHOT,
            watermark=start,
            schema=schema,
            generation=self.generation + 1,
            visibility="",
            snapshot_end="",
            reason=reason,
        )

    def waiting(self, start: Watermark, reason: str) -> TableStatus:
        """Live until `start`, and not followed at the moment: what changed since is applied when it can be."""
        return self.move(
            TableState.CATCH_UP, watermark=start, visibility="", snapshot_end=start.position, reason=reason
        )

    def aside(self, state: TableState, reason: str) -> TableStatus:
        """PAUSED or FAILED, and why."""
        return self.move(state, reason=reason, visibility="", snapshot_end="")
