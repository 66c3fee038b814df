"""Whether a table in the sink can take the rows of the source's: its names, its columns, its keys."""

from __future__ import annotations

from tailrace.errors import SinkRejected
from tailrace.model.schema import TableSchema, counterpart
from tailrace.sinks.sql.dialect import Dialect, ExistingTable, Naming, Target


def check_names(dialect: Dialect, schema: TableSchema, target: Target) -> None:
    """Refuse names that the database would cut off or take for one."""
    longest = dialect.naming.longest_name
    for name in (target.schema, target.name, *(column.name for column in schema.columns)):
        if dialect.naming.length(name) > longest:
            raise SinkRejected(
                f"{schema.table}: the name {name} is longer than the {longest} that {dialect.name} allows",
                hint="rename it, give its schema a shorter name under sinks.<name>.schemas, or exclude the table",
            )
    seen: dict[str, str] = {}
    for column in schema.columns:
        other = seen.get(dialect.naming.folded(column.name))
        if other is not None:
            raise SinkRejected(f"{schema.table}: columns {other} and {column.name} are one name in {dialect.name}")
        seen[dialect.naming.folded(column.name)] = column.name
    if not schema.columns:
        raise SinkRejected(f"{schema.table} has no columns, which a table in {dialect.name} must", hint="exclude it")


def misfit(dialect: Dialect, schema: TableSchema, target: Target, existing: ExistingTable) -> SinkRejected | None:
    """Why the table in the sink can not take the source's rows, if it can not."""
    naming = dialect.naming
    if existing.risk:
        return SinkRejected(
            f"table {target} in the sink is {existing.risk}: rows of {schema.table} would be lost, or written twice, by"
            " a crash",
            hint=f"ALTER TABLE {naming.qualified(target)} {existing.remedy}, or drop the table: tailrace makes it",
        )
    there = {naming.folded(column.name): column for column in existing.columns}
    declared = dialect.types.declared(schema)
    for column in schema.columns:
        wanted = declared[column.name]
        found = there.pop(naming.folded(column.name), None)
        if found is not None and not dialect.types.fits(wanted, found.type):
            return SinkRejected(
                f"column {column.name} of table {target} in the sink is {found.type},"
                f" and {schema.table}.{column.name} ({column.type.name}) needs {wanted or 'no declared type'}",
                hint="change the column's type, or drop the table: tailrace makes it as it should be",
            )
        if found is not None and column.name in schema.key and not dialect.types.is_exact_key(wanted, found.type):
            return SinkRejected(
                f"column {column.name} of table {target} in the sink is {found.type}, in which keys that differ"
                f" in case or in blanks at the end would be one; it is the key of {schema.table}",
                hint=f"ALTER TABLE … MODIFY {naming.quote(column.name)} {wanted}, or drop the table",
            )
    for rest in there.values():
        if rest.is_required:
            return SinkRejected(
                f"column {rest.name} of table {target} in the sink must have a value, which {schema.table} has not",
                hint="give the column a default, or let it be NULL",
            )
    key = naming.all_folded(schema.key)
    if key and key not in [naming.all_folded(names) for names in existing.unique]:
        return SinkRejected(
            f"table {target} in the sink has no unique index on ({', '.join(schema.key)}), the key of {schema.table}",
            hint=f"add one, for example: ALTER TABLE … ADD PRIMARY KEY ({naming.quoted(schema.key)})",
        )
    return None


def gone(schema: TableSchema, target: Target) -> SinkRejected:
    return SinkRejected(
        f"table {target} is gone from the sink: somebody dropped or renamed what {schema.table} was copied to",
        hint="bring it back with its rows, or run `tailrace drop` on this pipeline, then `tailrace run`, which copies"
        " all tables again",
    )


def misfit_of_copy(
    dialect: Dialect, schema: TableSchema, target: Target, existing: ExistingTable
) -> SinkRejected | None:
    """Why the table can not take the rows of a new copy, if it can not."""
    if _has_other_key(schema, existing):
        return SinkRejected(f"table {target} in the sink keeps rows apart that may repeat in {schema.table}")
    return misfit(dialect, schema, target, existing)


def _has_other_key(schema: TableSchema, existing: ExistingTable) -> bool:
    """Whether a table was made for rows with a key, and those of `schema` may repeat."""
    names = {column.name for column in schema.columns}
    return not schema.key and any(names.issuperset(unique) for unique in existing.unique)


def refuse_lost(
    naming: Naming, schema: TableSchema, known: TableSchema, target: Target, existing: ExistingTable
) -> None:
    """Raise if the table lacks a column that its rows had: a new one would be empty."""
    there = names_of(naming, existing)
    for column in schema.columns:
        if counterpart(known, column) is not None and naming.folded(column.name) not in there:
            raise SinkRejected(
                f"column {column.name} of table {target} is gone from the sink: somebody dropped or renamed it",
                hint=f"run `tailrace snapshot {schema.table}`, which copies the table again",
            )


def names_of(naming: Naming, existing: ExistingTable) -> set[str]:
    """The names of a table's columns, folded."""
    return naming.all_folded(column.name for column in existing.columns)
