"""What a task does with its part of a micro-batch: read, decode, filter, net, stage."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.columns.net import NetChanges, drained, net_changes
from tailrace.errors import TailraceError
from tailrace.log.reader import LogReader, Slice
from tailrace.log.segment import SegmentName
from tailrace.model.changes import Changes, Op, Origins
from tailrace.model.frames import Frames
from tailrace.model.names import parse_table
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import SourceIdentity
from tailrace.sinks.base import ChangeSink, Numbered, Receipt, RowSink, Sink
from tailrace.sources.base import Source
from tailrace.tasks.ends import TransactionEnds
from tailrace.tasks.numbering import TableNumbers

RUN_ROWS = 65_536
RUN_BYTES = 32 << 20
"""A run ends where it has so many rows or would be larger than this; a larger row is a run of its own. One that is half
as large does not wait for more: it would be held while the next segment is read and decoded."""


class TablePlan(msgspec.Struct, frozen=True):
    """Which changes of a table to apply: those after `after` that the snapshot `visibility` (if any) has not seen.

    Changes of the same `relation` under another name are the table's own: it had that name before, or has it by now.
    With `late` they catch up with a copy, and are told apart from what else their transactions changed.
    """

    after: int = 0
    visibility: str = ""
    relation: int = 0
    late: bool = False


class ApplyPlan(msgspec.Struct, frozen=True):
    """All that tasks need. It travels with the job, so it holds settings and no connections."""

    source: Source
    sink: Sink
    log: LogReader
    batch: str
    tables: dict[str, TablePlan]


class PartResult(msgspec.Struct, frozen=True):
    """A task's receipt. `position` and `source` are those of the last transaction end in its slices.

    Of a table in `failed` nothing is staged. One that is `strayed` was changed under another name than its own, or a
    document's table while a column of it had another name.
    `leaves` are the parts of tables that changes went through, as far as they are described here. `relations` are all
    that changed, whatever their names: a table may have had that of another for a time.
    """

    part: int
    last: int
    staged: Receipt | None
    position: str
    source: SourceIdentity | None
    seen: dict[str, int]  # changes a table, whether applied or not
    schemas: dict[str, list[TableSchema]]  # the versions that were staged, in order
    truncated: frozenset[str] = frozenset()
    strayed: frozenset[str] = frozenset()
    leaves: dict[str, set[int]] = {}
    failed: dict[str, TailraceError] = {}
    relations: frozenset[int] = frozenset()


class Found(msgspec.Struct):
    """What a task comes across besides the changes themselves."""

    seen: dict[str, int] = {}
    schemas: dict[str, list[TableSchema]] = {}
    truncated: set[str] = set()
    strayed: set[str] = set()
    leaves: dict[str, set[int]] = {}
    relations: set[int] = set()
    position: str = ""  # of the last transaction end
    source: SourceIdentity | None = None  # whom that was read from
    numbers: TableNumbers | None = None  # where the sink wants to know them
    ends: TransactionEnds | None = None


def stage_part(plan: ApplyPlan, part: int, slices: list[Slice]) -> PartResult:
    """Stage all tables but those that can not be; what a table's trouble has broken off is begun again without it."""
    failed: dict[str, TailraceError] = {}
    while True:
        tables = {name: table for name, table in plan.tables.items() if name not in failed}
        try:
            result = _stage(msgspec.structs.replace(plan, tables=tables), part, slices)
        except TailraceError as error:
            if error.retry or error.table is None or error.table not in tables:
                raise
            failed[error.table] = error
        else:
            return msgspec.structs.replace(result, failed=failed)


def _stage(plan: ApplyPlan, part: int, slices: list[Slice]) -> PartResult:
    found = Found(numbers=_numbers(plan, slices))
    staged = _staged(plan, part, runs_of(plan, slices, found), found)
    return part_result(part, slices, staged, found)


def _numbers(plan: ApplyPlan, slices: list[Slice]) -> TableNumbers | None:
    wants = isinstance(plan.sink, Numbered) and plan.sink.wants_table_numbers
    return TableNumbers(plan.source, plan.log, slices[0].first) if wants else None


