"""The tree that a document is built by: numbered nodes, each the rows of a table that belong to a row above.

Node 0 is the root; each join and each aggregate is a node, and so is a junction, between the two that it joins. A node
is found by its link: its rows' columns `own` are equal to the columns `theirs` of the row above. Nodes have larger
numbers than those above them, and the same numbers as long as the description is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec

from tailrace.config import documents as d
from tailrace.config.conditions import Filter, OrderBy, SoftDelete
from tailrace.documents.checking import check
from tailrace.documents.kinds import Schemas
from tailrace.errors import ConfigError
from tailrace.model.schema import TableSchema

Columns = tuple[str, ...]
Link = tuple[int, str, Columns, Columns]


class Node(msgspec.Struct, frozen=True):
    """`columns` are all that is read of its rows; `below` are the numbers of the nodes right below it.

    A node that `is_covered` is made of rows that another one has in any case, as a sum is of those of a list: what
    touches the other touches it. `watched` are the columns of a node and of all that it covers.
    """

    number: int
    parent: int
    place: str
    schema: TableSchema
    field: d.Document | d.Joins | d.Aggregates | d.Through
    own: Columns = ()
    theirs: Columns = ()
    columns: Columns = ()
    below: tuple[int, ...] = ()
    is_covered: bool = False
    watched: Columns = ()

    @property
    def link(self) -> Link:
        """Nodes that have the same are made of the same rows, as far as filters let them."""
        return self.parent, self.schema.table, self.own, self.theirs

    @property
    def filters(self) -> tuple[Filter, ...]:
        return () if isinstance(self.field, d.Through) else self.field.filters

    @property
    def has_all(self) -> bool:
        """Whether all rows of its link are its own."""
        return not self.filters and self.limit is None and not isinstance(self.field, d.Through)

    @property
    def soft_delete(self) -> SoftDelete | None:
        return self.field.soft_delete if isinstance(self.field, d.Document) else None

    @property
    def order_by(self) -> tuple[OrderBy, ...]:
        return self.field.order_by if isinstance(self.field, d.HasOne | d.HasMany | d.ManyToMany) else ()

    @property
    def limit(self) -> int | None:
        """How many rows of it belong to a row above at the most."""
        if isinstance(self.field, d.BelongsTo | d.HasOne):
            return 1
        return self.field.limit if isinstance(self.field, d.HasMany | d.ManyToMany) else None


class Tree(msgspec.Struct, frozen=True, dict=True):
    """`key` are the columns of the root table that make a document's id."""

    name: str
    key: Columns
    nodes: tuple[Node, ...]

    @property
    def root(self) -> Node:
        return self.nodes[0]

    @cached_property
    def tables(self) -> set[str]:
        return {node.schema.table for node in self.nodes}

    @cached_property
    def has_own_key(self) -> bool:
        """Whether documents are named by other columns than those by which changes name the root's rows."""
        return set(self.key) != set(self.root.schema.key)

    def of_table(self, table: str) -> list[Node]:
        return [node for node in self.nodes if node.schema.table == table]

    def columns_used(self, table: str) -> set[str]:
        """Of any node: a change of other columns changes no document."""
        return {column for node in self.of_table(table) for column in node.columns}

    @cached_property
    def at(self) -> dict[str, Node]:
        """The nodes right below a row, by the place of their field."""
        return {node.place: node for node in reversed(self.nodes)}  # of a junction and what it joins, the junction


def tree_of(name: str, document: d.Document, schemas: Mapping[str, TableSchema]) -> Tree:
    """Raises ConfigError, with the place and the fix, where the description does not fit the tables."""
    for remark in check(name, document, schemas, {}, lambda *_: ""):
        if remark.is_failing:
            raise ConfigError(f"{remark.place}: {remark.message}", hint=remark.fix)
    planting = _Planting(schemas)
    key = document.key or schemas[document.table].key
    planting.add(-1, f"documents.{name}", document.table, document, (), ())
    planting.fields(0, f"documents.{name}", document.fields, key)
    return Tree(name, key, planting.finished(key))


