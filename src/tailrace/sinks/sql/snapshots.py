"""Copies of tables: room is made and the plan remembered, chunks are loaded by tasks, the key is built at the end."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from tailrace import failpoints
from tailrace.config import Misfits, OnError
from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import COPYING, TableState, TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.sql.chunks import ChunkLoader
from tailrace.sinks.sql.cleanup import Cleanup
from tailrace.sinks.sql.dialect import Session
from tailrace.sinks.sql.parts import Parts
from tailrace.sinks.sql.places import refuse_collision
from tailrace.sinks.sql.quarantine.isolation import Isolation
from tailrace.sinks.sql.quarantine.sieve import Sieve
from tailrace.sinks.sql.recovery import Recovery
from tailrace.sinks.sql.sessions import transaction
from tailrace.sinks.sql.table_checks import gone
from tailrace.sinks.sql.trouble import trouble_of


class SnapshotLoads:
    def __init__(self, parts: Parts, cleanup: Cleanup, recovery: Recovery) -> None:
        self._name, self._settings, self._dialect = parts.name, parts.settings, parts.dialect
        self._sessions, self._places, self._mapping = parts.sessions, parts.places, parts.mapping
        self._notes, self._claim, self._ready = parts.notes, parts.claim, parts.ready
        self._tables, self._copies = parts.tables, parts.copies
        self._cleanup, self._recovery = cleanup, recovery

    def begin(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        with (
            trouble_of(status.table),
            self._sessions.use(f"preparing the table {status.table}") as session,
            self._cleanup.leaving(session, []),
        ):
            self._ready.ensure_notes(session)
            self._recovery.settle(session)
            is_beside = clear and self._is_known_to_readers(session, status)
            status = msgspec.structs.replace(status, is_beside=is_beside)
            if not self._dialect.server.ddl_is_transactional:
                self._prepare_first(session, status, clear=clear)
            with self._claim.transaction(session):
                if self._dialect.server.ddl_is_transactional:
                    self._prepare(session, status, clear=clear)
                if clear:
                    self._notes.drop_quarantined(session, source_table=status.table)
                self._notes.replace_marks(session, status.table, chunks)
                self._notes.write_status(session, status)
                self._notes.write_undo(session, status.table, None)
            self._ready.forget_tables()
        return status

    def _is_known_to_readers(self, session: Session, status: TableStatus) -> bool:
        """Whether the table has rows already, other than those of a first copy that has not come to its end."""
        stored = self._notes.status(session, status.table)
        if stored is not None and stored.state in COPYING and stored.visibility and not stored.is_beside:
            return False
        target = self._places.table(status.schema)
        if self._dialect.catalog.existing(session, target) is None:
            return False
        return bool(session.execute(f"SELECT 1 FROM {self._dialect.naming.qualified(target)} LIMIT 1"))

    def _prepare(self, session: Session, status: TableStatus, *, clear: bool) -> None:
        self._refuse_collision(session, status)
        known = self._notes.status(session, status.table)
        is_known = known is not None and known.held_as in ("", status.held_as)  # under this very name
        if clear and (unknown := self._mapping.unknown(status.schema)):
            raise SinkRejected(
                f"sinks.{self._name}.columns renames {', '.join(unknown)}, which {status.table} does not have"
            )
        schema, target = self._mapping.schema(status.schema), self._places.table(status.schema)
        if status.is_beside:
            copy = self._places.copy_of(status.table)
            self._copies.prepare(session, schema, target, copy, is_known=is_known)
        else:
            self._tables.prepare(session, schema, target, clear=clear, is_known=is_known)

    def _refuse_collision(self, session: Session, status: TableStatus) -> None:
        """Another table that has rows in the sink, or will have, keeps its name to itself."""
        statuses = self._notes.statuses(session)
        others = [each for each in statuses if not _is_gone(each) and self._places.has(each.schema)]
        places = ((each.table, self._places.name(each.schema)) for each in others)
        mine = self._places.name(status.schema)
        refuse_collision(status.table, mine, places, folds=self._dialect.naming.folds_names)

    def _prepare_first(self, session: Session, status: TableStatus, *, clear: bool) -> None:
        """Without transactional DDL: a table that is being cleared must not pass for a copied one after a crash.

        First the status without any chunk, which means that the snapshot begins anew; then the table.
        """
        known = self._notes.status(session, status.table)
        if clear and known is not None:
            begun = msgspec.structs.replace(status, state=TableState.SNAPSHOT, held_as=known.held_as)
            with self._claim.transaction(session):
                self._notes.replace_marks(session, status.table, [])
                self._notes.write_status(session, begun)
                self._notes.write_undo(session, status.table, None)
        self._claim.hold(session)
        self._prepare(session, status, clear=clear)

    def chunk_form(self, schema: TableSchema) -> str:
        types = [column.type for column in schema.columns]
        is_sifted = self._settings.misfits is Misfits.QUARANTINE
        is_mapped = types != [column.type for column in self._mapping.schema(schema).columns]
        return "" if is_sifted or is_mapped else self._dialect.encoding.row_form(types)

    def load(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        source, target = schema, self._places.table(schema, is_beside=mark.is_beside)
        schema = self._mapping.schema(source)
        sieve = Sieve(self._dialect.encoding)
        if self._settings.misfits is Misfits.QUARANTINE:
            batches = map(functools.partial(sieve.rows, source, operation="read"), batches)
        with self._sessions.open(f"loading {schema.table}") as session:
            existing = self._dialect.catalog.existing(session, target)
            if existing is None:
                raise gone(schema, target)
            isolates = self._settings.on_error is OnError.QUARANTINE
            isolation = Isolation(self._dialect, session, self._mapping, is_fatal=not isolates)
            merge = functools.partial(isolation.merge, source, "read")
            loader = ChunkLoader(self._dialect, session, self._places.new_staging, merge)
            mapped = map(functools.partial(self._mapping.arriving, source), batches)
            with loader.gathered(schema, mapped) as rows:
                failpoints.reached("chunk-before-load")
                with transaction(session):
                    self._claim.share(session)
                    if self._notes.is_loaded(session, mark):
                        return 0
                    loader.load(self._dialect.naming.qualified(target), schema, existing, rows, isolates=isolates)
                    self._notes.write_rejected(session, sieve.rejected + isolation.refused, Watermark("", 0, ""))
                    self._notes.mark_loaded(session, mark, loader.rows)
            failpoints.reached("chunk-loaded")
            return loader.rows

    def finish(self, status: TableStatus) -> None:
        schema = status.schema
        target = self._places.table(schema, is_beside=status.is_beside)
        with (
            trouble_of(schema.table),
            self._sessions.use(f"building the key of {schema.table}") as session,
            self._claim.transaction(session),
        ):
            self._tables.build_key(session, self._mapping.schema(schema), target)


def _is_gone(status: TableStatus) -> bool:
    """Whether a table is not at the source any more, nor under its name, or never came: another may have its name."""
    has_left = status.state is TableState.PAUSED and not status.membership
    return has_left or (status.state is TableState.FAILED and status.stored is None)
