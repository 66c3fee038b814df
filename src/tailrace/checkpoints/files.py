"""Checkpoints in a folder: `NAME.json` each, and `NAME.lock` while somebody holds it.

Guarantee: after a crash at any moment the file is the old one or the new one, whole. It is for its owner alone, and
one that others may read is refused. A folder that is not there is made by the first claim.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tailrace import failpoints
from tailrace.checkpoints.holders import HeldFile
from tailrace.checkpoints.record import decoded, encoded
from tailrace.checkpoints.store import Check, Store
from tailrace.errors import CheckpointRefused
from tailrace.model.checkpoint import Checkpoint
from tailrace.state.storage import FOR_OTHERS, PART, Storage

SUFFIX = ".json"


class FileStore(Store[HeldFile]):
    """`folder` is on a disk of this machine, or on a network file system with locks."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder).expanduser().absolute()
        self._storage = Storage(str(self.folder), "checkpoint folder")

    def __repr__(self) -> str:
        return f"FileStore({str(self.folder)!r})"

    def _take(self, name: str) -> HeldFile:
        self._storage.create()
        try:
            hold = HeldFile.take(str(self.folder / f"{name}.lock"), name)
        except OSError as error:
            raise self._storage.trouble(error, "write to") from error
        with suppress(FileNotFoundError):  # what a writer left who died in the middle
            os.unlink(self.folder / f"{name}{SUFFIX}{PART}")
        return hold

    def _let_go(self, name: str, hold: HeldFile) -> None:
        hold.close()

    def _read(self, name: str) -> bytes | None:
        path = self.folder / f"{name}{SUFFIX}"
        try:
            with open(path, "rb") as file:
                _refuse_open(name, path, os.fstat(file.fileno()).st_mode)
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._storage.trouble(error) from error

    def _write(self, name: str, hold: HeldFile, checkpoint: Checkpoint, check: Check) -> None:
        present = self._read(name)
        check(None if present is None else decoded(name, present))
        hold.check()
        self._storage.publish(f"{name}{SUFFIX}", encoded(name, checkpoint), "checkpoint")
        failpoints.reached("checkpoint-saved")

    def _remove(self, name: str, hold: HeldFile) -> bool:
        hold.check()
        return self._storage.remove_durably(f"{name}{SUFFIX}")

    def _names(self) -> Iterable[str]:
        return (file.removesuffix(SUFFIX) for file in self._storage.files(SUFFIX))


def _refuse_open(name: str, path: Path, mode: int) -> None:
    """What others could write is not to be trusted, and a checkpoint names servers and tables."""
    if mode & FOR_OTHERS:
        raise CheckpointRefused(
            f"checkpoint {name} is open to other users: {path} has mode {stat.S_IMODE(mode):04o}",
            hint=f"look whether it is still what you wrote, then: chmod 600 {path}",
        )
