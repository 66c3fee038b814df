"""Files while they are written: lines of JSON, or columns of Parquet. When one is closed, its bytes are on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from tailrace.codecs.base import Codec, Encoded, Facts
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes, Op
from tailrace.model.event import EventOp
from tailrace.model.shapes import concat_batches

COMPRESSION = "zstd"
_BREAK, _NOTHING = (pa.scalar(each, pa.large_binary()) for each in (b"\n", b""))


class OpenFile(Protocol):
    def write(self, changes: Changes, facts: Facts) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None:
        """It is of no use any more."""


class LinesFile:
    def __init__(self, path: Path, codec: Codec) -> None:
        self._file, self._codec = open(path, "wb"), codec  # noqa: SIM115 - closed by the caller

    def write(self, changes: Changes, facts: Facts) -> None:
        self._file.write(lines_of(self._codec.encode_changes(with_old_rows(changes), facts)))

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


def with_old_rows(changes: Changes) -> Changes:
    """Deletes have an old row: all that was sent of it. A line has no key beside it that would tell which it was."""
    lacks = changes.op == Op.DELETE
    lacks[changes.before_rows] = False
    if not lacks.any():
        return changes
    rows = np.flatnonzero(lacks)
    places = np.concatenate([changes.before_rows, rows])
    order = np.argsort(places)
    before = concat_batches([changes.before, changes.after.take(pa.array(rows))]).take(pa.array(order))
    return replace(changes, before_rows=places[order], before=before)


def lines_of(encoded: Encoded) -> memoryview:
    """The values, a line each. JSON has no line break of its own in it."""
    lines = pc.binary_join_element_wise(encoded.values.cast(pa.large_binary()), _BREAK, _NOTHING)
    ends = np.frombuffer(lines.buffers()[1], np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])]


class ParquetFile:
    """All rows of a file are of one version of a table."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by the caller
        self._writer: parquet.ParquetWriter | None = None

    def write(self, changes: Changes, facts: Facts) -> None:
        rows = rows_of(changes, facts)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._file, rows.schema, compression=COMPRESSION)
        self._writer.write_batch(rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.close()


def rows_of(changes: Changes, facts: Facts) -> pa.RecordBatch:
    """The table's columns, and beside them what flat records of JSON have, and `_before`."""
    own = changes.schema.arrow.names
    try:
        flat = changes.to_arrow()
    except ValueRefused as error:
        error.hint = "use format: jsonl, or read the table without this row, or this column"
        raise
    names = pa.array(facts.ids, pa.string()), pa.array(facts.positions, pa.string())
    ids, positions = (each.take(pa.array(changes.transaction)) for each in names)
    count, are_reads = len(changes), facts.reads is not None
    told = {
        "_op": pa.repeat(str(EventOp.READ), count) if are_reads else flat.column("_op"),
        "_offset": pa.nulls(count, pa.int64()) if are_reads else flat.column("_offset"),
        "_commit_time": flat.column("_commit_time"),
        "_position": positions,
        "_transaction": pa.nulls(count, pa.string()) if are_reads else ids,
        "_number": pa.nulls(count, pa.int64()) if are_reads else pa.array(facts.numbers),
        "_unchanged": flat.column("_unchanged"),
    }
    before = {"_before": flat.column("_before")} if own else {}  # Parquet has no struct of nothing
    columns = {name: flat.column(place) for place, name in enumerate(own)} | told | before
    arrays = [array.cast(nullable(array.type)) for array in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def nullable(type_: pa.DataType) -> pa.DataType:
    """Parquet takes no null for a struct whose fields can not be null: times with a zone, intervals, arrays of them."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_nullable(True).with_type(nullable(field.type)) for field in type_])
    return pa.list_(nullable(type_.value_type)) if pa.types.is_list(type_) else type_
