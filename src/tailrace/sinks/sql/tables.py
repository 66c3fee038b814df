"""The sink's tables: made, or checked column by column and used as they are; widened when the source's are.

A table that tailrace made carries a note (its comment) that says for which pipeline, so that nobody else's rows are
ever cleared away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, ExistingTable, Session, Target
from tailrace.sinks.sql.references import refuse_deleting
from tailrace.sinks.sql.table_checks import check_names, gone, misfit, misfit_of_copy, names_of, refuse_lost

NOTE = "made by tailrace for "


class SinkTables:
    """What `owner` (a pipeline's sink) does with tables. `is_active` says whether another owner has notes here."""

    def __init__(self, dialect: Dialect, owner: str, is_active: Callable[[Session, str], bool]) -> None:
        self._dialect, self._owner, self._is_active = dialect, owner, is_active
        self._naming, self._types = dialect.naming, dialect.types
        self._catalog, self._statements = dialect.catalog, dialect.statements

    def prepare(self, session: Session, schema: TableSchema, target: Target, *, clear: bool, is_known: bool) -> None:
        """Before a snapshot: the table is there, takes the source's rows, and with `clear` is empty."""
        check_names(self._dialect, schema, target)
        existing = self._catalog.existing(session, target)
        if existing is None:
            self.create(session, schema, target, has_key=not (clear and self._statements.builds_keys_late))
            return
        table = self._naming.qualified(target)
        is_ours = self.is_ours(session, existing, target)
        if clear and not is_ours and not is_known:
            self.refuse_rows_of_others(session, schema, target)
        problem = misfit_of_copy(self._dialect, schema, target, existing)
        if problem is not None and clear and is_ours:
            session.execute(f"DROP TABLE {table}")
            self.create(session, schema, target, has_key=not self._statements.builds_keys_late)
            return
        if problem is not None:
            raise problem
        if clear and session.execute(f"SELECT 1 FROM {table} LIMIT 1"):
            refuse_deleting(self._dialect, session, schema, target)
        if clear:
            self._statements.clear(session, table)
        self.add_columns(session, schema, target, existing)
        if is_ours and existing.note != NOTE + self._owner:
            for statement in self._statements.annotate(table, NOTE + self._owner):
                session.execute(statement)

    def evolve(
        self,
        session: Session,
        schema: TableSchema,
        target: Target,
        status: TableStatus | None,
        ready: TableSchema | None,
    ) -> bool:
        """Before changes are applied: the table takes rows of `schema`; until now it took those of `ready`.

        Returns whether rows can be upserted by the key alone, see `Statements.is_single_key`.
        """
        check_names(self._dialect, schema, target)
        existing = self._catalog.existing(session, target)
        if existing is None:
            if ready is not None or (status is not None and (status.state is TableState.LIVE or status.rows)):
                raise gone(schema, target)
            self.create(session, schema, target)
            return True
        existing = self._with_key(session, schema, target, existing)
        problem = misfit(self._dialect, schema, target, existing)
        if problem is not None:
            raise problem
        self.is_ours(session, existing, target)
        if status is not None and status.state is TableState.LIVE:
            refuse_lost(self._naming, schema, status.schema, target, existing)
        self.add_columns(session, schema, target, existing)
        return self._statements.is_single_key(existing, schema)

    def build_key(self, session: Session, schema: TableSchema, target: Target) -> None:
        """Give a table of ours its key, if it was made without one."""
        existing = self._catalog.existing(session, target)
        if existing is None:
            raise gone(schema, target)
        self._with_key(session, schema, target, existing)

    def _with_key(
        self, session: Session, schema: TableSchema, target: Target, existing: ExistingTable
    ) -> ExistingTable:
        key = frozenset(schema.key)
        is_late = self._statements.builds_keys_late and bool(key) and existing.note.startswith(NOTE)
        if not is_late or key in existing.unique:
            return existing
        table = self._naming.qualified(target)
        session.execute(self._statements.add_key(table, self._naming.quoted(schema.key)))
        return msgspec.structs.replace(existing, unique=existing.unique | {key})

    def create(
        self,
        session: Session,
        schema: TableSchema,
        target: Target,
        *,
        has_key: bool = True,
        types: Mapping[str, str] | None = None,
    ) -> None:
        """With `has_key` false it waits for `build_key`. `types` are those of columns that are not to be our choice."""
        if not self._catalog.has_schema(session, target.schema):
            session.execute(self._statements.create_schema(target.schema))
        columns = self._types.declared(schema) | self._types.hidden_columns(schema)
        chosen = {name: (types or {}).get(self._naming.folded(name), type_) for name, type_ in columns.items()}
        lines = [f"{self._naming.quote(name)} {type_}" for name, type_ in chosen.items()]
        key = self._naming.quoted(schema.key) if has_key else ""
        table = self._naming.qualified(target)
        for statement in self._statements.create_table(table, lines, key, NOTE + self._owner):
            session.execute(statement)

    def is_ours(self, session: Session, existing: ExistingTable, target: Target) -> bool:
        """Made by tailrace, for this pipeline or for one that is gone."""
        if not existing.note.startswith(NOTE):
            return False
        owner = existing.note.removeprefix(NOTE)
        if owner != self._owner and self._is_active(session, owner):
            raise SinkRejected(
                f"table {target} belongs to {owner}, which writes to this database as well",
                hint="give the schema another name under sinks.<name>.schemas, or `tailrace drop` the other pipeline",
            )
        return True

    def refuse_rows_of_others(self, session: Session, schema: TableSchema, target: Target) -> None:
        if session.execute(f"SELECT 1 FROM {self._naming.qualified(target)} LIMIT 1"):
            raise SinkRejected(
                f"table {target} has rows that tailrace did not write, and a copy of {schema.table} would replace them",
                hint="empty the table, or give the schema another name under sinks.<name>.schemas",
            )

    def add_columns(
        self,
        session: Session,
        schema: TableSchema,
        target: Target,
        existing: ExistingTable,
        fills: Mapping[str, str | None] | None = None,
    ) -> None:
        """Add what the table lacks. `fills` are what its rows have in a new column, as SQL; all others have NULL."""
        table = self._naming.qualified(target)
        there = names_of(self._naming, existing)
        columns = self._types.declared(schema) | self._types.hidden_columns(schema)
        for name, type_ in columns.items():
            if self._naming.folded(name) not in there:
                value = (fills or {}).get(name)
                default = "" if value is None else f" DEFAULT {value}"
                session.execute(f"ALTER TABLE {table} ADD COLUMN {self._naming.quote(name)} {type_}{default}")
