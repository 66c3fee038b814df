"""What a task does for documents: which are touched by changes, and those built anew and written.

Three steps, each a function of its own so that a large batch can have a shuffle between them:

    slices of the log ─▶ touches (node, key) ─▶ resolved: keys of documents ─▶ built under one snapshot, staged

All that is decided about a document is seen under one snapshot of the source, which shows the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.columns.net import NetChanges
from tailrace.documents import keys
from tailrace.documents.apart import Refused, build_apart
from tailrace.documents.build import Built
from tailrace.documents.touch import Remembered, are_known, resolve_all, touches
from tailrace.documents.tree import Tree
from tailrace.errors import SinkChanged, SinkTaken, SourceUnavailable, StateError, TailraceError
from tailrace.log.reader import LogReader, Slice
from tailrace.log.segment import SegmentName
from tailrace.model.changes import Changes
from tailrace.model.frames import Frames
from tailrace.model.names import parse_table
from tailrace.model.rows import ReadRows
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Documents, Receipt, RowSink
from tailrace.sources.base import Source, TableLocked, TableRewritten
from tailrace.tasks.documented import BUILD_KEYS
from tailrace.tasks.stage import Found, PartResult, TablePlan, last_end, part_result

MANY_DOCUMENTS = 50_000
"""More than one task should build."""


class _TooMany(Exception):
    """A batch of few changes touches many documents: a row that all of them show."""


class DocumentSink(RowSink, Documents, Protocol):
    """What a sink of documents is to a task."""


class DocumentPlan(msgspec.Struct, frozen=True):
    """One document: its version, and which changes of its tables touch it (as TablePlan says)."""

    schema: TableSchema
    tree: Tree
    own: TablePlan


class BuildPlan(msgspec.Struct, frozen=True):
    """All that tasks need. `source` is the one of the tables, and `snapshot` what documents are built under."""

    source: Source
    sink: DocumentSink
    log: LogReader
    batch: str
    documents: dict[str, DocumentPlan]
    snapshot: str

    def without(self, names: Iterable[str]) -> BuildPlan:
        left = {name: each for name, each in self.documents.items() if name not in set(names)}
        return msgspec.structs.replace(self, documents=left)


# --- the first step: what is touched


def touched(plan: BuildPlan, slices: list[Slice], found: Found) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Touches by document, in bounded batches; the same may come again. `found` is whole at the end."""
    for piece in slices:
        yield from _touches_in(plan, piece, found)


def _touches_in(plan: BuildPlan, piece: Slice, found: Found) -> Iterator[tuple[str, pa.RecordBatch]]:
    name = SegmentName.parse(piece.name)
    assert name is not None
    header, frames = plan.log.read(name)
    found.relations.update(relation for each in frames.definitions for relation in (each.relation, each.root))
    if (end := last_end(frames.transactions, piece.last)) is not None:
        found.position, found.source = plan.source.end_positions(end)[0], header.source
    _find_leaves(plan, frames, piece, found)
    nodes = [node for each in plan.documents.values() for node in each.tree.nodes]
    relations = {node.schema.relation for node in nodes if node.schema.relation}
    names = {d.schema.table for d in frames.definitions if d.relation in relations} & frames.tables.keys()
    names |= {node.schema.table for node in nodes} & frames.tables.keys()
    for changes in plan.source.decode(frames, piece.first, piece.last, names) if names else ():
        for document, each in plan.documents.items():
            yield from _touches_of(plan, document, each, changes, found)


