"""A folder of this machine as a sink: tasks write files where no reader looks, and a commit makes them the table's.

What is committed is what the manifest says (`manifest`). A lock is held while that is decided and written, and the run
in the manifest has to be this one: so nobody who was claimed over writes anything.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from tailrace import config, failpoints
from tailrace.errors import ConfigError, SinkRejected, SinkTaken
from tailrace.model.changes import Changes
from tailrace.model.lifecycle import COPYING, TableStatus
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import (
    Atomic,
    Batch,
    ChangeSink,
    ChunkMark,
    Delivers,
    Evolved,
    Evolves,
    FetchRows,
    SinkState,
    Verifies,
)
from tailrace.sinks.files import staging
from tailrace.sinks.files.chunks import Chunks
from tailrace.sinks.files.disk import disk_errors
from tailrace.sinks.files.encoding import FileForm, facts_of, truncate
from tailrace.sinks.files.manifest import Manifest, Manifests
from tailrace.sinks.files.naming import OWN, folder_of, path_of
from tailrace.sinks.files.settings import FileSettings
from tailrace.sinks.files.staging import Staged, StagedFile, Staging
from tailrace.sinks.files.verifying import FolderView
from tailrace.sinks.simple import SimpleSink, outstanding


class FileSink(SimpleSink, ChangeSink, Delivers, Evolves, Verifies):
    """Picklable. Several threads may use it at once."""

    settings_type = FileSettings
    max_parts = 64
    atomic = Atomic.BATCH
    is_local_only = True

    def __init__(self, pipeline: config.Pipeline, name: str) -> None:
        self.name, section = name, pipeline.sinks[name]
        _refuse_unbuilt(section, name)
        self.path = path_of(section.url, name)
        self._form = FileForm(pipeline, pipeline.sink_settings(name, FileSettings))
        self._manifests = Manifests(self.path, self.path / OWN / pipeline.name / name, self._form.suffix)
        self._chunks = Chunks(self._manifests.staged)
        self._view = FolderView(self.path, None if self._form.is_parquet else self._form.codec)
        self._run = ""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    # --- what it is, and remembers

    def check(self) -> None:
        standing = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not standing.is_dir():
            raise SinkRejected(f"{standing} is no folder")
        if not os.access(standing, os.W_OK | os.X_OK):
            raise SinkRejected(f"{standing} can not be written")
        self._manifest()

    def read_state(self) -> SinkState:
        return self._manifest().state()

    def _manifest(self) -> Manifest:
        with disk_errors(self.path):
            return self._manifests.read()

    def claim(self, run: str) -> None:
        with self._alone() as manifest:
            self._commit(msgspec.structs.replace(manifest, run=run, commits=0))
            self._run = run

    def check_claim(self) -> None:
        self._refuse_taken(self._manifest())

    def _refuse_taken(self, manifest: Manifest) -> None:
        if manifest.run != self._run:
            raise SinkTaken(f"another run writes to {self.path} now; this one must not any more")

    def held_as(self, schema: TableSchema) -> str:
        return folder_of(schema)

    def takes_in_place(self, evolved: Evolved) -> bool:
        """A file has the columns of its moment. Under another folder's name, a table is another to its readers."""
        return folder_of(evolved.before) == folder_of(evolved.schema)

    def clean(self) -> None:
        if self._manifests.exist:
            with self._alone():
                shutil.rmtree(self._manifests.staged, ignore_errors=True)

    def forget(self) -> None:
        if self._manifests.exist:
            with self._alone():
                self._manifests.remove()
                shutil.rmtree(self._manifests.staged, ignore_errors=True)

    # --- batches

    def stage_changes(self, batch: str, part: int, changes: Iterable[Changes]) -> Staged:
        with disk_errors(self.path), self._staging(f"{batch}-{part}") as files:
            for each in changes:
                files.add(each, facts_of)
        return Staged(files.files)

    def commit(self, batch: Batch, fetch: FetchRows) -> int:
        parts = [part for part in batch.parts if isinstance(part, Staged)]
        touched = 0
        with self._claimed() as manifest:
            if outstanding(batch, manifest.state()) is not None:
                files = [file for part in parts for file in part.files]
                failpoints.reached("sink-before-commit")
                self._commit(_after(manifest, batch), files)
                failpoints.reached("sink-committed")
                touched = sum(file.rows for file in files)
            staging.remove(self._manifests.staged, [name for part in parts for name in part.names])
        return touched

    def _staging(self, name: str, span: str = "") -> Staging:
        now_us = time.time_ns() // 1000
        return Staging(self._manifests.staged, name, self._form.suffix, self._form.make, now_us, span)

    @contextmanager
    def _alone(self) -> Iterator[Manifest]:
        """Nobody else changes anything meanwhile, and all that is committed is in its place."""
        with self._lock, disk_errors(self.path), self._manifests.alone() as manifest:
            self._manifests.finish(manifest)
            yield manifest

    @contextmanager
    def _claimed(self) -> Iterator[Manifest]:
        """As `_alone`, and nobody else's claim has come. Raises SinkTaken."""
        with self._alone() as manifest:
            self._refuse_taken(manifest)
            yield manifest

    def _commit(self, manifest: Manifest, files: Sequence[StagedFile] = ()) -> None:
        self._manifests.commit(manifest, files, uuid.uuid4().hex[:12])

    # --- snapshots

    def begin_snapshot(self, status: TableStatus, chunks: list[ChunkMark], *, clear: bool) -> TableStatus:
        with self._claimed() as manifest:
            anew = self._anew(status) if clear and not _is_untold(manifest, status.table) else ()
            tables = manifest.tables | {status.table: status}
            marks = manifest.chunks | {status.table: chunks}
            self._commit(msgspec.structs.replace(manifest, tables=tables, chunks=marks), anew)
        return status

    def _anew(self, status: TableStatus) -> tuple[StagedFile, ...]:
        """What tells readers that rows which they know of a table do not hold any more; nothing for an empty folder."""
        if not any((self.path / folder_of(status.schema)).glob("*/*")):
            return ()
        with self._staging("anew", f"truncate{status.generation}") as files:
            files.add(*truncate(status.schema, status.watermark.position))
        return files.files

    def chunk_form(self, schema: TableSchema) -> str:
        return ""

    def load_chunk(self, schema: TableSchema, mark: ChunkMark, batches: Iterator[Rows]) -> int:
        manifest = self._manifest()
        self._refuse_taken(manifest)
        status = manifest.tables.get(schema.table)
        position = "" if status is None else status.watermark.position
        failpoints.reached("chunk-before-load")
        with disk_errors(self.path):
            files = self._staging(self._chunks.name_of(mark, self._run), f"read{mark.generation}-{mark.number}")
            return self._chunks.stage(files, schema, mark, self._run, position, batches)

    def deliver(self, mark: ChunkMark) -> int:
        with self._claimed() as manifest:
            marks = manifest.chunks.get(mark.table, [])
            planned = next((each for each in marks if each.number == mark.number), None)
            files = self._chunks.find(mark, self._run)
            if planned is None or planned.is_loaded or planned.generation != mark.generation or files is None:
                return 0
            rows = sum(file.rows for file in files)
            done = msgspec.structs.replace(planned, is_loaded=True, rows=rows)
            now = [done if each.number == mark.number else each for each in marks]
            self._commit(msgspec.structs.replace(manifest, chunks=manifest.chunks | {mark.table: now}), files)
            failpoints.reached("chunk-loaded")
            self._chunks.remove(mark, self._run)
            return rows

    def finish_snapshot(self, status: TableStatus) -> None:
        """All that there was to do is done."""

    # --- reading back

    def count_rows(self, schema: TableSchema, seconds: float) -> int | None:
        return None  # that takes a whole replay

    def read_table(self, schema: TableSchema) -> Iterator[list[tuple[Any, ...]]]:
        return self._view.rows(schema)

    def expected_rows(self, schema: TableSchema, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return self._view.expected(schema, batch)


def _after(manifest: Manifest, batch: Batch) -> Manifest:
    """What is remembered of a batch."""
    renamed = {each.before.table for each in batch.evolved if each.before.table != each.schema.table}
    tables = {table: status for table, status in manifest.tables.items() if table not in renamed}
    return msgspec.structs.replace(
        manifest,
        commits=manifest.commits + 1,
        watermark=batch.watermark or manifest.watermark,
        tables=tables | {status.table: status for status in batch.tables},
        chunks={table: marks for table, marks in manifest.chunks.items() if table not in renamed},
    )


def _is_untold(manifest: Manifest, table: str) -> bool:
    """Whether a copy of a table was begun, and nothing is there of it: its folder is as that beginning left it."""
    status = manifest.tables.get(table)
    if status is None or status.state not in COPYING:
        return False
    marks = [mark for mark in manifest.chunks.get(table, []) if mark.generation == status.generation]
    return bool(marks) and not any(mark.is_loaded for mark in marks)


def _refuse_unbuilt(section: config.Sink, name: str) -> None:
    """What other kinds of sinks have, and this one has not."""
    if section.columns or section.tables or section.schemas:
        raise ConfigError(
            f"sinks.{name}: files have the names of the source", hint="leave out `schemas`, `tables` and `columns`"
        )
    if section.misfits is not config.Misfits.REFUSE or section.on_error is not config.OnError.STOP:
        raise ConfigError(
            f"sinks.{name}: a sink of files has no quarantine",
            hint="leave misfits and on_error as they are: a table with a value that can not be written is set aside",
        )
