"""The file of a SQLite sink as its server."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.sinks.sql.dialect import Explanation, Server, Session
from tailrace.sinks.sql.sqlite import session as sqlite_session
from tailrace.sinks.sql.sqlite.file import SqliteFile
from tailrace.sinks.sql.sqlite.session import SqliteSession, explain


class SqliteServer(Server):
    ddl_is_transactional = True

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @property
    def address(self) -> str:
        return str(self._file.path)

    def connect(self) -> Session:
        return SqliteSession(self._file, sqlite_session.BUSY_SECONDS)

    def connect_in_task(self) -> Session:
        return SqliteSession(self._file, sqlite_session.LOAD_BUSY_SECONDS)

    def connect_to_read(self) -> Session:
        return SqliteSession(self._file, sqlite_session.BUSY_SECONDS, is_reading=True)

    def is_there(self) -> bool:
        return self._file.path.exists()

    def check(self, session: Session, schemas: Iterable[str]) -> None:
        self._file.check_folder()
        session.execute("PRAGMA schema_version")

    def explain(self, error: BaseException) -> Explanation | None:
        return explain(error)
