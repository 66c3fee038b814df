"""What a process knows of the sink and need not ask again. All of it is forgotten when something fails."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tailrace.model.schema import TableSchema
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.dialect import Session, Target
from tailrace.sinks.sql.notes import Notes
from tailrace.sinks.sql.sessions import transaction
from tailrace.sinks.sql.tables import SinkTables


class _Version(NamedTuple):
    """A table takes rows of this schema."""

    schema: TableSchema
    is_single_key: bool


class Ready:
    """`is_settled`: nothing is left of changes that a crash broke off, see `recovery`."""

    def __init__(self, notes: Notes, tables: SinkTables, mapping: SchemaMapping, *, ddl_is_transactional: bool) -> None:
        self._notes, self._tables, self._mapping = notes, tables, mapping
        self._ddl_is_transactional = ddl_is_transactional
        self._versions: dict[Target, _Version] = {}
        self._has_notes = False
        self.is_settled = ddl_is_transactional

    def ensure_notes(self, session: Session) -> None:
        """Our own tables, made once; tasks take it from the driver that they are there."""
        if self._has_notes:
            return
        if not self._notes.is_complete(session):
            with transaction(session):
                session.lock("tailrace")
                self._notes.create(session)
        self._has_notes = True

    def evolve(self, session: Session, source: TableSchema, target: Target) -> bool:
        """Make a table ready for this version; returns whether its rows can be upserted by the key alone."""
        ready = self._versions.get(target)
        schema = self._mapping.schema(source)
        if ready is None or ready.schema != schema:
            status = self._notes.status(session, schema.table)
            if status is not None:
                status = msgspec.structs.replace(status, schema=self._mapping.schema(status.schema))
            before = None if ready is None else ready.schema
            ready = _Version(schema, self._tables.evolve(session, schema, target, status, before))
            self._versions[target] = ready
        return ready.is_single_key

    def forget_tables(self) -> None:
        self._versions.clear()

    def forget(self) -> None:
        self._versions.clear()
        self._has_notes, self.is_settled = False, self._ddl_is_transactional
