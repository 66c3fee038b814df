"""Arrow columns as PostgreSQL's binary values, all rows at once: for COPY, and for array parameters.

Each value is its length (four bytes, -1 for NULL) and its bytes as the type's receive function wants them. A column is
a row of pieces: of fixed width (a numpy table of bytes) or not (an Arrow binary array); Arrow's own join puts the
pieces of all rows together without a Python object a row. Protocol pages: "COPY", Binary Format; array_recv.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.columns.characters import Array, data_of, spans
from tailrace.columns.text import to_text
from tailrace.model import extremes
from tailrace.model.rows import POSTGRES_COPY
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Encoding, Field
from tailrace.sinks.sql.postgres import types
from tailrace.sinks.sql.postgres.arrays import array_literals
from tailrace.sinks.sql.postgres.numeric import decimal_pieces, numeric_pieces

Table: TypeAlias = npt.NDArray[np.uint8]
Piece: TypeAlias = Any
"""A table of bytes, one row a value, or an Arrow binary array."""

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_EPOCH_DAYS = 10_957  # 2000-01-01, where PostgreSQL begins to count
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_NULL = -1


class PostgresEncoding(Encoding):
    def encode(self, fields: Sequence[Field]) -> pa.Buffer:
        return copy_rows([_sendable(field) for field in fields])

    def encode_large(self, fields: Sequence[Field]) -> Iterator[bytes | pa.Buffer]:
        return large_row([_sendable(field) for field in fields])

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        return tuple(array_of(types.sent_oid(field.type), *_sendable(field)) for field in fields)

    def literal(self, field: Field) -> str | None:
        _, array = _sendable(field)
        text = array if array.type == pa.string() else to_text(array, field.type)
        return f"{sql.Literal(text[0].as_py()).as_string(None)}::{types.declared(field.type)}"

    def row_form(self, column_types: Iterable[ColumnType]) -> str:
        return POSTGRES_COPY if all(map(types.keeps_form, column_types)) else ""


def _sendable(field: Field) -> tuple[ColumnType, pa.Array]:
    """What has no binary form of ours goes as PostgreSQL's own text."""
    if field.type.element is not None:
        return types.TEXT, array_literals(field.array, field.type)
    return field.type, field.array


def copy_rows(columns: Sequence[tuple[ColumnType, pa.Array]]) -> pa.Buffer:
    """The rows as COPY wants them, without header and trailer."""
    rows = len(columns[0][1])
    count = np.empty((rows, 2), np.uint8)
    count[:] = np.frombuffer(struct.pack(">h", len(columns)), np.uint8)
    pieces: list[Piece] = [count]
    for type_, array in columns:
        pieces += value_pieces(array, type_)
    return _joined(pieces, rows)


def large_row(columns: Sequence[tuple[ColumnType, pa.Array]]) -> Iterator[bytes | pa.Buffer]:
    """One row as COPY wants it, in pieces: its values are not copied."""
    yield struct.pack(">h", len(columns))
    for type_, array in columns:
        for piece in value_pieces(array, type_):
            yield piece.tobytes() if isinstance(piece, np.ndarray) else data_of(piece)


def array_of(oid: int, type_: ColumnType, array: pa.Array) -> bytes:
    """The column as one array value, `oid` being the type of its elements."""
    has_null = int(array.null_count > 0)
    if not len(array):
        return struct.pack(">iii", 0, 0, oid)
    head = struct.pack(">iiIii", 1, has_null, oid, len(array), 1)
    return head + bytes(_joined(value_pieces(array, type_), len(array)))


def value_pieces(array: pa.Array, type_: ColumnType) -> list[Piece]:
    """Length and bytes of every value."""
    if type_.kind in _FIXED:
        values = array.drop_null() if array.null_count else array
        return _fixed_pieces(array, _oid(values) if type_.name == "oid" else _FIXED[type_.kind](values))
    match type_.kind:
        case Kind.DECIMAL:
            return decimal_pieces(array, type_)
        case Kind.NUMERIC:
            return numeric_pieces(array)
        case Kind.BYTES:
            return _text_pieces(array)
        case Kind.JSON if type_.name == "jsonb":
            return _text_pieces(array, b"\1")
        case _:
            return _text_pieces(to_text(array, type_))


def _fixed_pieces(array: pa.Array, values: Array) -> list[Piece]:
    """`values` are a structured or plain array, big-endian, without the nulls."""
    width = values.dtype.itemsize
    if not array.null_count:
        rows = np.empty(len(values), [("length", ">i4"), ("value", values.dtype)])
        rows["length"] = width
        rows["value"] = values
        return [_bytes_of(rows)]
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    place = np.zeros(len(array), np.int64)
    place[is_valid] = np.arange(len(values)) * width
    np.maximum.accumulate(place, out=place)
    return [_lengths(np.where(is_valid, width, _NULL)), spans(_bytes_of(values).reshape(-1), place, width * is_valid)]


def _lengths(lengths: Array) -> Table:
    return _bytes_of(lengths.astype(">i4"))


