"""One connection to a MySQL or MariaDB sink, over PyMySQL.

Rows are loaded with LOAD DATA LOCAL from memory. The server never gets a file: whatever name it asks for, it is
sent the rows of the load that is under way, and nothing if there is none.

Why PyMySQL: the way of loading decides, not the driver, and this one needs no compiler and no file. 100,000 rows of the
benchmark, in thousands a second into MySQL / MariaDB, on a busy machine: LOAD DATA by PyMySQL 214 / 187–283, by
mysqlclient from a file 255 / 204–210, by mysql-connector from a file 142–183 / 216–304; INSERT of many rows by any of
them 36–76; executemany of the mariadb connector 7–8 / 84–94.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
import pymysql
from pymysql import connections, cursors
from pymysql.constants import COMMAND

from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.types import ColumnType
from tailrace.sinks.sql.dialect import Explanation
from tailrace.sinks.sql.mysql import native
from tailrace.sinks.sql.mysql.flavor import Flavor
from tailrace.sinks.sql.mysql.staging import STAGED, create_staging
from tailrace.sinks.sql.mysql.types import ROW
from tailrace.sinks.sql.sessions import in_pieces
from tailrace.sinks.sql.staged import Relation, StagedRows

CONNECT_TIMEOUT_SECONDS = 10
LOCK_TIMEOUT_SECONDS = 30
NET_TIMEOUT_SECONDS = 3600  # the rows of a load come as fast as the source gives them
TAKE_OVER_SECONDS = 5
SHARES = 64  # sessions that share a name; one more waits
PACKET_BYTES = 1 << 20
PORT = 3306

_MODES = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
    ",NO_AUTO_VALUE_ON_ZERO"  # a key of 0 is 0
)
_SETTINGS = {
    "sql_mode": f"'{_MODES}'",
    "time_zone": "'+00:00'",
    "lock_wait_timeout": str(LOCK_TIMEOUT_SECONDS),
    "innodb_lock_wait_timeout": str(LOCK_TIMEOUT_SECONDS),
    "wait_timeout": "28800",
    "net_read_timeout": str(NET_TIMEOUT_SECONDS),
    "net_write_timeout": str(NET_TIMEOUT_SECONDS),
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "sql_select_limit": str(2**64 - 1),
    "sql_safe_updates": "0",
    "sql_big_selects": "1",
    "sql_auto_is_null": "0",
    "completion_type": "0",
}
_LIMITS = (
    "'max_execution_time', 'max_statement_time', 'idle_transaction_timeout', 'idle_write_transaction_timeout',"
    " 'idle_readonly_transaction_timeout'"
)
"""0 where there is no limit."""
_LOAD = (
    "LOAD DATA LOCAL INFILE 'tailrace' REPLACE INTO TABLE {table} CHARACTER SET binary"
    " FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' {columns}"
)

# Server Error Message Reference, by what they mean for us
_UNAVAILABLE = {
    *(1021, 1037, 1038, 1040, 1041, 1053, 1079, 1080, 1105, 1114, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205),
    *(1206, 1213, 1290, 1317, 1429, 1792, 1836, 1927, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 3024, 3032, 3170),
    *(3572, 3675, 4031),
}
_GONE = {1053, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 4031}
_FULL = re.compile(r"disk is full|No space left|No more room|errno: 28\b|error 28\b")
"""Of a full disk there are many errors, and the same ones for other reasons."""
_DUPLICATE = {1022, 1062, 1169, 1586}
_WITH_VALUES = {
    1048: "NULL where it is not allowed",
    1062: "a key that is there already",
    1264: "a number out of range",
    1265: "a value that would be cut off",
    1292: "an incorrect value",
    1366: "an incorrect value",
    1406: "a text that is too long",
    1411: "an incorrect value",
    1452: "a row that a foreign key forbids",
    1690: "a number out of range",
    3819: "a row that a check forbids",
    4025: "a row that a check forbids",
}
"""Errors whose message may show a value, in our own words."""
_ABOUT_ROWS = {1022, 1169, 1216, 1217, 1451, 1586, 1644, 3140, 3819, 4025}
"""Others that are about rows: keys, references, checks, and what triggers raise."""


_MySqlResult: Any = connections.MySQLResult  # the stubs know nothing of its insides
_MySqlConnection: Any = connections.Connection


class _Result(_MySqlResult):  # type: ignore[misc]  # its base is Any, see above
    """Answers a request for a file with the rows of the connection's load."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection = self.connection
        try:
            for piece in connection.payload or ():
                view = memoryview(piece)
                for first in range(0, len(view), PACKET_BYTES):
                    connection.write_packet(bytes(view[first : first + PACKET_BYTES]))
                del piece, view  # they may be large, and the next one is yet to be made
        finally:
            connection.write_packet(b"")
            answer = connection._read_packet()
        self._read_ok_packet(answer)


