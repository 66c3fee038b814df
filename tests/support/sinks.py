"""The databases that a pipeline under test writes to, all four kinds alike: their rows, and what the sink remembers.

All of it is seen from beside the pipeline, over connections of one's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql

from support.mysql import MariaDbServer, MySqlServer
from support.pipelines import RunningPipeline, position_of
from tailrace import config, registry
from tailrace.errors import SinkError
from tailrace.model.lifecycle import TableState
from tailrace.sinks.base import SinkState
from tailrace.sources.postgres.positions import reached
from tailrace.testing.postgres import PostgresServer
from tailrace.testing.processes import wait_until

Server = PostgresServer | MySqlServer | MariaDbServer

ROWS_AT_A_TIME = 10_000
FAMILY = ("mysql", "mariadb")

_numbers = count(1)

_STAGING = {
    "postgresql": "SELECT relname FROM pg_class WHERE relname LIKE 'staged\\_%' AND relkind = 'r'",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = database()"
    " AND table_name LIKE '%staged\\_%'",
}
_OPEN_WRITES = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state = 'idle in transaction' AND backend_xid IS NOT NULL",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
    " ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND p.command = 'Sleep' AND t.trx_rows_modified > 0",
}
_TRANSACTIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
    " ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND p.id <> connection_id()",
}
_SESSIONS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


@dataclass(frozen=True)
class SinkDatabase:
    """One database that a sink writes to. `kind` is the scheme of its URL; SQLite has no server."""

    kind: str
    url: str

    @property
    def is_server(self) -> bool:
        return self.kind != "sqlite"

    @property
    def family(self) -> str:
        return "mysql" if self.kind in FAMILY else self.kind

    @property
    def path(self) -> Path:
        """Of a SQLite file."""
        return Path(self.url.removeprefix("sqlite:///"))

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A session of one's own, with autocommit. SQLite's can only read."""
        with closing(self._connection()) as connection:
            yield connection

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def rows(self, query: str) -> Generator[tuple[Any, ...]]:
        """The rows of a query, without having all of them at once."""
        with self.connect() as connection, closing(self._streaming(connection)) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(ROWS_AT_A_TIME):
                yield from map(tuple, rows)

    def quote(self, name: str) -> str:
        mark = "`" if self.kind in FAMILY else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def staging_tables(self) -> list[str]:
        return [str(name) for (name,) in self.query(_STAGING[self.family])]

    def has_open_write(self) -> bool:
        """Whether a session has written in a transaction, and waits inside of it."""
        return bool(self.query(_OPEN_WRITES[self.family])[0][0])

    def is_idle(self) -> bool:
        """Whether nobody else is in a transaction that keeps others from writing."""
        if self.is_server:
            return self.query(_TRANSACTIONS[self.family]) == [(0,)]
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=0)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # it is locked
                return False
            return True

    def cut_sessions(self) -> int:
        """End all other sessions in this database; how many there were."""
        sessions = [int(session) for (session,) in self.query(_SESSIONS[self.family])]
        for session in sessions:
            self._end(session)
        return len(sessions)

    def _end(self, session: int) -> None:
        if self.kind == "postgresql":
            self.query(f"SELECT pg_terminate_backend({session})")
            return
        try:
            self.query(f"KILL {session}")
        except pymysql.MySQLError as error:
            if error.args[0] != 1094:  # no such thread: it went by itself
                raise

    def _connection(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, isolation_level=None)
        if self.kind == "postgresql":
            return psycopg.connect(self.url, autocommit=True)
        parts = urlsplit(self.url)
        return pymysql.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.strip("/")),
            charset="utf8mb4",
            autocommit=True,
        )

    def _streaming(self, connection: Any) -> Any:
        if self.kind == "postgresql":
            return psycopg.ServerCursor(connection, "tailrace_test", withhold=True)
        return connection.cursor(pymysql.cursors.SSCursor) if self.kind in FAMILY else connection.cursor()


