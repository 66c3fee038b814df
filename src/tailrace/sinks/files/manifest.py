"""What a sink of files remembers, and the one step that commits: the manifest takes the place of the one before it.

A manifest names the files of its commit. They are moved to where readers list them only after it is durable, and
whoever comes next finishes that, if a crash came between. So a listing never finds a file that is not committed, and
who reads the manifest too (`reading`) finds all of a commit or nothing of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec

from tailrace.errors import SinkRejected, SinkUnavailable, StateError, StateUnavailable
from tailrace.model.lifecycle import TableStatus
from tailrace.model.stored import from_json
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import ChunkMark, SinkState
from tailrace.sinks.files.disk import sync_folder
from tailrace.sinks.files.naming import LOCK, MANIFEST, PARTITION, STAGED, file_name, last_commit
from tailrace.sinks.files.staging import StagedFile
from tailrace.state.storage import Storage

VERSION = 1


class Moved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the last commit: its name while it was staged, and where it is for good, in the sink's folder."""

    staged: str
    path: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`commit` counts all that was ever committed, claims among it; `commits` those of batches by this run."""

    version: int = VERSION
    commit: int = 0
    run: str = ""
    commits: int = 0
    watermark: Watermark | None = None
    tables: dict[str, TableStatus] = {}
    chunks: dict[str, list[ChunkMark]] = {}
    files: tuple[Moved, ...] = ()

    def state(self) -> SinkState:
        return SinkState(self.watermark, dict(self.tables), dict(self.chunks), self.commits)


class Manifests:
    """Those of one sink of one pipeline. Pickles."""

    def __init__(self, root: Path, own: Path, suffix: str) -> None:
        self._root, self._own, self._suffix = root, own, suffix
        self._storage = Storage(str(own), "folder")
        self._finished = 0
        self.staged = own / STAGED

    @property
    def exist(self) -> bool:
        return self._own.exists()

    def read(self) -> Manifest:
        """An empty one where there is none. Changes nothing."""
        try:
            return decoded((self._own / MANIFEST).read_bytes(), self._own)
        except FileNotFoundError:
            return Manifest()

    @contextmanager
    def alone(self) -> Iterator[Manifest]:
        """Nobody else commits or claims meanwhile, also if we are stopped in here."""
        self._storage.create()
        try:
            lock = self._storage.lock(LOCK)
        except StateError as error:
            raise SinkUnavailable(f"another process is writing to {self._root}") from error
        with closing(lock) if lock is not None else nullcontext():
            yield self.read()

    def commit(self, manifest: Manifest, files: Sequence[StagedFile], token: str) -> None:
        """The manifest and all of the files, in one step. To be called while we are alone, `finish` before it.

        The order is the whole point: files are on disk, the manifest that names them is durable, then they are moved.
        """
        self._refuse_lost(files)
        number = (manifest.commit or last_commit(self._root)) + 1
        moved = tuple(
            Moved(
                file.name,
                f"{file.folder}/{PARTITION}={file.day}/{file_name(number, place, file.span, token, self._suffix)}",
            )
            for place, file in enumerate(files)
        )
        if files:
            sync_folder(self.staged)
        new = msgspec.structs.replace(manifest, commit=number, files=moved)
        self._storage.publish(MANIFEST, msgspec.json.encode(new))
        self.finish(new)

    def _refuse_lost(self, files: Sequence[StagedFile]) -> None:
        for file in files:
            path = self.staged / file.name
            if not path.exists() or path.stat().st_size != file.bytes:
                raise StateUnavailable("a file that was staged is gone: it is staged again")

    def finish(self, manifest: Manifest) -> None:
        """All files of a manifest are where it says, durably: also after a crash between. May be repeated."""
        if not manifest.files or manifest.commit == self._finished:
            return
        folders = set()
        for each in manifest.files:
            target = self._root / each.path
            if (self.staged / each.staged).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(self.staged / each.staged, target)
            folders |= {target.parent, target.parent.parent}
        for folder in (*sorted(folders, reverse=True), self._root, self.staged):
            if folder.exists():
                sync_folder(folder)
        self._finished = manifest.commit

    def remove(self) -> None:
        """To be called while we are alone, `finish` before it."""
        self._storage.remove_durably(MANIFEST)
        self._finished = 0


def decoded(data: bytes, place: Path) -> Manifest:
    try:
        found = from_json(data, Manifest)
    except msgspec.MsgspecError as error:
        raise SinkRejected(f"the manifest in {place} can not be read", hint="was it written by a later version?") from (
            error
        )
    if found.version != VERSION:
        raise SinkRejected(f"the manifest in {place} is of version {found.version}, and this one reads {VERSION}")
    return found
