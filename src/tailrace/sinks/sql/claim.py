"""A run's right to write to the sink: the last claim counts, and is looked at in every transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.sinks.sql.dialect import Session
from tailrace.sinks.sql.notes import Notes
from tailrace.sinks.sql.sessions import transaction


class Claim:
    """The claim of `run`, which is made or taken over with this object. Tasks get it with the sink, pickled."""

    def __init__(self, notes: Notes, owner: str) -> None:
        self._notes, self._owner = notes, owner
        self._run_lock = f"{owner}/run"
        self.run = ""

    def make(self, session: Session, run: str) -> None:
        """Earlier runs write no more; their sessions that hold our locks are killed."""
        with transaction(session):
            session.take_over(self._owner)
            session.take_over(self._run_lock)
            self._notes.claim(session, run)
        self.run = run

    def check(self, session: Session) -> None:
        """Raise SinkTaken after another run's claim. Holds nothing."""
        self._notes.check_claim(session, self.run)

    def share(self, session: Session) -> None:
        """In a transaction: the claim is ours until it ends. Others of this run may do the same beside it."""
        session.lock_shared(self._run_lock)
        self.check(session)

    def hold(self, session: Session) -> None:
        """The claim is ours, and nobody else of this run commits, until the transaction or the session ends.

        Before DDL that is no part of a transaction: it is held until the next transaction ends.
        """
        session.lock(self._owner)
        self.share(session)

    @contextmanager
    def transaction(self, session: Session) -> Iterator[None]:
        """A transaction that holds the claim."""
        with transaction(session):
            self.hold(session)
            yield
