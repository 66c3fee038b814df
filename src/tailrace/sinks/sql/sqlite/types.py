"""How values look in SQLite, and what a column that is there already does to them.

Integers and booleans are INTEGER, floats real numbers, bytes BLOB, everything else TEXT in its canonical form
(`model.text`). NaN is the text 'NaN', because SQLite would turn it into NULL. Float columns are declared without a
type: one declared REAL would lose the sign of -0.0. Nothing is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Field
from tailrace.sinks.sql.staged import StagedColumn

_INTEGERS = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64}
_FLOATS = {Kind.FLOAT32, Kind.FLOAT64}
_AS_IS = {Kind.TEXT, Kind.UUID, Kind.JSON, Kind.ENUM, Kind.NUMERIC, Kind.OTHER, Kind.BYTES}
_TAKEN_BY = {
    "INTEGER": ("INTEGER", "NUMERIC", "BLOB"),
    "": ("BLOB", "REAL"),
    "TEXT": ("TEXT", "BLOB"),
    "BLOB": ("BLOB",),
}
"""By the type that we declare: the affinities of columns that leave its values as they are."""
EXACTLY = "COLLATE BINARY"
"""On either side of a comparison it overrules the collation that somebody gave to a column."""


def declared_type(type_: ColumnType) -> str:
    if type_.kind in _INTEGERS:
        return "INTEGER"
    if type_.kind in _FLOATS:
        return ""
    return "BLOB" if type_.kind is Kind.BYTES else "TEXT"


def fits(declared: str, existing: str) -> bool:
    return affinity(existing) in _TAKEN_BY[declared]


def affinity(type_: str) -> str:
    """What SQLite makes of a declared type: "Datatypes In SQLite", 3.1."""
    name = type_.upper()
    if "INT" in name:
        return "INTEGER"
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name:
        return "BLOB"
    return "REAL" if any(word in name for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def stored(array: pa.Array, type_: ColumnType) -> pa.Array:
    """The array as SQLite binds it: int64, float64, string or binary."""
    if type_.kind in _INTEGERS:
        return array.cast(pa.int64())
    if type_.kind in _FLOATS:
        return array.cast(pa.float64())
    return array if type_.kind in _AS_IS else to_text(array, type_)


def expected(array: pa.Array, type_: ColumnType) -> Sequence[Any]:
    """The values as they are read back."""
    values: list[Any] = stored(array, type_).to_pylist()
    return ["NaN" if value != value else value for value in values] if type_.kind in _FLOATS else values


def literal(array: pa.Array, type_: ColumnType) -> str | None:
    """SQL of the one value of an array. As a default, 1.0 would be the integer 1."""
    [value] = expected(array, type_)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        if value.is_integer():
            return None
        return {math.inf: "9e999", -math.inf: "-9e999"}.get(value, repr(value))
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def key_is(name: str, type_: ColumnType) -> str:
    """Whether a column has the value of a text; its affinity makes integers of it where it should."""
    if type_.kind is Kind.BYTES:
        return rf"'\x' || lower(hex({name})) = %s"
    return f"{name} = ({_FLOAT_OF_TEXT})" if type_.kind in _FLOATS else f"{name} = %s {EXACTLY}"


_FLOAT_OF_TEXT = """
SELECT CASE v WHEN 'NaN' THEN v WHEN 'inf' THEN 9e999 WHEN '-inf' THEN -9e999 ELSE CAST(v AS REAL) END
FROM (SELECT %s AS v)
"""


# --- staged rows -----------------------------------------------------------------------------------------------------


def encoded(fields: Sequence[Field]) -> pa.RecordBatch:
    """Rows as they are staged: `c<place>` for each column, `n<place>` marking NaN where there is one."""
    columns = {}
    for place, field in enumerate(fields):
        columns[f"c{place}"] = array = stored(field.array, field.type)
        if field.type.kind in _FLOATS and pc.any(pc.is_nan(array)).as_py():
            columns[f"n{place}"] = pc.is_nan(array).fill_null(False).cast(pa.int8())
    return pa.RecordBatch.from_pydict(columns)


def staged_names(columns: Sequence[StagedColumn]) -> list[str]:
    """The columns of a staging table. They have no type, so that a value stays what it is."""
    marks = [f"n{place}" for place, column in enumerate(columns) if column.type.kind in _FLOATS]
    return [f"c{place}" for place in range(len(columns))] + marks


def staged_value(place: int, column: StagedColumn) -> str:
    """SQL that gives a staged column back; what is compared with it is equal in every byte."""
    is_float = column.type.kind in _FLOATS
    return f"CASE WHEN s.n{place} THEN 'NaN' ELSE s.c{place} END" if is_float else f"s.c{place} {EXACTLY}"
