"""Files of the state directory, on a local disk, an object store (`objects.py`), or what pyarrow knows besides (HDFS).

Guarantee: `publish` makes a file appear whole and durable, or not at all. On a local disk that is: write beside, fsync,
rename, fsync the directory. Object stores publish an object when its upload completes; elsewhere a file is moved into
place.

What we make on a local disk is for its owner alone, whatever the umask: the log holds every captured row.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import msgspec
from pyarrow import fs

from tailrace import failpoints
from tailrace.errors import StateError, StateUnavailable
from tailrace.model.stored import from_json
from tailrace.state import lease, objects
from tailrace.state.objects import Objects, Version

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

HAS_FLOCK = bool(fcntl)
READ_BYTES = 4 << 20
"""What is asked of pyarrow at a time."""
SPOOL_BYTES = 32 << 20
"""What is held in memory of a file before it is uploaded: all of it is there by then. An upload can not be broken off,
because pyarrow closes it, which makes the object appear with whatever there is of it."""
IDLE_SECONDS = 5.0
"""How often a store is asked for what seldom comes. It counts requests, and they cost money."""

PART = ".part"
"""How the name of a file ends while it is written."""

PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENFILE, errno.EMFILE}
"""What a disk may get over: it is full, or on a network that is down."""

TRIES, TRY_SECONDS = 5, 0.05

FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

T = TypeVar("T")


class Lock(Protocol):
    """Held until it is closed. `epoch` grows with each holder, where that is needed to tell them apart; 0 elsewhere."""

    @property
    def epoch(self) -> int: ...

    @property
    def begin(self) -> int | None:
        """As `end`."""

    @property
    def end(self) -> int | None:
        """What was last published by whoever held it; None where files are there as soon as they are written."""

    def publish(self, begin: int, end: int) -> None:
        """Make both known, unless somebody else holds it by now: then raise StateError."""

    def check(self) -> None:
        """Raise StateError if somebody else holds it by now."""

    def touch(self) -> None:
        """Show those who look that its holder is at work."""

    def close(self) -> None: ...


class FileLock:
    """An flock on a local file. It can not be taken from us, but the file can be: with its folder."""

    epoch = 0
    begin = end = None

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def publish(self, begin: int, end: int) -> None:
        """Files are there as soon as they are written."""

    def check(self) -> None:
        held = os.fstat(self._file.fileno())
        try:
            there = os.stat(self._file.name)
        except OSError as error:
            raise StateError(f"the state directory {os.path.dirname(self._file.name)} was removed") from error
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise StateError(
                f"another tailrace process took over the state directory {os.path.dirname(self._file.name)}"
            )

    def touch(self) -> None:
        os.utime(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Storage:
    """One folder. Names are plain file names; sub-folders are Storages of their own."""

    def __init__(self, path: str, noun: str = "state directory") -> None:
        self._url, self._noun = path, noun
        self._objects = Objects(path) if path.partition("://")[0] in objects.SCHEMES else None
        self.path: str
        self.filesystem: Any
        self.filesystem, self.path = _file_system(path) if self._objects is None else (None, self._objects.path)
        self.is_local = isinstance(self.filesystem, fs.LocalFileSystem)

    @property
    def is_conditional(self) -> bool:
        """Whether a write can be made to fail where somebody else was first: see `swap`."""
        return self._objects is not None

    @property
    def idle_seconds(self) -> float:
        """How often it may be asked for what seldom comes, at most."""
        return 0.0 if self.is_local else IDLE_SECONDS

    def __reduce__(self) -> tuple[type[Storage], tuple[str, str]]:
        return Storage, (self._url, self._noun)

    def folder(self, name: str) -> Storage:
        address, question, parameters = self._url.partition("?") if "://" in self._url else (self._url, "", "")
        return Storage(f"{address.rstrip('/')}/{name}{question}{parameters}")

    def create(self) -> None:
        with _state_errors(self):
            if self.is_local:
                _create_locally(self.path)
            elif self._objects is None:
                self.filesystem.create_dir(self.path, recursive=True)

    def exists(self) -> bool:
        with _state_errors(self, "read"):
            if self._objects is not None:
                return self._objects.exists()
            return bool(self.filesystem.get_file_info(self.path).type is fs.FileType.Directory)

    def remove(self) -> None:
        """The folder with all that is in it."""
        with _state_errors(self):
            if self._objects is not None:
                self._objects.remove()
            else:
                self.filesystem.delete_dir(self.path)

    def sizes(self, suffix: str) -> dict[str, int]:
        """The files whose name ends with `suffix`, and their sizes. A folder that is not there is empty."""
        return {name: size for name, (size, _) in self.files(suffix).items()}

    def files(self, suffix: str) -> dict[str, tuple[int, float]]:
        """As `sizes`, with the time when each was written, in seconds since 1970."""
        with _state_errors(self, "read"):
            if self.is_local:
                return _local_files(self.path, suffix)
            if self._objects is not None:
                return {name: facts for name, facts in self._objects.files().items() if name.endswith(suffix)}
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        files = [i for i in infos if i.type is fs.FileType.File and i.base_name.endswith(suffix)]
        return {i.base_name: (i.size, i.mtime.timestamp() if i.mtime else 0.0) for i in files}

    def read(self, name: str, length: int | None = None, at: int = 0) -> bytes:
        """`length` bytes from `at`, or all there are. Raises FileNotFoundError."""
        if self._objects is not None:
            whole, _ = self._objects.read(name)
            return whole[at : None if length is None else at + length]
        if self.is_local:
            with open(self._join(name), "rb") as file:
                file.seek(at)
                return file.read(-1 if length is None else length)
        with self.filesystem.open_input_file(self._join(name)) as file:
            file.seek(at)
            return bytes(file.read(length))

    def mode_for_others(self, name: str) -> int:
        """The mode of a file that other users of this machine may read or write; 0 if they may not."""
        if not self.is_local:
            return 0
        mode = stat.S_IMODE(os.stat(self._join(name)).st_mode)
        return mode if mode & FOR_OTHERS else 0

    def read_version(self, name: str) -> tuple[bytes, Version]:
        """A small file, and which state of it that is. Raises FileNotFoundError."""
        if self._objects is not None:
            return self._objects.read(name)
        data = self.read(name)
        return data, _content(data)

    def swap(self, name: str, data: bytes, version: Version | None) -> Version | None:
        """Put a small file in place of `version`, or where none is yet; None if it is another one by now.

        Sure only where `is_conditional`: elsewhere somebody may come between the look and the write.
        """
        with _state_errors(self):
            if self._objects is not None:
                return self._objects.swap(name, data, version)
            try:
                _, found = self.read_version(name)
            except FileNotFoundError:
                found = {}
            if found != (version or {}):
                return None
            self.publish(name, data)
            return _content(data)

    def open(self, name: str, first_bytes: int = objects.PIECE_BYTES) -> IO[bytes]:
        """A file to be read from its beginning to its end, or only `first_bytes` of it. Raises FileNotFoundError."""
        if self._objects is not None:
            return self._objects.open(name, first_bytes)  # type: ignore[return-value]  # it has what readers need
        if self.is_local:
            return open(self._join(name), "rb")
        stream: IO[bytes] = self.filesystem.open_input_stream(self._join(name), buffer_size=READ_BYTES)
        return stream

    def decode(self, name: str, kind: type[T]) -> T:
        """A small JSON file. Raises FileNotFoundError or msgspec.MsgspecError.

        pyarrow asks for a file's size before its content: what is replaced in between is read again.
        """
        for _ in range(TRIES if self._is_racy else 0):
            with suppress(msgspec.MsgspecError):
                return from_json(self.read(name), kind)
            time.sleep(TRY_SECONDS)
        return from_json(self.read(name), kind)

    @property
    def _is_racy(self) -> bool:
        return not self.is_local and not self.is_conditional

    def publish(self, name: str, data: bytes, failpoint: str = "") -> None:
        """With a `failpoint`, the steps on a local disk are `failpoint-written` and `failpoint-synced`."""
        self._publish(name, [data], failpoint)

    def publish_segment(self, name: str, parts: Iterable[Any]) -> int:
        """`parts` are anything with bytes in it, made while the file is written. Returns the size of the file."""
        return self._publish(name, parts, "log-segment")

    def _publish(self, name: str, parts: Iterable[Any], failpoint: str) -> int:
        with _state_errors(self):
            if self.is_local:
                return _publish_locally(self.path, name, parts, failpoint)
            with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as whole:
                size = _write(whole, parts)
                whole.seek(0)
                self._upload(name, whole, size)
            return size

    def _upload(self, name: str, whole: IO[bytes], size: int) -> None:
        if self._objects is not None:
            self._objects.put(name, whole, size)
            return
        with self.filesystem.open_output_stream(self._join(f"{name}{PART}")) as stream:
            shutil.copyfileobj(whole, stream)
        try:
            self.filesystem.move(self._join(f"{name}{PART}"), self._join(name))
        except OSError:  # HDFS moves nothing over what is there
            if self.filesystem.get_file_info(self._join(name)).type is not fs.FileType.File:
                raise
            self.filesystem.delete_file(self._join(name))
            self.filesystem.move(self._join(f"{name}{PART}"), self._join(name))

    def delete(self, name: str) -> None:
        with _state_errors(self):
            if self._objects is not None:
                self._objects.delete(name)
            else:
                self.filesystem.delete_file(self._join(name))

    def remove_durably(self, name: str) -> bool:
        """Delete a file of a local disk, for good when this returns; False if there is none."""
        with _state_errors(self):
            try:
                os.unlink(self._join(name))
            except FileNotFoundError:
                return False
            _sync_folder(self.path)
            return True

    def lock(self, name: str) -> Lock | None:
        """Hold an exclusive lock until it is closed, or raise StateError. None where the system has no such thing."""
        if not self.is_local:
            return lease.take(self, name)
        if not HAS_FLOCK:
            return None
        with _state_errors(self):
            file = open(self._join(name), "w", opener=private)  # noqa: SIM115 - closed by the caller
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise StateError(f"another tailrace process is using the state directory {self.path}") from error
            return FileLock(file)

    def is_locked(self, name: str) -> bool | None:
        """Whether somebody holds a lock; disturbs nobody and makes no file. None if that can not be known."""
        if not self.is_local:
            held = lease.read(self, name)
            return held is not None and held.is_fresh
        return _is_flocked(self._join(name)) if HAS_FLOCK else None

    def touched_at(self, name: str) -> float | None:
        """When the holder of a lock has last shown that it is at work, in seconds since 1970; None without a lock."""
        if not self.is_local:
            held = lease.read(self, name)
            return None if held is None else held.renewed
        try:
            return os.stat(self._join(name)).st_mtime
        except OSError:
            return None

    def trouble(self, error: OSError, doing: str = "read") -> StateError:
        """What an error of the system means. One that may pass is retried: of a store every one may."""
        kind = StateError if self.is_local and error.errno not in PASSING else StateUnavailable
        reason = (error.strerror or str(error)).partition("\n")[0].lower()
        return kind(f"cannot {doing} the {self._noun} {self.path}: {reason}")

    def _join(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"


def _file_system(path: str) -> tuple[Any, str]:
    return fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)


def _content(data: bytes) -> Version:
    """What tells states of a file apart where the storage does not."""
    return {"e_tag": hashlib.sha256(data).hexdigest()}


def private(path: str, flags: int) -> int:
    """An opener for files that nobody else may read."""
    return os.open(path, flags, 0o600)


def _create_locally(path: str) -> None:
    """With its parents, each durable. A folder that is there already keeps its mode: it may be somebody's for other
    things as well.
    """
    folder = os.path.abspath(path)
    missing = [each for each in (Path(folder), *Path(folder).parents) if not each.exists()]
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    for made in missing:
        _sync_folder(str(made.parent))


def _is_flocked(path: str) -> bool | None:
    """Asks for a shared lock for an instant."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


class _state_errors:  # noqa: N801 - reads as a statement
    """Turns the operating system's errors into a StateError that names the folder."""

    def __init__(self, storage: Storage, doing: str = "write to") -> None:
        self.storage = storage
        self.doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise self.storage.trouble(error, self.doing) from error


def _local_files(path: str, suffix: str) -> dict[str, tuple[int, float]]:
    files: dict[str, tuple[int, float]] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    try:
                        facts = entry.stat()
                    except FileNotFoundError:  # deleted by retention a moment ago
                        continue
                    files[entry.name] = (facts.st_size, facts.st_mtime)
    except FileNotFoundError:
        return {}
    return files


def _publish_locally(folder: str, name: str, parts: Iterable[Any], failpoint: str) -> int:
    final = Path(folder) / name
    beside = final.with_name(f"{name}{PART}")
    with open(beside, "wb", opener=private) as file:
        size = _write(file, parts)
        if failpoint:
            failpoints.reached(f"{failpoint}-written")
        file.flush()
        os.fsync(file.fileno())
    if failpoint:
        failpoints.reached(f"{failpoint}-synced")
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