def part_result(part: int, slices: list[Slice], staged: Receipt | None, found: Found) -> PartResult:
    return PartResult(
        part=part,
        last=slices[-1].last,
        staged=staged,
        position=found.position,
        source=found.source,
        seen=found.seen,
        schemas=found.schemas,
        truncated=frozenset(found.truncated),
        strayed=frozenset(found.strayed),
        leaves=found.leaves,
        relations=frozenset(found.relations),
    )


def _staged(plan: ApplyPlan, part: int, runs: Iterator[list[Changes]], found: Found) -> Receipt | None:
    """What the sink takes of the changes, if there are any."""
    match plan.sink:
        case RowSink():
            nets = nets_of(runs, found)
            first = list(itertools.islice(nets, 1))
            return plan.sink.stage(plan.batch, part, drained(first, nets)) if first else None
        case ChangeSink():
            changes = _each(runs, found)
            begin = list(itertools.islice(changes, 1))
            return plan.sink.stage_changes(plan.batch, part, drained(begin, changes)) if begin else None
        case _:
            raise TypeError(f"sink {plan.sink.name} takes neither rows nor changes")


def nets_of(runs: Iterator[list[Changes]], found: Found) -> Iterator[NetChanges]:
    for run in runs:
        nets = net_changes(run)
        del run  # what is given out must not be held while the next is read
        while nets:
            if nets[0].truncate:
                found.truncated.add(nets[0].schema.table)
            yield nets.pop(0)


def _each(runs: Iterator[list[Changes]], found: Found) -> Iterator[Changes]:
    for run in runs:
        while run:
            if (run[0].op == Op.TRUNCATE).any():
                found.truncated.add(run[0].schema.table)
            yield run.pop(0)


def runs_of(plan: ApplyPlan, slices: list[Slice], found: Found) -> Iterator[list[Changes]]:
    """The wanted changes in runs of bounded length, so that memory stays flat whatever the size of a transaction.

    A run is of one version of one table.

    Small slices share a run: what a run costs is mostly per run and table, not per change.
    """
    runs: dict[str, list[list[Changes]]] = {}
    rows = size = 0
    for piece in slices:
        for changes in _changes_in(plan, piece, found):
            if size + changes.nbytes > RUN_BYTES:
                yield from _taken_of_much(runs, found)
                rows = size = 0
            _add(runs.setdefault(changes.schema.table, []), changes)
            rows, size = rows + len(changes), size + changes.nbytes
            del changes  # what is staged must not be held while the next is read
            if size > RUN_BYTES // 2:
                yield from _taken_of_much(runs, found)
                rows = size = 0
        if rows >= RUN_ROWS:
            yield from _taken(runs, found)
            rows = size = 0
    yield from _taken(runs, found)


def _changes_in(plan: ApplyPlan, piece: Slice, found: Found) -> Iterator[Changes]:
    """The wanted changes of one slice."""
    name = SegmentName.parse(piece.name)
    assert name is not None
    header, frames = plan.log.read(name)  # it may have been merged with others since it was planned
    for table, count in header.tables.items():
        found.seen[table] = found.seen.get(table, 0) + count
    found.relations.update(relation for each in frames.definitions for relation in (each.relation, each.root))
    if (end := last_end(frames.transactions, piece.last)) is not None:
        found.position, found.source = plan.source.end_positions(end)[0], header.source
    yield from filter(len, map(functools.partial(_filter, plan), _decoded(plan, frames, piece, found)))


def _decoded(plan: ApplyPlan, frames: Frames, piece: Slice, found: Found) -> Iterator[Changes]:
    """The changes of the plan's tables, each under the name that the plan has for it."""
    relations = {table.relation: name for name, table in plan.tables.items() if table.relation}
    own = {d.schema.table: relations[d.relation] for d in frames.definitions if d.relation in relations}
    _find_leaves(plan, frames, piece, relations, found)
    names = own.keys() | (plan.tables.keys() & frames.tables.keys())
    origins = _origins(plan, frames, found) if names and isinstance(plan.sink, ChangeSink) else None
    try:
        for changes in plan.source.decode(frames, piece.first, piece.last, names) if names else ():
            if origins is not None:
                own_numbers = None if found.numbers is None else found.numbers.of(changes, origins)
                changes = dataclasses.replace(changes, origins=origins, table_number=own_numbers)
            yield from _named(plan, changes, relations.get(changes.schema.relation), found)
    except TailraceError as error:
        error.table = error.table if error.table in plan.tables else own.get(error.table or "", error.table)
        raise