def _touches_of(
    plan: BuildPlan, name: str, document: DocumentPlan, changes: Changes, found: Found
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Of a table that has, or had, another name by now the number tells which it is.

    Of a column no change tells that much: a document is built anew where one had another name for a time.
    """
    table = _table_in(document.tree, changes.schema)
    if table is None:
        return
    mask = changes.offset > document.own.after
    if document.own.visibility:
        mask &= plan.source.unseen(changes, document.own.visibility)
    if not mask.any():
        return
    changes = _named(changes.keep(mask), table)
    if not are_known(document.tree, changes.schema):
        found.strayed.add(name)
        return
    with _own_trouble(name):
        yield name, touches(document.tree, changes)


def _named(changes: Changes, table: str) -> Changes:
    """Under the name by which the description knows the table."""
    if changes.schema.table == table:
        return changes
    schema, name = parse_table(table) or ("", table)
    return dataclasses.replace(changes, schema=msgspec.structs.replace(changes.schema, schema=schema, name=name))


def _table_in(tree: Tree, schema: TableSchema) -> str | None:
    for known in (node.schema for node in tree.nodes):
        if schema.relation and known.relation == schema.relation:
            return known.table
    return schema.table if schema.table in tree.tables else None


def _find_leaves(plan: BuildPlan, frames: Frames, piece: Slice, found: Found) -> None:
    """The parts of tables that are described in a slice, by a transaction whose changes are wanted."""
    begins = frames.transactions.column("begin").to_numpy()
    for leaf in (d for d in frames.definitions if d.root and piece.first <= d.since <= piece.last):
        transaction = frames.transactions.slice(int(np.searchsorted(begins, leaf.since, side="right")) - 1, 1)
        for name, document in plan.documents.items():
            own = document.own
            if leaf.root not in {node.schema.relation for node in document.tree.nodes}:
                continue
            if leaf.since > own.after and not (
                own.visibility and plan.source.seen(transaction, own.visibility)[0].as_py()
            ):
                found.leaves.setdefault(name, set()).add(leaf.relation)


# --- the second step: whose touches these are


def resolved(plan: BuildPlan, name: str, batch: pa.RecordBatch, read: ReadRows) -> Iterator[pa.RecordBatch]:
    """The keys of the documents that touches concern, in bounded batches; a key may come again."""
    document = plan.documents[name]
    with _own_trouble(name):
        remembered: Remembered = plan.sink.remembered(document.schema)
        yield from resolve_all(document.tree, batch, read, remembered)


# --- the third step: built and written


def built(plan: BuildPlan, name: str, wanted: Iterable[pa.RecordBatch], read: ReadRows) -> Iterator[NetChanges]:
    document = plan.documents[name]
    for batch in wanted:
        for first in range(0, batch.num_rows, BUILD_KEYS):
            with _own_trouble(name):
                made = list(build_apart(document.tree, batch.slice(first, BUILD_KEYS), read))
                plan.sink.set_aside(document.schema, [each for each in made if isinstance(each, Refused)])
            for each in (each for each in made if isinstance(each, Built)):
                deletes = pa.RecordBatch.from_arrays([each.absent], ["id"])
                yield NetChanges(document.schema, False, deletes, each.documents)


@contextmanager
def _own_trouble(name: str) -> Iterator[None]:
    """What is refused inside is this document's trouble, and so is a table that is locked.

    A rewritten table shows itself to a later snapshot.
    """
    try:
        yield
    except TableRewritten as error:
        raise SourceUnavailable(f"a table of {name} was rewritten while it was read") from error
    except TableLocked as error:
        error.table = name
        raise
    except TailraceError as error:
        if not error.retry and not isinstance(error, SinkTaken | SinkChanged | StateError):
            error.table = name
        raise


# --- all three for a small batch, in one task


def apply_small(plan: BuildPlan, slices: list[Slice]) -> PartResult | None:
    """The whole of a small batch; None where it touches more than one task should build."""
    found, held = Found(), dict[str, list[pa.RecordBatch]]()
    for name, batch in touched(plan, slices, found):
        if batch.column("key").null_count:
            return None
        held.setdefault(name, []).append(batch)
    try:
        return part_result(0, slices, _written(plan, held), found)
    except _TooMany:
        return None


def _written(plan: BuildPlan, held: dict[str, list[pa.RecordBatch]]) -> Receipt | None:
    if not held:
        return None
    with plan.source.reader(plan.snapshot) as read:
        nets = (net for name, batches in held.items() for net in _rebuilt(plan, name, batches, read))
        return plan.sink.stage(plan.batch, 0, nets)


def _rebuilt(plan: BuildPlan, name: str, batches: list[pa.RecordBatch], read: ReadRows) -> Iterator[NetChanges]:
    """Each document once."""
    found: list[pa.RecordBatch] = []
    for some in resolved(plan, name, pa.concat_batches(batches), read):
        found.append(some)
        if sum(each.num_rows for each in found) > MANY_DOCUMENTS:
            raise _TooMany
    if found:
        yield from built(plan, name, [keys.distinct(pa.concat_batches(found))], read)
