"""pytest fixtures for a real Kafka broker, as `tailrace.testing.plugin` has them for PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient

from support import kafka_security
from support.kafka import KafkaCluster
from support.kafka_security import Authority
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


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA, with a folder of its own for what it issues."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def guarded_broker(authority: Authority) -> Iterator[KafkaCluster]:
    """A broker with a listener for each way in, where nobody has a right but those who come by the plain one."""
    with requires(kafka_security.start, authority) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def guard(guarded_broker: KafkaCluster) -> AdminClient:
    """Gives rights, and takes them away."""
    return kafka_security.administrator(guarded_broker)


@pytest.fixture
def guarded_prefix(guarded_broker: KafkaCluster) -> str:
    """A prefix of topics of one's own, which no other prefix begins with."""
    return f"g{os.getpid()}-{next(_numbers)}-end"
