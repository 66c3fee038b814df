"""Which database a sink is, how it is connected to, and what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from tailrace.sinks.sql.dialect.session import Explanation, Session


class Server(ABC):
    """The database of one sink's URL."""

    ddl_is_transactional: bool
    share_lock: str = ""
    """Ends a SELECT of a row that must stay as it is until the transaction ends, where `lock_shared` does not do it."""
    update_lock: str = ""
    """Ends a SELECT of a row that nobody else may select so, or change, until the transaction ends."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the URL leads, without its secrets."""

    @abstractmethod
    def connect(self) -> Session: ...

    def connect_in_task(self) -> Session:
        """For one of several tasks that work at the same time."""
        return self.connect()

    def connect_to_read(self) -> Session:
        """A session that creates and changes nothing, and finds nothing where the database is not there yet."""
        return self.connect()

    def is_there(self) -> bool:
        """False for a database that the first write will make."""
        return True

    def identity(self, session: Session) -> tuple[str, str] | None:
        """What a source of the same kind would call the server and the database; None if there is no such source."""
        return None

    @abstractmethod
    def check(self, session: Session, schemas: Iterable[str]) -> None:
        """Raise SinkRejected if the server can not serve as a sink. `schemas` are those that tables will go to."""

    @abstractmethod
    def explain(self, error: BaseException) -> Explanation | None:
        """None if the error is not the driver's."""
