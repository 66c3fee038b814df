"""One document as it would be built now, with its mapping and the look-ups that it took. Nothing is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
import pyarrow as pa

from tailrace import config
from tailrace.documents.build import Built, build
from tailrace.documents.mapping import mapping_of
from tailrace.documents.tree import Tree, tree_of
from tailrace.errors import ConfigError
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema
from tailrace.pipeline import described
from tailrace.sources.base import Source
from tailrace.sources.findings import number_of

FIRST_ROWS = 100
"""Where no key is given: so many rows are tried, as the first may have no document."""
CHUNK_BYTES = 1 << 20


class Query(msgspec.Struct, frozen=True):
    """A look-up: rows of a table whose columns `by` have one of so many `values`."""

    table: str
    by: tuple[str, ...]
    values: int
    columns: tuple[str, ...]
    rows: int
    seconds: float

    @property
    def sentence(self) -> str:
        by = self.by[0] if len(self.by) == 1 else f"({', '.join(self.by)})"
        values = "1 value" if self.values == 1 else f"{self.values:,} values"
        return f"SELECT {', '.join(self.columns)} FROM {self.table} WHERE {by} IN ({values})"


class Preview(msgspec.Struct, frozen=True):
    """`made_of` are the numbers of rows by table; `document` is None where there is no document of the key."""

    id: str
    document: msgspec.Raw | None
    made_of: dict[str, int]
    mapping: dict[str, Any]
    queries: list[Query]


def preview(pipeline: config.Pipeline, name: str, key: Sequence[str] = ()) -> Preview:
    """The document that has this key, a text for each of its columns; without a key, one of the first rows."""
    catalog = described.read_catalog(pipeline)
    document = catalog.document(name)
    tree = tree_of(name, document, catalog.schemas)
    if key and len(key) != len(tree.key):
        fix = " ".join(f"--key {column.upper()}" for column in tree.key)
        columns = number_of(len(tree.key), "column")
        raise ConfigError(
            f"the key of document {name} has {columns}, and {len(key)} values are given", hint=f"write {fix}"
        )
    queries: list[Query] = []
    source = catalog.source
    with source.export_snapshot() as snapshot, source.reader(snapshot.id) as read:
        built = _built(tree, key, recorded(read, queries), source, snapshot.id)
    return _preview(built, tree, mapping_of(document, catalog.schemas), queries)


def _built(tree: Tree, key: Sequence[str], read: ReadRows, source: Source, snapshot: str) -> Built:
    columns = [pa.array([text], pa.string()) for text in key] or [pa.array([], pa.string()) for _ in tree.key]
    wanted = pa.RecordBatch.from_arrays(columns, names=list(tree.key))
    return build(tree, wanted, read, None if key else _first_rows(source, tree.root.schema, snapshot))


def _first_rows(source: Source, schema: TableSchema, snapshot: str) -> pa.RecordBatch:
    for chunk in source.plan_snapshot(schema, CHUNK_BYTES):
        with closing(source.read_chunk(schema, chunk, snapshot)) as batches:  # type: ignore[type-var]  # a generator
            for rows in batches:
                assert isinstance(rows, pa.RecordBatch)
                if rows.num_rows:
                    return rows.slice(0, FIRST_ROWS)
    raise ConfigError(f"{schema.table} has no rows to show a document of", hint="insert one")


def recorded(read: ReadRows, queries: list[Query]) -> ReadRows:
    """The same, with a note of each look-up."""

    def reading(
        table: TableSchema, by: tuple[str, ...], values: pa.RecordBatch, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        begun = time.monotonic()
        found = read(table, by, values, columns)
        seconds = time.monotonic() - begun
        told = tuple(found.schema.names)
        queries.append(Query(table.table, by, values.num_rows, told, found.num_rows, seconds))
        return found

    return reading


def _preview(built: Built, tree: Tree, mapping: dict[str, Any], queries: list[Query]) -> Preview:
    if not built.documents.num_rows:
        id_ = built.absent[0].as_py() if len(built.absent) else ""
        return Preview(id_, None, {}, mapping, queries)
    first = built.documents.slice(0, 1).to_pylist()[0]
    made_of = _made_of(tree, first["rows"])
    return Preview(first["id"], msgspec.Raw(first["document"].encode()), made_of, mapping, queries)


def _made_of(tree: Tree, remembered: list[str]) -> dict[str, int]:
    """Rows by table, the root's first; a row that is used in two places is one."""
    terms = [term.partition(":") for term in remembered]
    used = {(tree.nodes[int(number)].schema.table, key) for number, _, key in terms}
    counts = Counter(table for table, _ in used)
    counts[tree.root.schema.table] += 0 if tree.has_own_key else 1  # its own row is known by its key
    return {table: counts[table] for table in dict.fromkeys(node.schema.table for node in tree.nodes) if counts[table]}
