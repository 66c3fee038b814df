"""Schema changes: which a sink takes in place, and which need the table copied again.

In place: columns dropped (the sink keeps them), columns added (with the value that old rows have in them, where they
came with a constant default), types that hold more, and new names. All of it is proved by the source's own numbers of
columns, and by the files of a table: one that was rewritten is copied again, because nothing tells what became of its
rows. So are tables that get another key or another type; a larger integer, too, for nothing tells `TYPE bigint` from
`TYPE bigint USING n * 100`. Copied again as well: a table that gains a column while it is not live, a column that comes
under a name that the sink still has (with old values, and perhaps a default), and a renamed table that was rewritten.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tailrace.errors import TailraceError
from tailrace.model.lifecycle import ASIDE, TableState, TableStatus
from tailrace.model.schema import Column, TableSchema, counterpart
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Evolved, Evolves, Receipt, Sink, Snapshots
from tailrace.sources.base import Source
from tailrace.tasks.stage import PartResult

Fills = dict[int, pa.Array]
"""By number of a column that came: the one value that old rows have in it."""


class Evolution(msgspec.Struct, frozen=True):
    """The tables' statuses after a batch, what changes in place, and the tables of which nothing may be applied."""

    tables: dict[str, TableStatus]
    held: frozenset[str]
    evolved: tuple[Evolved, ...] = ()

    def keep(self, staged: Receipt) -> Receipt:
        """A staged part without the tables that are held back."""
        return staged.without(self.held) if self.held else staged


def evolve(
    source: Source,
    sink: Sink,
    tables: dict[str, TableStatus],
    results: list[PartResult],
    before: Watermark | None = None,
) -> Evolution:
    """What the versions staged in `results` mean for `tables`. `before` is the sink's place before the batch."""
    moved, held, evolved = dict(tables), set(), []
    for name, status in tables.items():
        failures = [result.failed[name] for result in results if name in result.failed]
        versions = [version for result in results for version in result.schemas.get(name, [])]
        if failures and failures[0].retry:  # what it is to be made of can not be read at the moment
            moved[name] = status.waiting(before or status.watermark, str(failures[0]))
        elif failures:
            moved[name] = failed(status, failures[0])
        elif any(version != status.schema for version in versions):
            moved[name], change = _evolved(source, sink, status, versions, before)
            evolved += [change] if change is not None else []
        if failures or moved[name].state in ASIDE or moved[name].generation != status.generation:
            held.add(name)
    return Evolution(moved, frozenset(held), tuple(evolved))


def failed(status: TableStatus, error: TailraceError) -> TableStatus:
    """The table is set aside with what went wrong; a copy of it begins anew."""
    return status.aside(TableState.FAILED, f"{error}; {error.hint}" if error.hint else str(error))


def _evolved(
    source: Source, sink: Sink, status: TableStatus, versions: list[TableSchema], before: Watermark | None
) -> tuple[TableStatus, Evolved | None]:
    """The table after all versions that were staged, or on its way to a new copy because of one of them.

    A sink that can not be loaded takes the changes of every version as they are.
    """
    if not isinstance(sink, Snapshots):
        return msgspec.structs.replace(status, schema=versions[-1]), None
    now, fills = status, Fills()
    for version in versions:
        came = fills_of(source, now, version)
        if came is None:
            return _again(status, version, before), None
        fills |= came
        now = msgspec.structs.replace(now, schema=_adopted(now.schema, version))
    has_names = all(_names(version) == _names(status.schema) for version in versions)
    if now.state is not TableState.LIVE or (has_names and now.schema == status.schema):
        return now, None
    change = evolved_to(status, now.schema, fills)
    if isinstance(sink, Evolves) and sink.takes_in_place(change):
        return now, change
    return _again(status, versions[-1], before), None


def _names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


def _again(status: TableStatus, version: TableSchema, before: Watermark | None) -> TableStatus:
    start = status.watermark if before is None else before
    return status.again(start, version, reason="its columns changed")


