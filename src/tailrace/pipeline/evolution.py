"""Schema changes that arrive in the stream: which a sink takes in place, and which need the table copied again.

In place: columns dropped (the sink keeps them), columns added whose value for old rows is NULL. Anything else (a
rename, a new type, another key, a default that old rows received without a change event) needs a new snapshot.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.errors import TailraceError
from tailrace.model.lifecycle import ASIDE, TableState, TableStatus
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType
from tailrace.model.watermark import Watermark
from tailrace.spark.apply import PartResult


class Evolution(msgspec.Struct, frozen=True):
    """The tables' statuses after a batch, and the tables of which nothing in this batch may be applied."""

    tables: dict[str, TableStatus]
    held: frozenset[str]

    def keep(self, staged: Any) -> Any:
        """A staged part without the tables that are held back."""
        if not self.held:
            return staged
        kept = tuple(changes for changes in staged.changes if changes.schema.table not in self.held)
        return msgspec.structs.replace(staged, changes=kept)


def evolve(
    source: Any, tables: dict[str, TableStatus], results: list[PartResult], before: Watermark | None = None
) -> Evolution:
    """What the versions staged in `results` mean for `tables`. `before` is the sink's place before the batch."""
    moved, held = dict(tables), set()
    for name, status in tables.items():
        failures = [result.failed[name] for result in results if name in result.failed]
        now = failed(status, failures[0]) if failures else _evolved(source, status, results, before)
        moved[name] = now
        if now.state in ASIDE or now.generation != status.generation:
            held.add(name)
    return Evolution(moved, frozenset(held))


def failed(status: TableStatus, error: TailraceError) -> TableStatus:
    """The table is set aside with what went wrong; a copy of it begins anew."""
    return status.aside(TableState.FAILED, f"{error}; {error.hint}" if error.hint else str(error))


def _evolved(source: Any, status: TableStatus, results: list[PartResult], before: Watermark | None) -> TableStatus:
    """The table after all versions that were staged, or on its way to a new copy because of one of them."""
    now = status
    for version in (version for result in results for version in result.schemas.get(status.table, [])):
        if version == now.schema:
            continue
        if not is_in_place(source, now, version):
            start = status.watermark if before is None else before
            return status.again(start, version, reason="its columns changed")
        now = msgspec.structs.replace(now, schema=_adopted(now.schema, version))
    return now


def is_in_place(source: Any, status: TableStatus, new: TableSchema) -> bool:
    """Whether the rows that the sink has are right under the new columns, with NULL in those that were added."""
    old = status.schema
    if old.key != new.key or old.relation != new.relation:
        return False
    known = {column.name: column for column in old.columns}
    kept = [column for column in new.columns if column.name in known]
    added = [column.name for column in new.columns if column.name not in known]
    if any(not _same(column, known[column.name]) for column in kept):
        return False
    dropped = len(kept) < len(old.columns)
    if added and dropped:  # a rename looks like this
        return False
    return not added or bool(source.adds_only_nulls(new, added, status.stored))


def is_behind(old: TableSchema, present: TableSchema) -> bool:
    """True when the source's catalog says what no change of the table may ever come to say: what a column now is."""
    known = {column.name: column for column in old.columns}
    return (
        old.key != present.key
        or any(column.name not in known or not _same(column, known[column.name]) for column in present.columns)
        or has_renamed_labels(old, present)
    )


def has_renamed_labels(old: TableSchema, present: TableSchema) -> bool:
    """An enum label that is gone was renamed, in every row that has it."""
    known = {column.name: set(_labels(column.type)) for column in old.columns}
    return any(not known.get(column.name, set()).issubset(_labels(column.type)) for column in present.columns)


def _same(one: Column, other: Column) -> bool:
    """The very column, of the same type. Enum labels may come: they are text in every sink.

    A number is 0 where a column was gone from the catalog before its description was read.
    """
    is_known = one.number and other.number
    return (not is_known or one.number == other.number) and _without_labels(one.type) == _without_labels(other.type)


def _without_labels(type_: ColumnType) -> ColumnType:
    element = None if type_.element is None else _without_labels(type_.element)
    return msgspec.structs.replace(type_, labels=(), element=element)


def _labels(type_: ColumnType) -> tuple[str, ...]:
    return type_.labels if type_.element is None else _labels(type_.element)


def _adopted(old: TableSchema, version: TableSchema) -> TableSchema:
    """The version of the stream, with the enum labels that we know: the stream does not tell when they change."""
    known = {column.name: column for column in old.columns}
    return msgspec.structs.replace(version, columns=tuple(known.get(c.name, c) for c in version.columns))
