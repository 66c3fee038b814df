"""Connections to a server, kept for the next use, and what their failures mean for the pipeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tailrace.sinks.sql.dialect import Dialect, Session
from tailrace.sinks.sql.trouble import trouble_of

FRESH_SECONDS = 5.0
"""A connection that was idle for longer is asked whether it still lives."""

READ_ROWS = (64, 4096)
READ_BYTES = 8 << 20
"""What is read together: so many rows at first and at the most, and about so much."""


class Sessions:
    """The connections of one sink in one process. Pickles without them."""

    def __init__(self, dialect: Dialect, sink: str) -> None:
        self._dialect, self._sink = dialect, sink
        self._idle: list[tuple[float, Session]] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_idle", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_idle": [], "_lock": threading.Lock()}

    @contextmanager
    def use(self, doing: str) -> Iterator[Session]:
        """A connection for one piece of work, kept afterwards unless the work failed."""
        with self.errors(doing):
            session = self._take()
            try:
                yield session
            except BaseException:
                with suppress(Exception):
                    session.close()
                raise
        with self._lock:
            self._idle.append((time.monotonic(), session))

    @contextmanager
    def open(self, doing: str) -> Iterator[Session]:
        """A connection of one's own, closed afterwards: for tasks, and for reading in pieces."""
        with self.errors(doing), _closing(self._dialect.server.connect_in_task()) as session:
            yield session

    @contextmanager
    def look(self, doing: str) -> Iterator[Session]:
        """A connection that creates and changes nothing, closed afterwards."""
        with self.errors(doing), _closing(self._dialect.server.connect_to_read()) as session:
            yield session

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turns a driver's error while `doing` something into a SinkError; errors of others pass."""
        try:
            yield
        except Exception as error:
            found = self._dialect.server.explain(error)
            if found is None:
                raise
            how = "went away while" if found.is_gone else "can not finish" if found.kind.retry else "refused"
            server = f"{self._dialect.name} at {self._dialect.server.address}"
            raise found.kind(f"sink {self._sink}: {server} {how} {doing}: {found.words}", hint=found.hint) from error

    @contextmanager
    def errors_of(self, table: str, doing: str) -> Iterator[None]:
        """As `errors`, and what is refused is this table's own trouble."""
        with trouble_of(table), self.errors(doing):
            yield

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, session in idle:
            with suppress(Exception):
                session.close()

    def _take(self) -> Session:
        while True:
            with self._lock:
                if not self._idle:
                    break
                since, session = self._idle.pop()
            if time.monotonic() - since < FRESH_SECONDS or _lives(session):
                return session
        return self._dialect.server.connect()


def in_pieces(fetch: Callable[[int], Sequence[tuple[Any, ...]]]) -> Iterator[list[tuple[Any, ...]]]:
    """All rows that `fetch` gives, so many at a time as the size of the last ones suggests."""
    count, most = READ_ROWS
    while rows := list(fetch(count)):
        size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        count = max(min(count * 4, most, len(rows) * READ_BYTES // max(size, 1)), 1)
        yield rows


@contextmanager
def _closing(session: Session) -> Iterator[Session]:
    try:
        yield session
    finally:
        with suppress(Exception):
            session.close()


def _lives(session: Session) -> bool:
    try:
        session.execute("SELECT 1")
    except Exception:
        with suppress(Exception):
            session.close()
        return False
    return True


@contextmanager
def transaction(session: Session) -> Iterator[None]:
    """All that is done inside, or nothing of it."""
    session.begin()
    try:
        yield
        session.commit()
    except BaseException:
        with suppress(Exception):
            session.rollback()
        raise
