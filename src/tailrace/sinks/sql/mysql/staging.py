"""Staging in a MySQL or MariaDB sink: tables whose rows are numbered."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.sinks.sql.dialect import Naming, Session, Staging, Target
from tailrace.sinks.sql.mysql import native
from tailrace.sinks.sql.mysql.flavor import Flavor
from tailrace.sinks.sql.mysql.types import NUMBERED, ROW, collated, declared
from tailrace.sinks.sql.staged import StagedColumn

STAGED = "_tailrace_staged"
"""What statements call staged rows: no table of a source may have a name that begins so."""
_STAGING = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s"


class MySqlStaging(Staging):
    def __init__(self, naming: Naming, flavor: Flavor) -> None:
        self._naming, self._flavor = naming, flavor

    def create(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        return create_staging(table, columns, self._flavor, is_private=is_private)

    def found(self, session: Session, prefix: str) -> list[str]:
        start = self._naming.own(prefix)
        found = session.execute(_STAGING, [start.schema, len(start.name), start.name])
        return [self._naming.qualified(Target(start.schema, name)) for (name,) in found]

    def drop(self, session: Session, name: str, *, is_private: bool = False) -> None:
        session.execute(f"DROP {'TEMPORARY TABLE' if is_private else 'TABLE'} IF EXISTS {name}")


def create_staging(table: str, columns: Sequence[StagedColumn], flavor: Flavor, *, is_private: bool) -> str:
    """A table for staged rows, which are numbered."""
    bare = (native.staged(column.type, flavor) or declared(column.type) for column in columns)
    types = (collated(type_, flavor.collation) for type_ in bare)
    lines = ", ".join([*(f"c{place} {type_}" for place, type_ in enumerate(types)), f"{ROW} {NUMBERED}"])
    return f"CREATE {'TEMPORARY TABLE' if is_private else 'TABLE'} {table} ({lines}) ENGINE = InnoDB"
