"""Changes of a table in place: new names, wider types, columns that came; and how they are taken back.

Only tables that tailrace made are altered; the others are copied again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tailrace.model.schema import TableSchema, counterpart, renamed_columns
from tailrace.sinks.base import Evolved
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.dialect import Dialect, ExistingTable, Field, Session, Target
from tailrace.sinks.sql.places import Places
from tailrace.sinks.sql.table_checks import check_names, gone, names_of, refuse_lost
from tailrace.sinks.sql.tables import NOTE, SinkTables


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a table becomes again what it was before a change in place: by names, those of columns unquoted."""

    target: Target
    moved_to: Target
    renamed: dict[str, str]  # the old name, and the new one
    added: tuple[str, ...]


class _Versions(NamedTuple):
    """Two versions of a table, in the sink's names, and where it is before and after."""

    before: TableSchema
    after: TableSchema
    target: Target
    new_target: Target


class Alterations:
    def __init__(self, dialect: Dialect, tables: SinkTables, places: Places, mapping: SchemaMapping) -> None:
        self._dialect, self._tables, self._places, self._mapping = dialect, tables, places, mapping
        self._naming, self._types = dialect.naming, dialect.types
        self._catalog, self._statements = dialect.catalog, dialect.statements

    def can_take_in(self, session: Session, evolved: Evolved) -> bool:
        """Whether `take_in` would leave the rows as they should be."""
        before, after, target, new_target = self._versions(evolved)
        existing = self._catalog.existing(session, target)
        if existing is None or not existing.note.startswith(NOTE) or None in self._fills(evolved).values():
            return False
        if new_target != target and not self._can_move(session, target, new_target):
            return False
        there, renamed = names_of(self._naming, existing), renamed_columns(before, after)
        kept = [known.name for column in after.columns if (known := counterpart(before, column)) is not None]
        if any(self._naming.folded(name) not in there for name in kept):
            return False
        came = [column.name for column in after.columns if counterpart(before, column) is None]
        if any(self._naming.folded(name) in there for name in (*renamed.values(), *came)):
            return False  # the column of a name that the source dropped is kept, with its values and its default
        types = {self._naming.folded(column.name): column.type for column in existing.columns}
        old_names = {new: old for old, new in renamed.items()}
        return all(
            self._types.fits(wanted, found) or self._types.can_widen(wanted, found)
            for name, wanted in self._types.declared(after).items()
            if (found := types.get(self._naming.folded(old_names.get(name, name)))) is not None
        )

    def _can_move(self, session: Session, target: Target, new_target: Target) -> bool:
        if self._catalog.existing(session, new_target) is not None:
            return False
        return target.schema == new_target.schema or self._catalog.has_schema(session, new_target.schema)

    def take_in(self, session: Session, evolved: Evolved) -> None:
        """Change the table from one version to another, its rows in place."""
        before, after, target, new_target = self._versions(evolved)
        check_names(self._dialect, after, new_target)
        if target != new_target and self._catalog.existing(session, target) is not None:
            for statement in self._statements.move(target, new_target):
                session.execute(statement)
        table = self._naming.qualified(new_target)
        existing = self._catalog.existing(session, new_target)
        if existing is None:
            raise gone(after, new_target)
        kept = tuple(column for column in before.columns if counterpart(after, column) is not None)
        refuse_lost(self._naming, msgspec.structs.replace(before, columns=kept), before, new_target, existing)
        for old, new in renamed_columns(before, after).items():
            self._rename_column(session, new_target, old, new)
        existing = self._catalog.existing(session, new_target)
        assert existing is not None
        self._widen(session, after, table, existing)
        self._tables.add_columns(session, after, new_target, existing, self._fills(evolved))

    def _rename_column(self, session: Session, target: Target, old: str, new: str) -> None:
        table = self._naming.qualified(target)
        columns = f"{self._naming.quote(old)} TO {self._naming.quote(new)}"
        session.execute(f"ALTER TABLE {table} RENAME COLUMN {columns}")

    def undo_of(self, session: Session, evolved: Evolved) -> Undo | None:
        """What takes back a `take_in` that is about to begin; None if there is no table."""
        before, after, target, new_target = self._versions(evolved)
        existing = self._catalog.existing(session, target)
        if existing is None:
            return None
        there, renamed = names_of(self._naming, existing), renamed_columns(before, after)
        there |= self._naming.all_folded(renamed.values())
        added = (name for name in self._types.declared(after) if self._naming.folded(name) not in there)
        return Undo(target, new_target, renamed, tuple(added))

    def take_back(self, session: Session, undo: Undo) -> None:
        """Undo a `take_in`, however far it came: columns have their names of before, those that came are gone.

        Types that hold more stay. May be repeated.
        """
        if undo.target != undo.moved_to and self._catalog.existing(session, undo.target) is None:
            if self._catalog.existing(session, undo.moved_to) is None:
                return
            for statement in self._statements.move(undo.moved_to, undo.target):
                session.execute(statement)
        existing = self._catalog.existing(session, undo.target)
        there = set() if existing is None else names_of(self._naming, existing)
        for old, new in undo.renamed.items():
            if self._naming.folded(new) in there and self._naming.folded(old) not in there:
                self._rename_column(session, undo.target, new, old)
        table = self._naming.qualified(undo.target)
        for name in undo.added:
            if self._naming.folded(name) in there:
                session.execute(f"ALTER TABLE {table} DROP COLUMN {self._naming.quote(name)}")

    def _widen(self, session: Session, schema: TableSchema, table: str, existing: ExistingTable) -> None:
        types = {self._naming.folded(column.name): column.type for column in existing.columns}
        for name, wanted in self._types.declared(schema).items():
            found = types.get(self._naming.folded(name))
            if found is not None and not self._types.fits(wanted, found):
                session.execute(self._statements.widen(table, self._naming.quote(name), wanted))

    def _versions(self, evolved: Evolved) -> _Versions:
        schemas = self._mapping.schema(evolved.before), self._mapping.schema(evolved.schema)
        return _Versions(*schemas, self._places.table(evolved.before), self._places.table(evolved.schema))

    def _fills(self, evolved: Evolved) -> dict[str, str | None]:
        """By column of the sink: the value of old rows as SQL, None where there is no SQL of it."""
        fills = self._mapping.rows(evolved.schema, evolved.fills)
        types = {column.name: column.type for column in self._mapping.schema(evolved.schema).columns}
        return {
            name: self._dialect.encoding.literal(Field(f"{evolved.schema.table}.{name}", types[name], array))
            for name, array in zip(fills.schema.names, fills.columns, strict=True)
            if not array.null_count
        }
