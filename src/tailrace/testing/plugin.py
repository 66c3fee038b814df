"""pytest fixtures for real servers: `pytest_plugins = ["tailrace.testing.plugin"]` in the top conftest.

A server that cannot be had is a skip with its reason at home, and a failure where `CI=true`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import NoReturn, ParamSpec, TypeVar

import pytest

from tailrace.testing.postgres import INSTALLS, PostgresServer
from tailrace.testing.processes import ServerUnavailable

pytest.register_assert_rewrite(
    *(f"tailrace.testing.sink_contract_{part}" for part in ("commits", "rows", "snapshots", "values")),
    "tailrace.testing.change_sink_contract",
    "tailrace.testing.checkpoint_contract",
    "tailrace.testing.log_contract",
    "tailrace.testing.sink_changes",
    "tailrace.testing.source_changes",
    "tailrace.testing.source_contract",
)

P = ParamSpec("P")
T = TypeVar("T")

_database_numbers = count(1)

FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
"""For servers that are thrown away. A killed *process* loses nothing by it; only a machine that loses power would."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tailrace")
    group.addoption(
        "--postgres",
        type=int,
        choices=sorted(INSTALLS),
        default=int(os.environ.get("PG", "18")),
        help="PostgreSQL version of the fixtures (default: the variable PG, or 18)",
    )


def unavailable(reason: str) -> NoReturn:
    """Skip this test with the reason; fail it in CI, where everything has to be there."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"needed in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def requires(start: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`start(…)`, where a server that cannot be had is a skip at home and a failure in CI."""
    try:
        return start(*args, **kwargs)
    except ServerUnavailable as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(PostgresServer.start, version=request.config.getoption("--postgres"), settings=FAST) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh database, dropped afterwards with its replication slots."""
    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
