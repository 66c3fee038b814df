"""Bulk requests, made by columns: a document's action and source are two lines of text, joined for all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.characters import data_of
from tailrace.columns.fragments import join, lists, numbers, strings
from tailrace.documents.lists import Integers, Lists
from tailrace.sinks.opensearch.row_numbers import numbers_of

JOINED_BYTES = 128 << 20
"""What is joined at once, at most: memory holds it twice."""
NO_ROW = "32767:"
"""Stands for a row without a name, which no change has."""
NUMBER_BYTES = 20
"""What a row takes in an entry of the memory."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a bulk request's lines: `ids` are the documents, of which each has one text in `lines`.

    Of documents that are written, `keys` are their keys, and `rows` the numbers of those that they were built from.
    """

    ids: pa.StringArray
    lines: pa.StringArray
    version: int
    keys: pa.ListArray | None = None
    rows: Lists | None = None

    @property
    def body(self) -> bytes:
        found: bytes = data_of(self.lines).to_pybytes()
        return found

    def take(self, places: Sequence[int]) -> Piece:
        chosen = pa.array(places, pa.int64())
        return Piece(
            self.ids.take(chosen),
            self.lines.take(chosen),
            self.version,
            None if self.keys is None else self.keys.take(chosen),
            None if self.rows is None else self.rows.take(np.asarray(places, np.int64)),
        )

    def __len__(self) -> int:
        return len(self.ids)


def upserts(rows: pa.RecordBatch, version: int, max_bytes: int) -> Iterator[Piece]:
    """Rows of a virtual table: id, document, rows, key."""
    if rows.nbytes > JOINED_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from upserts(rows.slice(0, half), version, max_bytes)
        yield from upserts(rows.slice(half), version, max_bytes)
        return
    ids, document, remembered, keys = rows.columns
    lines = join([*_action("index", ids, version), _one_line(document), "\n"])
    numbered = _numbered(remembered)
    sizes = _sizes(lines) + NUMBER_BYTES * numbered.lengths
    for first, last in _cuts(sizes, max_bytes):
        part = slice(first, last)
        own = numbered.take(np.arange(first, last))
        yield Piece(ids[part], lines[part], version, keys[part], own)


def deletes(ids: pa.StringArray, version: int, max_bytes: int) -> Iterator[Piece]:
    lines = join(_action("delete", ids, version))
    for first, last in _cuts(_sizes(lines), max_bytes):
        yield Piece(ids[first:last], lines[first:last], version)


def entries(piece: Piece, rows: Lists) -> Piece:
    """Of the memory: for each document its key, and these rows."""
    numbered = pa.ListArray.from_arrays(pa.array(rows.offsets - rows.offsets[0], pa.int32()), pa.array(rows.values))
    lines = join(
        [
            *_action("index", piece.ids, piece.version),
            '{"key":',
            lists(piece.keys, strings),
            ',"rows":',
            lists(numbered, numbers),
            "}\n",
        ]
    )
    return Piece(piece.ids, lines, piece.version)


def _action(name: str, ids: pa.StringArray, version: int) -> list[str | pa.StringArray]:
    return [f'{{"{name}":{{"_id":', strings(ids), f',"version":{version},"version_type":"external_gte"}}}}\n']


def _one_line(document: pa.StringArray) -> pa.StringArray:
    """Outside of strings, the only place where JSON can have them, the ends of lines mean nothing."""
    data = np.frombuffer(data_of(document), np.uint8)
    if not ((data == ord("\n")).any() or (data == ord("\r")).any()):
        return document
    return pc.replace_substring(pc.replace_substring(document, "\n", " "), "\r", " ")


def _numbered(remembered: pa.ListArray) -> Lists:
    offsets = remembered.offsets.to_numpy().astype(np.int64)
    return Lists(offsets - offsets[0], numbers_of(pc.fill_null(remembered.flatten(), NO_ROW)))


def _sizes(lines: pa.StringArray) -> Integers:
    return np.asarray(pc.binary_length(lines).to_numpy(zero_copy_only=False), np.int64)


def _cuts(sizes: Integers, max_bytes: int) -> Iterator[tuple[int, int]]:
    """As many documents as fit into `max_bytes`; one that does not is a piece of its own."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        begin = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, begin + max_bytes, side="right")), first + 1)
        yield first, last
        first = last
