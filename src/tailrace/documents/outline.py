"""The outline of a description: its tables one below the other, and the columns that link them.

It is drawn and checked, so it stands for any description, also one that names tables or columns that are not there:
what only the missing would tell is empty. What documents are built by is `tree`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tailrace.config import documents as d
from tailrace.documents.kinds import Schemas

Place = tuple[str, ...]


class Side(msgspec.Struct, frozen=True):
    """Columns of a table that a link compares; none where a key is not known."""

    table: str
    columns: tuple[str, ...]


class Link(msgspec.Struct, frozen=True):
    """Rows whose columns are equal belong together. Rows below are found by `lower`, and rows above by `upper`."""

    upper: Side
    lower: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.upper, self.lower


class Outline(msgspec.Struct, frozen=True):
    """A table in the tree of a document: `field` is what made it so, the description itself at the root.

    `key` identifies its rows; empty where none is known.
    """

    place: Place
    table: str
    key: tuple[str, ...]
    field: d.Document | d.Joins | d.Aggregates
    links: tuple[Link, ...] = ()
    below: tuple[Outline, ...] = ()

    def all(self) -> Iterator[Outline]:
        yield self
        for each in self.below:
            yield from each.all()


def outline_of(name: str, document: d.Document, schemas: Schemas) -> Outline:
    place = ("documents", name)
    key = document.key or _key(document.table, schemas)
    below = tuple(_below(document.fields, Side(document.table, key), schemas, place))
    return Outline(place, document.table, key, document, below=below)


def _below(fields: Mapping[str, d.Field], upper: Side, schemas: Schemas, place: Place) -> Iterator[Outline]:
    """`upper` is the key of the row that the fields are of."""
    for name, field in fields.items():
        here = (*place, "fields", name)
        match field:
            case d.Object():
                yield from _below(field.fields, upper, schemas, here)
            case d.BelongsTo() | d.HasOne() | d.HasMany() | d.ManyToMany():
                key = Side(field.table, _key(field.table, schemas))
                below = tuple(_below(field.fields, key, schemas, here))
                yield Outline(here, field.table, key.columns, field, _links(name, field, upper, schemas), below)
            case d.Count() | d.Sum() | d.Min() | d.Max() | d.Avg() | d.Ids():
                links = _links(name, field, upper, schemas)
                yield Outline(here, field.table, _key(field.table, schemas), field, links)
            case _:
                pass


def _links(name: str, field: d.Joins | d.Aggregates, upper: Side, schemas: Schemas) -> tuple[Link, ...]:
    key = Side(field.table, _key(field.table, schemas))
    if isinstance(field, d.BelongsTo):
        referenced = Side(field.table, field.references) if field.references else key
        return (Link(Side(upper.table, field.column or (name,)), referenced),)
    through = None if isinstance(field, d.HasOne | d.HasMany) else field.through
    if through is None:
        assert not isinstance(field, d.ManyToMany)
        return (Link(upper, Side(field.table, field.foreign_key)),)
    return Link(upper, Side(through.table, through.left_key)), Link(Side(through.table, through.right_key), key)


def _key(table: str, schemas: Schemas) -> tuple[str, ...]:
    return schemas[table].key if table in schemas else ()
