"""Building documents: many at once, one query for each node of the tree, put together by columns.

The rows of a node are read by the links of all rows above it. From the bottom up they become JSON: each row once, each
group of rows that hang on the same link once, and every row above takes the group that it points to. With its JSON goes
what a document remembers: which rows of which nodes it was built from. Nothing loops over rows in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns import fragments
from tailrace.config import documents as d
from tailrace.config.conditions import Direction, Nulls
from tailrace.documents import aggregates, fields, keys, lists
from tailrace.documents.filters import passing
from tailrace.documents.lists import Lists
from tailrace.documents.ordering import Integers, Key, sortable, sorted_rows
from tailrace.documents.tree import Link, Node, Tree
from tailrace.errors import SourceRefused, ValueRefused
from tailrace.model import shapes
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema

DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("document", pa.string()),
        pa.field("rows", pa.list_(pa.string())),
        pa.field("key", pa.list_(pa.string())),
    ]
)


AT_ONCE = 50_000
"""Links that are asked for in one query; of more than that there are several."""
LARGEST = 256 << 20
"""What documents may have together, of one field: a row that all of them show is in each of them."""


class Built(msgspec.Struct, frozen=True):
    """Documents with the columns of DOCUMENTS, and the ids of those that there are none of: to be deleted."""

    documents: pa.RecordBatch
    absent: pa.StringArray


def build(tree: Tree, wanted: pa.RecordBatch, read: ReadRows, root_rows: pa.RecordBatch | None = None) -> Built:
    """The documents of these keys, which are text columns named as `tree.key`: at most some thousands of them.

    With `root_rows`, whole rows of the root table, the documents are those of these rows, and `wanted` is not looked
    at. Raises ValueRefused for a value that no document can have, and for more than fits into memory (see `apart`).
    """
    with _as_too_large(tree.root.place):
        return _built(tree, wanted, read, root_rows)


def _built(tree: Tree, wanted: pa.RecordBatch, read: ReadRows, root_rows: pa.RecordBatch | None) -> Built:
    if root_rows is None:
        wanted = keys.distinct(wanted.select(tree.key))
        found = read(tree.root.schema, tree.key, wanted, tree.root.columns)
    else:
        found = root_rows.select(tree.root.columns)
        wanted = pa.RecordBatch.from_arrays(texts_of(tree.root, found, tree.key), names=list(tree.key))
    asked = keys.ids(wanted.columns)
    rows = passing(found, tree.root.schema, tree.root.filters, tree.root.soft_delete)
    ids = keys.ids(texts_of(tree.root, rows, tree.key))
    if not pc.all(is_asked := pc.is_in(ids, asked), min_count=0).as_py():  # it is equal in the source's eyes only
        rows, ids = rows.filter(is_asked), ids.filter(is_asked)
    _check_ids(tree, ids)
    return Built(_documents(tree, rows, ids, read), asked.filter(pc.invert(pc.is_in(asked, ids))).drop_null())


@contextmanager
def _as_too_large(place: str) -> Iterator[None]:
    """What Arrow says where an array would be larger than it can be."""
    try:
        yield
    except (pa.ArrowCapacityError, pa.ArrowInvalid) as error:
        if isinstance(error, pa.ArrowCapacityError) or re.search("overflow|capacity", str(error)):
            raise _too_large(place) from None
        raise


def _too_large(place: str) -> ValueRefused:
    return ValueRefused(
        f"{place} has more than {LARGEST >> 20} MiB in a document, which no server takes",
        hint="leave large columns out, or bound its joins with `limit`",
    )


def _check_ids(tree: Tree, ids: pa.StringArray) -> None:
    if ids.null_count or pc.count_distinct(ids).as_py() < len(ids):
        raise SourceRefused(
            f"{', '.join(tree.key)} is null in a row of {tree.root.schema.table}, or the same in two",
            hint=f"choose other columns as the key of documents.{tree.name}",
        )


def _documents(tree: Tree, rows: pa.RecordBatch, ids: pa.StringArray, read: ReadRows) -> pa.RecordBatch:
    assembly = Assembly(tree, read)
    documents, used = assembly.objects(tree.root, rows)
    key = keys.listed(texts_of(tree.root, rows, tree.key))
    return pa.RecordBatch.from_arrays([ids, documents, assembly.remembered(used), key], schema=DOCUMENTS)


def texts_of(node: Node, rows: pa.RecordBatch, columns: tuple[str, ...]) -> list[pa.StringArray]:
    """The texts of columns of a node's rows, by which they are linked."""
    types = fields.types_of(node.schema)
    return [keys.key_texts(rows.column(name), types[name]) for name in columns]


@dataclass(frozen=True, slots=True)
class Groups:
    """What hangs on each of the links that were asked for: its JSON, and the rows that it was made of.

    `places` has, for each link, the number of its group, or -1.
    """

    places: Integers
    written: pa.StringArray
    used: Lists


