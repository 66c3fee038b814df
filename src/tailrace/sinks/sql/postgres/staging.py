"""Staging in a PostgreSQL sink: unlogged tables, which a crash empties."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.sinks.sql.dialect import Naming, Session, Staging, Target
from tailrace.sinks.sql.postgres.naming import SCHEMA
from tailrace.sinks.sql.postgres.types import sent
from tailrace.sinks.sql.staged import StagedColumn

_STAGING = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)
"""


class PostgresStaging(Staging):
    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def create(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        lines = ", ".join(f"c{place} {sent(column.type)}" for place, column in enumerate(columns))
        return f"CREATE UNLOGGED TABLE {table} ({lines}) WITH (autovacuum_enabled = off)"

    def found(self, session: Session, prefix: str) -> list[str]:
        found = session.execute(_STAGING, [SCHEMA, prefix])
        return [self._naming.qualified(Target(SCHEMA, name)) for (name,) in found]
