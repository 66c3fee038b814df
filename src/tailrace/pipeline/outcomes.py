"""What becomes of places and statuses by the parts of a batch: pure functions of what its tasks have found."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.watermark import Watermark
from tailrace.pipeline.evolution import Evolution
from tailrace.tasks.stage import PartResult


def place_after(results: list[PartResult], last: int, before: Watermark) -> Watermark:
    """The place at offset `last`, by the last transaction end in `results`, or that of `before` if they hold none."""
    ending = next((r for r in reversed(results) if r.position), None)
    if ending is None:
        return Watermark(before.log_id, last, before.position, before.source)
    return Watermark(before.log_id, last, ending.position, ending.source)


def strayed(
    outcome: Evolution, statuses: Iterable[TableStatus], results: list[PartResult], before: Watermark | None = None
) -> Evolution:
    """What `outcome` becomes where tables were changed under another name: such changes are in the table, and not here.

    Whether the table has its name back can not be told from here. It is copied again, if it is still there.
    """
    names = frozenset(table for result in results for table in result.strayed) - outcome.held
    again = {
        status.table: status.again(
            before or status.watermark, status.schema, reason="it, or a column of it, had another name for a time"
        )
        for status in statuses
        if status.table in names
    }
    evolved = tuple(change for change in outcome.evolved if change.schema.table not in again)
    return Evolution(outcome.tables | again, outcome.held | again.keys(), evolved)


def told(outcome: Evolution, results: list[PartResult]) -> Evolution:
    """What `outcome` becomes where changes went through parts of a table that it was not stored in: see StoredAs."""
    tables = dict(outcome.tables)
    for table, leaves in (each for result in results for each in result.leaves.items()):
        status = tables[table]
        if table not in outcome.held and status.stored is not None:
            tables[table] = msgspec.structs.replace(status, stored=status.stored.told_of(leaves))
    return msgspec.structs.replace(outcome, tables=tables)


def stepped(status: TableStatus, place: Watermark, *, is_whole: bool, finish: bool) -> TableStatus:
    """A table after a step of its catch-up. One whose copy is torn, and that was not truncated, begins again."""
    if finish and not is_whole:
        return status.again(place, status.schema, reason="it was rewritten while it was copied")
    if is_whole and status.state is TableState.TORN:
        status = status.move(TableState.CATCH_UP)
    is_beside = status.is_beside and not finish  # it takes its place in the commit that makes it live
    return status.move(TableState.LIVE if finish else status.state, watermark=place, is_beside=is_beside)


def with_watermark(status: TableStatus, mark: Watermark) -> TableStatus:
    return msgspec.structs.replace(status, watermark=mark)
