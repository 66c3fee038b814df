"""A copy beside the table that readers see: made empty, filled by a snapshot, and at last put in the table's place.

Where the table can take the copy's rows it stays, with all that others have made of it; otherwise the copy itself
takes its place.
"""

from __future__ import annotations

from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, Reference, Session, Target
from tailrace.sinks.sql.merge_statements import exchange
from tailrace.sinks.sql.references import leads_to, refuse_deleting, refuse_replacing, with_action
from tailrace.sinks.sql.table_checks import check_names, misfit_of_copy
from tailrace.sinks.sql.tables import SinkTables


class TableCopies:
    def __init__(self, dialect: Dialect, tables: SinkTables) -> None:
        self._dialect, self._tables = dialect, tables
        self._naming, self._catalog, self._statements = dialect.naming, dialect.catalog, dialect.statements

    def prepare(self, session: Session, schema: TableSchema, target: Target, copy: Target, *, is_known: bool) -> None:
        """Before a snapshot of a table that has rows: an empty one beside it, which will take its place."""
        check_names(self._dialect, schema, target)
        existing = self._catalog.existing(session, target)
        types = {}
        if existing is not None:
            is_ours = self._tables.is_ours(session, existing, target)
            if not is_ours and not is_known:
                self._tables.refuse_rows_of_others(session, schema, target)
            problem = misfit_of_copy(self._dialect, schema, target, existing)
            if problem is not None and not is_ours:
                raise problem
            if problem is not None:
                self.refuse_replacing(session, schema, target, copy)
            else:
                types = {self._naming.folded(column.name): column.type for column in existing.columns}
        session.execute(f"DROP TABLE IF EXISTS {self._naming.qualified(copy)}")
        self._tables.create(session, schema, copy, has_key=not self._statements.builds_keys_late, types=types)

    def make_room(self, session: Session, schema: TableSchema, target: Target) -> bool:
        """Whether the table can take all rows of a copy, instead of being replaced; columns that it lacks are added."""
        existing = self._catalog.existing(session, target)
        if existing is None or misfit_of_copy(self._dialect, schema, target, existing) is not None:
            return False
        self._tables.add_columns(session, schema, target, existing)
        return True

    def take_rows(self, session: Session, schema: TableSchema, target: Target, copy: Target) -> bool:
        """Bring the rows of a copy into the table, in the place of those that are there; False if it can not be.

        Whatever others have made of the table (indexes, views, privileges) stays, and readers see all or nothing.
        """
        if not self.make_room(session, schema, target):
            return False
        existing = self._catalog.existing(session, target)
        assert existing is not None
        key = self._naming.all_folded(schema.key)
        is_plain = all(self._naming.all_folded(names) == key for names in existing.unique)
        if key and not is_plain and (leading := with_action(self._dialect, session, target)):
            self._exchange_by_key(session, schema, target, copy, leading[0])
            return True
        if not key:
            refuse_deleting(self._dialect, session, schema, target)
        table, source = self._naming.qualified(target), self._naming.qualified(copy)
        for statement in exchange(self._dialect, table, source, schema, is_plain=is_plain):
            session.execute(statement)
        return True

    def _exchange_by_key(
        self, session: Session, schema: TableSchema, target: Target, copy: Target, leading: Reference
    ) -> None:
        """No row goes that comes back: `leading` would take rows of others along."""
        table, source = self._naming.qualified(target), self._naming.qualified(copy)
        try:
            for statement in exchange(self._dialect, table, source, schema, is_plain=False, keeps_rows=True):
                session.execute(statement)
        except Exception as error:
            found = self._dialect.server.explain(error)
            if found is None or not found.is_duplicate:
                raise
            why = f"would change rows of its own while rows of {target} exchange what is unique in them"
            raise leads_to(schema, leading, why) from error

    def refuse_replacing(self, session: Session, schema: TableSchema, target: Target, copy: Target) -> None:
        """Raise if something of somebody else's keeps a copy from taking the place of a table."""
        replaced = self._statements.replaced(copy)
        for place in [target, *([replaced] if replaced is not None else [])]:
            refuse_replacing(self._dialect, session, schema, place)

    def replace(self, session: Session, target: Target, copy: Target) -> None:
        """Put the copy itself in the place of the table, unless that was done already."""
        if self._catalog.existing(session, copy) is None:
            return
        has_table = self._catalog.existing(session, target) is not None
        for statement in self._statements.replace(target, copy, has_table=has_table):
            session.execute(statement)
