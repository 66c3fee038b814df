"""Large rows on their way out of the source and into a sink: one at a time, in pieces, and the same as small ones."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from tailrace.errors import SinkRejected
from tailrace.model.types import ColumnType, Kind, arrow_type
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql import chunks, sessions, table_merge
from tailrace.sinks.sql.dialect import Field
from tailrace.sinks.sql.mysql import encoding as mysql_text
from tailrace.sinks.sql.postgres import encoding as postgres_binary
from tailrace.sinks.sql.quarantine import sieve as sieve_module
from tailrace.sinks.sql.quarantine.isolation import Isolation
from tailrace.sinks.sql.quarantine.sieve import Sieve
from tailrace.sinks.sql.sessions import in_pieces
from tailrace.sinks.sql.table_merge import TableMerge
from tailrace.sources.postgres import copy_stream as copying
from tailrace.sources.postgres.copy_stream import CopiedRows, together
from tailrace.testing.sink_changes import ITEMS, table_of

# --- out of the source ----------------------------------------------------------------------------------------------


def copy_stream(rows: list[bytes]) -> bytes:
    """What a server sends for COPY (FORMAT binary) of rows of one column."""
    header = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    tuples = [struct.pack(">hi", 1, len(row)) + row for row in rows]
    first = [header + tuples[0], *tuples[1:]] if tuples else [header]
    messages = [*(b"d" + struct.pack(">I", len(t) + 4) + t for t in [*first, b"\xff\xff"]), b"c\0\0\0\4", b"Z\0\0\0\5I"]
    return b"".join(messages)


def received(stream: bytes, step: int) -> Iterator[CopiedRows]:
    ours, theirs = socket.socketpair()
    sender = threading.Thread(
        target=lambda: [theirs.sendall(stream[i : i + step]) for i in range(0, len(stream), step)]
    )
    sender.start()
    with ours, theirs:
        splitter = copying._Splitter(1)
        while not splitter.is_ready:
            yield from splitter.split(*copying._filled(ours, splitter))
        sender.join()


@pytest.mark.parametrize("step", [7, 1000, 1 << 20])
def test_rows_of_all_sizes_are_found_whole_and_a_large_one_comes_alone(step, monkeypatch):
    monkeypatch.setattr(copying, "BLOCK", 4096)
    chance = random.Random(7)
    sizes = [10, 0, 30_000, 5, 5000, 4090, 4096, 4082, 9999, 12, 1, 20_000, 20_000, 3]
    rows = [chance.randbytes(size) for size in sizes]
    found, blocks = [], []
    for copied in received(copy_stream(rows), step):
        blocks.append(len(copied.buffer))
        found += [copied.buffer[a + 6 : b].tobytes() for a, b in zip(copied.starts, copied.ends, strict=True)]
        data = together(copied).to_pybytes()
        assert data == b"".join(copied.buffer[a:b].tobytes() for a, b in zip(copied.starts, copied.ends, strict=True))
    assert found == rows
    assert max(blocks) < 30_000 + 100
    assert blocks[-1] < 4096 + 100  # large blocks do not stay


# --- into the sink --------------------------------------------------------------------------------------------------

ONE_ROW = {
    ColumnType(Kind.INT64, "bigint"): 5,
    ColumnType(Kind.TEXT, "text"): "a\tb\\c\nd" * 50,
    ColumnType(Kind.BYTES, "bytea"): bytes(range(256)) * 10,
    ColumnType(Kind.JSON, "jsonb"): '{"a": "\\n"}',
    ColumnType(Kind.BOOLEAN, "boolean"): True,
    ColumnType(Kind.FLOAT64, "double precision"): None,
    ColumnType(Kind.TEXT, "character varying"): None,
    ColumnType(Kind.JSON, "json"): "",
    ColumnType(Kind.ARRAY, "text[]", element=ColumnType(Kind.TEXT, "text")): ["x\ty", None],
}


def columns(place: int = 0) -> list[tuple[ColumnType, pa.Array]]:
    """One row, cut out of several."""
    arrays = [(type_, pa.array([value] * 3, arrow_type(type_))) for type_, value in ONE_ROW.items()]
    return [(type_, array.slice(place, 1)) for type_, array in arrays]


@pytest.mark.parametrize("place", [0, 2])
def test_a_large_row_for_postgresql_is_the_same_in_pieces(place):
    pieces = b"".join(map(bytes, postgres_binary.large_row(columns(place))))
    assert pieces == postgres_binary.copy_rows(columns(place)).to_pybytes()


@pytest.mark.parametrize("place", [0, 2])
def test_a_large_row_for_mysql_is_the_same_in_pieces(place, monkeypatch):
    monkeypatch.setattr(mysql_text, "PIECE_BYTES", 100)
    fields = [Field("t.c", type_, array) for type_, array in columns(place)]
    pieces = list(mysql_text.large_row_text(fields))
    assert b"".join(pieces) == mysql_text.rows_text(fields).to_pybytes()
    assert max(map(len, pieces)) <= 200


def test_what_is_kept_of_a_large_piece_goes_to_a_file_at_once(monkeypatch):
    monkeypatch.setattr(chunks, "SPOOL_BYTES", 100)
    with chunks.tempfile.SpooledTemporaryFile(100) as spool:
        kept = chunks._kept([b"a" * 60, b"b" * 500, b"c" * 10], spool)
        assert (next(kept), spool._rolled) == (b"a" * 60, False)
        assert (next(kept), spool._rolled) == (b"b" * 500, True)
        assert next(kept) == b"c" * 10
        spool.seek(0)
        assert spool.read() == b"a" * 60 + b"b" * 500 + b"c" * 10


class Source:
    """Remembers how many rows were asked for together; each has a value of `size`."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, []

    def fetch(self, schema, keys: pa.RecordBatch) -> pa.RecordBatch:
        self.asked.append(keys.num_rows)
        return table_of(ITEMS, [(int(row["id"]), "x" * self.size, None) for row in keys.to_pylist()])


