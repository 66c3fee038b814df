"""Where a schema history lies: in memory, or in one JSON file that is replaced whole.

    {"format":1,"checksum":"…","content":{"public.orders":[{"number":1,"schema":{…},"position":"0/16B3748","at_us":…}]}}

Guarantee of the file: after a crash at any moment it is the old one or the new one. One that is damaged, of a format to
come, or open to other users is refused. One process at a time writes it, and none over what it has not read.
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
        self._seen: bytes | None = None  # the file as we read or wrote it

    def load(self) -> Versions:
        data = self._present()
        found = {} if data is None else self._read(data)
        self._seen = data
        return found

    def _present(self) -> bytes | None:
        """None if there is no file."""
        try:
            if mode := self._storage.mode_for_others(self._name):
                hint = f"look whether it is still what was written, then: chmod 600 {self.path}"
                raise StateError(f"the schema history {self.path} is open to other users: mode {mode:04o}", hint=hint)
            return self._storage.read(self._name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._storage.trouble(error) from error

    def save(self, versions: Versions) -> None:
        content = encode(versions)
        self._hold()
        data = encode(Written(FORMAT, _checksum(content), Raw(content)))
        self._storage.publish(self._name, data)
        self._seen = data

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> None:
        if self._lock is None:
            self._storage.create()
            self._lock = self._storage.lock(f"{self._name}.lock")
            self._require_unchanged()
        if self._lock is not None:
            self._lock.check()

    def _require_unchanged(self) -> None:
        """Somebody else may have written between our look and our lock."""
        if self._present() != self._seen:
            self.close()
            hint = "one stream has one history: give each its own, or open this one again"
            raise StateError(f"the schema history {self.path} was changed since it was read", hint=hint)

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
