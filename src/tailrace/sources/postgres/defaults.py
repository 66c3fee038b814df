"""What rows have in a column that was added after them: its default at that time, which the catalog keeps.

`ADD COLUMN … DEFAULT` with a constant touches no row: PostgreSQL notes the value beside the column, in every relation
that holds rows. A default that is not constant, and any rewrite later on, gives the table a new file;
whoever asks here has looked at that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from tailrace.model.lifecycle import StoredAs
from tailrace.model.schema import Column, TableSchema
from tailrace.sources.postgres.values.decoders import decode_values

_MISSING = """
SELECT a.attrelid::bigint = %(root)s, a.attnum, a.atthasmissing, (a.attmissingval::text::text[])[1]
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ANY (%(relations)s::oid[]) AND a.attname = %(name)s AND NOT a.attisdropped
    AND (t.typdelim = ',' OR NOT a.atthasmissing) -- an array with another delimiter is not written as one of texts
"""


def old_values(
    connection: psycopg.Connection[Any], table: TableSchema, added: Sequence[str], stored: StoredAs
) -> pa.RecordBatch | None:
    """One row, for the relations that the table was `stored` in; None if they differ, or the column is another."""
    columns = {column.name: column for column in table.columns}
    arrays = [_old_value(connection, table, columns[name], stored) for name in added]
    return None if any(array is None for array in arrays) else pa.RecordBatch.from_arrays(arrays, list(added))


def _old_value(
    connection: psycopg.Connection[Any], table: TableSchema, column: Column, stored: StoredAs
) -> pa.Array | None:
    relations = {table.relation, *map(int, stored.files)}
    places = {"root": table.relation, "relations": list(relations), "name": column.name}
    found = connection.execute(_MISSING, places).fetchall()
    numbers = [number for is_root, number, _, _ in found if is_root]
    if len(found) < len(relations) or not column.number or numbers != [column.number]:
        return None
    holding = [each for each in found if not each[0] or len(found) == 1]
    texts = {text if has_missing else None for _, _, has_missing, text in holding}
    return _decoded(texts.pop(), table, column) if len(texts) == 1 else None


def _decoded(text: str | None, table: TableSchema, column: Column) -> pa.Array:
    data = b"" if text is None else text.encode()
    buffer = np.frombuffer(data + bytes(16), np.uint8)
    place, length = np.zeros(1, np.int64), np.array([len(data)], np.int64)
    kind = np.array([ord("n" if text is None else "t")], np.uint8)
    return decode_values(buffer, place, length, kind, column.type, where=f"{table.table}.{column.name}")
