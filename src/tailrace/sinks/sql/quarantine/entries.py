"""The rows that were set aside: listed, forgotten, or written again as the source has them now."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tailrace.config import Misfits
from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import FetchRows, Quarantined, Rejected
from tailrace.sinks.sql.dialect import Dialect, Session
from tailrace.sinks.sql.parts import Parts
from tailrace.sinks.sql.quarantine.isolation import Isolation
from tailrace.sinks.sql.quarantine.sieve import Sieve
from tailrace.sinks.sql.sessions import transaction
from tailrace.sinks.sql.staged import StagedChanges
from tailrace.sinks.sql.table_merge import TableMerge
from tailrace.sinks.sql.writers import InlineWriter, columns_of


class Quarantine:
    def __init__(self, parts: Parts) -> None:
        self._owner, self._settings, self._dialect = parts.owner, parts.settings, parts.dialect
        self._sessions, self._places, self._mapping = parts.sessions, parts.places, parts.mapping
        self._notes, self._ready = parts.notes, parts.ready

    def entries(self) -> list[Quarantined]:
        with self._sessions.look("reading its quarantine") as session:
            return self._notes.quarantined(session) if self._notes.exists(session) else []

    def drop(self, entries: Sequence[Quarantined]) -> None:
        with self._sessions.use("emptying its quarantine") as session, transaction(session):
            for entry in entries:
                self._notes.drop_quarantined(session, id=entry.id)

    def replay(self, entries: Sequence[Quarantined], fetch: FetchRows) -> int:
        """Nobody else commits meanwhile, so what is read now is at least as new as what the sink has of these rows.

        What the pipeline has yet to apply of them comes after, and ends at the same rows; till then the table is ahead.
        """
        with self._sessions.use("replaying its quarantine") as session, transaction(session):
            session.lock(self._owner)
            done = [entry for entry in entries if self._write_again(session, entry.rejected, fetch)]
            for table in {entry.rejected.table for entry in done}:
                self._notes.mark_ahead(session, table)
            for entry in done:
                self._notes.drop_quarantined(session, id=entry.id)
        return len(done)

    def _write_again(self, session: Session, rejected: Rejected, fetch: FetchRows) -> bool:
        """False if the row is still refused. One that is gone from the source goes from the sink."""
        status = self._notes.status(session, rejected.table)
        source = replayable(rejected, status)
        target = self._places.table(source, is_beside=status is not None and status.is_beside)
        table = self._dialect.naming.qualified(target)
        schema = self._mapping.schema(source)
        key = pa.RecordBatch.from_pydict({name: [str(value)] for name, value in rejected.key.items()})
        rows = fetch(source, key)
        if not rows.num_rows:
            return delete_again(session, self._dialect, table, schema, [str(rejected.key[name]) for name in source.key])
        sieve = Sieve(self._dialect.encoding)
        if self._settings.misfits is not Misfits.TEXT:
            rows = sieve.rows(source, rows, "upsert")
        if sieve.rejected:
            return False
        isolation = Isolation(self._dialect, session, self._mapping, is_fatal=False)
        upserts = InlineWriter(self._dialect.encoding).write(columns_of(schema, self._mapping.rows(source, rows)))
        changes = StagedChanges(source, truncate=False, deletes=None, upserts=upserts, partials=(), count=1)
        with self._sessions.errors_of(source.table, f"merging {source.table}"):
            is_single_key = self._ready.evolve(session, source, target)
            TableMerge(isolation, source, table, is_single_key=is_single_key).apply(changes, fetch)
        return not isolation.refused


def delete_again(session: Session, dialect: Dialect, table: str, schema: TableSchema, key: Sequence[str]) -> bool:
    """Delete the row of a key, given as text in the order of the key; False if the database still refuses that."""
    types = {column.name: column.type for column in schema.columns}
    found = " AND ".join(dialect.reading.key_is(dialect.naming.quote(name), types[name]) for name in schema.key)
    session.execute("SAVEPOINT deleting")
    try:
        session.execute(f"DELETE FROM {table} WHERE {found}", list(key))
    except Exception as error:
        explained = dialect.server.explain(error)
        if explained is None or not explained.is_about_rows:
            raise
        session.execute("ROLLBACK TO SAVEPOINT deleting")
        return False
    session.execute("RELEASE SAVEPOINT deleting")
    return True


def replayable(rejected: Rejected, status: TableStatus | None) -> TableSchema:
    """The table of a row that was set aside; raises if rows of it can not be written again now."""
    if status is None:
        problem = "is not in the sink any more"
    elif not rejected.key:
        problem = "has no key by which the row could be found again"
    elif rejected.key.keys() != set(status.schema.key):
        problem = "has another key than it had when the row was set aside"
    elif status.state is not TableState.LIVE:
        problem = f"is in the state {status.state}: wait until it is live"
    else:
        return status.schema
    hint = "`tailrace quarantine drop` forgets its rows"
    raise SinkRejected(f"{rejected.table} {problem}", hint=hint, table=rejected.table)
