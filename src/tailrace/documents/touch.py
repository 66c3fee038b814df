"""Which documents a change touches: those that were built of its row, and those that would be built of it now.

`touches` says it of changes alone, by nodes and keys; `resolve` finds the documents. Both together are enough: what was
right before is wrong now only if a row has changed that the document was built of, or would be built of. A row without
a key can not be remembered: what its old image points to stands for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.documents import keys
from tailrace.documents.build import texts_of
from tailrace.documents.fields import types_of
from tailrace.documents.filters import passing
from tailrace.documents.tree import Node, Tree
from tailrace.model.changes import Changes, Flags, Op
from tailrace.model.rows import ReadRows
from tailrace.model.schema import Identity, TableSchema

TOUCHES = pa.schema([pa.field("node", pa.int32()), pa.field("key", pa.list_(pa.string()))])
"""A row of a node, by the texts of its key; null stands for all rows of the node that documents were built of.

A negative number is that of a node whose rows have no key, and then the texts are those of its link: see `Node.own`.
Those of a root without a key are the documents' own.
"""

AT_ONCE = 10_000
"""Keys that are asked for together, and root keys that are handed out together."""


class Remembered(Protocol):
    """What the documents remember of the rows that they were built from: the keys of documents, page by page."""

    def by_rows(self, terms: pa.StringArray) -> Iterator[list[list[str]]]:
        """Of the documents that remember one of these."""

    def by_node(self, node: int) -> Iterator[list[list[str]]]:
        """Of those that remember any row of a node; of node 0, all documents."""


def touches(tree: Tree, changes: Changes) -> pa.RecordBatch:
    """What changes of one table touch, each once, with the columns of TOUCHES. Their columns `are_known`."""
    nodes = [node for node in tree.of_table(changes.schema.table) if not node.is_covered]
    found = [_of_node(tree, node, changes) for node in nodes]
    return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=TOUCHES)


def are_known(tree: Tree, schema: TableSchema) -> bool:
    """Whether all columns that documents are made of are, in a version of a table, the ones that the tree means.

    One that has another name for a time, or whose name another has, is not: what such changes touch can not be told.
    """
    present = {column.name: column.number for column in schema.columns}
    for node in tree.of_table(schema.table):
        for column in (column for column in node.schema.columns if column.name in node.watched):
            number = present.get(column.name)
            if number is None or (number and column.number and number != column.number):
                return False
    return True


def _of_node(tree: Tree, node: Node, changes: Changes) -> pa.RecordBatch:
    number, names = _named_by(tree, node)
    is_row = changes.op != Op.TRUNCATE
    relevant = is_row & ~_is_without_effect(node, changes)
    values = [
        _texts(changes.after.filter(pa.array(relevant)), changes.schema, names),
        _texts(changes.before.filter(pa.array(relevant[changes.before_rows])), changes.schema, names),
    ]
    listed = keys.listed(keys.distinct(pa.concat_batches(values)).columns)
    rows = pa.RecordBatch.from_arrays([pa.array(np.full(len(listed), number, np.int32)), listed], schema=TOUCHES)
    is_vague = ~is_row | _is_unnamed(names, changes)
    return pa.concat_batches([_all_of(node.number), rows]) if is_vague.any() else rows


def _is_unnamed(names: Sequence[str], changes: Changes) -> Flags:
    """Changes of old rows of which the source did not send these columns: it named them by another key at that time."""
    if changes.schema.identity is Identity.FULL or set(names) <= set(changes.schema.key):
        return np.zeros(len(changes), np.bool_)
    unnamed: Flags = (changes.op == Op.UPDATE) | (changes.op == Op.DELETE)
    return unnamed


def _named_by(tree: Tree, node: Node) -> tuple[int, tuple[str, ...]]:
    """By which columns a touch says which rows it means, and under which number."""
    if node.schema.key:
        return node.number, node.schema.key
    return (0, tree.key) if node.number == 0 else (-node.number, node.own)


def _all_of(node: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"node": node, "key": None}], schema=TOUCHES)


def _texts(rows: pa.RecordBatch, schema: TableSchema, names: Sequence[str]) -> pa.RecordBatch:
    types = types_of(schema)
    texts = [keys.key_texts(rows.column(name), types[name]) for name in names]
    return pa.RecordBatch.from_arrays(texts, names=[str(place) for place in range(len(names))])


def _is_without_effect(node: Node, changes: Changes) -> Flags:
    """Updates that leave all columns as they are which the node looks at; known where the whole old row is sent."""
    without = np.zeros(len(changes), np.bool_)
    if changes.schema.identity is not Identity.FULL or not len(changes.before_rows):
        return without
    rows = changes.before_rows
    same = changes.op[rows] == Op.UPDATE
    for place, column in enumerate(changes.schema.columns):
        if column.name in node.watched and same.any():
            old = to_text(changes.before.column(place), column.type)
            new = to_text(changes.after.column(place).take(pa.array(rows)), column.type)
            is_same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(old.is_null(), new.is_null()))
            sent = False if changes.unchanged is None else changes.unchanged[rows, place]
            same = same & (is_same.to_numpy(zero_copy_only=False) | sent)
    without[rows] = same
    return without


def resolve(tree: Tree, touched: pa.RecordBatch, read: ReadRows, remembered: Remembered) -> Iterator[pa.RecordBatch]:
    """The keys of the documents to build anew, as text columns named as `tree.key`; each once, in bounded batches.

    What has been given out is held, to give it out once: `resolve_all` is for who drops doubles himself.

    `read` has to see what the changes did. The number of its queries depends on the tree, and on how many keys there
    are by the ten thousand.
    """
    yield from _once(resolve_all(tree, touched, read, remembered))


def resolve_all(
    tree: Tree, touched: pa.RecordBatch, read: ReadRows, remembered: Remembered
) -> Iterator[pa.RecordBatch]:
    """As `resolve`; a key may come again."""
    for node in pc.unique(touched.column("node").filter(touched.column("key").is_null())).to_pylist():
        for page in remembered.by_node(node):
            yield _batch(page, tree.key)
    by_number = dict(_by_number(tree, touched))
    for terms in _terms(tree, by_number):
        for page in remembered.by_rows(terms):
            yield _batch(page, tree.key)
    yield from _present(tree, by_number, read)


def _by_number(tree: Tree, touched: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    rows = touched.filter(touched.column("key").is_valid())
    for number in pc.unique(rows.column("node")).to_pylist():
        names = _named_by(tree, tree.nodes[abs(number)])[1]
        listed = rows.column("key").filter(pc.equal(rows.column("node"), number))
        yield number, keys.distinct(keys.unlisted(listed, names))


def _terms(tree: Tree, by_number: Mapping[int, pa.RecordBatch]) -> Iterator[pa.StringArray]:
    """What documents remember of these rows. The root's own need it only where documents have another key."""
    found = [
        keys.terms(number, values.columns)
        for number, values in by_number.items()
        if number > 0 or (number == 0 and tree.root.schema.key and tree.has_own_key)
    ]
    terms = pa.concat_arrays([pa.array([], pa.string()), *found])
    for start in range(0, len(terms), AT_ONCE):
        yield terms.slice(start, AT_ONCE)


