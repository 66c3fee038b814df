"""The sink's tables: made, or checked column by column and used as they are; widened when the source's are.

A table that tailrace made carries a note (its comment) that says for which pipeline, so that nobody else's rows are
ever cleared away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tailrace.errors import SinkRejected
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import TableSchema, counterpart, renamed_columns
from tailrace.sinks.sql.dialect import Dialect, ExistingTable, Reference, Session, Target, Undo
from tailrace.sinks.sql.merge_statements import exchange
from tailrace.sinks.sql.references import leads_to, refuse_deleting, refuse_replacing, with_action

NOTE = "made by tailrace for "


class SinkTables:
    """What `owner` (a pipeline's sink) does with tables. `is_active` says whether another owner has notes here."""

    def __init__(self, dialect: Dialect, owner: str, is_active: Callable[[Session, str], bool]) -> None:
        self._dialect, self._owner, self._is_active = dialect, owner, is_active

    def prepare(self, session: Session, schema: TableSchema, target: Target, *, clear: bool, is_known: bool) -> None:
        """Before a snapshot: the table is there, takes the source's rows, and with `clear` is empty."""
        check_names(self._dialect, schema, target)
        existing = self._dialect.existing(session, target)
        if existing is None:
            self.create(session, schema, target, has_key=not (clear and self._dialect.builds_keys_late))
            return
        table = self._dialect.qualified(target)
        is_ours = self._is_ours(session, existing, target)
        if clear and not is_ours and not is_known:
            self._refuse_rows_of_others(session, schema, target)
        problem = self._misfit(schema, target, existing)
        if problem is not None and clear and is_ours:
            session.execute(f"DROP TABLE {table}")
            self.create(session, schema, target, has_key=not self._dialect.builds_keys_late)
            return
        if problem is not None:
            raise problem
        if clear and session.execute(f"SELECT 1 FROM {table} LIMIT 1"):
            refuse_deleting(self._dialect, session, schema, target)
        if clear:
            self._dialect.clear(session, table)
        self._add_columns(session, schema, target, existing)
        if is_ours and existing.note != NOTE + self._owner:
            for statement in self._dialect.annotate(table, NOTE + self._owner):
                session.execute(statement)

    def _misfit(self, schema: TableSchema, target: Target, existing: ExistingTable) -> SinkRejected | None:
        """Why the table can not take the rows of a new copy, if it can not."""
        if _has_other_key(schema, existing):
            return SinkRejected(f"table {target} in the sink keeps rows apart that may repeat in {schema.table}")
        return misfit(self._dialect, schema, target, existing)

    # --- a copy beside the table that readers see

    def prepare_beside(
        self, session: Session, schema: TableSchema, target: Target, copy: Target, *, is_known: bool
    ) -> None:
        """Before a snapshot of a table that has rows: an empty one beside it, which will take its place."""
        check_names(self._dialect, schema, target)
        existing = self._dialect.existing(session, target)
        types = {}
        if existing is not None:
            is_ours = self._is_ours(session, existing, target)
            if not is_ours and not is_known:
                self._refuse_rows_of_others(session, schema, target)
            problem = self._misfit(schema, target, existing)
            if problem is not None and not is_ours:
                raise problem
            if problem is not None:
                self.refuse_replacing(session, schema, target, copy)
            else:
                types = {_folded(self._dialect, column.name): column.type for column in existing.columns}
        session.execute(f"DROP TABLE IF EXISTS {self._dialect.qualified(copy)}")
        self.create(session, schema, copy, has_key=not self._dialect.builds_keys_late, types=types)

    def make_room(self, session: Session, schema: TableSchema, target: Target) -> bool:
        """Whether the table can take all rows of a copy, instead of being replaced; columns that it lacks are added."""
        existing = self._dialect.existing(session, target)
        if existing is None or self._misfit(schema, target, existing) is not None:
            return False
        self._add_columns(session, schema, target, existing)
        return True

    def take_rows(self, session: Session, schema: TableSchema, target: Target, copy: Target) -> bool:
        """Bring the rows of a copy into the table, in the place of those that are there; False if it can not be.

        Whatever others have made of the table (indexes, views, privileges) stays, and readers see all or nothing.
        """
        if not self.make_room(session, schema, target):
            return False
        existing = self._dialect.existing(session, target)
        assert existing is not None
        key = _folded_set(self._dialect, schema.key)
        is_plain = all(_folded_set(self._dialect, names) == key for names in existing.unique)
        if key and not is_plain and (leading := with_action(self._dialect, session, target)):
            self._exchange_by_key(session, schema, target, copy, leading[0])
            return True
        if not key:
            refuse_deleting(self._dialect, session, schema, target)
        table, source = self._dialect.qualified(target), self._dialect.qualified(copy)
        for statement in exchange(self._dialect, table, source, schema, is_plain=is_plain):
            session.execute(statement)
        return True

    def _exchange_by_key(
        self, session: Session, schema: TableSchema, target: Target, copy: Target, leading: Reference
    ) -> None:
        """No row goes that comes back: `leading` would take rows of others along."""
        table, source = self._dialect.qualified(target), self._dialect.qualified(copy)
        try:
            for statement in exchange(self._dialect, table, source, schema, is_plain=False, keeps_rows=True):
                session.execute(statement)
        except Exception as error:
            found = self._dialect.explain(error)
            if found is None or not found.is_duplicate:
                raise
            why = f"would change rows of its own while rows of {target} exchange what is unique in them"
            raise leads_to(schema, leading, why) from error

    def refuse_replacing(self, session: Session, schema: TableSchema, target: Target, copy: Target) -> None:
        """Raise if something of somebody else's keeps a copy from taking the place of a table."""
        replaced = self._dialect.replaced(copy)
        for place in [target, *([replaced] if replaced is not None else [])]:
            refuse_replacing(self._dialect, session, schema, place)

    # --- changes in place

    def can_take_in(
        self,
        session: Session,
        before: TableSchema,
        after: TableSchema,
        target: Target,
        new_target: Target,
        fills: Mapping[str, str | None],
    ) -> bool:
        """Whether `take_in` would leave the rows as they should be."""
        existing = self._dialect.existing(session, target)
        if existing is None or not existing.note.startswith(NOTE) or None in fills.values():
            return False
        if new_target != target and not self._can_move(session, target, new_target):
            return False
        there, renamed = _folded_names(self._dialect, existing), renamed_columns(before, after)
        kept = [known.name for column in after.columns if (known := counterpart(before, column)) is not None]
        if any(_folded(self._dialect, name) not in there for name in kept):
            return False
        came = [column.name for column in after.columns if counterpart(before, column) is None]
        if any(_folded(self._dialect, name) in there for name in (*renamed.values(), *came)):
            return False  # the column of a name that the source dropped is kept, with its values and its default
        types = {_folded(self._dialect, column.name): column.type for column in existing.columns}
        old_names = {new: old for old, new in renamed.items()}
        return all(
            self._dialect.fits(wanted, found) or self._dialect.can_widen(wanted, found)
            for name, wanted in self._dialect.declared(after).items()
            if (found := types.get(_folded(self._dialect, old_names.get(name, name)))) is not None
        )

    def _can_move(self, session: Session, target: Target, new_target: Target) -> bool:
        has_room = self._dialect.existing(session, new_target) is None
        return has_room and (target.schema == new_target.schema or self._dialect.has_schema(session, new_target.schema))

    def take_in(
        self,
        session: Session,
        before: TableSchema,
        after: TableSchema,
        target: Target,
        new_target: Target,
        fills: Mapping[str, str | None],
    ) -> None:
        """Change the table from one version to another, its rows in place."""
        check_names(self._dialect, after, new_target)
        if target != new_target and self._dialect.existing(session, target) is not None:
            for statement in self._dialect.move(target, new_target):
                session.execute(statement)
        table = self._dialect.qualified(new_target)
        existing = self._dialect.existing(session, new_target)
        if existing is None:
            raise gone(after, new_target)
        kept = tuple(column for column in before.columns if counterpart(after, column) is not None)
        self._refuse_lost(msgspec.structs.replace(before, columns=kept), before, new_target, existing)
        for old, new in renamed_columns(before, after).items():
            self._rename_column(session, new_target, old, new)
        existing = self._dialect.existing(session, new_target)
        assert existing is not None
        self._widen(session, after, table, existing)
        self._add_columns(session, after, new_target, existing, fills)

    def _rename_column(self, session: Session, target: Target, old: str, new: str) -> None:
        table, names = self._dialect.qualified(target), (self._dialect.quote(old), self._dialect.quote(new))
        session.execute(f"ALTER TABLE {table} RENAME COLUMN {names[0]} TO {names[1]}")

    def undo_of(
        self, session: Session, before: TableSchema, after: TableSchema, target: Target, new_target: Target
    ) -> Undo | None:
        """What takes back a `take_in` that is about to begin; None if there is no table."""
        existing = self._dialect.existing(session, target)
        if existing is None:
            return None
        there, renamed = _folded_names(self._dialect, existing), renamed_columns(before, after)
        there |= _folded_set(self._dialect, renamed.values())
        added = (name for name in self._dialect.declared(after) if _folded(self._dialect, name) not in there)
        return Undo(target, new_target, renamed, tuple(added))

    def take_back(self, session: Session, undo: Undo) -> None:
        """Undo a `take_in`, however far it came: columns have their names of before, those that came are gone.

        Types that hold more stay. May be repeated.
        """
        if undo.target != undo.moved_to and self._dialect.existing(session, undo.target) is None:
            if self._dialect.existing(session, undo.moved_to) is None:
                return
            for statement in self._dialect.move(undo.moved_to, undo.target):
                session.execute(statement)
        existing = self._dialect.existing(session, undo.target)
        there = set() if existing is None else _folded_names(self._dialect, existing)
        for old, new in undo.renamed.items():
            if _folded(self._dialect, new) in there and _folded(self._dialect, old) not in there:
                self._rename_column(session, undo.target, new, old)
        table = self._dialect.qualified(undo.target)
        for name in undo.added:
            if _folded(self._dialect, name) in there:
                session.execute(f"ALTER TABLE {table} DROP COLUMN {self._dialect.quote(name)}")

    def _refuse_lost(self, schema: TableSchema, known: TableSchema, target: Target, existing: ExistingTable) -> None:
        """Raise if the table lacks a column that its rows had: a new one would be empty."""
        there = _folded_names(self._dialect, existing)
        for column in schema.columns:
            if counterpart(known, column) is not None and _folded(self._dialect, column.name) not in there:
                raise SinkRejected(
                    f"column {column.name} of table {target} is gone from the sink: somebody dropped or renamed it",
                    hint=f"run `tailrace snapshot {schema.table}`, which copies the table again",
                )

    def _widen(self, session: Session, schema: TableSchema, table: str, existing: ExistingTable) -> None:
        types = {_folded(self._dialect, column.name): column.type for column in existing.columns}
        for name, wanted in self._dialect.declared(schema).items():
            found = types.get(_folded(self._dialect, name))
            if found is not None and not self._dialect.fits(wanted, found):
                session.execute(self._dialect.widen(table, self._dialect.quote(name), wanted))

    # --- changes as they come

    def evolve(
        self,
        session: Session,
        schema: TableSchema,
        target: Target,
        status: TableStatus | None,
        ready: TableSchema | None,
    ) -> bool:
        """Before changes are applied: the table takes rows of `schema`; until now it took those of `ready`.

        Returns whether the key is the only thing in the table that can be there already.
        """
        check_names(self._dialect, schema, target)
        existing = self._dialect.existing(session, target)
        if existing is None:
            if ready is not None or (status is not None and (status.state is TableState.LIVE or status.rows)):
                raise gone(schema, target)
            self.create(session, schema, target)
            return True
        existing = self._with_key(session, schema, target, existing)
        problem = misfit(self._dialect, schema, target, existing)
        if problem is not None:
            raise problem
        self._is_ours(session, existing, target)
        if status is not None and status.state is TableState.LIVE:
            self._refuse_lost(schema, status.schema, target, existing)
        self._add_columns(session, schema, target, existing)
        return self._dialect.is_single_key(existing, schema)

    def build_key(self, session: Session, schema: TableSchema, target: Target) -> None:
        """Give a table of ours its key, if it was made without one."""
        existing = self._dialect.existing(session, target)
        if existing is None:
            raise gone(schema, target)
        self._with_key(session, schema, target, existing)

    def _with_key(
        self, session: Session, schema: TableSchema, target: Target, existing: ExistingTable
    ) -> ExistingTable:
        key = frozenset(schema.key)
        if not (self._dialect.builds_keys_late and key and existing.note.startswith(NOTE)) or key in existing.unique:
            return existing
        session.execute(self._dialect.add_key(self._dialect.qualified(target), self._dialect.names(schema.key)))
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
        dialect = self._dialect
        if not dialect.has_schema(session, target.schema):
            session.execute(dialect.create_schema(target.schema))
        columns = dialect.declared(schema) | dialect.hidden_columns(schema)
        chosen = types or {}
        lines = [
            f"{dialect.quote(name)} {chosen.get(_folded(dialect, name), type_)}" for name, type_ in columns.items()
        ]
        key = dialect.names(schema.key) if has_key else ""
        for statement in dialect.create_table(dialect.qualified(target), lines, key, NOTE + self._owner):
            session.execute(statement)

    def _is_ours(self, session: Session, existing: ExistingTable, target: Target) -> bool:
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

    def _refuse_rows_of_others(self, session: Session, schema: TableSchema, target: Target) -> None:
        if session.execute(f"SELECT 1 FROM {self._dialect.qualified(target)} LIMIT 1"):
            raise SinkRejected(
                f"table {target} has rows that tailrace did not write, and a copy of {schema.table} would replace them",
                hint="empty the table, or give the schema another name under sinks.<name>.schemas",
            )

    def _add_columns(
        self,
        session: Session,
        schema: TableSchema,
        target: Target,
        existing: ExistingTable,
        fills: Mapping[str, str | None] | None = None,
    ) -> None:
        """Add what the table lacks. `fills` are what its rows have in a new column, as SQL; all others have NULL."""
        table = self._dialect.qualified(target)
        there = _folded_names(self._dialect, existing)
        columns = self._dialect.declared(schema) | self._dialect.hidden_columns(schema)
        for name, type_ in columns.items():
            if _folded(self._dialect, name) not in there:
                value = (fills or {}).get(name)
                default = "" if value is None else f" DEFAULT {value}"
                session.execute(f"ALTER TABLE {table} ADD COLUMN {self._dialect.quote(name)} {type_}{default}")


def check_names(dialect: Dialect, schema: TableSchema, target: Target) -> None:
    """Refuse names that the database would cut off or take for one."""
    for name in (target.schema, target.name, *(column.name for column in schema.columns)):
        if dialect.length(name) > dialect.longest_name:
            raise SinkRejected(
                f"{schema.table}: the name {name} is longer than the {dialect.longest_name} that {dialect.name} allows",
                hint="rename it, give its schema a shorter name under sinks.<name>.schemas, or exclude the table",
            )
    seen: dict[str, str] = {}
    for column in schema.columns:
        other = seen.get(_folded(dialect, column.name))
        if other is not None:
            raise SinkRejected(f"{schema.table}: columns {other} and {column.name} are one name in {dialect.name}")
        seen[_folded(dialect, column.name)] = column.name
    if not schema.columns:
        raise SinkRejected(f"{schema.table} has no columns, which a table in {dialect.name} must", hint="exclude it")


def misfit(dialect: Dialect, schema: TableSchema, target: Target, existing: ExistingTable) -> SinkRejected | None:
    """Why the table in the sink can not take the source's rows, if it can not."""
    if existing.risk:
        return SinkRejected(
            f"table {target} in the sink is {existing.risk}: rows of {schema.table} would be lost, or written twice, by"
            " a crash",
            hint=f"ALTER TABLE {dialect.qualified(target)} {existing.remedy}, or drop the table: tailrace makes it",
        )
    there = {_folded(dialect, column.name): column for column in existing.columns}
    declared = dialect.declared(schema)
    for column in schema.columns:
        wanted = declared[column.name]
        found = there.pop(_folded(dialect, column.name), None)
        if found is not None and not dialect.fits(wanted, found.type):
            return SinkRejected(
                f"column {column.name} of table {target} in the sink is {found.type},"
                f" and {schema.table}.{column.name} ({column.type.name}) needs {wanted or 'no declared type'}",
                hint="change the column's type, or drop the table: tailrace makes it as it should be",
            )
        if found is not None and column.name in schema.key and not dialect.is_exact_key(found.type):
            return SinkRejected(
                f"column {column.name} of table {target} in the sink is {found.type}, in which keys that differ"
                f" in case or in blanks at the end would be one; it is the key of {schema.table}",
                hint=f"ALTER TABLE … MODIFY {dialect.quote(column.name)} {wanted}, or drop the table",
            )
    for rest in there.values():
        if rest.is_required:
            return SinkRejected(
                f"column {rest.name} of table {target} in the sink must have a value, which {schema.table} has not",
                hint="give the column a default, or let it be NULL",
            )
    key = {_folded(dialect, name) for name in schema.key}
    if key and key not in [{_folded(dialect, name) for name in names} for names in existing.unique]:
        return SinkRejected(
            f"table {target} in the sink has no unique index on ({', '.join(schema.key)}), the key of {schema.table}",
            hint=f"add one, for example: ALTER TABLE … ADD PRIMARY KEY ({dialect.names(schema.key)})",
        )
    return None


def gone(schema: TableSchema, target: Target) -> SinkRejected:
    return SinkRejected(
        f"table {target} is gone from the sink: somebody dropped or renamed what {schema.table} was copied to",
        hint="bring it back with its rows, or run `tailrace drop` on this pipeline, then `tailrace run`, which copies"
        " all tables again",
    )


def _has_other_key(schema: TableSchema, existing: ExistingTable) -> bool:
    """Whether a table was made for rows with a key, and those of `schema` may repeat."""
    names = {column.name for column in schema.columns}
    return not schema.key and any(names.issuperset(unique) for unique in existing.unique)


def _folded(dialect: Dialect, name: str) -> str:
    return name.casefold() if dialect.folds_names else name


def _folded_set(dialect: Dialect, names: Iterable[str]) -> set[str]:
    return {_folded(dialect, name) for name in names}


def _folded_names(dialect: Dialect, existing: ExistingTable) -> set[str]:
    return {_folded(dialect, column.name) for column in existing.columns}
