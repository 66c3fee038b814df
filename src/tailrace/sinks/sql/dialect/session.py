"""One connection to a database, and what its driver's errors mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from tailrace.errors import SinkError
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.staged import Relation, StagedRows


class Explanation(msgspec.Struct, frozen=True):
    """What a driver's error means: its kind, and a sentence without values."""

    kind: type[SinkError]
    words: str
    hint: str | None = None
    is_duplicate: bool = False  # a key is there already
    is_about_rows: bool = False  # other rows may be taken
    is_gone: bool = False  # there is nobody to say anything


class Session(Protocol):
    """One connection. Outside of `begin` and `commit` every statement is a transaction of its own."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, its parameters marked `%s`, and return its rows. Without parameters `%` is just `%`."""

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        """Run a statement that selects from `relation`. Keys that it returns are ready to be read by the source."""

    def relation(self, rows: StagedRows) -> Relation:
        """Staged rows, ready to be selected from in the present transaction."""

    def load(
        self,
        table: str,
        names: Sequence[str],
        payload: Iterable[bytes | pa.Buffer],
        types: Sequence[ColumnType] = (),
    ) -> None:
        """Bulk-load encoded rows (of `types`) into the columns `names` of a table; all names are quoted."""

    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query of any size, in flat memory."""

    def lock(self, name: str) -> None:
        """In a transaction: wait until nobody else holds this name, and hold it until the transaction ends."""

    def lock_shared(self, name: str) -> None:
        """In a transaction: hold this name with others who share it, until the transaction ends."""

    def take_over(self, name: str) -> None:
        """As `lock`, but sessions that hold or share the name for long are killed: their process may never wake."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...
