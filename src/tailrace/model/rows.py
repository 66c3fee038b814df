"""Rows on their way from a source into a sink: Arrow columns, or bytes that both ends speak."""

from __future__ import annotations

import msgspec
import pyarrow as pa

POSTGRES_COPY = "PostgreSQL COPY"
"""The tuples of COPY (FORMAT binary), one after the other."""


class EncodedRows(msgspec.Struct, frozen=True):
    """Rows in a form that the sink asked for and the source has: nobody took them apart."""

    num_rows: int
    data: pa.Buffer


Rows = pa.RecordBatch | EncodedRows