def _present(tree: Tree, by_number: Mapping[int, pa.RecordBatch], read: ReadRows) -> Iterator[pa.RecordBatch]:
    """Up from every row that was touched, as it is now, to the root: one query a hop."""
    links: dict[int, pa.RecordBatch] = {}
    for node in reversed(tree.nodes):
        wanted = node.own if node.number else tree.key
        found = [by_number[-node.number]] if node.number and -node.number in by_number else []
        if node.number in by_number:
            found += _seen(node, by_number[node.number], wanted, read)
        for number in node.below:
            if number in links:
                below = links.pop(number)
                found += _seen(node, below.rename_columns(list(tree.nodes[number].theirs)), wanted, read)
        if found and node.number:
            links[node.number] = keys.distinct(pa.concat_batches(found))
        elif found:
            yield from found


def _seen(node: Node, values: pa.RecordBatch, wanted: tuple[str, ...], read: ReadRows) -> list[pa.RecordBatch]:
    """The columns `wanted` of the rows that have these values, as text; the values themselves where they are among."""
    if set(wanted) <= set(values.schema.names):
        return [values.select(wanted)]
    by = tuple(values.schema.names)
    conditions = [*node.filters, *(node.soft_delete.when if node.soft_delete is not None else ())]
    needed = dict.fromkeys((*wanted, *(each.column for each in conditions)))
    if node.soft_delete is not None and node.soft_delete.column is not None:
        needed[node.soft_delete.column] = None
    found = []
    for start in range(0, values.num_rows, AT_ONCE):
        rows = read(node.schema, by, values.slice(start, AT_ONCE), tuple(needed))
        rows = passing(rows, node.schema, node.filters, node.soft_delete)
        found.append(pa.RecordBatch.from_arrays(texts_of(node, rows, wanted), names=list(wanted)))
    return found


def _batch(page: Iterable[Sequence[str]], names: tuple[str, ...]) -> pa.RecordBatch:
    columns = list(zip(*page, strict=True)) or [()] * len(names)
    return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], names=list(names))


def _once(found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each key once, and not too many together."""
    seen: set[str] = set()
    for batch in found:
        fresh = keys.distinct(batch)
        texts = keys.joined(fresh.columns).to_pylist()
        fresh = fresh.filter(pa.array([text not in seen for text in texts], pa.bool_()))
        seen.update(texts)
        for start in range(0, fresh.num_rows, AT_ONCE):
            yield fresh.slice(start, AT_ONCE)
