"""How values look in SQLite.

Integers and booleans are INTEGER, floats real numbers, bytes BLOB, everything else TEXT in its canonical form
(`model.text`). NaN is the text 'NaN', because SQLite would turn it into NULL. Float columns are declared without a
type: one declared REAL would lose the sign of -0.0. Nothing is rounded.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.model.text import to_text
from tailrace.model.types import ColumnType, Kind

_INTEGERS = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64}
_FLOATS = {Kind.FLOAT32, Kind.FLOAT64}
_AS_IS = {Kind.TEXT, Kind.UUID, Kind.JSON, Kind.ENUM, Kind.NUMERIC, Kind.OTHER, Kind.BYTES}


def declared_type(type_: ColumnType) -> str:
    if type_.kind in _INTEGERS:
        return "INTEGER"
    if type_.kind in _FLOATS:
        return ""
    return "BLOB" if type_.kind is Kind.BYTES else "TEXT"


def stored(array: pa.Array, type_: ColumnType) -> pa.Array:
    """The array as SQLite binds it: int64, float64, string or binary."""
    if type_.kind in _INTEGERS:
        return array.cast(pa.int64())
    if type_.kind in _FLOATS:
        return array.cast(pa.float64())
    return array if type_.kind in _AS_IS else to_text(array, type_)


def has_nan(array: pa.Array) -> bool:
    return pa.types.is_floating(array.type) and bool(pc.any(pc.is_nan(array)).as_py())
