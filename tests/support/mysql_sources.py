"""MySQL and MariaDB servers that are read from: with a binary log, as preflight asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.mysql_fixtures import FAST_MYSQL
from support.mysql_flavors import MYSQL
from tailrace.testing.plugin import requires

LOGGED: dict[str, object | None] = {
    **FAST_MYSQL,
    "log_bin": "binlog",
    "server_id": 1,
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}
MYSQL_LOGGED = LOGGED | {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}

_numbers = count(1)


class LoggingMySql(MySqlServer):
    """MySQL with its binary log on: as a sink for tests it has none."""

    flavor = msgspec.structs.replace(MYSQL, settings={"mysqlx": False})


Logging = LoggingMySql | MariaDbServer


def start_mysql(settings: dict[str, object | None] | None = None) -> LoggingMySql:
    return LoggingMySql.start(settings=MYSQL_LOGGED | (settings or {}))


def start_mariadb(settings: dict[str, object | None] | None = None) -> MariaDbServer:
    return MariaDbServer.start(settings=LOGGED | (settings or {}))


@pytest.fixture(scope="session")
def mysql_logging() -> Iterator[LoggingMySql]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(start_mysql) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_logging() -> Iterator[MariaDbServer]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(start_mariadb) as server:
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def logging(request: pytest.FixtureRequest) -> Logging:
    """Each of the two."""
    found: Logging = request.getfixturevalue(f"{request.param}_logging")
    return found


@pytest.fixture
def logged_url(logging: Logging) -> Iterator[str]:
    """The URL of a fresh database whose changes are logged."""
    name = f"source_{os.getpid()}_{next(_numbers)}"
    yield logging.create_database(name)
    logging.drop_database(name)