def _origins(plan: ApplyPlan, frames: Frames, found: Found) -> Origins:
    if found.ends is None:
        found.ends = TransactionEnds(plan.log)
    told = found.ends.whole(frames)
    return Origins(plan.source.transaction_ids(told), plan.source.end_positions(told), told.column("begin").to_numpy())


def _find_leaves(plan: ApplyPlan, frames: Frames, piece: Slice, relations: dict[int, str], found: Found) -> None:
    """The parts of tables that are described in a slice, by a transaction whose changes are wanted."""
    begins = frames.transactions.column("begin").to_numpy()
    for leaf in (d for d in frames.definitions if d.root in relations and piece.first <= d.since <= piece.last):
        own = plan.tables[relations[leaf.root]]
        transaction = frames.transactions.slice(int(np.searchsorted(begins, leaf.since, side="right")) - 1, 1)
        if leaf.since > own.after and not (own.visibility and plan.source.seen(transaction, own.visibility)[0].as_py()):
            found.leaves.setdefault(relations[leaf.root], set()).add(leaf.relation)


def _named(plan: ApplyPlan, changes: Changes, own: str | None, found: Found) -> Iterator[Changes]:
    """Changes that came under another name than their table's `own` are applied if the name is one to be captured.

    If it is not, or if it is that of another table, they are not: the table has then `strayed`.
    """
    table, is_known = changes.schema.table, changes.schema.table in plan.tables
    if own in (None, table):
        yield from [changes] if is_known else []
    elif not is_known and plan.source.captures(changes.schema):
        yield _under(changes, str(own))
    else:
        if _is_wanted(plan, plan.tables[str(own)], changes).any():
            found.strayed.add(str(own))
        yield from [changes] if is_known else []


def _under(changes: Changes, table: str) -> Changes:
    named = parse_table(table)
    assert named is not None
    schema, name = named
    return dataclasses.replace(changes, schema=msgspec.structs.replace(changes.schema, schema=schema, name=name))


def _taken_of_much(runs: dict[str, list[list[Changes]]], found: Found) -> Iterator[list[Changes]]:
    """Large runs, whose memory Arrow's allocator would keep for the next one."""
    yield from _taken(runs, found)
    pa.default_memory_pool().release_unused()


def _taken(runs: dict[str, list[list[Changes]]], found: Found) -> Iterator[list[Changes]]:
    """The runs are taken out, so that nobody holds what is done with."""
    while runs:
        table, own = next(iter(runs.items()))
        del runs[table]
        versions = found.schemas.setdefault(table, [])
        while own:
            run = own.pop(0)
            if versions[-1:] != [run[0].schema]:
                versions.append(run[0].schema)
            yield run


def _add(runs: list[list[Changes]], changes: Changes) -> None:
    """A run holds one version; a version that comes back after another begins a run of its own."""
    if not runs or runs[-1][0].schema != changes.schema:
        runs.append([])
    runs[-1].append(changes)


def last_end(transactions: pa.RecordBatch, last: int) -> pa.RecordBatch | None:
    """The last transaction that ends at or before `last`."""
    ends = transactions.column("end").to_numpy()
    found = np.flatnonzero((ends > 0) & (ends <= last))
    return transactions.slice(int(found[-1]), 1) if len(found) else None


def _filter(plan: ApplyPlan, changes: Changes) -> Changes:
    own = plan.tables[changes.schema.table]
    if own.late and changes.origins is not None:
        changes = dataclasses.replace(changes, origins=dataclasses.replace(changes.origins, late=True))
    return changes.keep(_is_wanted(plan, own, changes))


def _is_wanted(plan: ApplyPlan, own: TablePlan, changes: Changes) -> npt.NDArray[np.bool_]:
    mask = changes.offset > own.after
    if own.visibility:
        mask &= plan.source.unseen(changes, own.visibility)
    return mask
