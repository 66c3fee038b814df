"""For sinks that are written outside of this package: what a commit has to decide, and what few sinks have."""

from __future__ import annotations

from tailrace.errors import SinkChanged
from tailrace.model.lifecycle import TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sinks.base import Batch, Sink, SinkState


class SimpleSink(Sink):
    """No database that a source could be, and the names of the source. Add `ChangeSink` or `RowSink`."""

    is_local_only = False

    def is_database(self, identity: SourceIdentity) -> bool:
        return False

    def held_as(self, schema: TableSchema) -> str:
        return ""

    def close(self) -> None:
        return


def outstanding(batch: Batch, state: SinkState) -> list[TableStatus] | None:
    """The tables that a batch is still to be written to; None if all of it is there, whoever lost the answer.

    Raises SinkChanged where the sink is neither before the batch nor behind it. To be asked, as `read_state` is, while
    nobody else can commit. A table that is there already is one that a crash has left so, between two tables.
    """
    new = [status for status in batch.tables if state.tables.get(status.table) != status]
    is_there = batch.watermark.is_at(state.watermark) if batch.watermark is not None else bool(batch.tables)
    if is_there and not new:
        return None
    if batch.commits not in (None, state.commits):
        raise SinkChanged(f"the sink has {state.commits} commits of this run, and had {batch.commits}")
    if batch.watermark is not None and not _is_at(batch, state):
        there = "gone" if state.watermark is None else f"offset {state.watermark.offset}"
        raise SinkChanged(f"the sink's watermark is {there}, and not where this run left it")
    for table in [status.table for status in new if status.table in batch.places]:
        if table not in state.tables or not state.tables[table].watermark.is_at(batch.places[table]):
            raise SinkChanged(f"{table} is not where this run left it in the sink")
    return new


def _is_at(batch: Batch, state: SinkState) -> bool:
    """Where the batch starts."""
    return state.watermark is None if batch.before is None else batch.before.is_at(state.watermark)
