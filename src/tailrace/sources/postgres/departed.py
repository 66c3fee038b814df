"""Partitions that are gone when changes through them come: the stream tells of their rows, and not that they went.

The catalog keeps no trace of them at their root. But the server describes a partition, right after its root, before the
first change that it sends through it; and if the partition is not the root's any more, the root has to be copied again.
What makes it so is a description that fits no column, until the next transaction. One that is still there goes into the
log with its root: it may go before anybody looks.

Protocol page: "Logical Replication Message Formats", Relation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from tailrace.model.schema import TableSchema
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.describing import UNLIKE_ANY
from tailrace.sources.postgres.values.lanes import Bytes, Integers, big_endian

Described = list[tuple[int, TableSchema]]
"""Rows of a batch that describe a table, and how."""

_TREES = """
WITH RECURSIVE above (leaf, oid) AS (
    SELECT oid, oid FROM unnest(%s::oid[]) oid
    UNION ALL
    SELECT above.leaf, i.inhparent FROM above JOIN pg_class c ON c.oid = above.oid AND c.relispartition
    JOIN pg_inherits i ON i.inhrelid = c.oid AND NOT i.inhdetachpending
)
SELECT leaf::bigint, oid::bigint FROM above
"""


class Pair(NamedTuple):
    """A partition and the root that it was described with, at a row of a batch."""

    row: int
    leaf: int
    root: TableSchema


class Departed:
    """Adds to what a stream describes. Holds what the end of a batch leaves open for the next one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: TableSchema | None = None  # what the very last message described
        self._unlike: dict[int, TableSchema] = {}  # what the roots are whose last description fits no column
        self.roots: dict[tuple[int, int], int] = {}  # of the last batch's partitions: by row and relation

    def begin_stream(self) -> None:
        self._last = None
        self._unlike.clear()

    def mark(self, buffer: Bytes, bounds: Integers, kinds: Bytes, described: Described) -> Described:
        """What a batch describes, and the roots whose partitions are gone, each up to the next Begin."""
        relations = [(row, schema) for row, schema in described if kinds[row] == ord("R")]
        self.roots = {}
        if not relations and not self._unlike:
            self._last = None if (kinds != ord("Y")).any() else self._last
            return described
        pairs = list(self._pairs(buffer, bounds, kinds, relations))
        self.roots = {(pair.row, pair.leaf): pair.root.relation for pair in pairs}
        gone = self._gone(pairs)
        marks = [(pair.row, unlike_any(pair.root)) for pair in gone]
        begins = np.flatnonzero(kinds == ord("B")).tolist()
        ends = [*self._ended(-1, self._unlike, begins, relations)]
        for pair in gone:
            ends += self._ended(pair.row, {pair.root.relation: pair.root}, begins, relations)
        return sorted([*marks, *ends, *described], key=lambda each: each[0])

    def _pairs(self, buffer: Bytes, bounds: Integers, kinds: Bytes, relations: Described) -> Iterator[Pair]:
        """Descriptions that follow another one directly, and are followed by a change of that one."""
        others = np.flatnonzero(kinds != ord("Y"))
        places = np.searchsorted(others, [row for row, _ in relations]).tolist()
        before, last = -1, self._last
        for place, (row, schema) in zip(places, relations, strict=True):
            after = others[place + 1 : place + 2].tolist()
            is_through = not after or _changed(buffer, bounds, kinds, after[0]) == (last and last.relation)
            if last is not None and before == place - 1 and is_through:
                yield Pair(row, schema.relation, last)
            before, last = place, schema
        self._last = last if before == len(others) - 1 else None

    def _gone(self, pairs: list[Pair]) -> list[Pair]:
        """Those of the partitions that are not their root's by the catalog of now."""
        if not pairs:
            return []
        with source_errors(self._url, "reading the catalog"), connect(self._url) as connection:
            trees = set(connection.execute(_TREES, [list({pair.leaf for pair in pairs})]).fetchall())
        return [pair for pair in pairs if (pair.leaf, pair.root.relation) not in trees]

    def _ended(
        self, since: int, roots: dict[int, TableSchema], begins: list[int], relations: Described
    ) -> Iterator[tuple[int, TableSchema]]:
        """What the roots are in the next transaction, if it begins in this batch."""
        end = next((begin for begin in begins if begin > since), None)
        for relation, schema in list(roots.items()):
            within = [
                s for row, s in relations if s.relation == relation and since < row and (end is None or row < end)
            ]
            if end is not None:
                self._unlike.pop(relation, None)
                yield end, (within or [schema])[-1]
            else:
                self._unlike[relation] = (within or [schema])[-1]


def unlike_any(schema: TableSchema) -> TableSchema:
    columns = tuple(msgspec.structs.replace(column, number=UNLIKE_ANY) for column in schema.columns)
    return msgspec.structs.replace(schema, columns=columns)


def _changed(buffer: Bytes, bounds: Integers, kinds: Bytes, row: int) -> int | None:
    """The relation that a row changes, if it does."""
    if chr(kinds[row]) not in "IUD":
        return None
    return int(big_endian(buffer, bounds[[row]] + 1, 4)[0]) & 0xFFFFFFFF
