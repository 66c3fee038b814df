"""The change log, on a local disk and on an object store: held to one contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.stores import object_store
from tailrace.state import lease
from tailrace.state.storage import Storage
from tailrace.testing.log_contract import LogContract


@pytest.fixture(scope="module")
def address() -> Iterator[Callable[[str], str]]:
    with object_store() as address:
        yield address


class TestOnALocalDisk(LogContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return Storage(str(tmp_path / "log"))


@pytest.mark.server
class TestOnAnObjectStore(LogContract):
    @pytest.fixture
    def storage(
        self, address: Callable[[str], str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Storage:
        monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)  # nobody comes at the same moment
        return Storage(address(f"{request.node.name}/log"))
