"""The types of columns: what we declare, and what existing columns can take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tailrace.model.schema import TableSchema


class Types(ABC):
    own: Mapping[str, str]
    """The types of columns in our own tables: `name`, `text`, `integer`, `flag` and `moment`."""

    @abstractmethod
    def declared(self, schema: TableSchema) -> dict[str, str]:
        """The type of each column in a table that we make."""

    def hidden_columns(self, schema: TableSchema) -> dict[str, str]:
        """Columns that a table needs besides the source's own, with their definitions."""
        return {}

    @abstractmethod
    def fits(self, declared: str, existing: str) -> bool:
        """Whether all values of a declared type go unchanged into a column of an existing one."""

    def is_exact_key(self, wanted: str, existing: str) -> bool:
        """Whether a column of an existing type keeps all keys apart that the source keeps apart, as `wanted` does."""
        return True

    def can_widen(self, wanted: str, existing: str) -> bool:
        """Whether a column can be changed to the wanted type, which holds all values of the existing one unchanged."""
        return False
