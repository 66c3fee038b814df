"""A sink of your own: every change as a line of JSON, one file a table, exactly once; `jsonlines:////folder`.

`Atomic.TABLE`: a table's lines count once its status, which says how long its file is, has its name. A rename does that
for one table in one step and can not for two, so each table has a place of its own, and the sink's watermark follows.
What lies behind a file's length was never committed: readers take `read_changes`, the next commit cuts it off.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec
from msgspec.json import encode

from tailrace import config
from tailrace.errors import SinkRejected, SinkTaken, SinkUnavailable, StateError
from tailrace.model.changes import Changes
from tailrace.model.lifecycle import TableStatus
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Atomic, Batch, ChangeSink, FetchRows, SinkState
from tailrace.sinks.simple import SimpleSink, outstanding
from tailrace.state.storage import Storage

NOTE, STATUS, LINES = "sink.json", ".status", ".jsonl"


class Note(msgspec.Struct, frozen=True):  # what the sink remembers besides its tables
    run: str = ""
    commits: int = 0
    watermark: Watermark | None = None


class Committed(msgspec.Struct, frozen=True):  # what it remembers of a table
    status: TableStatus | None  # None once it was told to forget
    length: int  # how much of the table's file counts


class Staged(msgspec.Struct, frozen=True):  # a task's receipt
    files: dict[str, str]  # the file with the lines of each table

    def without(self, tables: Collection[str]) -> Staged:
        return Staged({table: file for table, file in self.files.items() if table not in tables})


class JsonLinesSink(SimpleSink, ChangeSink):
    max_parts = 64
    atomic = Atomic.TABLE
    is_local_only = True

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name, self.run = name, ""
        self.folder = Path(pipeline.sinks[name].url.partition("://")[2]) / pipeline.name
        self.staged, self.files = self.folder / "staged", Storage(str(self.folder))

    def check(self) -> None:
        standing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        if not os.access(standing, os.W_OK):
            raise SinkRejected(f"{standing} can not be written")

    def read_state(self) -> SinkState:
        note, tables = self._note(), [each.status for each in self._tables().values() if each.status is not None]
        return SinkState(note.watermark, {status.table: status for status in tables}, {}, note.commits)

    def claim(self, run: str) -> None:
        with self._alone():
            self.files.publish(NOTE, encode(Note(run, 0, self._note().watermark)))
        self.run = run

    def check_claim(self) -> None:
        if self._note().run != self.run:
            raise SinkTaken(f"another run writes to {self.folder} now; this one must not any more")

    def stage_changes(self, batch: str, part: int, changes: Iterable[Changes]) -> Staged:
        self.staged.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        for each in changes:
            file = files.setdefault(each.schema.table, f"{batch}-{part}-{uuid.uuid4().hex}")
            with open(self.staged / file, "a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row, default=str) + "\n" for row in each.to_arrow().to_pylist())
        return Staged(files)

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        """Table by table, the watermark last. What is there already of a batch is not written again."""
        parts = [part.files for part in batch.parts if isinstance(part, Staged)]
        with self._alone():
            self.check_claim()
            note, new = self._note(), outstanding(batch, self.read_state()) or []
            staged = {each.table: [files[each.table] for files in parts if each.table in files] for each in new}
            touched = sum(self._append(status.table, staged[status.table], status) for status in new)
            self.files.publish(NOTE, encode(Note(self.run, note.commits + 1, batch.watermark or note.watermark)))
        for file in (file for files in parts for file in files.values()):
            (self.staged / file).unlink(missing_ok=True)
        return touched

    def _append(self, table: str, files: list[str], status: TableStatus | None) -> int:
        """These lines behind what is committed of a table's file, and then its status. Returns how many they are."""
        before, lines = self._tables().get(table), b"".join((self.staged / file).read_bytes() for file in files)
        with open(self.folder / named(table, LINES), "ab") as target:
            target.truncate(before.length if before is not None else 0)
            target.write(lines)
            target.flush()
            os.fsync(target.fileno())
            self.files.publish(named(table, STATUS), encode(Committed(status, os.fstat(target.fileno()).st_size)))
        return lines.count(b"\n")

    def clean(self) -> None:
        shutil.rmtree(self.staged, ignore_errors=True)

    def forget(self) -> None:
        with self._alone():
            for table in self._tables():
                self._append(table, [], None)
            self.files.publish(NOTE, encode(Note()))

    def _note(self) -> Note:
        return self.files.decode(NOTE, Note) if (self.folder / NOTE).exists() else Note()

    def _tables(self) -> dict[str, Committed]:
        names = self.files.sizes(STATUS)
        return {unquote(name.removesuffix(STATUS)): self.files.decode(name, Committed) for name in names}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else commits or claims meanwhile, also if we are stopped in here."""
        self.files.create()
        try:
            lock = self.files.lock("lock")
        except StateError as error:
            raise SinkUnavailable(f"another process is writing to {self.folder}") from error
        with closing(lock) if lock is not None else nullcontext():
            yield


def named(table: str, suffix: str) -> str:
    return quote(table, safe="") + suffix


def read_changes(folder: Path, table: str) -> list[dict[str, object]]:
    """All that is committed of a table, in order."""
    if not (folder / named(table, STATUS)).exists():
        return []
    length = Storage(str(folder)).decode(named(table, STATUS), Committed).length
    return [json.loads(line) for line in (folder / named(table, LINES)).read_bytes()[:length].splitlines()]
