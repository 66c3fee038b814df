"""The life of a table in one sink: its states, the moves between them, and what the sink remembers of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark


class TableState(StrEnum):
    NEW = "new"
    SNAPSHOT = "snapshot"
    CATCH_UP = "catch_up"
    LIVE = "live"
    FAILED = "failed"


MOVES: dict[TableState, frozenset[TableState]] = {
    TableState.NEW: frozenset({TableState.SNAPSHOT}),
    TableState.SNAPSHOT: frozenset({TableState.SNAPSHOT, TableState.CATCH_UP, TableState.FAILED}),
    TableState.CATCH_UP: frozenset({TableState.CATCH_UP, TableState.LIVE, TableState.SNAPSHOT, TableState.FAILED}),
    TableState.LIVE: frozenset({TableState.LIVE, TableState.SNAPSHOT, TableState.FAILED}),
    TableState.FAILED: frozenset({TableState.SNAPSHOT}),
}


class TableStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sink remembers of a table, stored in the sink beside the data.

    `watermark` is the table's own place: its changes up to there are in the sink, or were in its snapshot's past.
    While the table is LIVE the sink's watermark speaks for it. `visibility` is what the earliest of its snapshots saw,
    and `snapshot_end` the position after which no transaction is visible to any of them.

    A copy `is_torn` when the table was rewritten under it: rows are missing, which is no matter if it was a truncate,
    and a new copy if not. A copy that was resumed under a later snapshot `is_ahead`: some of its rows are newer than
    its watermark, until its changes are past `snapshot_end`.
    """

    table: str
    state: TableState
    watermark: Watermark
    schema: TableSchema
    generation: int = 0
    visibility: str = ""
    snapshot_end: str = ""
    rows: int = 0
    is_torn: bool = False
    is_ahead: bool = False

    def move(self, state: TableState, **fields: object) -> TableStatus:
        """The same table in another state. Raises on a move that the life cycle does not have."""
        if state not in MOVES[self.state]:
            raise ValueError(f"{self.table} cannot move from {self.state} to {state}")
        return msgspec.structs.replace(self, state=state, **fields)
