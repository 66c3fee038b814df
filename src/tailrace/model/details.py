"""What a source's catalog knows of a table besides its schema. Nobody needs it to carry changes on."""

from __future__ import annotations

import msgspec


class Index(msgspec.Struct, frozen=True):
    """An index that finds rows by its columns, the first ones first. It holds every row."""

    columns: tuple[str, ...]
    is_unique: bool = False


class TableDetails(msgspec.Struct, frozen=True):
    """`required` are the columns that are never null."""

    required: frozenset[str] = frozenset()
    indexes: tuple[Index, ...] = ()

    def finds_by(self, columns: tuple[str, ...]) -> bool:
        """Whether an index finds rows that have certain values in these columns, in whatever order it has them."""
        return any(set(index.columns[: len(columns)]) == set(columns) for index in self.indexes)

    def is_unique(self, columns: tuple[str, ...]) -> bool:
        return any(index.is_unique and set(index.columns) <= set(columns) for index in self.indexes)
