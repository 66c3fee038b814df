"""Removing what is of no use any more: what was staged, copies that were given up, and all notes of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import CATCHING_UP, COPYING, TableState
from tailrace.sinks.sql.dialect import Session, Target
from tailrace.sinks.sql.parts import Parts
from tailrace.sinks.sql.places import COPY_PREFIX
from tailrace.sinks.sql.sessions import transaction


class Cleanup:
    def __init__(self, parts: Parts) -> None:
        self._owner, self._dialect, self._sessions = parts.owner, parts.dialect, parts.sessions
        self._places, self._notes, self._ready = parts.places, parts.notes, parts.ready
        self._litter: list[str] = []  # staging tables that could not be dropped when it was time

    def forget(self) -> None:
        with self._sessions.use("forgetting the pipeline") as session:
            if self._dialect.server.is_there() and self._notes.exists(session):
                known = [status.table for status in self._notes.statuses(session) if status.is_beside]
                for copy in (self._places.copy_of(table) for table in known):
                    session.execute(f"DROP TABLE IF EXISTS {self._dialect.naming.qualified(copy)}")
                self.drop_copies(session, self._left_copies(session))
                with transaction(session):
                    session.lock(self._owner)
                    self._notes.forget(session)
        self._ready.forget_tables()
        self.clean()

    def clean(self) -> None:
        """Drop the staging tables of dead batches, once no commit of a dead driver is under way any more."""
        with self._sessions.use("removing what was staged") as session:
            if self._dialect.server.is_there():
                with transaction(session):
                    session.lock(self._owner)
                self.drop_copies(session, self._left_copies(session))
            self._drop(session, self._dialect.staging.found(session, self._places.staging_prefix))

    def _left_copies(self, session: Session) -> set[str]:
        """Copies that were given up, or that have taken their place."""
        known = self._notes.statuses(session) if self._notes.exists(session) else []
        copies = {self._dialect.naming.qualified(self._places.copy_of(status.table)): status for status in known}
        there = {*self._dialect.staging.found(session, COPY_PREFIX), *(n for n, s in copies.items() if s.is_beside)}
        wanted = COPYING | CATCHING_UP | {TableState.LIVE}
        given_up = {n for n, s in copies.items() if n in there and not (s.is_beside and s.state in wanted)}
        return given_up | {n for s in known for n in self.replaced_by(self._places.copy_of(s.table)) if n in there}

    def replaced_by(self, copy: Target) -> list[str]:
        """The table whose place a copy took, where it was not dropped by that. Quoted."""
        old = self._dialect.statements.replaced(copy)
        return [] if old is None else [self._dialect.naming.qualified(old)]

    def drop_copies(self, session: Session, names: Iterable[str]) -> None:
        """What somebody else's foreign key or view holds fast is left for the next `clean`."""
        for name in names:
            with suppress(SinkRejected), self._sessions.errors("removing a copy"):
                session.execute(f"DROP TABLE IF EXISTS {name}")

    @contextmanager
    def leaving(self, session: Session, staged: list[str]) -> Iterator[None]:
        """Whatever happens inside: staging tables are dropped, and what is known of tables is as true as before."""
        try:
            yield
        except BaseException as error:
            self._ready.forget()
            found = self._dialect.server.explain(error)
            is_lost = isinstance(error, SinkUnavailable) or (found is not None and found.kind is SinkUnavailable)
            if is_lost:
                self._litter += staged
            else:
                self._drop(session, staged)
            raise
        litter, self._litter = self._litter, []
        self._drop(session, staged + litter)

    def _drop(self, session: Session, staged: list[str]) -> None:
        """What can not be dropped is left for the next `clean`: a commit that was done must not fail for it."""
        for name in staged:
            with suppress(SinkRejected), self._sessions.errors("removing what was staged"):
                self._dialect.staging.drop(session, name)
