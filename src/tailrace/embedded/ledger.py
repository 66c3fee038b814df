"""The place of one stream: its checkpoint, as it is in the store."""

from __future__ import annotations

import threading

from tailrace.checkpoints.base import CheckpointStore
from tailrace.embedded.progress import with_copy, without_copy
from tailrace.model.checkpoint import Checkpoint, TableCopy


class Ledger:
    """Whoever reads a checkpoint in order to write the next one holds `lock`."""

    def __init__(self, store: CheckpointStore, name: str) -> None:
        self.store, self.name = store, name
        self.lock = threading.RLock()
        self._checkpoint: Checkpoint | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        assert self._checkpoint is not None
        return self._checkpoint

    @property
    def known(self) -> Checkpoint | None:
        """None before the first start."""
        return self._checkpoint

    def note(self, checkpoint: Checkpoint) -> None:
        """It is in the store, or what it adds need not be yet."""
        self._checkpoint = checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        self.store.save(self.name, checkpoint)
        self._checkpoint = checkpoint

    def save_copy(self, copy: TableCopy) -> None:
        with self.lock:
            self.save(with_copy(self.checkpoint, copy))

    def drop_copy(self, table: str) -> None:
        with self.lock:
            self.save(without_copy(self.checkpoint, table))
