"""Values as they are read back, by `verify` and for the source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tailrace.model.types import ColumnType


class Reading(ABC):
    def selected(self, name: str, type_: ColumnType) -> str:
        """SQL that reads a column (given quoted) back."""
        return name

    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        """What `selected` gave, as Python values that can be compared and hashed."""
        return values

    @abstractmethod
    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        """What `read_values` must give for these values of the source. Made by another way than `encode`."""

    @abstractmethod
    def key_text(self, value: str, type_: ColumnType) -> str:
        """SQL that makes a key's value a text which the source can read."""

    @abstractmethod
    def key_is(self, name: str, type_: ColumnType) -> str:
        """SQL, with one parameter, that is true where a column of a key (quoted) has the value of that `key_text`."""
