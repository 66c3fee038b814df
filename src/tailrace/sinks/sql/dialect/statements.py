"""SQL that makes tables, and that merges rows into them. Names come quoted, but for those of a `Target`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect.catalog import ExistingTable
from tailrace.sinks.sql.dialect.naming import Target
from tailrace.sinks.sql.dialect.session import Session
from tailrace.sinks.sql.staged import Relation

INSERTED_INTO = "_tailrace_target"
"""What an INSERT calls its table: one whose name is `excluded` would be taken for the rows of `on_conflict`."""


class Statements(ABC):
    builds_keys_late: bool = False
    """A table's key is better built after its first load than kept up during it."""
    load_replaces: bool = False
    """A bulk load into a table replaces the rows whose key is there already, instead of failing."""

    # --- tables

    @abstractmethod
    def create_schema(self, name: str) -> str:
        """The name is unquoted."""

    @abstractmethod
    def create_table(self, table: str, lines: Sequence[str], key: str, note: str) -> list[str]:
        """Statements that make a table and note for whom. `key` is empty if the lines have it."""

    def add_key(self, table: str, key: str) -> str:
        return f"ALTER TABLE {table} ADD PRIMARY KEY ({key})"

    @abstractmethod
    def annotate(self, table: str, note: str) -> list[str]:
        """Statements that note for whom a table is."""

    def widen(self, table: str, column: str, type_: str) -> str:
        """Change the type of a column; asked for only where `Types.can_widen` allows it."""
        raise NotImplementedError

    @abstractmethod
    def move(self, target: Target, new_target: Target) -> list[str]:
        """Give a table another name, with all that belongs to it."""

    @abstractmethod
    def replace(self, target: Target, copy: Target, *, has_table: bool) -> list[str]:
        """Put `copy` in the place of `target`, if there is one."""

    def replaced(self, copy: Target) -> Target | None:
        """Where `replace` leaves the table that was replaced, if it does not drop it."""
        return None

    @abstractmethod
    def clear(self, session: Session, table: str) -> None:
        """Empty a table before a new snapshot; nobody counts on what is in it."""

    # --- rows

    @abstractmethod
    def loads_directly(self, schema: TableSchema, existing: ExistingTable) -> bool:
        """Whether encoded rows can be loaded into the table itself: nothing has to be cast on the way."""

    def is_single_key(self, existing: ExistingTable, schema: TableSchema) -> bool:
        """Whether `insert` finds rows by the key alone: in some databases any unique index counts as the key."""
        return True

    @abstractmethod
    def insert(self, table: str, columns: str, query: str, key: Sequence[str], others: Mapping[str, str]) -> str:
        """Insert what `query` gives; where the key is there already, set `others` (name: value).

        Without a key everything is inserted.
        """

    @abstractmethod
    def delete(self, table: str, relation: str, key: Mapping[str, str], where: str = "") -> str:
        """Delete the rows of `table` whose key (name: value) is that of a row of `relation`.

        With `where`: of those rows of `relation` for which it holds.
        """

    @abstractmethod
    def update(self, table: str, relation: str, match: str, changes: Mapping[str, str]) -> str:
        """Set columns of the rows of `table`, called `t`, that match a row of `relation`."""

    @abstractmethod
    def delete_copies(self, session: Session, table: str, schema: TableSchema, relation: Relation) -> str:
        """Of each row of `relation`, as many equal rows of `table` as it counts; NULL is equal to NULL."""

    # --- all rows of a copy

    def exchange(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """The rows of `table` become those of `copy`, which has the same key."""
        return self.exchange_all(table, copy, names)

    def restate(self, table: str, copy: str, key: Mapping[str, ColumnType]) -> list[str]:
        """After `exchange`: keys that are equal and look different are as in `copy`, such as 1.0 and 1.00."""
        return []

    def exchange_by_key(self, table: str, copy: str, names: Sequence[str], key: Sequence[str]) -> list[str]:
        """The same, where more than the key is unique: rows that stay are changed one by one, which may not succeed."""
        return self.exchange(table, copy, names, key)

    def exchange_all(self, table: str, copy: str, names: Sequence[str]) -> list[str]:
        """The same, whatever is unique in the table: all rows go, and all come."""
        columns = ", ".join(names)
        return [f"DELETE FROM {table}", self.insert(table, columns, f"SELECT {columns} FROM {copy}", [], {})]


def on_conflict(key: Sequence[str], others: Mapping[str, str]) -> str:
    """What PostgreSQL and SQLite do with a row whose key is there already. Names are quoted."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    return f"ON CONFLICT ({', '.join(key)}) DO {action}"


def matching(key: Mapping[str, str], where: str = "") -> str:
    """The condition that a row of the table, called `t`, has this key."""
    return " AND ".join([*(f"t.{name} = {value}" for name, value in key.items()), *([where] if where else [])])
