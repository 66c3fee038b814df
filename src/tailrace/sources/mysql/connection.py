"""Connecting to a MySQL or MariaDB source over PyMySQL, and what its refusals mean for us."""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pymysql
from pymysql.connections import Connection

from tailrace.errors import SourceError, SourceRefused, SourceUnavailable

CONNECT_SECONDS = 10
READ_SECONDS = 600.0
PORT = 3306

# Server Error Message Reference: what passes by itself
_PASSING = {
    *(1021, 1037, 1038, 1040, 1041, 1053, 1079, 1080, 1105, 1114, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205),
    *(1206, 1213, 1290, 1317, 1429, 1836, 1927, 2002, 2003, 2006, 2013, 2014, 2027, 2055, 3024, 3032, 3170, 3572),
    *(3675, 4031),
}
_NO_SUCH_HOST = re.compile("name or service not known|name resolution|nodename nor servname", re.IGNORECASE)
_SETTINGS = (
    "SET SESSION sql_mode = '', time_zone = '+00:00', sql_select_limit = 18446744073709551615, sql_big_selects = 1,"
    " wait_timeout = 28800, net_write_timeout = 3600, net_read_timeout = 3600, completion_type = 0"
)


class _Preferring(Connection):
    """A connection that is encrypted where the server can, as PyMySQL has it.

    One without TLS options verifies nobody: it does without reading all authorities of the machine each time, which
    takes longer than all the rest of connecting.
    """

    def _create_ssl_ctx(self, options: Any) -> ssl.SSLContext:
        if options:
            verifying: ssl.SSLContext = super()._create_ssl_ctx(options)  # type: ignore[misc]  # not in the stubs
            return verifying
        return _without_authorities()


@functools.cache
def _without_authorities() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Server(msgspec.Struct, frozen=True):
    """What a server is. `has_gtids` says that its transactions have names that are the same on all of its replicas."""

    is_mariadb: bool
    version: tuple[int, ...]
    text: str
    id: int
    uuid: str  # MySQL only
    has_gtids: bool

    @property
    def product(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"


def connect(url: str, *, read_seconds: float = READ_SECONDS, **options: Any) -> Connection[Any]:
    """An autocommit session in UTC, in utf8mb4, without modes that change what values look like."""
    try:
        connection: Connection[Any] = _Preferring(**_arguments(url, read_seconds) | options)
        with connection.cursor() as cursor:
            cursor.execute(_SETTINGS)
        return connection
    except (pymysql.MySQLError, OSError) as error:
        raise _connection_error(url, error) from error


def _arguments(url: str, read_seconds: float) -> dict[str, Any]:
    """`mysql://user:password@host:port/database?ssl_ca=…`; other options are passed to PyMySQL."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or PORT,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database_of(url) or None,
        "autocommit": True,
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": read_seconds,
        "program_name": "tailrace source",
        **dict(parse_qsl(parts.query)),
        "charset": "utf8mb4",
    }


def database_of(url: str) -> str:
    return unquote(urlsplit(url).path.strip("/"))


def server_of(url: str) -> str:
    """Where a URL leads, without its secrets."""
    parts = urlsplit(url)
    return f"{parts.hostname or 'localhost'}:{parts.port or PORT}/{database_of(url)}"


def rows(connection: Connection[Any], statement: str, arguments: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments or None)
        return list(cursor.fetchall())


def variable(connection: Connection[Any], name: str) -> str:
    """A global variable as text; empty where the server does not know it."""
    found = rows(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name = %s", (name,))
    return str(found[0][1]) if found else ""


def global_value(connection: Connection[Any], name: str) -> str:
    """A global variable, whole and on one line: SHOW VARIABLES cuts a long one, such as a set of GTIDs, in silence."""
    [(found,)] = rows(connection, f"SELECT @@GLOBAL.{name}")
    return str("" if found is None else found).replace("\n", "")


def read_server(connection: Connection[Any]) -> Server:
    wanted = "'version', 'server_id', 'server_uuid', 'gtid_mode', 'log_bin', 'gtid_binlog_pos'"
    found = dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})"))
    text = str(found["version"])
    is_mariadb = "gtid_binlog_pos" in found
    numbers = re.findall(r"\d+", text.partition("-")[0])
    has_gtids = found.get("log_bin") == "ON" if is_mariadb else found.get("gtid_mode") == "ON"
    uuid = "" if is_mariadb else str(found.get("server_uuid", ""))
    return Server(is_mariadb, tuple(map(int, numbers)), text, int(found["server_id"]), uuid, has_gtids)


@contextmanager
def source_errors(url: str, doing: str) -> Iterator[None]:
    """Turns a driver's error while `doing` something into a SourceError."""
    try:
        yield
    except (pymysql.MySQLError, OSError) as error:
        raise source_error(url, doing, error) from error


def source_error(url: str, doing: str, error: BaseException) -> SourceError:
    if may_pass(error):
        return SourceUnavailable(f"the server at {server_of(url)} went away while {doing}: {sentence(error)}")
    return SourceRefused(f"the server at {server_of(url)} refused {doing}: {sentence(error)}")


def code_of(error: BaseException) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def may_pass(error: BaseException) -> bool:
    is_lost = isinstance(error, (OSError, pymysql.InterfaceError))
    return is_lost or code_of(error) in _PASSING


def sentence(error: BaseException) -> str:
    """The server's word on one line."""
    message = str(error.args[1]) if len(error.args) > 1 else str(error) or "the connection is gone"
    line = next(iter(message.splitlines()), "no reason given").rstrip(".")
    return f"{line} (error {code_of(error)})" if code_of(error) else line


def _connection_error(url: str, error: BaseException) -> SourceError:
    """A name that leads nowhere is refused at the start of a run; later on it led somewhere, and is tried again."""
    reason = sentence(error)
    is_nameless = bool(_NO_SUCH_HOST.search(reason))
    kind = SourceUnavailable if may_pass(error) and not is_nameless else SourceRefused
    found = kind(f"cannot connect to the server at {server_of(url)}: {reason}")
    found.retry |= is_nameless
    return found
