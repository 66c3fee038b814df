"""Every checkpoint store, held to one contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tailrace.checkpoints import CheckpointStore, FileStore, MemoryStore, open_store
from tailrace.testing.checkpoint_contract import CheckpointContract, Opened


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
