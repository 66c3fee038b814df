"""Names: how they are quoted, and where tables go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import msgspec

from tailrace.model.names import table_name
from tailrace.model.schema import TableSchema


class Target(msgspec.Struct, frozen=True):
    """A table in the sink, unquoted. Where a database has no schemas, `schema` is the database, or nothing at all."""

    schema: str
    name: str

    def __str__(self) -> str:
        return table_name(self.schema, self.name) if self.schema else self.name


class Naming(ABC):
    longest_name: int
    folds_names: bool
    """Names that differ in case only are the same name."""

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def length(self, name: str) -> int:
        """As the database counts it against `longest_name`."""

    @abstractmethod
    def target(self, schema: TableSchema, schemas: Mapping[str, str]) -> Target:
        """Where a table of the source goes. `schemas` are other names that the user gave to schemas."""

    @abstractmethod
    def own(self, name: str) -> Target:
        """Where a table of our own is, such as `watermarks`."""

    @abstractmethod
    def is_own(self, target: Target) -> bool:
        """Whether our own tables are there, or could be."""

    def qualified(self, target: Target) -> str:
        return f"{self.quote(target.schema)}.{self.quote(target.name)}"

    def quoted(self, names: Iterable[str]) -> str:
        """The names as a list of columns."""
        return ", ".join(self.quote(name) for name in names)

    def folded(self, name: str) -> str:
        """The same for all names that are one name here."""
        return name.casefold() if self.folds_names else name

    def all_folded(self, names: Iterable[str]) -> set[str]:
        return {self.folded(name) for name in names}


def flat_name(schema: str, name: str, schemas: Mapping[str, str]) -> str:
    """A table's name where there are no schemas: `public.orders` is `orders`, `billing.orders` `billing_orders`."""
    prefix = schemas.get(schema, "" if schema == "public" else schema)
    return f"{prefix}_{name}" if prefix else name
