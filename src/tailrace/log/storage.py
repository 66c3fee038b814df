"""Files of the state directory, on a local disk or an object store.

Guarantee: `publish` makes a file appear whole and durable, or not at all. On a local disk that is: write beside, fsync,
rename, fsync the directory. Object stores publish an object when its upload completes; elsewhere a file is moved into
place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from pyarrow import fs

from tailrace import failpoints
from tailrace.errors import StateError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

READ_BYTES = 4 << 20
"""What is asked of an object store at a time."""
OBJECT_STORES = {"s3", "gcs", "abfs"}
"""File systems of pyarrow where an object appears when its upload completes, and where moving one means copying it."""


class Storage:
    """One folder. Names are plain file names; sub-folders are Storages of their own."""

    def __init__(self, path: str) -> None:
        self.path: str
        self.filesystem, self.path = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)
        self._url = path

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self._url,)

    def folder(self, name: str) -> Storage:
        return Storage(f"{self._url.rstrip('/')}/{name}")

    def create(self) -> None:
        with _state_errors(self.path):
            self.filesystem.create_dir(self.path, recursive=True)

    def sizes(self, suffix: str) -> dict[str, int]:
        """The files whose name ends with `suffix`, and their sizes. A folder that is not there is empty."""
        with _state_errors(self.path, "read"):
            if self.is_local:
                return _local_sizes(self.path, suffix)
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return {i.base_name: i.size for i in infos if i.type is fs.FileType.File and i.base_name.endswith(suffix)}

    def read(self, name: str, length: int | None = None, at: int = 0) -> bytes:
        """`length` bytes from `at`, or all there are. Raises FileNotFoundError."""
        if self.is_local:
            with open(self._join(name), "rb") as file:
                file.seek(at)
                return file.read(-1 if length is None else length)
        with self.filesystem.open_input_file(self._join(name)) as file:
            file.seek(at)
            return bytes(file.read(length))

    def open(self, name: str) -> IO[bytes]:
        """A file to be read from its beginning to its end. Raises FileNotFoundError."""
        if self.is_local:
            return open(self._join(name), "rb")
        stream: IO[bytes] = self.filesystem.open_input_stream(self._join(name), buffer_size=READ_BYTES)
        return stream

    def publish(self, name: str, data: bytes) -> None:
        self.publish_parts(name, [data])

    def publish_parts(self, name: str, parts: Iterable[Any]) -> int:
        """`parts` are anything with bytes in it, made while the file is written. Returns the size of the file."""
        with _state_errors(self.path):
            if self.is_local:
                return _publish_locally(self.path, name, parts)
            beside = name if self.filesystem.type_name in OBJECT_STORES else f"{name}.part"
            with self.filesystem.open_output_stream(self._join(beside)) as stream:
                size = _write(stream, parts)
            if beside != name:
                self.filesystem.move(self._join(beside), self._join(name))
            return size

    def delete(self, name: str) -> None:
        with _state_errors(self.path):
            self.filesystem.delete_file(self._join(name))

    def lock(self, name: str) -> IO[str] | None:
        """Hold an exclusive lock until the returned file is closed, or raise StateError. Only local disks have them."""
        if not self.is_local or fcntl is None:
            return None
        with _state_errors(self.path):
            file = open(self._join(name), "w")  # noqa: SIM115 - closed by the caller
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise StateError(f"another tailrace process is using the state directory {self.path}") from error
            return file

    def _join(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


class _state_errors:  # noqa: N801 - reads as a statement
    """Turns the operating system's errors into a StateError that names the folder."""

    def __init__(self, path: str, doing: str = "write to") -> None:
        self.path = path
        self.doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise StateError(f"cannot {self.doing} the state directory {self.path}: {reason.lower()}") from error


def _local_sizes(path: str, suffix: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    try:
                        sizes[entry.name] = entry.stat().st_size
                    except FileNotFoundError:  # deleted by retention a moment ago
                        continue
    except FileNotFoundError:
        return {}
    return sizes


def _publish_locally(folder: str, name: str, parts: Iterable[Any]) -> int:
    final = Path(folder) / name
    beside = final.with_name(f"{name}.part")
    with open(beside, "wb") as file:
        size = _write(file, parts)
        failpoints.reached("log-segment-written")
        file.flush()
        os.fsync(file.fileno())
    failpoints.reached("log-segment-synced")
    os.replace(beside, final)
    _sync_folder(folder)
    return size


def _write(file: Any, parts: Iterable[Any]) -> int:
    size = 0
    for part in parts:
        file.write(part)
        size += len(part)
    return size


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
