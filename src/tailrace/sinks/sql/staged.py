"""What tasks leave for the driver of a SQL sink: receipts of staged rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.base import Rejected


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

    @property
    def all_rows(self) -> list[StagedRows]:
        found = [self.deletes, self.upserts, *(partial.rows for partial in self.partials)]
        return [rows for rows in found if rows is not None]


class StagedPart(msgspec.Struct, frozen=True):
    """One task's receipt. `tables` are its staging tables, those of changes that are held back among them.

    `rejected` are rows that were not staged, because the sink can not hold them.
    """

    changes: tuple[StagedChanges, ...]
    tables: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()


class Relation(msgspec.Struct, frozen=True):
    """Staged rows as something to select from: SQL that calls them `s`, its parameters, and the SQL of each label."""

    sql: str
    values: Mapping[str, str]
    parameters: tuple[Any, ...] = ()


def old(name: str) -> str:
    """The label of a key column's value before a move. No column can have it: names have no NUL."""
    return f"{name}\0old"


COPIES = "\0copies"
"""The label of how many equal rows a row of a table without a key stands for."""
