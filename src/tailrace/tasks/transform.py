"""What a task does for tables with transforms: two halves, with Catalyst between them.

The first half reads, decodes, filters and nets as `stage` does, or reads chunks as `load` does, and hands rows over
(`transforms.wire`). The second half gets them back with what the expressions made of them, and stages or loads them
under the columns that the sink has. Changes are netted before they are transformed: what an expression makes of a row
depends on that row alone, and its key stays, so the last state of a key is the only one to look at.

A row that `where` is not true of is deleted by its key: it may be in the sink from before.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial, drained
from tailrace.errors import about
from tailrace.log.reader import Slice
from tailrace.model import shapes
from tailrace.model.changes import Integers, refuse_extremes
from tailrace.model.schema import TableSchema
from tailrace.model.types import arrow_type
from tailrace.sinks.base import RowSink, Snapshots
from tailrace.sources.base import Source, TableRewritten
from tailrace.tasks.load import ChunkWork, Loaded, load
from tailrace.tasks.outcome import ours
from tailrace.tasks.stage import ApplyPlan, Found, PartResult, nets_of, part_result, runs_of
from tailrace.tasks.versions import as_version
from tailrace.transforms import wire
from tailrace.transforms.completing import completed
from tailrace.transforms.shaping import Shaping
from tailrace.transforms.wire import Begin, End, Piece, Received, Role

LOOK_SECONDS = 0.1


class Unfit(msgspec.Struct, frozen=True):
    """A version of a table came along that none of the shapings is for. Nothing is staged."""

    schema: TableSchema


class _UnfitVersion(Exception):
    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema.table)
        self.schema = schema


# --- changes


def emit_part(plan: ApplyPlan, shapings: Sequence[Shaping], slices: list[Slice]) -> Iterator[pa.RecordBatch]:
    """The first half of staging a part: its net changes. The end says what was found, or what went wrong."""
    form, found = wire.wire_schema(shapings), Found()
    fetch = _fetch_when_shown(plan, slices)
    try:
        for net in nets_of(runs_of(plan, slices, found), found):
            branch = _branch(shapings, net.schema)
            for piece in completed(net, shapings[branch].read_names, fetch):
                yield from _emitted(piece, branch, shapings[branch], form)
        yield from wire.packed(End(value=found), form)
    except _UnfitVersion as error:
        yield from wire.packed(End(value=Unfit(error.schema)), form)
    except Exception as error:
        yield from wire.packed(End(error=ours(error)), form)


def _fetch_when_shown(plan: ApplyPlan, slices: list[Slice]) -> Callable[[TableSchema, pa.RecordBatch], pa.RecordBatch]:
    """Reads rows from the source, once it shows the transactions that a part tells of.

    A commit that waits for a synchronous standby is streamed before anybody sees it.
    """
    shown = [False]

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        while not shown[0]:
            shown[0] = plan.source.is_shown(plan.log.transactions(slices[0].first - 1, slices[-1].last))
            if not shown[0]:
                time.sleep(LOOK_SECONDS)
        with about(schema.table):
            return plan.source.read_rows(schema, keys)

    return fetch


def _branch(shapings: Sequence[Shaping], schema: TableSchema) -> int:
    for branch, shaping in enumerate(shapings):
        if shaping.fits(schema):
            return branch
    raise _UnfitVersion(schema)


def _emitted(net: NetChanges, branch: int, shaping: Shaping, form: pa.Schema) -> Iterator[pa.RecordBatch]:
    """In the order in which net changes are applied: truncate, deletes, upserts, partial rows."""
    schema = net.schema
    is_keyed = bool(schema.key)
    deletes = net.deletes if is_keyed else net.deletes.slice(0, 0)
    if net.truncate or deletes.num_rows:
        begin = Begin(branch=branch, schema=schema, truncate=net.truncate, deletes=wire.to_bytes(deletes))
        yield from wire.packed(begin, form)
    if not is_keyed:
        copies = net.delete_counts
        yield from _rows(net.deletes, branch, shaping, schema, form, role=Role.DELETES, copies=copies)
    yield from _rows(net.upserts, branch, shaping, schema, form, role=Role.UPSERTS)
    for partial in net.partials:
        unchanged = partial.unchanged
        yield from _rows(partial.rows, branch, shaping, schema, form, role=Role.PARTIALS, unchanged=unchanged)


def _rows(
    rows: pa.RecordBatch,
    branch: int,
    shaping: Shaping,
    schema: TableSchema,
    form: pa.Schema,
    *,
    role: Role,
    unchanged: tuple[str, ...] = (),
    copies: Integers | None = None,
) -> Iterator[pa.RecordBatch]:
    names = shaping.carried(schema)
    for first, few in wire.pieces(rows):
        reads = few.select(shaping.read_names)
        with about(schema.table):
            refuse_extremes(reads, schema)
            reads = as_version(reads, shaping.form, schema.table)
        piece = Piece(
            count=few.num_rows,
            branch=branch,
            schema=schema,
            role=role,
            carried=wire.to_bytes(few.select(names)),
            unchanged=unchanged,
            copies=b"" if copies is None else copies[first : first + few.num_rows].tobytes(),
        )
        yield from wire.packed(piece, form, branch, reads)


def stage_emitted(
    plan: ApplyPlan, shapings: Sequence[Shaping], part: int, slices: list[Slice], batches: Iterable[pa.RecordBatch]
) -> PartResult | Unfit:
    """The second half: stage what came through the expressions, under the columns of the sink."""
    assert isinstance(plan.sink, RowSink)
    ends: list[Found] = []
    nets = _nets(shapings, wire.received(batches), ends)
    try:
        first = list(itertools.islice(nets, 1))
        staged = plan.sink.stage(plan.batch, part, drained(first, nets)) if first else None
    except _UnfitVersion as error:
        return Unfit(error.schema)
    return part_result(part, slices, staged, ends[0])


def _nets(shapings: Sequence[Shaping], messages: Iterator[Received], ends: list[Found]) -> Iterator[NetChanges]:
    for message, rows in wire.whole(messages):
        match message:
            case Begin(schema=source, branch=branch, truncate=truncate, deletes=deletes):
                schema = shapings[branch].schema(source)
                keys = wire.from_bytes(deletes) if schema.key else schema.no_rows()
                yield NetChanges(schema, truncate, keys, schema.no_rows())
            case Piece():
                yield _net(shapings[message.branch], message, rows)
            case End(error=Exception() as error):
                raise error
            case End(value=Unfit(schema=unfit)):
                raise _UnfitVersion(unfit)
            case End():
                ends.append(message.value)
                return


def _net(shaping: Shaping, piece: Piece, received: list[pa.RecordBatch]) -> NetChanges:
    """What a piece of rows is to the sink, now that its expressions are known."""
    schema = shaping.schema(piece.schema)
    rows, passes = shaped(shaping, piece, received)
    passing, others = rows.filter(passes), rows.filter(_not(passes))
    nothing = rows.slice(0, 0)
    if piece.role is Role.DELETES:
        copies = np.frombuffer(piece.copies, np.int64)[passes.to_numpy(zero_copy_only=False)]
        return NetChanges(schema, False, passing, nothing, (), copies)
    if not schema.key:
        return NetChanges(schema, False, nothing, passing)
    gone = others.select(list(schema.key_indexes))
    if piece.role is Role.UPSERTS:
        return NetChanges(schema, False, gone, passing)
    carried = set(shaping.carried(piece.schema))
    partial = Partial(tuple(name for name in piece.unchanged if name in carried), passing)
    if not partial.unchanged:
        return NetChanges(schema, False, gone, passing)
    return NetChanges(schema, False, gone, nothing, (partial,) if passing.num_rows else ())


def _not(mask: pa.BooleanArray) -> pa.BooleanArray:
    return pa.array(~mask.to_numpy(zero_copy_only=False))


def shaped(shaping: Shaping, piece: Piece, received: list[pa.RecordBatch]) -> tuple[pa.RecordBatch, pa.BooleanArray]:
    """Rows with the columns of the sink, and which of them pass."""
    schema = shaping.schema(piece.schema)
    passes, *computed = wire.made(received, piece.branch)
    carried = wire.from_bytes(piece.carried)
    columns = dict(zip(carried.schema.names, carried.columns, strict=True))
    for column, array in zip(shaping.computed, computed, strict=True):
        columns[column.name] = array.cast(arrow_type(column.type))
    return schema.rows([columns[column.name] for column in schema.columns]), passes


# --- chunks


def emit_chunks(
    source: Source, shapings: Sequence[Shaping], snapshot: str, group: Sequence[ChunkWork]
) -> Iterator[pa.RecordBatch]:
    """The first half of loading chunks: their rows. The end of each says whether they are all."""
    form = wire.wire_schema(shapings)
    for number, item in enumerate(group):
        try:
            branch = _branch(shapings, item.schema)
            for batch in source.read_chunk(item.schema, item.mark.chunk, snapshot):
                assert isinstance(batch, pa.RecordBatch)
                yield from _rows(batch, branch, shapings[branch], item.schema, form, role=Role.ROWS)
            yield from wire.packed(End(number=number), form)
        except TableRewritten as error:
            yield from wire.packed(End(number=number, error=error), form)
        except Exception as error:
            yield from wire.packed(End(number=number, error=ours(error)), form)


def load_emitted(
    sink: Snapshots, shapings: Sequence[Shaping], group: Sequence[ChunkWork], batches: Iterable[pa.RecordBatch]
) -> list[Loaded]:
    """The second half: load each chunk as it comes; a table that failed once is not tried again."""
    messages = wire.whole(wire.received(batches))
    loaded: list[Loaded] = []
    for item in group:
        chunk = _Chunk(shapings, messages)
        if not any(each.error is not None and each.table == item.schema.table for each in loaded):
            schema = shapings[_branch(shapings, item.schema)].schema(item.schema)
            loaded.append(load(sink, schema, item.mark, chunk.rows))
        chunk.skip()
    return loaded


class _Chunk:
    """The messages of one chunk, up to its end, whoever of sink and source has had enough of it before."""

    def __init__(self, shapings: Sequence[Shaping], messages: Iterator[Received]) -> None:
        self._shapings, self._messages = shapings, messages
        self._is_over = False

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Those that pass."""
        for message, received in self._all():
            if isinstance(message, End):
                if message.error is not None:
                    raise message.error
            else:
                batch, passes = shaped(self._shapings[message.branch], message, received)
                yield batch.filter(passes)

    def skip(self) -> None:
        for _ in self._all():
            pass

    def _all(self) -> Iterator[Received]:
        while not self._is_over:
            message, received = next(self._messages)
            self._is_over = isinstance(message, End)
            yield message, received


# --- rows


def emit_rows(shaping: Shaping, schema: TableSchema, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows that are here already. The end says what went wrong."""
    form = wire.wire_schema([shaping])
    try:
        yield from _rows(rows, 0, shaping, schema, form, role=Role.ROWS)
        yield from wire.packed(End(), form)
    except Exception as error:
        yield from wire.packed(End(error=ours(error)), form)


def take_rows(shaping: Shaping, schema: TableSchema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Those that pass, with the columns of the sink."""
    found = list(_Chunk([shaping], wire.whole(wire.received(batches))).rows())
    columns = zip(*(batch.columns for batch in found), strict=True)
    return shaping.schema(schema).rows([shapes.concat(pieces) for pieces in columns])
