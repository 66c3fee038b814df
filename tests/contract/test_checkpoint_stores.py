"""Every checkpoint store, held to one contract."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import connect, end_session, make_mine, store_over_connection
from support.stores import object_store
from tailrace.checkpoints import CheckpointStore, FileStore, MemoryStore, SqlStore, open_store
from tailrace.state.storage import Storage
from tailrace.testing.checkpoint_contract import CheckpointContract, Opened, TransactionalContract


@pytest.fixture(scope="module")
def address() -> Iterator[Callable[[str], str]]:
    with object_store() as address:
        yield address


class TestInMemory(CheckpointContract):
    is_shared = False

    @pytest.fixture
    def opened(self) -> Opened:
        store = MemoryStore()
        return lambda: store


class TestInAFolder(CheckpointContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Opened:
        return partial(open_store, str(tmp_path / "made" / "here"))

    @pytest.fixture
    def forget_holder(self) -> Callable[[CheckpointStore, str], None]:
        def forget(store: CheckpointStore, name: str) -> None:
            assert isinstance(store, FileStore)
            os.unlink(store.folder / f"{name}.lock")

        return forget


@pytest.mark.server
class TestInAnObjectStore(CheckpointContract):
    @pytest.fixture
    def url(self, address: Callable[[str], str], request: pytest.FixtureRequest) -> str:
        return address(f"{abs(hash(request.node.name))}/checkpoints")

    @pytest.fixture
    def opened(self, url: str) -> Opened:
        return partial(open_store, url)

    @pytest.fixture
    def forget_holder(self, url: str) -> Callable[[CheckpointStore, str], None]:
        return lambda store, name: Storage(url).delete(f"{name}.lock")


class InADatabase(TransactionalContract):
    """By URL. Whoever subclasses it has the fixture `url`."""

    @pytest.fixture
    def opened(self, url: str) -> Opened:
        make_mine(url)
        return partial(open_store, url)

    @pytest.fixture
    def connected(self, url: str) -> Callable[[], Any]:
        return partial(connect, url)

    @pytest.fixture
    def forget_holder(self, url: str) -> Callable[[CheckpointStore, str], None]:
        def forget(store: CheckpointStore, name: str) -> None:
            assert isinstance(store, SqlStore)
            end_session(store, url)

        return forget


class TestInSqlite(InADatabase):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/mine.db"

    @pytest.fixture
    def forget_holder(self, tmp_path: Path) -> Callable[[CheckpointStore, str], None]:
        return lambda store, name: os.unlink(tmp_path / f"mine.db-tailrace_checkpoints-{name}.lock")


class TestOverAConnectionToSqlite(TestInSqlite):
    @pytest.fixture
    def opened(self, url: str) -> Opened:
        make_mine(url)
        return partial(store_over_connection, url)


@pytest.mark.server
class TestInPostgres(InADatabase):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


@pytest.mark.server
class TestInMySql(InADatabase):
    @pytest.fixture
    def url(self, mysql_url: str) -> str:
        return mysql_url


@pytest.mark.server
class TestInMariaDb(InADatabase):
    @pytest.fixture
    def url(self, mariadb_url: str) -> str:
        return mariadb_url
