"""Fixtures of the seams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.mysql import MySqlServer
from support.sinks import Server, SinkDatabase, sink_databases
from tailrace.testing import PostgresServer


@pytest.fixture
def sinks(
    postgres_server: PostgresServer, mysql_server: MySqlServer, tmp_path: Path
) -> Iterator[dict[str, SinkDatabase]]:
    """One sink of each kind, in databases of the test's own."""
    servers: dict[str, Server] = {"postgresql": postgres_server, "mysql": mysql_server}
    with sink_databases(servers, tmp_path) as made:
        yield made
