"""A description beside the catalog of the source: everything that can not work, and what will be slow.

All that can be told before a document is built is told, with its place in the file and what mends it; nothing of it
reads a row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tailrace.config import documents as d
from tailrace.documents.fitting import aggregate_misfit, link_misfit, order_misfit, point_misfit, sum_misfit
from tailrace.documents.judging import Columns, Remark, at, listed, no_column
from tailrace.documents.kinds import Schemas
from tailrace.documents.outline import Link, Outline, Place, Side, outline_of
from tailrace.model.details import TableDetails
from tailrace.model.schema import Identity, TableSchema
from tailrace.model.types import ColumnType

Details = Mapping[str, TableDetails]
CreateIndex = Callable[[TableSchema, tuple[str, ...]], str]
"""The statement that makes an index, in words of the source."""


def check(name: str, document: d.Document, schemas: Schemas, details: Details, create: CreateIndex) -> list[Remark]:
    """What is to be said of a description. A table that `details` lacks is not judged by them.

    Indexes are for links that can work: none are asked for while something is failing.
    """
    outline = outline_of(name, document, schemas)
    remarks = [each for node in outline.all() for each in _of_node(node, schemas, details)]
    if not any(remark.is_failing for remark in remarks):
        remarks += missing_indexes(outline, schemas, details, create)
    return list(dict.fromkeys(remarks))


def missing_indexes(outline: Outline, schemas: Schemas, details: Details, create: CreateIndex) -> Iterator[Remark]:
    """Look-ups without an index: each build, or each change of a table, would read the other table whole.

    An index is asked for once, where it is needed first.
    """
    asked: set[tuple[str, frozenset[str]]] = set()
    for node in outline.all():
        for side, is_lower in ((side, side is link.lower) for link in node.links for side in link.sides):
            schema, known, columns = schemas.get(side.table), details.get(side.table), frozenset(side.columns)
            if schema is None or known is None or known.finds_by(side.columns) or (side.table, columns) in asked:
                continue
            asked.add((side.table, columns))
            use = "build documents" if is_lower else f"find the documents that a change of {node.table} touches"
            message = f"{side.table} has no index on {listed(side.columns)}, by which its rows are read to {use}"
            yield Remark(at(node.place), message, create(schema, side.columns), is_failing=False, is_index=True)


def _of_node(node: Outline, schemas: Schemas, details: Details) -> Iterator[Remark]:
    schema = schemas.get(node.table)
    yield from _tables(node, schemas)
    if schema is None:
        return
    columns = Columns(schema, details.get(schema.table))
    if isinstance(node.field, d.Document):
        yield from _root(node.field, node.place, columns)
    else:
        yield from _links(node, schemas, details)
    yield from columns.filters(node.field.filters, (*node.place, "filters"))
    if isinstance(node.field, d.HasOne | d.HasMany | d.ManyToMany):
        for number, order in enumerate(node.field.order_by):
            place = (*node.place, f"order_by[{number}]")
            yield from columns.judged(order.column, place, order_misfit)
    if isinstance(node.field, d.Document | d.Join):
        yield from _fields(node.field.fields, node.place, columns)
    else:
        yield from _aggregate(node.field, node.place, columns)


def _tables(node: Outline, schemas: Schemas) -> Iterator[Remark]:
    """Each has to be there, and to say which of its rows changed."""
    middle = {side.table for link in node.links for side in link.sides} - {node.table, *_uppers(node)}
    for table in (node.table, *middle):
        place = at((*node.place, "table") if table == node.table else (*node.place, "through", "table"))
        schema = schemas.get(table)
        if schema is None:
            close = difflib.get_close_matches(table, schemas, n=1)
            fix = f"did you mean {close[0]}?" if close else "correct the name, or create the table"
            yield Remark(place, f"the source has no table {table} that is captured", fix)
        elif not (schema.key or schema.identity is Identity.FULL or isinstance(node.field, d.Document)):
            yield Remark(
                place,
                f"{table} has no key, and the source does not send its old rows: which documents lose a deleted row"
                " can not be told",
                "give it a primary key, or have the source send whole old rows",
            )


def _uppers(node: Outline) -> set[str]:
    return {node.links[0].upper.table} if node.links else set()


def _root(document: d.Document, place: Place, columns: Columns) -> Iterator[Remark]:
    schema, details = columns.schema, columns.details
    key = document.key or schema.key
    if not key:
        fix = "give the table a primary key, or write `key:` with columns that are unique together and never null"
        yield Remark(at(place), f"{schema.table} has no key, so its documents would have no id", fix)
    for column in document.key:
        yield from columns.judged(column, (*place, "key"), order_misfit)
        if details is not None and column in columns.types and column not in details.required:
            message = f"{schema.table}.{column} may be null, and a row without a key stops the build"
            yield Remark(at((*place, "key")), message, "forbid nulls, or choose another column", is_failing=False)
    if document.key and set(document.key) != set(schema.key):
        if schema.identity is not Identity.FULL:
            named = f"by {listed(schema.key)}, and not by this key" if schema.key else "by nothing"
            message = f"changes of {schema.table} name their rows {named}"
            yield Remark(at((*place, "key")), message, "leave `key` out, or have the source send whole old rows")
        if details is not None and not details.is_unique(document.key):
            message = f"{listed(document.key)} is not unique in {schema.table}, so documents would share an id"
            yield Remark(at((*place, "key")), message, "choose columns that have a unique index")
    if document.soft_delete is not None:
        here = (*place, "soft_delete")
        if document.soft_delete.column is not None:
            yield from columns.judged(document.soft_delete.column, here, lambda _: None)
        yield from columns.filters(document.soft_delete.when, (*here, "when"))


def _links(node: Outline, schemas: Schemas, details: Details) -> Iterator[Remark]:
    for link in node.links:
        if not link.upper.columns or not link.lower.columns:
            continue  # a table that is missing, or has no key: said elsewhere or below
        if len(link.upper.columns) != len(link.lower.columns):
            yield Remark(
                at(node.place),
                f"{_side(link.upper)} and {_side(link.lower)} are not as many columns",
                "name a column for each column of the key, in its order",
            )
            continue
        yield from _linked_columns(node, link, schemas)
    yield from _keys_of_links(node, schemas)
    if isinstance(node.field, d.BelongsTo) and node.field.required:
        upper = node.links[0].upper
        known = details.get(upper.table)
        if known is not None and not known.required.issuperset(upper.columns):
            message = f"{_side(upper)} may be null, and the field is required"
            yield Remark(at(node.place), message, "leave `required` out, or forbid nulls at the source", False)


def _keys_of_links(node: Outline, schemas: Schemas) -> Iterator[Remark]:
    """A link to the key of a table that has none."""
    for link in node.links:
        for side in link.sides:
            if not side.columns and side.table in schemas:
                fix = "give the table a key" + (
                    ", or write `references`" if isinstance(node.field, d.BelongsTo) else ""
                )
                yield Remark(at(node.place), f"{side.table} has no key that rows could be linked by", fix)


def _linked_columns(node: Outline, link: Link, schemas: Schemas) -> Iterator[Remark]:
    types: list[list[ColumnType | None]] = []
    for side in link.sides:
        schema = schemas.get(side.table)
        found = {column.name: column.type for column in schema.columns} if schema is not None else {}
        types.append([found.get(column) for column in side.columns])
        if schema is not None:
            yield from (no_column(schema, column, node.place) for column in side.columns if column not in found)
    for upper, lower in zip(*types, strict=True):
        if upper is not None and lower is not None and (misfit := link_misfit(upper, lower)):
            message = f"{_side(link.upper)} and {_side(link.lower)}: {misfit}"
            yield Remark(at(node.place), message, "link columns of one type")


def _fields(fields: Mapping[str, d.Field], place: Place, columns: Columns) -> Iterator[Remark]:
    for name, field in fields.items():
        here = (*place, "fields", name)
        match field:
            case d.Object():
                yield from _fields(field.fields, here, columns)
            case d.Geo():
                yield from _geo(field, here, columns)
            case d.Constant() | d.Join() | d.AggregateField():
                pass  # of no column, or a node of its own
            case _:
                yield from columns.scalar(field, field.column or name, here)


def _geo(field: d.Geo, place: Place, columns: Columns) -> Iterator[Remark]:
    for column in (field.lat, field.lon):
        if column is not None:
            yield from columns.judged(column, place, sum_misfit)
            yield from columns.required(field.required, column, place)
    if field.column is not None:
        yield from columns.judged(field.column, place, point_misfit)
        yield from columns.required(field.required, field.column, place)


def _aggregate(field: d.Aggregates, place: Place, columns: Columns) -> Iterator[Remark]:
    if isinstance(field, d.Count):
        return
    key = columns.schema.key
    if field.column is not None:
        yield from columns.judged(field.column, place, partial(aggregate_misfit, field))
    elif not key:
        yield Remark(at(place), f"{columns.schema.table} has no key", "write the `column` whose values are listed")
    elif len(key) == 1:
        yield from columns.judged(key[0], place, partial(aggregate_misfit, field))
    elif field.value_type not in (None, d.ValueType.KEYWORD):
        message = f"the key of {columns.schema.table} has {len(key)} columns, so each id is a text"
        yield Remark(at(place), message, "leave `value_type` out")


def _side(side: Side) -> str:
    return f"{side.table} {listed(side.columns)}"
