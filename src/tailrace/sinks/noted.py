"""For sinks on this machine that can keep a note together with their data: two functions are all that is left to write.

Every change is staged in a file beside the sink, and handed to `write` in the order of the log, once. What the sink
has to remember is the note: bytes that it gives back as they were. A lock beside the sink keeps other runs out.
"""

from __future__ import annotations

import os
import pickle
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec
from msgspec.json import encode

from tailrace import config
from tailrace.errors import SinkRejected, SinkTaken, SinkUnavailable, StateError
from tailrace.model.changes import Changes
from tailrace.model.lifecycle import TableStatus
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Atomic, Batch, ChangeSink, FetchRows, SinkState
from tailrace.sinks.simple import SimpleSink, outstanding
from tailrace.state.storage import Storage


class Note(msgspec.Struct, frozen=True):
    """All that a sink remembers of a pipeline."""

    run: str = ""
    commits: int = 0
    watermark: Watermark | None = None
    tables: dict[str, TableStatus] = {}


class StagedFile(msgspec.Struct, frozen=True):
    """A task's receipt: the changes lie in `name`, and those of the tables that are `held` are not to be written."""

    name: str
    held: tuple[str, ...] = ()

    def without(self, tables: Collection[str]) -> StagedFile:
        return StagedFile(self.name, (*self.held, *tables))


class NotedSink(SimpleSink, ChangeSink):
    """`path` is what stands behind `://` in its URL. One file or folder may be the sink of several pipelines."""

    max_parts = 64
    atomic = Atomic.BATCH
    is_local_only = True

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name, self.pipeline, self.run = name, pipeline.name, ""
        self.path = Path(pipeline.sinks[name].url.partition("://")[2])
        self._beside = Storage(f"{self.path}.tailrace")

    # --- to be written

    @abstractmethod
    def read_note(self) -> bytes | None:
        """What `write` was last given for this `pipeline`; None where there is nothing yet. Creates nothing."""

    @abstractmethod
    def write(self, note: bytes, changes: Iterable[Changes]) -> None:
        """The note and all of the changes, in one step: after a crash both are there, or neither."""

    # --- what follows from it

    def check(self) -> None:
        standing = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not os.access(standing, os.W_OK):
            raise SinkRejected(f"{standing} can not be written")

    def read_state(self) -> SinkState:
        note = self._note()
        return SinkState(note.watermark, note.tables, {}, note.commits)

    def claim(self, run: str) -> None:
        with self._alone():
            self.write(encode(msgspec.structs.replace(self._note(), run=run, commits=0)), ())
        self.run = run

    def check_claim(self) -> None:
        if self._note().run != self.run:
            raise SinkTaken(f"another run writes to {self.path} now; this one must not any more")

    def stage_changes(self, batch: str, part: int, changes: Iterable[Changes]) -> StagedFile:
        staged = self._staged
        staged.mkdir(parents=True, exist_ok=True, mode=0o700)
        receipt = StagedFile(f"{batch}-{part}-{uuid.uuid4().hex}")
        with open(staged / receipt.name, "wb") as file:
            for each in changes:
                pickle.dump(each, file)
        return receipt

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        parts = [part for part in batch.parts if isinstance(part, StagedFile)]
        counted = Counted(change for part in parts for change in self._read(part))
        with self._alone():
            self.check_claim()
            note = self._note()
            if outstanding(batch, self.read_state()) is not None:
                tables = note.tables | {status.table: status for status in batch.tables}
                watermark = batch.watermark or note.watermark
                self.write(encode(Note(note.run, note.commits + 1, watermark, tables)), counted)
        for part in parts:
            (self._staged / part.name).unlink(missing_ok=True)
        return counted.rows

    def clean(self) -> None:
        shutil.rmtree(self._staged, ignore_errors=True)

    def forget(self) -> None:
        with self._alone():
            self.write(encode(Note()), ())

    @property
    def _staged(self) -> Path:
        return Path(self._beside.path) / f"{self.pipeline}-{self.name}"

    def _read(self, part: StagedFile) -> Iterator[Changes]:
        with open(self._staged / part.name, "rb") as file:
            while file.peek(1):
                each: Changes = pickle.load(file)
                if each.schema.table not in part.held:
                    yield each

    def _note(self) -> Note:
        found = self.read_note()
        return Note() if found is None else from_json(found, Note)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else commits or claims meanwhile, also if we are stopped in here."""
        self._beside.create()
        try:
            lock = self._beside.lock("lock")
        except StateError as error:
            raise SinkUnavailable(f"another process is writing to {self.path}") from error
        with closing(lock) if lock is not None else nullcontext():
            yield


class Counted:
    """Changes on their way, and how many rows they were."""

    def __init__(self, changes: Iterable[Changes]) -> None:
        self._changes, self.rows = changes, 0

    def __iter__(self) -> Iterator[Changes]:
        for each in self._changes:
            self.rows += len(each)
            yield each
