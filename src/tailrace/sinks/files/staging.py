"""What tasks leave for the commit: whole files, on disk, under a name that no reader looks at.

A file is of one table, one version of it and one day; those of a table are in the order of the log.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.codecs.base import Facts
from tailrace.model.changes import Changes, Integers
from tailrace.model.schema import TableSchema
from tailrace.sinks.files.naming import folder_of
from tailrace.sinks.files.writing import OpenFile

PIECE_ROWS = 16_384
PIECE_BYTES = 8 << 20
"""What is encoded at once."""
OPEN_FILES = 100
"""At once, in a task: one more, and the one that was written to least recently is closed."""
DAY_US = 86_400_000_000

MakeFile = Callable[[Path, TableSchema], OpenFile]


class StagedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`span` says in its final name what is in it, `folder` and `day` where that will be."""

    name: str
    table: str
    folder: str
    day: str
    span: str
    rows: int
    bytes: int


class Staged(msgspec.Struct, frozen=True):
    """A task's receipt: its files, and the names of those that are not to be committed."""

    files: tuple[StagedFile, ...]
    held: tuple[str, ...] = ()

    def without(self, tables: Collection[str]) -> Staged:
        held = tuple(file.name for file in self.files if file.table in tables)
        return Staged(tuple(file for file in self.files if file.table not in tables), (*self.held, *held))

    @property
    def names(self) -> tuple[str, ...]:
        return (*(file.name for file in self.files), *self.held)


class Open(msgspec.Struct):
    """A file that more may come for. `place` is its own among all that were opened."""

    place: int
    name: str
    schema: TableSchema
    day: str
    first: int
    file: OpenFile
    last: int = 0
    rows: int = 0


class Staging:
    """A context manager: at its end all files are whole and on disk, and `files` has them in order."""

    def __init__(self, folder: Path, name: str, suffix: str, make: MakeFile, now_us: int, span: str = "") -> None:
        self._folder, self._name, self._suffix, self._make = folder, name, suffix, make
        self._now_us, self._span, self.id = now_us, span, uuid.uuid4().hex
        self._open: dict[str, Open] = {}
        self._closed: dict[int, StagedFile] = {}
        self._count = 0

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            for table in list(self._open):
                self._close(table)
            return
        for each in self._open.values():
            with suppress(Exception):  # what is told is why it came to this
                each.file.abandon()

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for _, file in sorted(self._closed.items()))

    def add(self, changes: Changes, facts: Callable[[Changes], Facts]) -> None:
        for day, same in days_of(changes, self._now_us):
            for piece in _pieces(same):
                each = self._opened(piece, day)
                each.file.write(piece, facts(piece))
                each.last, each.rows = int(piece.offset[-1]), each.rows + len(piece)

    def _opened(self, changes: Changes, day: str) -> Open:
        table = changes.schema.table
        found = self._open.pop(table, None)
        if found is not None:
            self._open[table] = found  # it is the latest now
            if (found.schema, found.day) == (changes.schema, day):
                return found
            self._close(table)
        elif len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        name = f"{self._name}-{self.id}-{self._count}{self._suffix}"
        file = self._make(self._folder / name, changes.schema)
        self._open[table] = Open(self._count, name, changes.schema, day, int(changes.offset[0]), file)
        self._count += 1
        return self._open[table]

    def _close(self, table: str) -> None:
        each = self._open.pop(table)
        each.file.close()
        size = os.stat(self._folder / each.name).st_size
        span = self._span or f"{each.first}-{each.last}"
        self._closed[each.place] = StagedFile(each.name, table, folder_of(each.schema), each.day, span, each.rows, size)


def days_of(changes: Changes, now_us: int) -> Iterator[tuple[str, Changes]]:
    """Runs of changes that were committed on one day, of UTC. What is of no transaction is of today."""
    times = changes.transactions.column("_commit_time").cast(pa.int64()).fill_null(now_us)
    days: Integers = (times.to_numpy() // DAY_US)[changes.transaction]
    bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(changes)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield str(np.datetime64(int(days[start]), "D")), changes.slice(start, stop)


def _pieces(changes: Changes) -> Iterator[Changes]:
    count = max(-(-len(changes) // PIECE_ROWS), min(-(-changes.nbytes // PIECE_BYTES), len(changes)))
    bounds = np.linspace(0, len(changes), count + 1).astype(np.int64).tolist()
    for start, stop in pairwise(bounds):
        yield changes.slice(start, stop)


def remove(folder: Path, names: Collection[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(folder / name)
