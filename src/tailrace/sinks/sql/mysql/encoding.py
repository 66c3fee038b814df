"""Arrow columns as the text that LOAD DATA reads: tabs between values, `\\N` for NULL, all rows at once.

A value that the server could not hold exactly is refused here, before it is sent: LOAD DATA LOCAL would round it, cut
it off or replace it, with a mere warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.characters import data_of
from tailrace.columns.text import to_text
from tailrace.errors import SinkRejected
from tailrace.model import extremes
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Encoding, Field
from tailrace.sinks.sql.mysql import binaries, documents, native
from tailrace.sinks.sql.mysql.flavor import Flavor
from tailrace.sinks.sql.mysql.types import decimal_of

Flags = npt.NDArray[np.bool_]

_YEAR_1, _YEAR_10000 = -719_162, 2_932_897  # in days since 1970
_DAY_US = 86_400_000_000
_BARE = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.FLOAT32, Kind.FLOAT64, Kind.NUMERIC}
_BARE |= {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.UUID}
_WITH_MISFITS = {Kind.FLOAT32, Kind.FLOAT64, Kind.DECIMAL, Kind.NUMERIC, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
_NUMBERS = (Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.NUMERIC)
_TEXTS = (Kind.TEXT, Kind.ENUM, Kind.UUID, Kind.JSON, Kind.OTHER)
_BYTES = ColumnType(Kind.BYTES, "longblob")
_ESCAPED = (b"\\", b"\t", b"\n")
_NULL = b"\\N"
PIECE_BYTES = 1 << 20


class MySqlEncoding(Encoding):
    def __init__(self, flavor: Flavor) -> None:
        self._flavor = flavor

    def encode(self, fields: Sequence[Field]) -> pa.Buffer:
        return rows_text(self._stored(fields))

    def encode_large(self, fields: Sequence[Field]) -> Iterator[bytes]:
        return large_row_text(self._stored(fields))

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        return (bytes(rows_text(self._stored(fields))),)

    def literal(self, field: Field) -> str | None:
        """In parentheses: a long text takes its default as an expression only."""
        if field.type.kind in _NUMBERS:
            return str(to_text(field.array, field.type)[0].as_py()) if self.misfits(field) is None else None
        if field.type.kind is Kind.BOOLEAN:
            return str(int(field.array[0].as_py()))
        return f"({quoted_text(field.array[0].as_py())})" if field.type.kind in _TEXTS else None

    def has_misfits(self, type_: ColumnType) -> bool:
        """What is kept as it is at the source takes all of its values, but for documents."""
        if native.kept(type_, self._flavor) is not None:
            return type_.kind is Kind.JSON
        return has_misfits(type_)

    def misfits(self, field: Field) -> tuple[Flags, str] | None:
        if not self.has_misfits(field.type):
            return None
        return documents.misfits(field.array) if field.type.kind is Kind.JSON else misfits(field)

    def _stored(self, fields: Sequence[Field]) -> list[Field]:
        """The same values, all of which the server can hold. Raises SinkRejected otherwise."""
        return [self._in_own_form(exact(field, self.misfits(field))) for field in fields]

    def _in_own_form(self, field: Field) -> Field:
        """Geometries and vectors as the server stores them."""
        if native.is_geometry(field.type):
            return field._replace(array=binaries.geometries(field.array))
        if native.is_vector(field.type, self._flavor):
            return field._replace(array=binaries.vectors(field.array), type=_BYTES)
        return field


def quoted_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def rows_text(fields: Sequence[Field]) -> pa.Buffer:
    """The rows, each ended by a line feed."""
    columns = [_binary(_written(field)) for field in fields]
    columns[-1] = pc.binary_join_element_wise(columns[-1], b"\n", b"")
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, b"\t")
    return data_of(joined)


def large_row_text(fields: Sequence[Field]) -> Iterator[bytes]:
    """One row, in pieces: of its values no more than a piece is copied."""
    for place, field in enumerate(fields):
        if place:
            yield b"\t"
        text, is_bare = _plain(field)
        yield from [_NULL] if text.null_count else _pieces(data_of(text), is_bare)
    yield b"\n"


def _pieces(data: pa.Buffer, is_bare: bool) -> Iterator[bytes]:
    for first in range(0, len(data), PIECE_BYTES):
        piece = data.slice(first, min(PIECE_BYTES, len(data) - first)).to_pybytes()
        yield piece if is_bare else _escaped_bytes(piece)


def _escaped_bytes(data: bytes) -> bytes:
    for byte in _ESCAPED:
        data = data.replace(byte, b"\\" + byte)
    return data


def _binary(array: pa.Array) -> pa.Array:
    binary = array if pa.types.is_binary(array.type) else array.view(pa.binary())
    return binary.fill_null(_NULL) if binary.null_count else binary


def _written(field: Field) -> pa.Array:
    """The text of each value, escaped."""
    text, is_bare = _plain(field)
    return text if is_bare else _escaped(text.view(pa.binary()))


def _plain(field: Field) -> tuple[pa.Array, bool]:
    """The text of each value, and whether it can not have anything in it that is to be escaped."""
    array, kind = field.array, field.type.kind
    match kind:
        case Kind.BOOLEAN:
            return array.cast(pa.int8()).cast(pa.string()), True
        case Kind.FLOAT32:  # as a double, for a float is read by way of one
            return array.cast(pa.float64()).cast(pa.string()), True
        case Kind.TIMESTAMPTZ:
            return to_text(array.cast(pa.timestamp("us")), field.type), True
        case Kind.BYTES:
            return array, False
        case _:
            return to_text(array, field.type), kind in _BARE


def _escaped(array: pa.Array) -> pa.Array:
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    for byte in _ESCAPED:
        if (data == byte[0]).any():
            array = pc.replace_substring(array, byte, b"\\" + byte)
    return array


def exact(field: Field, found: tuple[Flags, str] | None) -> Field:
    """The field, if none of its values was found to be a misfit; raises SinkRejected otherwise."""
    if found is not None:
        raise SinkRejected(
            f"{field.where} ({field.type.name}) has {found[1]}, which the sink's database can not hold",
            hint="with `misfits: text` the sink holds such columns as text, with `misfits: quarantine` it sets the row"
            " aside; or leave the column or the row out in the source's publication",
        )
    return field


def has_misfits(type_: ColumnType) -> bool:
    """Whether the source has values of a type that the server can not hold."""
    return type_.kind in _WITH_MISFITS


def misfits(field: Field) -> tuple[Flags, str] | None:
    """The values that the server can not hold, and what they are."""
    if not has_misfits(field.type):
        return None
    fits, words = _fitting(field)
    if pc.all(fits, min_count=0).as_py():
        return None
    return ~fits.fill_null(True).to_numpy(zero_copy_only=False), words


def _fitting(field: Field) -> tuple[pa.BooleanArray, str]:
    array, kind = field.array, field.type.kind
    if kind in (Kind.FLOAT32, Kind.FLOAT64):
        return pc.is_finite(array), "NaN or an infinity"
    if kind is Kind.DATE:
        return _within(array.view(pa.int32()), 1), "a date outside of the years 1 to 9999"
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _within(array.view(pa.int64()), _DAY_US), "a time outside of the years 1 to 9999"
    digits, scale = decimal_of(field.type) or (0, 0)
    if kind is Kind.DECIMAL and field.type.scale == scale:
        return pa.array(~extremes.is_nan(array)), "NaN"
    array = to_text(array, field.type)
    pattern = rf"^-?\d{{1,{max(digits - scale, 1)}}}(\.\d{{0,{scale}}}0*)?$"
    return pc.match_substring_regex(array, pattern), f"a number that decimal({digits},{scale}) has not"


def _within(values: pa.Array, unit: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, _YEAR_1 * unit), pc.less(values, _YEAR_10000 * unit))
