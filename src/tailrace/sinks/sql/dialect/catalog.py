"""The tables that are there, as the database's catalog describes them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from tailrace.sinks.sql.dialect.naming import Target
from tailrace.sinks.sql.dialect.session import Session


class ExistingColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    is_required: bool  # it has to be given in every row


class ExistingTable(msgspec.Struct, frozen=True):
    columns: tuple[ExistingColumn, ...]
    unique: frozenset[frozenset[str]]  # the sets of columns that are unique together, as far as NULL allows
    note: str  # the table's comment: ours says for whom we made it
    risk: str = ""  # what it is, where that keeps it out of transactions or lets a crash empty it
    remedy: str = ""  # the clause of ALTER TABLE that mends that


class Reference(msgspec.Struct, frozen=True):
    """A foreign key of another table that leads to a table."""

    name: str
    table: str
    has_action: bool  # when a row goes, the rows that refer to it are deleted or changed


class Catalog(ABC):
    @abstractmethod
    def existing(self, session: Session, target: Target) -> ExistingTable | None: ...

    def references(self, session: Session, target: Target) -> list[Reference]:
        """The foreign keys of other tables that lead to a table, as far as the database heeds them in our sessions."""
        return []

    @abstractmethod
    def has_schema(self, session: Session, name: str) -> bool: ...

    def count(self, session: Session, table: str, seconds: float) -> int | None:
        """The rows of a table now; None if counting takes longer than `seconds`, or costs the server too much."""
        return None