@dataclass(frozen=True, slots=True)
class Members:
    """Rows of a node, each once, and which of them belong to which link: link `group[i]` has row `row[i]`.

    `middle` is what junction rows add to the memory of each link.
    """

    rows: pa.RecordBatch
    group: Integers
    row: Integers
    middle: Lists | None = None


class Assembly:
    """One build. It numbers all rows that are used; `remembered` writes down what their numbers stand for."""

    def __init__(self, tree: Tree, read: ReadRows) -> None:
        self._tree = tree
        self._read = read
        self._terms: list[pa.StringArray] = []
        self._count = 0
        self._shared: dict[Link, pa.RecordBatch] = {}

    def objects(self, node: Node, rows: pa.RecordBatch) -> tuple[pa.StringArray, Lists]:
        """An object for each row of a node, and all rows that it is made of."""
        used = [self._numbered(node, rows)]

        def below(place: str, field: d.Joins | d.Aggregates) -> pa.StringArray:
            written, more = self._below(place, field, node, rows)
            used.append(more)
            return written

        assert isinstance(node.field, d.Document | d.Join)
        written = fields.objects(node.field.fields, rows, node.schema, node.place, below)
        return written, lists.side_by_side(used)

    def remembered(self, used: Lists) -> pa.ListArray:
        used = used.distinct()
        terms = pa.concat_arrays([pa.array([], pa.string()), *self._terms]).take(pa.array(used.values))
        return pa.ListArray.from_arrays(pa.array(used.offsets, pa.int32()), terms)

    def _numbered(self, node: Node, rows: pa.RecordBatch) -> Lists:
        """One number for each row; none where another node remembers it, or a change names the document itself.

        Rows without a key have the number of their link: that there were some is what a document needs to know.
        """
        if node.is_covered or (node.number == 0 and not (node.schema.key and self._tree.has_own_key)):
            return lists.none(rows.num_rows)
        terms, numbers = (
            keys.terms(node.number, texts_of(node, rows, node.schema.key or node.own)),
            np.arange(rows.num_rows),
        )
        if not node.schema.key:
            encoded = pc.dictionary_encode(terms)
            terms, numbers = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
        self._terms.append(terms)
        self._count += len(terms)
        return lists.singles(numbers + self._count - len(terms))

    def _below(
        self, place: str, field: d.Joins | d.Aggregates, above: Node, rows: pa.RecordBatch
    ) -> tuple[pa.StringArray, Lists]:
        """The fragments of a field that is made of other tables, for each row above."""
        node = self._tree.at[place]
        theirs = pa.RecordBatch.from_arrays(texts_of(above, rows, node.theirs), names=list(node.theirs))
        asked = keys.distinct(theirs)
        groups = self._groups(node, asked)
        links = pc.index_in(keys.joined(theirs.columns), keys.joined(asked.columns))
        has_link = links.is_valid().to_numpy(zero_copy_only=False)
        places = np.full(rows.num_rows, -1, np.int64)
        places[has_link] = groups.places[links.drop_null().to_numpy()]
        written = _taken(groups.written, places, place)
        schema = self._tree.nodes[node.below[0]].schema if isinstance(node.field, d.Through) else node.schema
        return _completed(field, written, place, schema), groups.used.take(places)

    def _groups(self, node: Node, asked: pa.RecordBatch) -> Groups:
        if isinstance(node.field, d.Through):
            far = self._tree.nodes[node.below[0]]
            members = self._ordered(far, self._joined(node, far, asked))
        else:
            far, members = node, self._ordered(node, self._members(node, asked))
        starts = np.flatnonzero(np.diff(members.group, prepend=-1))
        bounds = np.append(starts, len(members.group))
        links = members.group[starts]
        places = np.full(asked.num_rows, -1, np.int64)
        places[links] = np.arange(len(links))
        written, used = self._written(far, members, bounds)
        if members.middle is not None:
            used = lists.side_by_side([used, members.middle.take(links)])
        return Groups(places, written, used)

    def _members(self, node: Node, asked: pa.RecordBatch) -> Members:
        rows = passing(self._rows(node, asked), node.schema, node.filters)
        links = pc.index_in(keys.joined(texts_of(node, rows, node.own)), keys.joined(asked.columns))
        if links.null_count:
            rows, links = rows.filter(links.is_valid()), links.drop_null()
        return Members(rows, links.to_numpy().astype(np.int64), np.arange(len(links)))

    def _rows(self, node: Node, asked: pa.RecordBatch) -> pa.RecordBatch:
        """Nodes that hang on the same link, such as a list and its sum, are read together."""
        link = node.link
        if link not in self._shared:
            siblings = [each for each in self._tree.nodes if each.link == link]
            columns = tuple(dict.fromkeys(column for each in siblings for column in each.columns))
            pieces = [asked.slice(at, AT_ONCE) for at in range(0, asked.num_rows, AT_ONCE)] or [asked]
            rows = shapes.concat_batches([self._read(node.schema, node.own, piece, columns) for piece in pieces])
            if len(siblings) == 1:
                return rows
            self._shared[link] = rows
        return self._shared[link]

    def _joined(self, junction: Node, far: Node, asked: pa.RecordBatch) -> Members:
        """The far side's rows, each once a link, however many junction rows join the two."""
        middle = self._members(junction, asked)
        theirs = pa.RecordBatch.from_arrays(
            texts_of(junction, middle.rows, far.theirs), names=[str(place) for place in range(len(far.theirs))]
        )
        wanted = keys.distinct(theirs)
        found = self._members(far, wanted)
        row_of = np.full(wanted.num_rows + 1, -1, np.int64)  # the last is that of a junction row without a link
        row_of[found.group] = found.row
        links = pc.fill_null(pc.index_in(keys.joined(theirs.columns), keys.joined(wanted.columns)), wanted.num_rows)
        row = row_of[links.to_numpy()]
        kept = np.flatnonzero(row >= 0)
        pairs = lists.sorted_once(middle.group[kept] * max(found.rows.num_rows, 1) + row[kept])
        group, row = np.divmod(pairs, max(found.rows.num_rows, 1))
        return Members(found.rows, group, row, self._middle(junction, middle, kept, asked.num_rows))

    def _middle(self, junction: Node, middle: Members, kept: Integers, count: int) -> Lists:
        rows = middle.rows.take(pa.array(kept))
        order = kept[sorted_rows([Key(pa.array(middle.group[kept])), *_by_key(junction, rows)])]
        numbers = self._numbered(junction, middle.rows.take(pa.array(order)))
        return numbers.grouped(np.searchsorted(middle.group[order], np.arange(count + 1)))

    def _ordered(self, node: Node, members: Members) -> Members:
        """Sorted by link, then as the description says, then by the key; without what is beyond the limit."""
        order = sorted_rows([Key(pa.array(members.group)), *_order(node, members)])
        group, row = members.group[order], members.row[order]
        if node.limit is not None and len(group):
            first = np.flatnonzero(np.diff(group, prepend=-1))
            rank = np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))
            group, row = group[rank < node.limit], row[rank < node.limit]
        if members.middle is None:  # each row is of one link
            return Members(members.rows.take(pa.array(row)), group, np.arange(len(row)))
        used, row = np.unique(row, return_inverse=True)
        rows = members.rows.take(pa.array(used))
        order = sorted_rows(_by_key(node, rows))
        return Members(rows.take(pa.array(order)), group, np.argsort(order)[row], members.middle)

    def _written(self, node: Node, members: Members, bounds: Integers) -> tuple[pa.StringArray, Lists]:
        """The JSON of each group, and what it is made of."""
        if isinstance(node.field, d.AggregateField):
            rows = members.rows.take(pa.array(members.row)) if members.middle is not None else members.rows
            used = self._numbered(node, members.rows).take(members.row).grouped(bounds)
            return aggregates.aggregated(node.field, rows, bounds, node.schema), used
        objects, used = self.objects(node, members.rows)
        if members.middle is not None:
            objects, used = _taken(objects, members.row, node.place), used.take(members.row)
        if isinstance(node.field, d.BelongsTo | d.HasOne):
            return objects, used
        together = pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), objects), ",")
        return fragments.join(["[", together, "]"]), used.grouped(bounds)