class _Planting:
    """The nodes as they are found, with what is not known of them yet: the columns that nodes below need."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas = schemas
        self.nodes: list[Node] = []

    def add(
        self,
        parent: int,
        place: str,
        table: str,
        field: d.Document | d.Joins | d.Aggregates | d.Through,
        own: Columns,
        theirs: Columns,
    ) -> int:
        self.nodes.append(Node(len(self.nodes), parent, place, self.schemas[table], field, own, theirs))
        return len(self.nodes) - 1

    def fields(self, owner: int, place: str, fields: Mapping[str, d.Field], key: Columns) -> None:
        """`key` is what rows that point to the owner have."""
        for name, field in fields.items():
            here = f"{place}.fields.{name}"
            match field:
                case d.Object():
                    self.fields(owner, here, field.fields, key)
                case d.BelongsTo():
                    own = field.references or self._key(field.table)
                    self._join(owner, here, field, own, field.column or (name,))
                case d.HasOne() | d.HasMany():
                    self._join(owner, here, field, field.foreign_key, key)
                case d.ManyToMany():
                    middle = self.add(owner, here, field.through.table, field.through, field.through.left_key, key)
                    self._join(middle, here, field, self._key(field.table), field.through.right_key)
                case d.Count() | d.Sum() | d.Min() | d.Max() | d.Avg() | d.Ids():
                    self._aggregate(owner, here, field, key)
                case _:
                    pass

    def _join(self, parent: int, place: str, field: d.Joins, own: Columns, theirs: Columns) -> None:
        number = self.add(parent, place, field.table, field, own, theirs)
        self.fields(number, place, field.fields, self._key(field.table))

    def _aggregate(self, owner: int, place: str, field: d.Aggregates, key: Columns) -> None:
        if field.through is None:
            self.add(owner, place, field.table, field, field.foreign_key, key)
        else:
            middle = self.add(owner, place, field.through.table, field.through, field.through.left_key, key)
            self.add(middle, place, field.table, field, self._key(field.table), field.through.right_key)

    def _key(self, table: str) -> Columns:
        return self.schemas[table].key

    def finished(self, key: Columns) -> tuple[Node, ...]:
        made = [
            msgspec.structs.replace(
                node,
                below=tuple(each.number for each in self.nodes if each.parent == node.number),
                columns=tuple(dict.fromkeys((*(key if node.number == 0 else ()), *self._used(node)))),
            )
            for node in self.nodes
        ]
        return tuple(_covering(node, [each for each in made if each.link == node.link]) for node in made)

    def _used(self, node: Node) -> Iterator[str]:
        yield from node.schema.key
        yield from node.own
        for each in self.nodes:
            if each.parent == node.number:
                yield from each.theirs
        yield from (each.column for each in node.filters)
        yield from (each.column for each in node.order_by)
        if node.soft_delete is not None:
            yield from (each.column for each in node.soft_delete.when)
            yield from (node.soft_delete.column,) if node.soft_delete.column is not None else ()
        match node.field:
            case d.Document() | d.Join():
                yield from _columns_of(node.field.fields)
            case d.Sum() | d.Min() | d.Max() | d.Avg():
                yield node.field.column
            case d.Ids() if node.field.column is not None:
                yield node.field.column
            case _:
                pass


def _covering(node: Node, alike: list[Node]) -> Node:
    """The first of those that have all rows of a link covers the others; a junction's rows are not all its own."""
    first = next((each for each in alike if each.has_all), None)
    if first is None or node.number != first.number:
        covered = first is not None and not isinstance(node.field, d.Through)
        return msgspec.structs.replace(node, is_covered=covered, watched=node.columns)
    watched = tuple(dict.fromkeys(column for each in alike for column in each.columns))
    return msgspec.structs.replace(node, watched=watched)


def _columns_of(fields: Mapping[str, d.Field]) -> Iterator[str]:
    """The columns of a row that its own fields are made of."""
    for name, field in fields.items():
        match field:
            case d.Object():
                yield from _columns_of(field.fields)
            case d.Geo():
                yield from (column for column in (field.lat, field.lon, field.column) if column is not None)
            case d.Constant() | d.Join() | d.AggregateField():
                pass
            case _:
                yield field.column or name
