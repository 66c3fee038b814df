"""Bringing the staged changes of one table into it, inside of the sink's one transaction."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from tailrace.model.schema import TableSchema
from tailrace.model.types import Kind
from tailrace.sinks.base import FetchRows
from tailrace.sinks.sql.merge_statements import absent_keys, delete, move, staged_keys, unmoved, update, upsert
from tailrace.sinks.sql.quarantine.isolation import Isolation
from tailrace.sinks.sql.staged import Relation, StagedChanges, StagedPartial
from tailrace.sinks.sql.writers import InlineWriter, columns_of

FETCH_ROWS = 64
FETCH_BYTES = 16 << 20
"""Rows that are read from the source together: so many at first, then about so much."""


_PLAIN = {Kind.INT16, Kind.INT32, Kind.INT64, Kind.TEXT, Kind.UUID}
"""Keys of these kinds have one text, whoever writes it."""


class Stale:
    """The rows of a table that were set aside: what the sink has under their keys is older than it looks."""

    def __init__(self, schema: TableSchema, keys: Collection[Mapping[str, Any]]) -> None:
        kinds = {column.type.kind for column in schema.columns if column.name in schema.key}
        self._is_known = kinds <= _PLAIN and all(key.keys() == set(schema.key) for key in keys)
        self._keys = {tuple(str(key.get(name)) for name in schema.key) for key in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def among(self, keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Those of the keys (in the key's order) that are stale, or may be."""
        return [key for key in keys if not self._is_known or tuple(map(str, key)) in self._keys]


class TableMerge:
    """One table of the source, and the `table` (quoted) of the sink that takes its rows.

    `stale_keys` are those of rows that were set aside. After `apply`, `has_fetched` says whether rows were read from
    the source, which may be newer than all changes.
    """

    def __init__(
        self,
        isolation: Isolation,
        source: TableSchema,
        table: str,
        *,
        is_single_key: bool,
        stale_keys: Collection[Mapping[str, Any]] = (),
    ) -> None:
        self._isolation, self._source, self._table = isolation, source, table
        self._dialect, self._session, self._mapping = isolation.dialect, isolation.session, isolation.mapping
        self._schema = self._mapping.schema(source)
        self._is_single_key = is_single_key
        self._stale = Stale(source, stale_keys)
        self.has_fetched = False

    def apply(self, changes: StagedChanges, fetch: FetchRows, *, is_ahead: bool = False) -> None:
        """In order: truncate, deletes, upserts, partial rows.

        In a table that `is_ahead` of these changes, the row under a key that moves may be a later one, and in one with
        stale rows an earlier one: what the change did not send of the moved row is not there, but at the source.
        """
        merge = functools.partial(self._isolation.merge, self._source)
        if changes.truncate:
            self._session.execute(f"DELETE FROM {self._table}")
        if changes.deletes is not None:
            merge("delete", changes.deletes, self._delete)
        if changes.upserts is not None:
            merge("upsert", changes.upserts, self._upsert)
        for partial in changes.partials:
            absent: list[tuple[Any, ...]] = []
            is_elsewhere = partial.moves and (is_ahead or self._stale)
            change = self._remove if is_elsewhere else functools.partial(self._change, partial)
            merge("update", partial.rows, functools.partial(change, absent))
            for rows in self._fetched(absent, fetch):
                self.has_fetched = True
                merge(
                    "upsert", InlineWriter(self._dialect.encoding).write(columns_of(self._schema, rows)), self._upsert
                )

    def _delete(self, rows: Relation) -> None:
        self._session.merge(delete(self._dialect, self._session, self._table, self._schema, rows), rows)

    def _upsert(self, rows: Relation) -> None:
        statements = upsert(self._dialect, self._table, self._schema, rows, is_single_key=self._is_single_key)
        for statement in statements:
            self._session.merge(statement, rows)

    def _remove(self, absent: list[tuple[Any, ...]], rows: Relation) -> None:
        """Whatever the table has under the old and the new keys of moving rows; the new ones are added to `absent`."""
        found = self._session.merge(staged_keys(self._dialect, self._schema, rows), rows)
        for statement in unmoved(self._dialect, self._table, self._schema, rows):
            self._session.merge(statement, rows)
        absent += found

    def _change(self, partial: StagedPartial, absent: list[tuple[Any, ...]], rows: Relation) -> None:
        """Apply partial rows; the keys of those that the table lacks, or has as they were, are added to `absent`."""
        query = absent_keys(self._dialect, self._table, self._schema, rows, moves=partial.moves)
        found = self._session.merge(query, rows)
        if self._stale:
            keys = self._stale.among(self._session.merge(staged_keys(self._dialect, self._schema, rows), rows))
            found = list({*map(tuple, found), *map(tuple, keys)})
        build = move if partial.moves else lambda *arguments: [update(*arguments)]
        for statement in build(self._dialect, self._table, self._schema, partial.unchanged, rows):
            self._session.merge(statement, rows)
        absent += found

    def _fetched(self, keys: list[tuple[Any, ...]], fetch: FetchRows) -> Iterator[pa.RecordBatch]:
        """Rows that the table lacks, as the source has them now; if they are gone there, their delete follows.

        Nobody knows how large they are: each piece says how many the next one may have.
        """
        done, count = 0, FETCH_ROWS
        while done < len(keys):
            rows = self._fetched_together(keys[done : done + count], fetch)
            done += count
            count = max(count * 4 if rows.nbytes * 4 < FETCH_BYTES else count * FETCH_BYTES // (rows.nbytes + 1), 1)
            if rows.num_rows:
                yield rows

    def _fetched_together(self, keys: list[tuple[Any, ...]], fetch: FetchRows) -> pa.RecordBatch:
        columns = [list(values) for values in zip(*keys, strict=True)]
        wanted = pa.RecordBatch.from_pydict(dict(zip(self._source.key, columns, strict=True)))
        return self._mapping.rows(self._source, fetch(self._source, wanted))
