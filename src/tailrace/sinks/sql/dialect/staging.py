"""Where rows wait for their commit: tables of ours in the database, or files beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from tailrace.sinks.sql.dialect.encoding import Encoded
from tailrace.sinks.sql.dialect.session import Session
from tailrace.sinks.sql.staged import StagedColumn


class StagingFile(Protocol):
    """A file that one task fills and the driver selects from."""

    def load(self, columns: Sequence[StagedColumn], payload: Iterable[Encoded]) -> str:
        """Encoded rows as a new table of the file. Returns its name, as the driver's session knows it."""

    def close(self) -> None: ...


class Staging(ABC):
    most_inline_bytes: int = 1 << 20
    """What a receipt may hold and still be merged faster than what is staged."""

    def file(self, name: str) -> StagingFile | None:
        """A new staging file, where tasks fill files instead of staging tables."""
        return None

    @abstractmethod
    def create(self, table: str, columns: Sequence[StagedColumn], *, is_private: bool = False) -> str:
        """SQL of a staging table. A private one is seen by its session only, and may be made in a transaction."""

    @abstractmethod
    def found(self, session: Session, prefix: str) -> list[str]:
        """All of our staging tables, files or copies whose names begin with `prefix`, quoted."""

    def has_rows(self, session: Session, names: Sequence[str]) -> bool:
        """Whether all of these staging tables (or files) are there, with rows."""
        looks = ", ".join(f"EXISTS (SELECT 1 FROM {name})" for name in names)
        return all(session.execute(f"SELECT {looks}")[0])

    def drop(self, session: Session, name: str, *, is_private: bool = False) -> None:
        session.execute(f"DROP TABLE IF EXISTS {name}")
