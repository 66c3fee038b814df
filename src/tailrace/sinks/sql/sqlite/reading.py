"""Comparing what a SQLite sink holds with the source's rows, and finding rows by the text of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Reading
from tailrace.sinks.sql.sqlite.encoding import stored
from tailrace.sinks.sql.sqlite.types import EXACTLY, FLOATS

_FLOAT_OF_TEXT = """
SELECT CASE v WHEN 'NaN' THEN v WHEN 'inf' THEN 9e999 WHEN '-inf' THEN -9e999 ELSE CAST(v AS REAL) END
FROM (SELECT %s AS v)
"""


class SqliteReading(Reading):
    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        values: list[Any] = stored(array, type_).to_pylist()
        return ["NaN" if value != value else value for value in values] if type_.kind in FLOATS else values

    def key_text(self, value: str, type_: ColumnType) -> str:
        """As it is: SQLite's own text of a float is not exact, the session's is."""
        return value

    def key_is(self, name: str, type_: ColumnType) -> str:
        """The column's affinity makes integers of the text where it should."""
        if type_.kind is Kind.BYTES:
            return rf"'\x' || lower(hex({name})) = %s"
        return f"{name} = ({_FLOAT_OF_TEXT})" if type_.kind in FLOATS else f"{name} = %s {EXACTLY}"
