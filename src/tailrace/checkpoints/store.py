"""What all our stores share: names are checked, a name is claimed before it is written, calls come one at a time.

A store is its process's own: in a child that was forked every call is refused, because its locks and connections are
its parent's.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from tailrace.checkpoints.holders import taken
from tailrace.checkpoints.names import check_name, is_name
from tailrace.checkpoints.record import age_of, decoded
from tailrace.checkpoints.succession import check_sound, check_succession
from tailrace.errors import Misuse
from tailrace.model.checkpoint import Checkpoint

H = TypeVar("H")
"""What a store keeps of a claim of its own."""


Check = Callable[[Checkpoint | None], None]
"""Raises CheckpointRefused if the present checkpoint may not be replaced."""


class Store(ABC, Generic[H]):
    """A CheckpointStore, up to where its bytes are. A context manager that closes it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._holds: dict[str, H] = {}

    def claim(self, name: str) -> None:
        with self._turn(name):
            if name in self._holds:
                raise taken(name, "another stream of this process", "stop that stream first, or give this one a name")
            self._holds[name] = self._take(name)

    def release(self, name: str) -> None:
        with self._turn(name):
            if (hold := self._holds.pop(name, None)) is not None:
                self._let_go(name, hold)

    def load(self, name: str) -> Checkpoint | None:
        with self._turn(name):
            data = self._read(name)
            return None if data is None else decoded(name, data)

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        with self._turn(name):
            hold = self._hold(name)
            self._write(name, hold, checkpoint, lambda present: check_succession(name, present, checkpoint))

    def seed(self, name: str, checkpoint: Checkpoint) -> None:
        """As `save`, in place of whatever is there: somebody has decided so. What is damaged is deleted first."""
        with self._turn(name):
            check_sound(name, checkpoint)
            self._write(name, self._hold(name), checkpoint, lambda _: None)

    def delete(self, name: str) -> bool:
        """Whether there was one. One that nobody holds is held meanwhile. It need not be sound."""
        with self._turn(name):
            if name in self._holds:
                return self._remove(name, self._holds[name])
            self.claim(name)
            try:
                return self._remove(name, self._holds[name])
            finally:
                self.release(name)

    def list(self) -> list[str]:
        with self._turn():
            return sorted(filter(is_name, self._names()))

    def age(self, name: str) -> float | None:
        with self._turn(name):
            data = self._read(name)
            return None if data is None else age_of(name, data)

    def close(self) -> None:
        """Let go of all names. May be repeated."""
        if os.getpid() == self._pid:
            for name in [*self._holds]:
                self.release(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _turn(self, name: str | None = None) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise Misuse(
                f"this checkpoint store belongs to process {self._pid}, which was forked",
                hint="open the store in the process that uses it",
            )
        if name is not None:
            check_name(name)
        with self._lock:
            yield

    def _hold(self, name: str) -> H:
        if name not in self._holds:
            raise Misuse(f"checkpoint {name} is saved by who has not claimed it", hint=f'call claim("{name}") first')
        return self._holds[name]

    @abstractmethod
    def _take(self, name: str) -> H:
        """Raises CheckpointTaken."""

    @abstractmethod
    def _let_go(self, name: str, hold: H) -> None: ...

    @abstractmethod
    def _read(self, name: str) -> bytes | str | None: ...

    @abstractmethod
    def _write(self, name: str, hold: H, checkpoint: Checkpoint, check: Check) -> None:
        """Raises what `check` does of the present one, and CheckpointTaken."""

    @abstractmethod
    def _remove(self, name: str, hold: H) -> bool: ...

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Those that have a checkpoint. Where others keep things too, some of theirs may be among them."""
