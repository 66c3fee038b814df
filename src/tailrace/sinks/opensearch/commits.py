"""A batch's end: every document of it is acknowledged when it comes here; what is left is to remember so, in one step.

The order that matters: may we, is it new, set aside, remember, and only then show what readers are to see, and drop
what nobody sees any more. What a crash leaves undone of the last two is made up for by the next claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from tailrace import failpoints
from tailrace.errors import SinkChanged
from tailrace.model.lifecycle import CATCHING_UP, TableState, TableStatus
from tailrace.sinks.base import Batch, Rejected, SinkState
from tailrace.sinks.opensearch.claim import Claim
from tailrace.sinks.opensearch.generations import Generations
from tailrace.sinks.opensearch.quarantine import Quarantine
from tailrace.sinks.opensearch.state import Held, Note, Record, State
from tailrace.sinks.simple import outstanding


class Written(msgspec.Struct, frozen=True):
    """A task's receipt: how many documents of each table it wrote, and those that were refused."""

    counts: dict[str, int]
    rejected: tuple[Rejected, ...] = ()

    def without(self, tables: Collection[str]) -> Written:
        counts = {table: count for table, count in self.counts.items() if table not in tables}
        return Written(counts, tuple(each for each in self.rejected if each.table not in tables))


class Commits:
    def __init__(self, state: State, generations: Generations, claim: Claim, quarantine: Quarantine) -> None:
        self._state, self._generations, self._claim, self._quarantine = state, generations, claim, quarantine
        self._is_settled = True

    def commit(self, batch: Batch) -> int:
        self.settle_if_due()
        held = self._state.held_by(self._claim.run)
        records = self._state.records(held.note)
        statuses = {table: record.status for table, record in records.items()}
        known = SinkState(held.note.watermark, statuses, {}, held.note.commits)
        if outstanding(batch, known) is None:
            self._remember(held, held.note, records)
            return 0
        _refuse_uncopied(batch.tables, records)
        parts = [part for part in batch.parts if isinstance(part, Written)]
        self._set_aside(batch, parts)
        failpoints.reached("sink-before-commit")
        self._apply(held, batch, records)
        return sum(sum(part.counts.values()) for part in parts)

    def _apply(self, held: Held, batch: Batch, records: dict[str, Record]) -> None:
        changed = {status.table: _moved(status, records.get(status.table)) for status in batch.tables}
        names = self._state.add_records(list(changed.values())) if changed else {}
        former = [records[table] for table in changed if table in records]
        taken = [r for r in former if r.building and r.building != changed[r.status.table].building]
        note = msgspec.structs.replace(
            held.note,
            watermark=batch.watermark or held.note.watermark,
            tables=held.note.tables | names,
            retired=(*held.note.retired, *(record.live for record in taken if record.live)),
        )
        self._is_settled = self._is_settled and not taken
        self._remember(held, note, records | changed)
        failpoints.reached("sink-committed")
        self._state.delete([held.note.tables[table] for table in changed if table in held.note.tables])
        for record in taken:
            self._state.forget_marks(record.building, record.status.generation, record.chunks)
        self.settle_if_due()

    def _remember(self, held: Held, note: Note, records: dict[str, Record]) -> None:
        self._state.replace(held, msgspec.structs.replace(note, commits=note.commits + 1), self._claim.run)
        self._claim.learn(records)
        self._claim.end_build()

    def _set_aside(self, batch: Batch, parts: list[Written]) -> None:
        """Not the documents of a table that is to be copied again."""
        again = {status.table for status in batch.tables if status.state is TableState.SNAPSHOT}
        rejected = [each for part in parts for each in part.rejected if each.table not in again]
        if rejected:
            places = [batch.watermark] if batch.watermark is not None else [s.watermark for s in batch.tables]
            self._quarantine.write(rejected, places[0])

    # --- what readers see

    def settle_if_due(self) -> None:
        if not self._is_settled:
            self.settle()

    def settle(self) -> list[str]:
        """Let readers see what the note says, and drop what it says is not needed; the tables that they did not see."""
        held = self._state.held_by(self._claim.run)
        records = self._state.records(held.note)
        unseen = self._unseen(records)
        for record in unseen:
            self._generations.show(record.live, record.status.schema)
        if held.note.retired:
            self._generations.drop(held.note.retired)
            self._state.replace(held, msgspec.structs.replace(held.note, retired=()), self._claim.run)
        self._is_settled = True
        return [record.status.table for record in unseen]

    def _unseen(self, records: dict[str, Record]) -> list[Record]:
        aliases = self._generations.aliases()
        return [
            record
            for record in records.values()
            if record.live in aliases
            and self._generations.readers_alias(record.status.schema) not in aliases[record.live]
        ]


def _moved(status: TableStatus, known: Record | None) -> Record:
    """A table that becomes live is from then on what was built beside the one that readers saw."""
    if known is None:
        return Record(status)
    if status.state is TableState.LIVE and known.building:
        return Record(status, live=known.building, identities={known.building: known.identities[known.building]})
    return msgspec.structs.replace(known, status=status)


def _refuse_uncopied(statuses: Iterable[TableStatus], records: dict[str, Record]) -> None:
    """A table that is to catch up has been copied, by the plan that the run knows."""
    for status in (status for status in statuses if status.state in CATCHING_UP):
        known = records.get(status.table)
        if known is None or known.status.generation != status.generation:
            raise SinkChanged(f"the copy of {status.table} is not in the sink as this run left it")
