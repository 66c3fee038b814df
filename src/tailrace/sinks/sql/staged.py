"""What tasks leave for the driver of a SQL sink: receipts of staged rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from tailrace.model.schema import TableSchema, counterpart
from tailrace.model.types import ColumnType
from tailrace.sinks.base import Rejected
from tailrace.sinks.mapping import SchemaMapping


class StagedColumn(msgspec.Struct, frozen=True):
    """A column of staged rows: `label` is what the merge calls it, a column's name or something of ours."""

    label: str
    type: ColumnType


class StagedRows(msgspec.Struct, frozen=True):
    """Rows waiting for their commit: in a staging table, or in `inline` when they are few.

    Column number n is called `c<n>`, whatever its label.
    """

    columns: tuple[StagedColumn, ...]
    rows: int
    table: str = ""
    inline: tuple[bytes, ...] = ()


class StagedPartial(msgspec.Struct, frozen=True):
    unchanged: tuple[str, ...]
    rows: StagedRows
    moves: bool


class StagedChanges(msgspec.Struct, frozen=True):
    """The net changes of one run of one table, to be applied in the order of its fields.

    `schema` is the source's; the labels of staged rows are the sink's names.
    """

    schema: TableSchema
    truncate: bool
    deletes: StagedRows | None
    upserts: StagedRows | None
    partials: tuple[StagedPartial, ...]
    count: int


class StagedPart(msgspec.Struct, frozen=True):
    """One task's receipt. `tables` are its staging tables, those of changes that are held back among them.

    `rejected` are rows that were not staged, because the sink can not hold them.
    """

    changes: tuple[StagedChanges, ...]
    tables: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def without(self, tables: Collection[str]) -> StagedPart:
        kept = tuple(changes for changes in self.changes if changes.schema.table not in tables)
        return msgspec.structs.replace(self, changes=kept)


class Relation(msgspec.Struct, frozen=True):
    """Staged rows as something to select from: SQL that calls them `alias`, the SQL of each label, and parameters.

    `number` is SQL of what no two rows have alike, where there is more to that than the values: a server may sort
    texts by how they begin, or take some for equal that are not.
    """

    sql: str
    values: Mapping[str, str]
    parameters: tuple[Any, ...] = ()
    alias: str = "s"
    number: str = ""


def old(name: str) -> str:
    """The label of a key column's value before a move. No column can have it: names have no NUL."""
    return f"{name}\0old"


COPIES = "\0copies"
"""The label of how many equal rows a row of a table without a key stands for."""


def adapted(changes: StagedChanges, newest: TableSchema, mapping: SchemaMapping) -> StagedChanges:
    """Changes of an older version as those of the newest one, without the columns that came since.

    Values of columns that have gone since are left out: nobody will ask for them.
    """
    if changes.schema == newest:
        return changes
    names = _present_names(changes.schema, newest)
    columns = {column.name: column for column in newest.columns}
    key = tuple(names[name] for name in changes.schema.key)
    schema = msgspec.structs.replace(newest, columns=tuple(columns[name] for name in names.values()), key=key)
    mapped = zip(mapping.schema(changes.schema).columns, changes.schema.columns, strict=True)
    ours = mapping.sink_names(newest)
    labels = {sink.name: ours[names[source.name]] for sink, source in mapped if source.name in names}
    labels |= {old(label): old(name) for label, name in labels.items()}
    return msgspec.structs.replace(
        changes,
        schema=schema,
        deletes=_relabelled(changes.deletes, labels),
        upserts=_relabelled(changes.upserts, labels),
        partials=tuple(_relabelled_partial(partial, labels) for partial in changes.partials),
    )


def _present_names(schema: TableSchema, newest: TableSchema) -> dict[str, str]:
    """What the columns of a version are called in the newest one, those that are still there."""
    pairs = ((column, counterpart(newest, column)) for column in schema.columns)
    return {column.name: present.name for column, present in pairs if present is not None}


def _relabelled(rows: StagedRows | None, labels: Mapping[str, str]) -> StagedRows | None:
    if rows is None:
        return None
    columns = tuple(StagedColumn(labels.get(column.label, column.label), column.type) for column in rows.columns)
    return msgspec.structs.replace(rows, columns=columns)


def _relabelled_partial(partial: StagedPartial, labels: Mapping[str, str]) -> StagedPartial:
    rows = _relabelled(partial.rows, labels)
    assert rows is not None
    unchanged = tuple(labels[name] for name in partial.unchanged if name in labels)
    return StagedPartial(unchanged, rows, partial.moves)
