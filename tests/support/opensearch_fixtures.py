"""pytest fixtures for a real OpenSearch server, as `tailrace.testing.plugin` has them for PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from support.opensearch import VERSIONS, OpenSearchServer
from tailrace.testing.plugin import requires

_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tailrace").addoption(
        "--opensearch",
        type=int,
        choices=sorted(VERSIONS),
        default=int(os.environ.get("OPENSEARCH", "2")),
        help="OpenSearch version of the fixtures (default: the variable OPENSEARCH, or 2)",
    )


@pytest.fixture(scope="session")
def opensearch_server(request: pytest.FixtureRequest) -> Iterator[OpenSearchServer]:
    """One server for the whole run. Do not stop it: a test that crashes a server starts its own."""
    with requires(OpenSearchServer.start, version=request.config.getoption("--opensearch")) as server:
        yield server


@pytest.fixture
def opensearch_prefix(opensearch_server: OpenSearchServer) -> Iterator[str]:
    """A prefix of one's own; what begins with it is removed afterwards."""
    prefix = f"t{os.getpid()}-{next(_numbers)}-"
    yield prefix
    found = opensearch_server.ask("GET", f"_cat/indices/{prefix}*?format=json&expand_wildcards=all&h=index")
    for name in [each["index"] for each in found]:
        opensearch_server.ask("DELETE", name)
