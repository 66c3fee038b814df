"""The place of one stream: its checkpoint, as it is in the store."""

from __future__ import annotations

import threading

import msgspec

from tailrace.checkpoints.base import CheckpointStore
from tailrace.embedded.progress import with_copy, without_copy
from tailrace.model.checkpoint import Checkpoint, TableCopy


class Ledger:
    """Whoever reads a checkpoint in order to write the next one holds `lock`. One that `is_owned` is ours to close."""

    def __init__(self, store: CheckpointStore, name: str, *, is_owned: bool = False) -> None:
        self.store, self.name, self._is_owned = store, name, is_owned
        self.lock = threading.RLock()
        self._checkpoint: Checkpoint | None = None
        self._is_claimed = False

    def claim(self) -> None:
        self.store.claim(self.name)
        self._is_claimed = True

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

    def release(self) -> None:
        """Let others write, if it was us. A store of ours keeps nothing open then; it opens again what it needs."""
        if self._is_claimed:
            self._is_claimed = False
            self.store.release(self.name)
        if self._is_owned:
            self.store.close()

    def delete(self) -> bool:
        """Whether there was one."""
        try:
            return self.store.delete(self.name)
        finally:
            self.release()

    def save_copy(self, copy: TableCopy) -> None:
        with self.lock:
            self.save(with_copy(self.checkpoint, copy))

    def mark_partial(self, table: str) -> None:
        """Rows of a table are delivered in part while it is read on demand: durable before they are."""
        with self.lock:
            found = next((each for each in self.checkpoint.copies if each.schema.table == table), None)
            if found is not None and not found.is_partial:
                self.save(with_copy(self.checkpoint, msgspec.structs.replace(found, is_partial=True)))

    def give_up(self, table: str) -> None:
        """A table went, or lacks something: what comes under its name is copied from its beginning."""
        with self.lock:
            memberships = self.checkpoint.memberships | {table: ""}
            self.save(msgspec.structs.replace(without_copy(self.checkpoint, table), memberships=memberships))

    def drop_copy(self, table: str) -> None:
        with self.lock:
            self.save(without_copy(self.checkpoint, table))
