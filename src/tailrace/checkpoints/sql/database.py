"""What a SQL store needs of a kind of database, and what the kinds share: DB-API connections, ours or the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar

import msgspec

from tailrace.errors import Misuse

Connection = Any
"""A DB-API connection: each driver has a class of its own."""


class Explanation(msgspec.Struct, frozen=True):
    """What a driver's error means: whether it `may_pass`, and whether its connection `is_gone`."""

    words: str
    may_pass: bool
    is_gone: bool = False


class Database(ABC):
    """A kind of database at one address. Statements have `%s` for parameters.

    `where` tells people which one it is, without secrets.
    """

    name: ClassVar[str]
    columns: ClassVar[str]  # of the table, in CREATE TABLE
    suffix: ClassVar[str] = ""  # of CREATE TABLE
    for_update: ClassVar[str] = " FOR UPDATE"
    now: ClassVar[str]
    age: ClassVar[str]  # seconds since `saved_at`

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def connect(self) -> Connection:
        """One of our own: it commits by itself, and what it commits is durable."""

    @abstractmethod
    def explain(self, error: BaseException, connection: Connection | None) -> Explanation | None:
        """None for an error that is not the driver's."""

    @abstractmethod
    def found(self, connection: Connection, table: str) -> tuple[str, bool]:
        """The table's name as every connection knows it, and whether it is there."""

    @abstractmethod
    def transaction(self, connection: Connection, *, is_writing: bool = True) -> AbstractContextManager[Any]:
        """One of ours, on a connection that has none open."""

    @abstractmethod
    def has_transaction(self, connection: Connection) -> bool:
        """Whether the user has one open."""

    @abstractmethod
    def join_transaction(self, connection: Connection) -> bool:
        """Whether what follows is part of a transaction that the user commits: one that is open, or opens now."""

    @abstractmethod
    def take(self, connection: Connection, key: str, name: str) -> Any:
        """A lock that lasts as long as its holder's session, or process; None if another has it."""

    @abstractmethod
    def let_go(self, connection: Connection, key: str, lock: Any) -> None: ...

    def check(self, lock: Any) -> None:  # noqa: B027 - most have nothing to look at
        """Before each write of ours: raise if it would go where nobody reads it."""

    def session(self, connection: Connection) -> str:
        """What the server calls it."""
        return ""

    def execute(self, connection: Connection, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows as tuples of texts and numbers, however the user likes his."""
        cursor = self.cursor(connection)
        try:
            cursor.execute(self.statement(statement), tuple(parameters))
            rows = cursor.fetchall() if cursor.description else []
        finally:
            with suppress(Exception):  # the connection may be gone, which is said already
                cursor.close()
        return [tuple(map(_plain, row.values() if isinstance(row, dict) else row)) for row in rows]

    def cursor(self, connection: Connection) -> Any:
        return connection.cursor()

    def statement(self, statement: str) -> str:
        """In the driver's own style of parameters."""
        return statement

    def check_ours(self, connection: Connection) -> None:
        """Raises Misuse for a connection of another driver."""
        if driver_of(connection) != self.name:
            kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
            raise Misuse(f"{kind} is no connection to {self.where}", hint=f"checkpoints there need one of {self.name}")


def driver_of(connection: Connection) -> str:
    """The package that a connection's class comes from, also where somebody has made a class of his own of it."""
    roots = [base.__module__.partition(".")[0] for base in type(connection).__mro__]
    return next((root for root in roots if root in ("sqlite3", "psycopg", "pymysql")), "")


def _plain(value: Any) -> Any:
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value