def _bytes_of(rows: Array) -> Table:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)


def _as(layout: str) -> Callable[[pa.Array], Array]:
    return lambda array: np.asarray(array.to_numpy(zero_copy_only=False)).astype(layout)


_oid = _as(">u4")


def _float(layout: str) -> Callable[[pa.Array], Array]:
    def convert(array: pa.Array) -> Array:
        values: Array = array.to_numpy().astype(layout)
        values[np.isnan(values)] = np.nan  # one NaN, whatever its bits were
        return values

    return convert


def _date(array: pa.Array) -> Array:
    return _since_2000(array.view(pa.int32()).to_numpy(), _EPOCH_DAYS).astype(">i4")


def _timestamp(array: pa.Array) -> Array:
    values = array.view(pa.int64()).to_numpy()
    since_2000 = _since_2000(values, _EPOCH_US)
    if extremes.has_late(values):
        since_2000 = np.where(extremes.is_late(values), extremes.unshifted(values, _EPOCH_US), since_2000)
    return since_2000.astype(">i8")


def _since_2000(values: Array, epoch: int) -> Array:
    """The extreme integers are the infinities on both sides."""
    limits = np.iinfo(values.dtype)
    is_infinite = (values == limits.max) | (values == limits.min)
    if not is_infinite.any():
        return np.asarray(values - values.dtype.type(epoch))
    return np.asarray(np.where(is_infinite, values, np.where(is_infinite, 0, values) - values.dtype.type(epoch)))


def _time(array: pa.Array) -> Array:
    return np.asarray(array.view(pa.int64()).to_numpy()).astype(">i8")


def _timetz(array: pa.Array) -> Array:
    rows = np.empty(len(array), [("microseconds", ">i8"), ("west", ">i4")])
    rows["microseconds"] = array.field("microseconds").to_numpy()
    rows["west"] = -array.field("offset_seconds").to_numpy()
    return rows


def _interval(array: pa.Array) -> Array:
    rows = np.empty(len(array), [("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
    for name in ("microseconds", "days", "months"):
        rows[name] = array.field(name).to_numpy()
    return rows


_DIGIT = np.zeros(256, np.uint8)
_DIGIT[[*b"0123456789abcdef"]] = np.arange(16)
_UUID_DIGITS = [place for place in range(36) if place not in (8, 13, 18, 23)]


def _uuid(array: pa.Array) -> Array:
    text = array.cast(pa.binary(36)) if len(array) else pa.array([], pa.binary(36))
    characters = np.frombuffer(text.buffers()[1], np.uint8)[36 * text.offset : 36 * (text.offset + len(text))]
    digits = _DIGIT[characters.reshape(-1, 36)[:, _UUID_DIGITS]]
    return np.ascontiguousarray(digits[:, 0::2] << 4 | digits[:, 1::2]).view("V16").reshape(-1)


def _text_pieces(array: pa.Array, prefix: bytes = b"") -> list[Piece]:
    """Texts and bytes as they lie in Arrow; `prefix` comes before each."""
    binary = array.view(pa.binary()) if not pa.types.is_binary(array.type) else array
    lengths = pc.binary_length(binary)
    if not binary.null_count:
        together = np.empty((len(binary), 4 + len(prefix)), np.uint8)
        together[:, :4] = _lengths(lengths.to_numpy() + len(prefix))
        together[:, 4:] = np.frombuffer(prefix, np.uint8)
        return [together, binary]
    is_valid = binary.is_valid()
    lengths = pc.if_else(is_valid, pc.add(lengths, len(prefix)), pa.scalar(_NULL, pa.int32()))
    filled = binary.fill_null(b"")
    if prefix:
        filled = pc.if_else(is_valid, pc.binary_join_element_wise(prefix, filled, b""), filled)
    return [_lengths(lengths.to_numpy()), filled]


_FIXED: dict[Kind, Callable[[Any], Array]] = {
    Kind.BOOLEAN: _as("u1"),
    Kind.INT16: _as(">i2"),
    Kind.INT32: _as(">i4"),
    Kind.INT64: _as(">i8"),
    Kind.FLOAT32: _float(">f4"),
    Kind.FLOAT64: _float(">f8"),
    Kind.UUID: _uuid,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMETZ: _timetz,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.INTERVAL: _interval,
}


def _joined(pieces: Sequence[Piece], rows: int) -> pa.Buffer:
    """The bytes of all rows, one after the other."""
    parts: list[pa.Array] = []
    tables: list[Table] = []
    for piece in pieces:
        if isinstance(piece, np.ndarray):
            tables.append(piece)
            continue
        if tables:
            parts.append(_as_binary(tables, rows))
            tables = []
        parts.append(piece)
    if tables:
        parts.append(_as_binary(tables, rows))
    return data_of(parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b""))


def _as_binary(tables: list[Table], rows: int) -> pa.Array:
    together = tables[0] if len(tables) == 1 else np.hstack(tables)
    width = together.shape[1]
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(together)])
