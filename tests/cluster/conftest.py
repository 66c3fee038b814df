"""One cluster, and one server whose password nobody may see, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import StandaloneCluster
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires

PASSWORD = "Weir7Sluice9Penstock"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with requires(PostgresServer.start, settings=FAST, password=PASSWORD) as started:
        yield started


@pytest.fixture
def databases(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A source and a sink, empty."""
    names = [f"{kind}_{abs(hash(request.node.nodeid)) % 10**9}" for kind in ("source", "sink")]
    yield server.create_database(names[0]), server.create_database(names[1])
    for name in names:
        server.drop_database(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("events", "run"):
        (tmp_path / name).mkdir()
    return tmp_path
