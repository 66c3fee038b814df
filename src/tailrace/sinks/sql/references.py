"""Foreign keys that somebody made in the sink, and that lead to a table of ours.

Where one has an action (CASCADE, SET NULL, SET DEFAULT), a row that goes takes others along, and they stay gone when
it comes back. And a table that one leads to can not be dropped, nor can another take its place.
"""

from __future__ import annotations

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, Reference, Session, Target


def with_action(dialect: Dialect, session: Session, target: Target) -> list[Reference]:
    return [found for found in dialect.catalog.references(session, target) if found.has_action]


def refuse_deleting(dialect: Dialect, session: Session, schema: TableSchema, target: Target) -> None:
    """Before all rows of a table go, to come back by a copy."""
    for found in with_action(dialect, session, target):
        raise leads_to(schema, found, f"would change rows of its own while those of {target} are copied again")


def refuse_replacing(dialect: Dialect, session: Session, schema: TableSchema, target: Target) -> None:
    """Before a copy of another shape takes the place of a table."""
    for found in dialect.catalog.references(session, target):
        raise leads_to(schema, found, f"leads to {target}, which a copy with other columns is to replace")


def leads_to(schema: TableSchema, found: Reference, why: str) -> SinkRejected:
    return SinkRejected(
        f"foreign key {found.name} of table {found.table} in the sink {why}",
        hint=f"drop the foreign key and run `tailrace snapshot {schema.table}`; make it again once the table is live",
    )
