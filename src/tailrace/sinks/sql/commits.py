"""One batch, in one transaction: its DDL, its rows, the statuses of its tables, and the watermark."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace import failpoints
from tailrace.config import OnError
from tailrace.errors import SinkUnavailable
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.sinks.base import Batch, FetchRows, Rejected
from tailrace.sinks.sql.cleanup import Cleanup
from tailrace.sinks.sql.dialect import Session
from tailrace.sinks.sql.parts import Parts
from tailrace.sinks.sql.quarantine.isolation import Isolation
from tailrace.sinks.sql.recovery import Recovery
from tailrace.sinks.sql.staged import StagedChanges, StagedPart, adapted
from tailrace.sinks.sql.table_merge import TableMerge


class Commits:
    def __init__(self, parts: Parts, cleanup: Cleanup, recovery: Recovery) -> None:
        self._name, self._settings, self._dialect = parts.name, parts.settings, parts.dialect
        self._sessions, self._places, self._mapping = parts.sessions, parts.places, parts.mapping
        self._notes, self._claim, self._ready = parts.notes, parts.claim, parts.ready
        self._copies, self._alterations = parts.copies, parts.alterations
        self._cleanup, self._recovery = cleanup, recovery

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        """The order that matters: may we, is it new, apply, remember, commit. What was staged goes, in any case."""
        staged = [table for part in _parts(batch) for table in part.tables]
        with self._sessions.use("committing a batch") as session, self._cleanup.leaving(session, staged):
            self._ready.ensure_notes(session)
            self._recovery.refuse_unsettled(session, batch)
            if not self._dialect.server.ddl_is_transactional:
                self._remember_undo(session, batch)
                self._claim.hold(session)
                if not self._notes.is_committed(session, batch):
                    self._change_tables(session, batch)
            with self._claim.transaction(session):
                is_done = self._notes.is_committed(session, batch)
                self._notes.count_commit(session)
                if is_done:
                    return 0
                self._require(session, staged)
                if self._dialect.server.ddl_is_transactional:
                    self._change_tables(session, batch)
                touched, isolation = self._merge_all(session, batch, fetch)
                self._set_aside(session, batch, isolation.refused)
                self._end_changes(session, batch)
                taken = self._write_statuses(session, batch.tables)
                if batch.watermark is not None:
                    self._notes.write_watermark(session, batch.watermark)
                failpoints.reached("sink-before-commit")
            failpoints.reached("sink-committed")
            self._cleanup.drop_copies(session, taken)
            self._recovery.settle_after(session)
            return touched

    def _change_tables(self, session: Session, batch: Batch) -> None:
        """All DDL of a batch. Without transactional DDL it is done before the transaction, and `recovery` undoes it."""
        for evolved in batch.evolved:
            with self._sessions.errors_of(evolved.before.table, f"changing the table of {evolved.schema.table}"):
                self._alterations.take_in(session, evolved)
                self._ready.forget_tables()
        newest = {evolved.schema.table: evolved.schema for evolved in batch.evolved}
        beside = self._beside(session, batch)
        for schema in (changes.schema for changes in _changes(batch)):
            with self._sessions.errors_of(schema.table, f"changing the table of {schema.table}"):
                target = self._places.table(schema, is_beside=schema.table in beside)
                self._ready.evolve(session, newest.get(schema.table, schema), target)
        for status in batch.tables:
            if status.state is TableState.LIVE and status.table in beside:
                with self._sessions.errors_of(status.table, f"changing the table of {status.table}"):
                    self._make_room(session, status)

    def _make_room(self, session: Session, status: TableStatus) -> None:
        """The table can take the rows of its copy, or be replaced by it."""
        schema, target = self._mapping.schema(status.schema), self._places.table(status.schema)
        if not self._copies.make_room(session, schema, target):
            self._copies.refuse_replacing(session, schema, target, self._places.copy_of(status.table))

    def _remember_undo(self, session: Session, batch: Batch) -> None:
        """Before DDL that is no part of a transaction: how it is undone if the commit does not come."""
        if not batch.evolved:
            return
        self._ready.is_settled = False
        with self._claim.transaction(session):
            if not self._notes.is_committed(session, batch):
                for evolved in batch.evolved:
                    undo = self._alterations.undo_of(session, evolved)
                    self._notes.write_undo(session, evolved.before.table, undo)

    def _end_changes(self, session: Session, batch: Batch) -> None:
        for evolved in batch.evolved:
            self._notes.write_undo(session, evolved.before.table, None)
        self._notes.rename(session, {e.before.table: e.schema.table for e in batch.evolved})

    def _beside(self, session: Session, batch: Batch) -> set[str]:
        """The tables of a batch of which a copy grows beside the table that readers see."""
        stored = (self._notes.status(session, status.table) for status in batch.tables)
        return {status.table for status in stored if status is not None and status.is_beside}

    def _merge_all(self, session: Session, batch: Batch, fetch: FetchRows) -> tuple[int, Isolation]:
        """Returns how many changes there were, and who knows the rows that were refused."""
        isolation = Isolation(self._dialect, session, self._mapping, is_fatal=self._settings.on_error is OnError.STOP)
        newest = {evolved.schema.table: evolved.schema for evolved in batch.evolved}
        noted_as = {evolved.schema.table: evolved.before.table for evolved in batch.evolved}  # until `_end_changes`
        beside = self._beside(session, batch)
        ahead = {status.table for status in batch.tables if status.state is TableState.AHEAD}
        ahead |= self._notes.ahead(session).keys()
        touched = 0
        for changes in _changes(batch):
            table = changes.schema.table
            noted = noted_as.get(table, table)
            if table in newest:
                changes = adapted(changes, newest[table], self._mapping)
            target = self._places.table(changes.schema, is_beside=table in beside)
            with self._sessions.errors_of(table, f"merging {table}"):
                is_single_key = self._ready.evolve(session, newest.get(table, changes.schema), target)
                merge = TableMerge(
                    isolation,
                    changes.schema,
                    self._dialect.naming.qualified(target),
                    is_single_key=is_single_key,
                    stale_keys=self._notes.quarantined_keys(session, noted) if changes.partials else (),
                )
                merge.apply(changes, fetch, is_ahead=noted in ahead)
            if merge.has_fetched:
                ahead.add(noted)
                self._notes.mark_ahead(session, noted)
            touched += changes.count
        return touched, isolation

    def _set_aside(self, session: Session, batch: Batch, refused: list[Rejected]) -> None:
        """Not the rows of a table that is to be copied again, of which nothing in this batch is applied."""
        again = {status.table for status in batch.tables if status.state is TableState.SNAPSHOT}
        rejected = [item for part in _parts(batch) for item in part.rejected if item.table not in again] + refused
        if rejected:
            places = [batch.watermark] if batch.watermark is not None else [s.watermark for s in batch.tables]
            self._notes.write_rejected(session, rejected, places[0])

    def _require(self, session: Session, staged: list[str]) -> None:
        """A server that crashed has emptied its unlogged tables: what is not there must be staged again."""
        if staged and not self._dialect.staging.has_rows(session, staged):
            raise SinkUnavailable(f"sink {self._name}: what was staged for this batch is gone, as after a crash")

    def _write_statuses(self, session: Session, statuses: Iterable[TableStatus]) -> list[str]:
        """Write them, and put copies in their place; returns the copies that are of no use any more."""
        taken = []
        for status in statuses:
            placed = self._placed(session, status)
            self._notes.write_status(session, placed)
            if placed is not status and not placed.is_beside:
                taken.append(self._dialect.naming.qualified(self._places.copy_of(status.table)))
        return taken

    def _placed(self, session: Session, status: TableStatus) -> TableStatus:
        """A table that becomes live takes the place of what readers saw of it until now, if its copy is beside that."""
        stored = self._notes.status(session, status.table)
        if status.state is not TableState.LIVE or stored is None:
            return status
        if not stored.is_beside:
            return msgspec.structs.replace(status, is_beside=False) if status.is_beside else status
        copy, target = self._places.copy_of(status.table), self._places.table(status.schema)
        with self._sessions.errors_of(status.table, f"putting the copy of {status.table} in its place"):
            if self._copies.take_rows(session, self._mapping.schema(status.schema), target, copy):
                return msgspec.structs.replace(status, is_beside=False)
            if self._dialect.server.ddl_is_transactional:
                self._copies.replace(session, target, copy)
                self._ready.forget_tables()
                return msgspec.structs.replace(status, is_beside=False)
        self._ready.is_settled = False
        return msgspec.structs.replace(status, is_beside=True)


def _parts(batch: Batch) -> list[StagedPart]:
    """The receipts of a batch, which are our own."""
    return [part for part in batch.parts if isinstance(part, StagedPart)]


def _changes(batch: Batch) -> list[StagedChanges]:
    return [changes for part in _parts(batch) for changes in part.changes]
