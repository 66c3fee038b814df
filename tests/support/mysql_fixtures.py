"""pytest fixtures for real MySQL and MariaDB servers, as `tailrace.testing.plugin` has them for PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from support.mysql import MariaDbServer, MySqlServer
from tailrace.testing.plugin import requires

_database_numbers = count(1)

FAST_MYSQL = {"innodb_flush_log_at_trx_commit": 2, "sync_binlog": 0, "performance_schema": False}
"""For servers that are thrown away. A killed *process* loses nothing by it; only a machine that loses power would."""


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(MariaDbServer.start, settings=FAST_MYSQL) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySqlServer]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(MySqlServer.start, settings=FAST_MYSQL) as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDbServer) -> Iterator[str]:
    """The URL of a fresh database, dropped afterwards with the sessions that are in it."""
    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    yield mariadb_server.create_database(name)
    mariadb_server.drop_database(name)


@pytest.fixture
def mysql_url(mysql_server: MySqlServer) -> Iterator[str]:
    """The URL of a fresh database, dropped afterwards with the sessions that are in it."""
    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    yield mysql_server.create_database(name)
    mysql_server.drop_database(name)