def evolved_to(status: TableStatus, schema: TableSchema, fills: Fills) -> Evolved:
    """A table's change in place, with the values of those of its new columns that are still there."""
    names = {column.number: column.name for column in schema.columns}
    kept = {names[number]: array for number, array in fills.items() if number in names}
    return Evolved(status.schema, schema, pa.RecordBatch.from_arrays(list(kept.values()), list(kept)))


def fills_of(source: Source, status: TableStatus, new: TableSchema) -> Fills | None:
    """What old rows have in the columns that came, if all else of the rows is right under the new columns; or None."""
    old = status.schema
    former = {column.name: counterpart(old, column) for column in new.columns}
    kept = [(column, known) for column in new.columns if (known := former[column.name]) is not None]
    added = [column for column in new.columns if former[column.name] is None]
    names = {known.name: column.name for column, known in kept}
    if old.relation != new.relation or new.key != tuple(names.get(name) for name in old.key):
        return None
    if not all(_is_kept(column, known) for column, known in kept):
        return None
    if not all(column.number for column in added) and len(kept) < len(old.columns):
        return None  # a rename looks like this
    is_plain = all(column.name == known.name and _same_type(column, known) for column, known in kept)
    if is_plain and not added:
        return {}
    if status.state is not TableState.LIVE:
        return None  # the copy may have rows of either version, and columns that were dropped since
    values = source.old_values(new, [column.name for column in added], status.stored)
    if values is None:
        return None
    return {column.number: array for column, array in zip(added, values.columns, strict=True) if not array.null_count}


def _is_kept(column: Column, known: Column) -> bool:
    """Whether the values of a column are right for what it is now. Nobody knows which column has the number 0."""
    is_sure = bool(known.number) or not column.number
    return is_sure and (_same_type(column, known) or _widens(known.type, column.type))


def is_behind(old: TableSchema, present: TableSchema) -> bool:
    """True when the source's catalog says what no change of the table may ever come to say: what a column now is."""
    known = {column.name: column for column in old.columns}
    return (
        old.key != present.key
        or any(column.name not in known or not _same(column, known[column.name]) for column in present.columns)
        or has_other_text(old, present)
    )


def has_other_text(old: TableSchema, present: TableSchema) -> bool:
    """Whether values that nobody has changed are written otherwise than before.

    Labels come and never go: one that is not there was renamed, in every row that has it. The attributes of composites
    are in the text of every row.
    """
    known = {column.name: _innermost(column.type) for column in old.columns}
    pairs = [(known[c.name], _innermost(c.type)) for c in present.columns if c.name in known]
    return any(not set(one.labels) <= set(now.labels) or one.attributes != now.attributes for one, now in pairs)


def _same(one: Column, other: Column) -> bool:
    """The very column, of the same type. Enum labels may come: they are text in every sink."""
    return one.number == other.number and _same_type(one, other)


def _same_type(one: Column, other: Column) -> bool:
    return _without_parts(one.type) == _without_parts(other.type)


def _widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether each value of the old type is the same value of the new one; if the table was not rewritten for it."""
    if old.kind is not new.kind:
        return False
    if old.kind is Kind.DECIMAL:
        return old.scale == new.scale and (old.precision or 0) <= (new.precision or 0)
    return old.kind is Kind.TEXT and all(
        name.startswith(("character varying", "text")) for name in (old.name, new.name)
    )


def _without_parts(type_: ColumnType) -> ColumnType:
    element = None if type_.element is None else _without_parts(type_.element)
    return msgspec.structs.replace(type_, labels=(), attributes=(), element=element)


def _innermost(type_: ColumnType) -> ColumnType:
    return type_ if type_.element is None else _innermost(type_.element)


def _adopted(old: TableSchema, version: TableSchema) -> TableSchema:
    """The version of the stream, with what we know better: numbers, and what types are made of."""
    columns = []
    for column in version.columns:
        known = counterpart(old, column)
        if known is not None:
            type_ = known.type if _same_type(known, column) else column.type
            column = msgspec.structs.replace(column, type=type_, number=column.number or known.number)
        columns.append(column)
    return msgspec.structs.replace(version, columns=tuple(columns))
