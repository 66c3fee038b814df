"""How rows travel through Catalyst: only the columns that expressions read are Spark's, all others ride along as bytes.

So a value that no expression reads arrives exactly as it was, whatever Spark's types can hold. A batch on the wire has
the columns NOTE (a message, in the first row that it is about), BRANCH (whose rows these are) and, for each branch, a
struct of what its expressions read; on the way back a struct of what they made. Spark keeps the order of a task's rows
where there is nothing but projections, so a message and its rows stay together.

A stream that just ends was broken off: Arrow does not tell that from a whole one, so the last message says it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.errors import EngineDisturbed
from tailrace.model.schema import TableSchema
from tailrace.transforms.shaping import RESERVED, Shaping

NOTE, BRANCH = f"{RESERVED}_note", f"{RESERVED}_branch"
PASSES = "passes"
PIECE_ROWS = 8192
PIECE_BYTES = 4 << 20
"""Rows that travel together, and the most of what rides along with them in one value: the JVM has a small heap."""

_MORE, _LAST = b"+", b"."
"""How a row's part of a message begins."""

T = TypeVar("T")


def read_by(branch: int) -> str:
    """The column of what a branch's expressions read."""
    return f"{RESERVED}_read_{branch}"


def made_by(branch: int) -> str:
    """The column of what a branch's expressions made."""
    return f"{RESERVED}_made_{branch}"


def field(place: int) -> str:
    """Of such a struct. Names of columns may differ in nothing but their case, which Spark does not see."""
    return f"c{place}"


class Role(StrEnum):
    """What rows are in their net changes, or that they are a chunk's."""

    ROWS = "rows"
    UPSERTS = "upserts"
    PARTIALS = "partials"
    DELETES = "deletes"  # whole rows, of a table without a key


class Message(msgspec.Struct, frozen=True, tag=True):
    """What is said of the `count` rows that it comes with."""

    count: int = 0


class Begin(Message, frozen=True, kw_only=True):
    """The part of net changes that needs no expression. `deletes` are keys."""

    branch: int
    schema: TableSchema
    truncate: bool
    deletes: bytes


class Piece(Message, frozen=True, kw_only=True):
    """Some rows; `carried` are the columns that pass as they are. Each of DELETES stands for `copies` (int64)."""

    branch: int
    schema: TableSchema
    role: Role
    carried: bytes
    unchanged: tuple[str, ...] = ()
    copies: bytes = b""


class End(Message, frozen=True, kw_only=True):
    """Of a part, or of the chunk that has this number in its group. With an `error` it was broken off."""

    number: int = 0
    value: Any = None
    error: Exception | None = None


Received = tuple[Any, list[pa.RecordBatch]]
"""A message, and the rows that it came with."""


def wire_schema(shapings: Sequence[Shaping]) -> pa.Schema:
    structs = [pa.field(read_by(place), _struct(shaping)) for place, shaping in enumerate(shapings)]
    return pa.schema([pa.field(NOTE, pa.binary()), pa.field(BRANCH, pa.int32()), *structs])


def _struct(shaping: Shaping) -> pa.DataType:
    """Where nothing is read there is a field of nothing: Arrow and Spark do not agree about structs without any."""
    types = [read.type for read in shaping.form] or [pa.bool_()]
    return pa.struct([pa.field(field(place), type_) for place, type_ in enumerate(types)])


def packed(
    message: Message, wire: pa.Schema, branch: int = -1, reads: pa.RecordBatch | None = None
) -> Iterator[pa.RecordBatch]:
    """A message with the rows of its branch, or alone in a row of its own. A long one is told in several rows."""
    data = memoryview(pickle.dumps(message, 5))
    while len(data) > PIECE_BYTES:
        yield _row(wire, _MORE + data[:PIECE_BYTES])
        data = data[PIECE_BYTES:]
    if not message.count:
        yield _row(wire, _LAST + data)
        return
    assert reads is not None
    note = pa.array([_LAST + data], pa.binary())
    columns: list[pa.Array] = [
        note if message.count == 1 else pa.concat_arrays([note, pa.nulls(message.count - 1, pa.binary())]),
        pa.array(np.full(message.count, branch, np.int32)),
    ]
    for place, column in enumerate(list(wire)[2:]):
        own = _as_struct(reads, column.type, message.count) if place == branch else None
        columns.append(pa.nulls(message.count, column.type) if own is None else own)
    yield pa.RecordBatch.from_arrays(columns, schema=wire)


def _row(wire: pa.Schema, note: bytes) -> pa.RecordBatch:
    """A row that is nobody's."""
    structs = [pa.nulls(1, column.type) for column in list(wire)[2:]]
    return pa.RecordBatch.from_arrays([pa.array([note]), pa.array([-1], pa.int32()), *structs], schema=wire)


def _as_struct(reads: pa.RecordBatch, type_: pa.DataType, count: int) -> pa.StructArray:
    return pa.StructArray.from_arrays(reads.columns or [pa.nulls(count, pa.bool_())], fields=list(type_))


def received(batches: Iterable[pa.RecordBatch]) -> Iterator[Received]:
    """The messages as they were packed, each once all of its rows are there."""
    message: Message | None = None
    rows: list[pa.RecordBatch] = []
    told: list[bytes] = []
    for batch in batches:
        notes = batch.column(NOTE)
        starts = np.flatnonzero(notes.is_valid().to_numpy(zero_copy_only=False)).tolist()
        for first, last in pairwise(sorted({0, *starts, batch.num_rows})):
            if notes[first].is_valid:
                note = notes[first].as_py()
                told.append(note[1:])
                if note[:1] == _MORE:
                    continue
                message, rows, told = pickle.loads(b"".join(told)), [], []
            assert message is not None
            rows += [batch.slice(first, last - first)] if message.count else []
            if sum(piece.num_rows for piece in rows) == message.count:
                yield message, rows


def whole(messages: Iterable[T]) -> Iterator[T]:
    """All of them; a stream that ends too early is no end."""
    yield from messages
    raise EngineDisturbed("the rows of a task with transforms were broken off")


def made(rows: list[pa.RecordBatch], branch: int) -> list[pa.Array]:
    """What a branch's expressions made of rows: whether they pass, then its computed columns."""
    structs = [batch.column(made_by(branch)) for batch in rows]
    return list((structs[0] if len(structs) == 1 else pa.concat_arrays(structs)).flatten())


def to_bytes(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()


def pieces(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows in pieces that may travel together, each with the place of its first row."""
    step = max(min(PIECE_ROWS, rows.num_rows * PIECE_BYTES // (int(rows.nbytes) + 1)), 1)
    for first in range(0, rows.num_rows, step):
        yield first, rows.slice(first, step)