def _taken(texts: pa.StringArray, places: Integers, place: str) -> pa.StringArray:
    """The texts at these places, null for -1, as long as they are not too large together."""
    lengths = np.append(pc.fill_null(pc.binary_length(texts), 0).to_numpy(), 0)
    if int(lengths[places].sum()) > LARGEST:
        raise _too_large(place)
    return texts.take(pa.array(places, mask=places < 0))


def _order(node: Node, members: Members) -> list[Key]:
    """By what rows of one link are sorted. A key, or all that is read of a row, leaves no two at one place."""
    types = fields.types_of(node.schema)
    rows = members.rows if members.middle is None else members.rows.take(pa.array(members.row))
    chosen = [
        Key(sortable(rows.column(o.column), types[o.column]), o.direction is Direction.DESC, o.nulls is Nulls.FIRST)
        for o in node.order_by
    ]
    return [*chosen, *_by_key(node, rows)]


def _by_key(node: Node, rows: pa.RecordBatch) -> list[Key]:
    types = fields.types_of(node.schema)
    return [Key(sortable(rows.column(name), types[name])) for name in node.schema.key or node.columns]


def _completed(
    field: d.Joins | d.Aggregates, written: pa.StringArray, place: str, schema: TableSchema
) -> pa.StringArray:
    """With what stands for no rows."""
    match field:
        case d.HasMany() | d.ManyToMany():
            return pc.fill_null(written, "[]")
        case d.BelongsTo() | d.HasOne():
            return fields.required(pc.fill_null(written, fragments.NULL), field.required, place)
        case _:
            return aggregates.completed(field, written, schema)
