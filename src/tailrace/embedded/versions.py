"""What a table looked like when it was delivered last, in a few characters: enough to see that it is another now."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from tailrace.model.schema import TableSchema


@lru_cache(4096)
def version_of(schema: TableSchema) -> str:
    """Of names, types and key. Not of columns' numbers, which a source may know one day and not the next."""
    columns = [(column.name, column.type) for column in schema.columns]
    told = msgspec.json.encode([schema.table, columns, schema.key])
    return hashlib.blake2b(told, digest_size=8).hexdigest()