@contextmanager
def sink_databases(servers: Mapping[str, Server], folder: Path | None = None) -> Iterator[dict[str, SinkDatabase]]:
    """A fresh database on each of the servers, dropped afterwards; with a folder, a SQLite file as well."""
    made = {kind: f"sink_{next(_numbers)}" for kind in servers}
    databases = {kind: SinkDatabase(kind, servers[kind].create_database(name)) for kind, name in made.items()}
    if folder is not None:
        databases["sqlite"] = SinkDatabase("sqlite", f"sqlite:///{folder}/replica.db")
    try:
        yield databases
    finally:
        for kind, name in made.items():
            if servers[kind].is_running:
                servers[kind].drop_database(name)


class SinkView:
    """What a sink remembers of its pipeline, seen from beside it; for SQLite without making the file."""

    def __init__(self, file: Path, sink: str) -> None:
        pipeline = config.load(file)
        self._sink = registry.make_sink(pipeline, sink)

    def state(self) -> SinkState:
        """Empty while there is none, or while the sink does not answer."""
        try:
            return self._sink.read_state()
        except SinkError:
            return SinkState(None, {}, {})
        finally:
            self._sink.close()

    def chunks_loaded(self) -> int:
        return sum(mark.is_loaded for marks in self.state().chunks.values() for mark in marks)

    def is_live(self) -> bool:
        tables = self.state().tables.values()
        return bool(tables) and all(table.state is TableState.LIVE for table in tables)

    def has_reached(self, position: str) -> bool:
        """Whether all tables are live, and have what the source committed before `position` of its log."""
        state = self.state()
        mark = state.watermark
        is_live = bool(state.tables) and all(table.state is TableState.LIVE for table in state.tables.values())
        return is_live and mark is not None and bool(mark.position) and reached(mark.position, position)


def wait_until_current(pipeline: RunningPipeline, file: Path, source: str, sinks: Iterable[str]) -> None:
    """Wait until these sinks have all that the source has committed by now."""
    position = position_of(source)
    for name in sinks:
        view = SinkView(file, name)
        pipeline.wait_for(lambda view=view: view.has_reached(position), f"sink {name} to be current")  # type: ignore[misc]


def freeze_between_commits(pipeline: RunningPipeline, sinks: Iterable[SinkDatabase], tries: int = 100) -> None:
    """Freeze all of a pipeline but its capture process, while it is in no transaction of a sink: that would be a lock.

    What it is in the middle of elsewhere, it goes on with when it is thawed.
    """
    databases = list(sinks)
    for _ in range(tries):
        pipeline.freeze(but_capture=True)
        with suppress(TimeoutError):  # a statement that has begun ends by itself
            wait_until(lambda: all(sink.is_idle() for sink in databases), seconds=1, what="no transaction", every=0.1)
            return
        pipeline.thaw()
        pipeline.wait_for(lambda: all(sink.is_idle() for sink in databases), "a moment between commits")
    raise AssertionError(f"the pipeline was in a transaction of a sink {tries} times")


def assert_same_rows(source: str, database: SinkDatabase, table: str, columns: Sequence[str], key: str) -> int:
    """Every row of a table of the source is in the sink, every column as text, and nothing else; how many they are.

    For tables whose values have the same text everywhere: integers, uuids, plain texts.
    """
    origin = SinkDatabase("postgresql", source)
    rows = 0
    with (
        closing(origin.rows(_as_text(origin, table, columns, key))) as theirs,
        closing(database.rows(_as_text(database, table, columns, key))) as ours,
    ):
        for one, other in zip_longest(theirs, ours):
            assert one == other, f"{table}: row {rows + 1} in the order of {key} differs: source {one}, sink {other}"
            rows += 1
    return rows


def _as_text(database: SinkDatabase, table: str, columns: Sequence[str], key: str) -> str:
    type_ = "char" if database.kind in FAMILY else "text"
    texts = ", ".join(f"CAST(t.{database.quote(name)} AS {type_})" for name in columns)
    return f"SELECT {texts} FROM {database.quote(table)} t ORDER BY t.{database.quote(key)}"
