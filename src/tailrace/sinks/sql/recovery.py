"""Where DDL is no part of a transaction: what a crash, or a refusal, leaves half done is undone or brought to its end.

An alteration comes before the commit that it belongs to, and is undone if that never came. A copy takes the place of
its table after the commit that said so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.sinks.base import Batch
from tailrace.sinks.sql.cleanup import Cleanup
from tailrace.sinks.sql.dialect import Session
from tailrace.sinks.sql.parts import Parts


class Recovery:
    """Does nothing where DDL is transactional: nothing is ever left there."""

    def __init__(self, parts: Parts, cleanup: Cleanup) -> None:
        self._dialect, self._sessions, self._places = parts.dialect, parts.sessions, parts.places
        self._notes, self._claim, self._ready = parts.notes, parts.claim, parts.ready
        self._copies, self._alterations, self._cleanup = parts.copies, parts.alterations, cleanup

    def settle(self, session: Session) -> dict[str, SinkRejected]:
        """Undo changes whose commit never came, and put copies in their place whose commit did; also after a crash.

        Returns what keeps live tables from it, by table. One that is not live is copied again, in any case.
        """
        if self._ready.is_settled:
            return {}
        statuses = {status.table: status for status in self._notes.statuses(session)}
        live = {table: status for table, status in statuses.items() if status.state is TableState.LIVE}
        trouble: dict[str, SinkRejected] = {}
        for table, undo in self._notes.undos(session).items():
            with self._gathered(trouble, table, f"undoing a change of {table}"):
                self._claim.hold(session)
                self._alterations.take_back(session, undo)
            if table not in trouble or table not in live:
                self._write_settled(session, statuses[table])
        for table, status in live.items():
            if status.is_beside:
                with self._gathered(trouble, table, f"putting the copy of {table} in its place"):
                    self._put_in_place(session, status)
        self._ready.forget_tables()
        self._ready.is_settled = not trouble
        return {table: error for table, error in trouble.items() if table in live}

    def _put_in_place(self, session: Session, status: TableStatus) -> None:
        copy, target = self._places.copy_of(status.table), self._places.table(status.schema)
        self._claim.hold(session)
        if self._dialect.catalog.existing(session, copy) is not None:
            self._copies.refuse_replacing(session, status.schema, target, copy)
        self._copies.replace(session, target, copy)
        self._write_settled(session, msgspec.structs.replace(status, is_beside=False))
        self._cleanup.drop_copies(session, self._cleanup.replaced_by(copy))

    def _write_settled(self, session: Session, status: TableStatus) -> None:
        with self._claim.transaction(session):
            self._notes.write_status(session, status)
            self._notes.write_undo(session, status.table, None)

    @contextmanager
    def _gathered(self, trouble: dict[str, SinkRejected], table: str, doing: str) -> Iterator[None]:
        """What is refused inside is the table's own trouble, and keeps nobody else waiting."""
        try:
            with self._sessions.errors_of(table, doing):
                yield
        except SinkRejected as error:
            trouble[table] = error

    def refuse_unsettled(self, session: Session, batch: Batch) -> None:
        """Raise the trouble of a live table, unless the batch sets it aside."""
        aside = {status.table for status in batch.tables if status.state is not TableState.LIVE}
        for table, error in self.settle(session).items():
            if table not in aside:
                raise error

    def settle_after(self, session: Session) -> None:
        """After a commit, which must not pass for a refused one: trouble is the next one's, and to be met soon."""
        for error in self.settle(session).values():
            raise SinkUnavailable(str(error), hint=error.hint) from error
