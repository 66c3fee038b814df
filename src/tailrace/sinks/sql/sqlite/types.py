"""How values look in SQLite, and what a column that is there already does to them.

Integers and booleans are INTEGER, floats real numbers, bytes BLOB, everything else TEXT in its canonical form
(`columns.text`). NaN is the text 'NaN', because SQLite would turn it into NULL. Float columns are declared without a
type: one declared REAL would lose the sign of -0.0. Nothing is rounded.
"""

from __future__ import annotations

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Types

INTEGERS = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64}
FLOATS = {Kind.FLOAT32, Kind.FLOAT64}
_TAKEN_BY = {
    "INTEGER": ("INTEGER", "NUMERIC", "BLOB"),
    "": ("BLOB", "REAL"),
    "TEXT": ("TEXT", "BLOB"),
    "BLOB": ("BLOB",),
}
"""By the type that we declare: the affinities of columns that leave its values as they are."""
EXACTLY = "COLLATE BINARY"
"""On either side of a comparison it overrules the collation that somebody gave to a column."""


class SqliteTypes(Types):
    own = {"name": "TEXT", "text": "TEXT", "integer": "INTEGER", "flag": "INTEGER", "moment": "TEXT"}

    def declared(self, schema: TableSchema) -> dict[str, str]:
        return {column.name: _declared(column.type) for column in schema.columns}

    def fits(self, declared: str, existing: str) -> bool:
        return _affinity(existing) in _TAKEN_BY[declared]


def _declared(type_: ColumnType) -> str:
    if type_.kind in INTEGERS:
        return "INTEGER"
    if type_.kind in FLOATS:
        return ""
    return "BLOB" if type_.kind is Kind.BYTES else "TEXT"


def _affinity(type_: str) -> str:
    """What SQLite makes of a declared type: "Datatypes In SQLite", 3.1."""
    name = type_.upper()
    if "INT" in name:
        return "INTEGER"
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name:
        return "BLOB"
    return "REAL" if any(word in name for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"