class _Connection(_MySqlConnection):  # type: ignore[misc]  # its base is Any, see above
    payload: Iterable[bytes | pa.Buffer] | None = None

    def load(self, statement: str, payload: Iterable[bytes | pa.Buffer]) -> int:
        """Run a LOAD DATA LOCAL with these bytes as its file; how many warnings there were."""
        self.payload = payload
        try:
            self._execute_command(COMMAND.COM_QUERY, statement.encode())
            result = _Result(self)
            result.read()
        finally:
            self.payload = None
        self.server_status = result.server_status
        return int(result.warning_count)


class MySqlSession:
    """A strict session in UTC, committing by itself until `begin`."""

    def __init__(self, url: str, flavor: Flavor) -> None:
        self._flavor = flavor
        self.connection = _Connection(**_arguments(url))
        self._locks: list[str] = []
        self._temporary: list[str] = []
        sets = ", ".join(f"SESSION {name} = {value}" for name, value in _SETTINGS.items())
        self.execute(f"SET {sets}")
        self._be_patient()
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def _be_patient(self) -> None:
        """Switch off what may end a statement or a transaction of ours, where the server knows it."""
        known = self.execute(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({_LIMITS})")
        limiting = [name for name, value in known if float(value) != 0]
        if limiting:
            self.execute("SET " + ", ".join(f"SESSION {name} = 0" for name in limiting))

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, tuple(parameters) or None)
            return list(cursor.fetchall())

    def merge(self, statement: str, relation: Relation) -> list[tuple[Any, ...]]:
        return self.execute(statement)

    def relation(self, rows: StagedRows) -> Relation:
        """Rows from a receipt become a temporary table of this session."""
        if rows.table:
            return _relation(rows, rows.table)
        name = f"`_tailrace_rows_{len(self._temporary)}`"
        self.execute(create_staging(name, rows.columns, self._flavor, is_private=True))
        self._temporary.append(name)
        types = [column.type for column in rows.columns]
        self.load(name, [f"c{place}" for place in range(len(types))], rows.inline, types)
        return _relation(rows, name)

    def load(
        self,
        table: str,
        names: Sequence[str],
        payload: Iterable[bytes | pa.Buffer],
        types: Sequence[ColumnType] = (),
    ) -> None:
        """LOCAL makes warnings of what would be errors: a warning is an error here."""
        if self.connection.load(_LOAD.format(table=table, columns=self._loaded(names, types)), payload):
            [(_, code, message), *_] = self.execute("SHOW WARNINGS LIMIT 1")
            raise pymysql.DataError(code, message)

    def _loaded(self, names: Sequence[str], types: Sequence[ColumnType]) -> str:
        """The columns of a load, and what is made of values that are not stored as they come."""
        made = {place: native.loaded(f"@v{place}", type_, self._flavor) for place, type_ in enumerate(types)}
        made = {place: value for place, value in made.items() if value is not None}
        columns = ", ".join(f"@v{place}" if place in made else name for place, name in enumerate(names))
        sets = ", ".join(f"{names[place]} = {value}" for place, value in made.items())
        return f"({columns}) SET {sets}" if sets else f"({columns})"

    def stream(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        with self.connection.cursor(cursors.SSCursor) as cursor:
            cursor.execute(query)
            yield from in_pieces(cursor.fetchmany)

    def lock(self, name: str) -> None:
        if not self._take(_lock_name(name), LOCK_TIMEOUT_SECONDS):
            raise pymysql.OperationalError(1205, "another session of this pipeline holds the lock")

    def lock_shared(self, name: str) -> None:
        """MySQL's named locks can not be shared: a name that is has places, of which each session takes one.

        The row that is read with `share_lock` keeps out whoever does not know that.
        """
        places = _places(name)
        first = self.connection.thread_id() % SHARES
        if not any(self._take(place, 0) for place in places[first:] + places[:first]):
            self.lock(f"{name}/{first}")

    def take_over(self, name: str) -> None:
        names = [_lock_name(name), *_places(name)]
        asked = ", ".join("GET_LOCK(%s, 0)" for _ in names)
        [found] = self.execute(f"SELECT {asked}", names)
        self._locks += [each for each, free in zip(names, found, strict=True) if free == 1]
        deadline = time.monotonic() + TAKE_OVER_SECONDS
        for each in (each for each, free in zip(names, found, strict=True) if free != 1):
            self._take_over(each, max(deadline - time.monotonic(), 0))

    def _take_over(self, name: str, seconds: float) -> None:
        if self._take(name, seconds):
            return
        [(holder,)] = self.execute("SELECT IS_USED_LOCK(%s)", [name])
        if holder is not None:
            with suppress(pymysql.MySQLError):  # it may have ended by itself
                self.execute(f"KILL {int(holder)}")
        if not self._take(name, LOCK_TIMEOUT_SECONDS):
            raise pymysql.OperationalError(1205, "another session of this pipeline holds the lock")

    def _take(self, name: str, seconds: float) -> bool:
        """Once more is no matter: a session may hold a name several times."""
        is_ours = self.execute("SELECT GET_LOCK(%s, %s)", [name, seconds]) == [(1,)]
        self._locks += [name] if is_ours else []
        return is_ours

    def begin(self) -> None:
        self.execute("START TRANSACTION")

    def commit(self) -> None:
        self.execute("COMMIT")
        self._release()

    def rollback(self) -> None:
        self.execute("ROLLBACK")
        self._release()

    def _release(self) -> None:
        for name in self._temporary:
            self.execute(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        for name in self._locks:
            self.execute("SELECT RELEASE_LOCK(%s)", [name])
        self._temporary.clear()
        self._locks.clear()

    def close(self) -> None:
        self.connection.close()


def _relation(rows: StagedRows, table: str) -> Relation:
    values = {column.label: f"{STAGED}.c{place}" for place, column in enumerate(rows.columns)}
    return Relation(f"{table} {STAGED}", values, alias=STAGED, number=f"{STAGED}.{ROW}")


def database_of(url: str) -> str:
    return unquote(urlsplit(url).path.strip("/"))


def server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or PORT}/{database_of(url)}"


def _lock_name(name: str) -> str:
    return f"tailrace_{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _places(name: str) -> list[str]:
    return [_lock_name(f"{name}/{place}") for place in range(SHARES)]


def _arguments(url: str) -> dict[str, Any]:
    """`mysql://user:password@host:port/database?ssl_ca=…`; other options are passed to PyMySQL."""
    parts = urlsplit(url)
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or PORT,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database_of(url),
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "local_infile": True,
        "program_name": "tailrace sink",
        **options,
        "charset": "utf8mb4",  # ours, as the collation of what is staged
    }


def explain(error: BaseException) -> Explanation | None:
    """What PyMySQL's errors mean."""
    if not isinstance(error, pymysql.MySQLError):
        return None
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    words = _sentence(code, error)
    is_gone = code in _GONE or (isinstance(error, pymysql.InterfaceError) and code == 0)
    may_pass = is_gone or code in _UNAVAILABLE or bool(_FULL.search(words))
    return Explanation(
        SinkUnavailable if may_pass else SinkRejected,
        words,
        is_duplicate=code in _DUPLICATE,
        is_about_rows=code in _WITH_VALUES or code in _ABOUT_ROWS,
        is_gone=is_gone,
    )


def _sentence(code: int, error: pymysql.MySQLError) -> str:
    """The server's word on one line, or ours where its own may show a value."""
    message = str(error.args[1]) if len(error.args) > 1 else str(error) or "the connection is gone"
    if code in _WITH_VALUES:
        column = re.search(r"[Cc]olumn '?`?(?:[^'`]*`\.`)*([^'`]+)", message)
        return _WITH_VALUES[code] + (f" in column {column[1]}" if column else "") + f" (error {code})"
    line = message.splitlines()[0] if message else "no reason given"
    return f"{line} (error {code})" if code else line
