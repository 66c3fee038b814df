"""A source whose tables are documents: each is a virtual table `document.NAME` with one row a document.

What the life of tables asks for (facts, chunks, writers, storage) is answered for all tables that a document is made
of, so a document is copied, catches up, is live or set aside as any table is. It reads what it builds under the
snapshot that it is asked for.

A version of a document is its description and what it uses of its tables: the digest in its virtual schema. Trees are
kept by digest, because a live document is built as its index was made until the next copy of it takes over.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, cast

import msgspec
import pyarrow as pa

from tailrace.config import Document
from tailrace.config.describing import tables_of
from tailrace.documents.apart import Refused, build_apart
from tailrace.documents.build import Built, build
from tailrace.documents.flat import flat_document
from tailrace.documents.keys import parsed, unlisted
from tailrace.documents.mapping import mapping_of
from tailrace.documents.tree import Tree, tree_of
from tailrace.errors import ConfigError, SourceRefused
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import StoredAs
from tailrace.model.names import table_name
from tailrace.model.rows import Rows
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Documents
from tailrace.sources.base import Absence, Published, Source, StorageChange, TableFacts
from tailrace.tasks.merged import merged, separated

SCHEMA = "document"
BUILD_KEYS = 2_000
"""How many documents are built at once."""

_TEXT = ColumnType(Kind.TEXT, "text")
_TEXTS = ColumnType(Kind.ARRAY, "text[]", element=_TEXT)


class Described(msgspec.Struct, frozen=True):
    """A document as its tables are now; without a `tree` if it can not be built, and then the facts say why."""

    facts: TableFacts
    parts: tuple[TableFacts, ...]
    tree: Tree | None = None


class DocumentedSource:
    """Everything else is asked of the source itself. It pickles with the trees that are known so far."""

    def __init__(self, source: Source, sink: Documents) -> None:
        self.source, self._sink = source, sink
        self._described: dict[str, Described] = {}
        self._trees: dict[str, Tree] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # --- what documents there are

    def facts(self, refused: Mapping[str, str] = MappingProxyType({})) -> list[TableFacts]:
        present = {each.schema.table: each for each in self.source.facts(refused)}
        identity = self.source.identify()
        server = f"{identity.system} {identity.branch}"
        described = {}
        for name, document in self._wanted(present).items():
            described[table_name(SCHEMA, name)] = each = _described(name, document, present, server)
            if each.tree is not None:
                self._trees[digest_of(each.facts.schema)] = each.tree
        self._described = described
        return [each.facts for each in described.values()]

    def _wanted(self, present: Mapping[str, TableFacts]) -> dict[str, Document | None]:
        """The described ones, and a flat one for each table that is to have it; None where several want a name."""
        wanted: dict[str, Document | None] = dict(self._sink.documents)
        patterns = self._sink.flat
        for schema in (each.schema for each in present.values()):
            if patterns is not None and patterns.matches(schema.schema, schema.name):
                name = self._sink.flat_name(schema)
                wanted[name] = None if name in wanted else flat_document(schema)
        return wanted

    def tables(self) -> list[TableSchema]:
        return [each.schema for each in self.facts() if not each.trouble]

    readable = tables

    def tree(self, schema: TableSchema) -> Tree:
        """The tree of a version of a document."""
        found = self._trees.get(digest_of(schema))
        if found is None:
            raise SourceRefused(
                f"{schema.table} was described otherwise when it was built", hint="it is built anew", table=schema.table
            )
        return found

    def knows(self, schema: TableSchema) -> bool:
        """Whether a document of this version can still be built."""
        if not self._described:
            self.facts()
        return digest_of(schema) in self._trees

    def absence(self, table: TableSchema) -> Absence:
        return Absence("the pipeline has no such document any more", is_gone=True)

    def captures(self, table: TableSchema) -> bool:
        return True

    # --- facts of all tables of a document

    def _parts(self, table: str) -> tuple[TableFacts, ...]:
        found = self._described.get(table)
        return () if found is None else found.parts

    def publish(self, is_known: Callable[..., bool]) -> Published:
        """A table that `is_known` to be a part of a document was taken out on purpose, one that was made since not."""
        users: dict[str, set[str]] = {}
        for name, document in self._sink.documents.items():
            for table in _tables(document):
                users.setdefault(table, set()).add(table_name(SCHEMA, name))
        for name, each in self._described.items():
            for part in each.parts:
                users.setdefault(part.schema.table, set()).add(name)
        present = cache(lambda: {schema.table: schema for schema in self.source.readable()})
        return self.source.publish(
            lambda table: any(is_known(name, present().get(table)) for name in users.get(table, ()))
        )

    def is_founder(self, facts: TableFacts) -> bool:
        parts = self._parts(facts.schema.table)
        return bool(parts) and all(self.source.is_founder(part) for part in parts)

    def writers(self, facts: TableFacts) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in self._parts(facts.schema.table):
            found |= self.source.writers(part)
        return found

    def storage_change(self, schema: TableSchema, old: StoredAs, new: StoredAs) -> StorageChange:
        before, after, strays = separated(old, new)
        if strays:
            return StorageChange(is_rewritten=True, reason="a partition came and went")
        added: tuple[str, ...] = ()
        for part in self._parts(schema.table):
            table = part.schema.table
            if table not in before or table not in after:
                continue  # then the document is described otherwise
            change = self.source.storage_change(part.schema, before[table], after[table])
            if change.is_rewritten:
                return StorageChange(is_rewritten=True, reason=f"of {table}: {change.reason}")
            added += change.added
        return StorageChange(added=added, reason="a partition with rows was attached" if added else "")

    def has_rows(self, schema: TableSchema, relations: Iterable[str]) -> bool:
        wanted = set(relations)
        mine = [(part.schema, wanted & part.stored.files.keys()) for part in self._parts(schema.table)]
        return any(self.source.has_rows(own, sorted(found)) for own, found in mine if found)

    def old_values(self, table: TableSchema, added: list[str], stored: StoredAs | None) -> pa.RecordBatch | None:
        return None

    # --- documents as rows

    def plan_snapshot(self, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
        """Those of the root table."""
        planned = self.source.plan_snapshot(self.tree(table).root.schema, chunk_bytes)
        return [msgspec.structs.replace(chunk, table=table.table) for chunk in planned]

    def read_chunk(self, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "") -> Iterator[Rows]:
        root = self.tree(table).root.schema
        own = msgspec.structs.replace(chunk, table=root.table)
        for built in self._built(table, snapshot, self.source.read_chunk(root, own, snapshot)):
            if isinstance(built, Refused):
                self._sink.set_aside(table, [built])
            else:
                yield built.documents

    def read_all(self, table: TableSchema, snapshot: str | None = None) -> Iterator[pa.RecordBatch]:
        if snapshot is None:
            with self.source.export_snapshot() as exported:
                yield from self.read_all(table, exported.id)
        else:
            rows = self.source.read_all(self.tree(table).root.schema, snapshot)
            yield from (each.documents for each in self._built(table, snapshot, rows) if isinstance(each, Built))

    def _built(self, table: TableSchema, snapshot: str, roots: Iterable[Rows]) -> Iterator[Built | Refused]:
        tree = self.tree(table)
        with self.source.reader(snapshot) as read:
            for rows in roots:
                assert isinstance(rows, pa.RecordBatch)
                for first in range(0, rows.num_rows, BUILD_KEYS):
                    yield from build_apart(tree, rows.slice(first, BUILD_KEYS), read, are_rows=True)

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The present documents that have these ids; by their `key` where that is told, for not every id says it.

        Raises ValueRefused if one of them can not be built.
        """
        tree = self.tree(table)
        is_told = "key" in keys.schema.names
        wanted = unlisted(keys.column("key"), tree.key) if is_told else parsed(keys.column("id"), tree.key)
        with self.source.export_snapshot() as snapshot, self.source.reader(snapshot.id) as read:
            return build(tree, wanted, read).documents


