"""Checkpoints that live as long as their store: for tests, and for consumers that begin anew each time."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.checkpoints.record import decoded, encoded
from tailrace.checkpoints.store import Check, Store
from tailrace.model.checkpoint import Checkpoint


class MemoryStore(Store[None]):
    """Holds records, as other stores do, so that it takes and refuses what they would."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, bytes] = {}

    def _take(self, name: str) -> None:
        """Whoever else has this store is of this process."""

    def _let_go(self, name: str, hold: None) -> None:
        """As above."""

    def _read(self, name: str) -> bytes | None:
        return self._records.get(name)

    def _write(self, name: str, hold: None, checkpoint: Checkpoint, check: Check) -> None:
        present = self._records.get(name)
        check(None if present is None else decoded(name, present))
        self._records[name] = encoded(name, checkpoint)

    def _remove(self, name: str, hold: None) -> bool:
        return self._records.pop(name, None) is not None

    def _names(self) -> Iterable[str]:
        return self._records
