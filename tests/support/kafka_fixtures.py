"""pytest fixtures for a real Kafka broker, as `tailrace.testing.plugin` has them for PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from support.kafka import KafkaCluster
from tailrace.testing.plugin import requires

_numbers = count(1)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaCluster]:
    """One broker for the whole run. Do not stop it: a test that crashes a broker starts its own."""
    with requires(KafkaCluster.start) as cluster:
        yield cluster


@pytest.fixture
def kafka_prefix(kafka_broker: KafkaCluster) -> str:
    """A prefix of topics of one's own."""
    return f"t{os.getpid()}-{next(_numbers)}"
