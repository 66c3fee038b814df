"""A table schema: one immutable version of a table's columns and key."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property

import msgspec
import pyarrow as pa

from tailrace.model import shapes
from tailrace.model.names import table_name
from tailrace.model.types import ColumnType, arrow_type


class Identity(StrEnum):
    """What the source sends of a row that is updated or deleted."""

    DEFAULT = "default"  # the primary key
    INDEX = "index"  # the columns of a chosen unique index
    FULL = "full"  # the whole old row
    NOTHING = "nothing"  # nothing: only inserts can be captured


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """`number` is the source's own: a column dropped and added again under its old name has another one.

    Sinks and logs of earlier versions remember more of it, which is of no use.
    """

    name: str
    type: ColumnType
    number: int = 0


class TableSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """`key` are the names of the columns that identify a row in a sink; empty for a table without a key.

    `relation` is the source's own number of the table: one dropped and made again under its old name has another.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    identity: Identity = Identity.DEFAULT
    relation: int = 0

    @property
    def table(self) -> str:
        """The table's name as people write it and as all state is filed under: `schema.name`."""
        return table_name(self.schema, self.name)

    @cached_property
    def key_indexes(self) -> tuple[int, ...]:
        names = [column.name for column in self.columns]
        return tuple(names.index(name) for name in self.key)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's own columns."""
        return pa.schema([pa.field(c.name, arrow_type(c.type), True) for c in self.columns])

    def rows(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """All columns as rows. Arrays may come with their shapes (`model.shapes`); all else is of its Arrow type."""
        fields = [
            field.with_type(shapes.shaped_type(field.type)) if shapes.is_shaped(column.type) else field
            for field, column in zip(self.arrow, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(list(columns), schema=pa.schema(fields))

    def no_rows(self) -> pa.RecordBatch:
        return self.rows([pa.array([], field.type) for field in self.arrow])


def counterpart(schema: TableSchema, column: Column) -> Column | None:
    """The column of another version of a table that this one is: the one with its number, whatever its name.

    A number is 0 where nobody knows which column it was; then the name has to do.
    """
    for other in schema.columns:
        is_named_so = other.name == column.name and not (other.number and column.number)
        if is_named_so or (column.number and other.number == column.number):
            return other
    return None


def renamed_columns(before: TableSchema, after: TableSchema) -> dict[str, str]:
    """The columns that have another name than before: the old one, and the new one."""
    pairs = ((column, counterpart(after, column)) for column in before.columns)
    return {old.name: new.name for old, new in pairs if new is not None and new.name != old.name}
