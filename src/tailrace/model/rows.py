"""Rows on their way from a source into a sink: Arrow columns, or bytes that both ends speak."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from tailrace.model.schema import TableSchema

POSTGRES_COPY = "PostgreSQL COPY"
"""The tuples of COPY (FORMAT binary), one after the other."""


class EncodedRows(msgspec.Struct, frozen=True):
    """Rows in a form that the sink asked for and the source has: nobody took them apart."""

    num_rows: int
    data: pa.Buffer


Rows = pa.RecordBatch | EncodedRows

ReadRows = Callable[[TableSchema, tuple[str, ...], pa.RecordBatch, tuple[str, ...]], pa.RecordBatch]
"""`read(table, by, values, columns)`: the rows whose columns `by` have one of these values, each row once.

The values come as text, a string column for each of `by` in its order, and the text of a value of another type is of no
row. NULL is equal to nothing. What is told of a row are `columns`, and behind them those of `by` that are not there.
"""
