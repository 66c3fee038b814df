"""A table's transform as Catalyst has understood it: what it reads, what it makes, and the columns that come of it.

It is row by row: a row that `where` is not true of is not in the sinks, `columns` are replaced or added, `drop` are
left out, and all others pass as they are. The key is never changed, so a row is the same one before and after.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tailrace.config import Transform
from tailrace.errors import ConfigError
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import arrow_type

RESERVED = "__tailrace"
"""How the columns begin that travel beside a table's own."""


class Shaping(msgspec.Struct, frozen=True):
    """`reads` are the columns that expressions read, of these types, and `form` is how Spark takes them.

    `computed` are the columns that expressions make, in the order of the file.
    """

    table: str
    transform: Transform
    reads: tuple[Column, ...]
    form: pa.Schema
    computed: tuple[Column, ...]

    def fits(self, source: TableSchema) -> bool:
        """Whether it is right for this version of the table, too."""
        types = {column.name: arrow_type(column.type) for column in source.columns}
        is_read = all(types.get(column.name) == arrow_type(column.type) for column in self.reads)
        return source.table == self.table and is_read and problem(self.transform, source) is None

    @property
    def read_names(self) -> list[str]:
        return [column.name for column in self.reads]

    def schema(self, source: TableSchema) -> TableSchema:
        """What a sink has of this version of the table."""
        made = {column.name: column for column in self.computed}
        kept = [column for column in source.columns if column.name not in self.transform.drop]
        columns = [
            msgspec.structs.replace(made.pop(column.name), number=column.number) if column.name in made else column
            for column in kept
        ]
        return msgspec.structs.replace(source, columns=(*columns, *made.values()))

    def carried(self, source: TableSchema) -> list[str]:
        """The columns that pass as they are."""
        made = {column.name for column in self.computed}
        return [c.name for c in source.columns if c.name not in made and c.name not in self.transform.drop]


def problem(transform: Transform, source: TableSchema) -> ConfigError | None:
    """Why a transform can not be that of this version of the table, whatever its expressions say; None if it can."""
    names = {column.name for column in source.columns}
    key = set(source.key)
    if unknown := [name for name in transform.drop if name not in names]:
        return refusal(source.table, "drop", f"there is no column {unknown[0]}")
    if dropped := key & set(transform.drop):
        return refusal(source.table, "drop", f"{min(dropped)} is part of the key")
    if changed := key & transform.columns.keys():
        return refusal(source.table, "columns", f"{min(changed)} is part of the key, which stays as it is")
    if both := transform.columns.keys() & set(transform.drop):
        return refusal(source.table, "columns", f"{min(both)} is dropped as well")
    if reserved := [n for n in (*names, *transform.columns) if n.lower().startswith(RESERVED)]:
        return refusal(source.table, "columns", f"a name may not begin with {RESERVED}, as {reserved[0]} does")
    if not names - set(transform.drop) and not transform.columns:
        return refusal(source.table, "drop", "no column is left")
    return None


def refusal(table: str, place: str, why: str) -> ConfigError:
    """A table's transform can not be used."""
    hint = f"correct transforms.{table} in the pipeline file; then the table is copied again"
    return ConfigError(f"transforms.{table}.{place}: {why}", hint=hint, table=table)
