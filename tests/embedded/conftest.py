"""A database with a table, and a store that lasts as long as the test."""

from __future__ import annotations

import pytest

from tailrace.checkpoints.memory import MemoryStore
from tailrace.testing.postgres import execute


@pytest.fixture
def url(postgres_url: str) -> str:
    execute(postgres_url, "CREATE TABLE items (id int PRIMARY KEY, name text)")
    return postgres_url


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