def documented(source: Source, sink: Documents) -> Source:
    """The source as a sink of documents sees it."""
    return cast(Source, DocumentedSource(source, sink))


def _tables(document: Document) -> set[str]:
    return {table for _, table in tables_of(document)}


def _described(name: str, document: Document | None, present: Mapping[str, TableFacts], server: str) -> Described:
    if document is None:
        trouble = f"several documents want to be called {name}: give tables other names in the sink's `tables`"
        return Described(_facts(virtual_schema(name, "", ""), (), server, trouble), ())
    parts = tuple(present[table] for table in sorted(_tables(document)) if table in present)
    trouble = "; ".join(f"{part.schema.table}: {part.trouble}" for part in parts if part.trouble)
    try:
        schemas = {part.schema.table: part.schema for part in parts}
        tree = tree_of(name, document, schemas)
        made = msgspec.json.encode(mapping_of(document, schemas)).decode()
    except ConfigError as error:
        words = f"{error}; {error.hint}" if error.hint else str(error)
        return Described(_facts(virtual_schema(name, "", ""), parts, server, words), parts)
    schema = virtual_schema(name, made, _digest(document, tree, schemas, made))
    return Described(_facts(schema, parts, server, trouble), parts, tree)


def _facts(schema: TableSchema, parts: tuple[TableFacts, ...], server: str, trouble: str) -> TableFacts:
    """A server that took over from another may lack what documents were built of: its lineage is part of membership."""
    membership = hashlib.sha256(
        msgspec.json.encode([server, [[part.schema.table, part.schema.relation, part.membership] for part in parts]])
    ).hexdigest()
    remarks = "; ".join(f"{part.schema.table}: {part.remark}" for part in parts if part.remark)
    stored = merged({part.schema.table: part.stored for part in parts})
    return TableFacts(schema, membership, stored, sum(part.bytes for part in parts), trouble, remarks)


def virtual_schema(name: str, mapping: str, digest: str) -> TableSchema:
    made = ColumnType(Kind.JSON, "json", labels=(mapping, digest))
    columns = (Column("id", _TEXT, 1), Column("document", made, 2), Column("rows", _TEXTS, 3), Column("key", _TEXTS, 4))
    return TableSchema(SCHEMA, name, columns, ("id",), relation=zlib.crc32(name.encode()) | 1)


def digest_of(schema: TableSchema) -> str:
    """The version of a document."""
    labels = next(column.type.labels for column in schema.columns if column.name == "document")
    return labels[1] if len(labels) > 1 else ""


def _digest(document: Document, tree: Tree, schemas: Mapping[str, TableSchema], mapping: str) -> str:
    used = [
        [table, schemas[table].key, [c for c in schemas[table].columns if c.name in tree.columns_used(table)]]
        for table in sorted(tree.tables)
    ]
    return hashlib.sha256(msgspec.json.encode([document, used, mapping])).hexdigest()
