"""Rows as bytes: what a bulk load reads, what travels in a receipt, and which values there is no exact form of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.model.types import ColumnType

Encoded: TypeAlias = bytes | pa.Buffer | pa.RecordBatch
"""Rows in the form that the database's `Session.load`, or its `StagingFile`, takes."""


class Field(NamedTuple):
    """A column of rows that are about to become bytes. `where` names it in errors: `public.orders.amount`."""

    where: str
    type: ColumnType
    array: Any


class Encoding(ABC):
    @abstractmethod
    def encode(self, fields: Sequence[Field]) -> Encoded:
        """Rows for a bulk load. Raises SinkRejected for a value that the database can not hold exactly."""

    def encode_large(self, fields: Sequence[Field]) -> Iterable[Encoded]:
        """The same for one large row, in pieces: its values should not be copied as a whole."""
        return [self.encode(fields)]

    @abstractmethod
    def pack(self, fields: Sequence[Field]) -> tuple[bytes, ...]:
        """Rows that travel in a receipt."""

    @abstractmethod
    def literal(self, field: Field) -> str | None:
        """SQL of the one value of a field, which is not NULL; None if there is none that is exact."""

    def row_form(self, types: Iterable[ColumnType]) -> str:
        """A form in which rows of such values are loaded as they are, see `model.rows`; empty if there is none."""
        return ""

    def has_misfits(self, type_: ColumnType) -> bool:
        """Whether the source has values of a type that the database can not hold."""
        return False

    def misfits(self, field: Field) -> tuple[npt.NDArray[np.bool_], str] | None:
        """The values that the database can not hold, and what they are; None if there are none."""
        return None
