"""Where a schema history lies: in memory, or in one JSON file that is replaced whole.

    {"format":1,"checksum":"…","content":{"public.orders":[{"number":1,"schema":{…},"position":"0/16B3748","at_us":…}]}}

Guarantee of the file: after a crash at any moment it is the old one or the new one. One that is damaged or of a format
to come is refused. It is for its owner alone, and one process at a time writes it.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePath

import msgspec
from msgspec import Raw
from msgspec.json import encode

from tailrace.errors import StateError
from tailrace.history.schema_history import Versions
from tailrace.model.stored import from_json
from tailrace.state.storage import Lock, Storage

FORMAT = 1


class Written(msgspec.Struct, frozen=True):
    """`checksum` is the SHA-256 of the content as it stands. The fields of a format to come are ignored till then."""

    format: int
    checksum: str
    content: Raw


class MemoryHistory:
    """Gone with the process; for tests, and for those who need the past of this run alone."""

    def __init__(self) -> None:
        self._versions: Versions = {}

    def load(self) -> Versions:
        return dict(self._versions)

    def save(self, versions: Versions) -> None:
        self._versions = dict(versions)

    def close(self) -> None:
        return


class FileHistory:
    """`path` is a file on a local disk, or in a store that the state directory could be in as well."""

    def __init__(self, path: str | PurePath) -> None:
        self.path = str(path)
        folder, _, self._name = self.path.rpartition("/")
        self._storage = Storage(folder or ".")
        self._lock: Lock | None = None

    def load(self) -> Versions:
        try:
            return self._read(self._storage.read(self._name))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._storage.trouble(error) from error

    def save(self, versions: Versions) -> None:
        content = encode(versions)
        self._hold()
        self._storage.publish(self._name, encode(Written(FORMAT, _checksum(content), Raw(content))))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> None:
        if self._lock is None:
            self._storage.create()
            self._lock = self._storage.lock(f"{self._name}.lock")
        if self._lock is not None:
            self._lock.check()

    def _read(self, data: bytes) -> Versions:
        try:
            written = from_json(data, Written)
            if written.format != FORMAT:
                raise self._refused(f"has format {written.format}, and this version of tailrace reads {FORMAT}")
            if written.checksum != _checksum(bytes(written.content)):
                raise self._refused("is damaged: its checksum is of another content")
            found: Versions = from_json(bytes(written.content), Versions)
        except msgspec.MsgspecError as error:
            raise self._refused(f"can not be read: {error}") from error
        return found

    def _refused(self, reason: str) -> StateError:
        hint = "restore it from a backup, or move it away: a new history begins with the next change of each table"
        return StateError(f"the schema history {self.path} {reason}", hint=hint)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