@pytest.mark.parametrize(("size", "pieces"), [(1, [64, 236]), (100_000, [64, 9]), (2_000_000, [64, 1])])
def test_rows_that_the_sink_lacks_are_read_from_the_source_by_their_size(size, pieces, monkeypatch):
    monkeypatch.setattr(table_merge, "FETCH_BYTES", 1_000_000)
    source = Source(size)
    mapping = SchemaMapping({}, lambda _: False)
    merge = TableMerge(Isolation(None, None, mapping, is_fatal=True), ITEMS, "items", is_single_key=True)
    found = [row["id"] for rows in merge._fetched([(n,) for n in range(300)], source.fetch) for row in rows.to_pylist()]
    assert found == list(range(300))
    assert source.asked[:2] == pieces


def test_a_table_is_read_in_pieces_by_the_size_of_its_rows(monkeypatch):
    monkeypatch.setattr(sessions, "READ_BYTES", 10_000)
    rows = [(n, "x" * (1000 if n >= 500 else 1)) for n in range(2000)]
    left = iter(rows)
    found = list(in_pieces(lambda count: list(itertools.islice(left, count))))
    assert [row for piece in found for row in piece] == rows
    sizes = [len(piece) for piece in found]
    assert sizes[:3] == [64, 256, 1024]
    assert set(sizes[4:-1]) == {10}


class Picky:
    """An encoding that can not hold any text."""

    def misfits(self, field: Field):
        return (np.ones(len(field.array), np.bool_), "a text") if field.type.kind is Kind.TEXT else None


def test_rows_that_are_set_aside_may_not_be_too_large_together(monkeypatch):
    monkeypatch.setattr(sieve_module, "MOST_REJECTED_BYTES", 10_000)
    sieve = Sieve(Picky())
    sieve.rows(ITEMS, table_of(ITEMS, [(1, "x" * 9000, None)]), "upsert")
    assert len(sieve.rejected) == 1
    with pytest.raises(SinkRejected, match="too large to be set aside"):
        sieve.rows(ITEMS, table_of(ITEMS, [(2, "x" * 9000, None)]), "upsert")
