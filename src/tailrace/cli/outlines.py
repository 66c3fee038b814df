"""The tables of a document, drawn as a tree: how each is joined, by which columns, and which look-ups lack an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text
from rich.tree import Tree

from tailrace.config import documents as d
from tailrace.config.conditions import Direction
from tailrace.documents.outline import Outline, Side
from tailrace.model.details import TableDetails

Details = Mapping[str, TableDetails]

VERBS: dict[type[d.Joins | d.Aggregates], str] = {
    d.BelongsTo: "belongs to",
    d.HasOne: "has one",
    d.HasMany: "has many",
    d.ManyToMany: "many to many",
    d.Count: "count of",
    d.Sum: "sum of",
    d.Min: "least of",
    d.Max: "greatest of",
    d.Avg: "average of",
    d.Ids: "ids of",
}


def drawn(name: str, root: Outline, details: Details) -> Tree:
    label = Text.assemble((name, "bold"), "  one for each row of ", (root.table, "cyan"), f", by {_columns(root.key)}")
    for part in _choices(root.field):
        label.append(f", {part}", "dim")
    tree = Tree(label, guide_style="dim")
    _add_below(tree, root, details)
    return tree


def _add_below(tree: Tree, node: Outline, details: Details) -> None:
    for each in node.below:
        _add_below(tree.add(_label(each, node, details)), each, details)


def _label(node: Outline, above: Outline, details: Details) -> Text:
    assert not isinstance(node.field, d.Document)
    name = ".".join(step for step in node.place[len(above.place) :] if step != "fields")
    label = Text.assemble((name, "bold"), f"  {VERBS[type(node.field)]} ")
    if isinstance(node.field, d.ColumnAggregate):
        label.append(f"{node.field.column} in ")
    label.append(node.table, "cyan")
    for number, link in enumerate(node.links):
        label.append(", " if number == 0 else " and ", "dim")
        label.append_text(_side(link.upper, details)).append(" = ").append_text(_side(link.lower, details))
    for part in _choices(node.field):
        label.append(f", {part}", "dim")
    return label


def _side(side: Side, details: Details) -> Text:
    text = Text(f"{side.table.rpartition('.')[2]}.{_columns(side.columns)}")
    known = details.get(side.table)
    if known is not None and side.columns and not known.finds_by(side.columns):
        text.append(" (no index)", "yellow")
    return text


def _columns(columns: tuple[str, ...]) -> str:
    if not columns:
        return "(no key)"
    return columns[0] if len(columns) == 1 else f"({', '.join(columns)})"


def _choices(field: d.Document | d.Joins | d.Aggregates) -> Iterator[str]:
    """Which of the rows, and in which order."""
    for each in field.filters:
        yield f"{each.column} {each.op}" + ("" if each.value is None else f" {each.value}")
    if isinstance(field, d.Document) and field.soft_delete is not None:
        yield "without deleted ones"
    if isinstance(field, d.HasOne | d.HasMany | d.ManyToMany) and field.order_by:
        orders = (
            f"{each.column}{' descending' if each.direction is Direction.DESC else ''}" for each in field.order_by
        )
        yield f"ordered by {' and '.join(orders)}"
    if isinstance(field, d.HasMany | d.ManyToMany) and field.limit is not None:
        yield f"{field.limit:,} at most"
