"""Rows as a SQLite sink takes them: as Arrow columns of what SQLite can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Encoding, Field
from tailrace.sinks.sql.sqlite.types import FLOATS, INTEGERS

_AS_IS = {Kind.TEXT, Kind.UUID, Kind.JSON, Kind.ENUM, Kind.NUMERIC, Kind.OTHER, Kind.BYTES}


class SqliteEncoding(Encoding):
    def encode(self, fields: Sequence[Field]) -> pa.RecordBatch:
        """`c<place>` for each column, `n<place>` marking NaN where there is one."""
        columns = {}
        for place, field in enumerate(fields):
            columns[f"c{place}"] = array = stored(field.array, field.type)
            if field.type.kind in FLOATS and pc.any(pc.is_nan(array)).as_py():
                columns[f"n{place}"] = pc.is_nan(array).fill_null(False).cast(pa.int8())
        return pa.RecordBatch.from_pydict(columns)

    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        batch = self.encode(fields)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
        return (buffer.getvalue().to_pybytes(),)

    def literal(self, field: Field) -> str | None:
        """As a default, 1.0 would be the integer 1."""
        [value] = stored(field.array, field.type).to_pylist()
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, float):
            return None if value.is_integer() else _float_literal(value)
        return str(value) if isinstance(value, int) else quoted_text(value)


def _float_literal(value: float) -> str:
    if math.isnan(value):
        return "'NaN'"
    return {math.inf: "9e999", -math.inf: "-9e999"}.get(value, repr(value))


def quoted_text(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


def stored(array: pa.Array, type_: ColumnType) -> pa.Array:
    """The array as SQLite binds it: int64, float64, string or binary."""
    if type_.kind in INTEGERS:
        return array.cast(pa.int64())
    if type_.kind in FLOATS:
        return array.cast(pa.float64())
    return array if type_.kind in _AS_IS else to_text(array, type_)
