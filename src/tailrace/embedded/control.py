"""A snapshot on demand, in the hands of whoever asked for it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tailrace.model.checkpoint import TableCopy


class Progress(msgspec.Struct, frozen=True):
    """Of a table's snapshot: chunks and rows that are acknowledged. Before it is planned it has no chunks."""

    table: str
    generation: int
    chunks: int
    chunks_done: int
    rows: int
    is_paused: bool
    where: str


def progress_of(copy: TableCopy) -> Progress:
    done = copy.chunks - len(copy.left)
    return Progress(copy.schema.table, copy.generation, copy.chunks, done, copy.rows, copy.is_paused, copy.where)


class Controls(Protocol):
    """The requests of a stream."""

    def of(self, table: str, generation: int) -> TableCopy | None: ...
    def pause(self, table: str, generation: int, *, is_paused: bool) -> bool: ...
    def stop(self, table: str, generation: int) -> bool: ...


class SnapshotControl:
    """Pause, resume and stop are durable when they return; false if the snapshot is over."""

    def __init__(self, requests: Controls, table: str, generation: int) -> None:
        self._requests, self.table, self.generation = requests, table, generation

    def pause(self) -> bool:
        """Nothing more is read, from the next chunk on."""
        return self._requests.pause(self.table, self.generation, is_paused=True)

    def resume(self) -> bool:
        return self._requests.pause(self.table, self.generation, is_paused=False)

    def stop(self) -> bool:
        """Give it up; what was delivered stays delivered."""
        return self._requests.stop(self.table, self.generation)

    @property
    def progress(self) -> Progress | None:
        """None once it is over, or was stopped."""
        copy = self._requests.of(self.table, self.generation)
        return None if copy is None else progress_of(copy)

    @property
    def is_over(self) -> bool:
        return self.progress is None
