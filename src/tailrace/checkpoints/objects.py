"""Checkpoints in an object store: `NAME.json` each, and `NAME.lock`, the lease of who holds it (`state/lease`).

The fence is the store's own: a save replaces the version that its writer knows, or is refused. A claim signs the object
with a token, which makes it another version, so the holder before can not write it again, however long it slept. An
object is never deleted, because no store has a condition for that: one without a record stands for none.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailrace import failpoints
from tailrace.checkpoints.holders import Holder, replaced, taken, this_process
from tailrace.checkpoints.names import is_name
from tailrace.checkpoints.record import decoded, encoded
from tailrace.checkpoints.store import Check, Store
from tailrace.model.checkpoint import Checkpoint
from tailrace.model.stored import from_json
from tailrace.state.lease import InUse
from tailrace.state.objects import Version
from tailrace.state.storage import Lock, Storage

SUFFIX = ".json"
NONE = b"null"
TRIES = 5
"""Each fails only if one that was replaced writes at that very moment."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an object says. A record that is `null` is none."""

    holder: Holder
    record: msgspec.Raw

    @property
    def content(self) -> bytes | None:
        return None if bytes(self.record) == NONE else bytes(self.record)


class Hold(msgspec.Struct):
    """A claim of ours: the version of the object that we know, and the record in it."""

    lock: Lock
    holder: Holder
    version: Version | None
    record: bytes | None


class ObjectStore(Store[Hold]):
    """Those below the URL of a folder in S3, Google Cloud Storage or Azure."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._storage = Storage(url, "checkpoint folder")

    def __repr__(self) -> str:
        return f"ObjectStore({self._storage.path!r})"

    def _take(self, name: str) -> Hold:
        lock = self._leased(name)
        try:
            return self._signed(name, lock)
        except BaseException:
            lock.close()
            raise

    def _leased(self, name: str) -> Lock:
        try:
            lock = self._storage.lock(f"{name}.lock")
        except InUse as error:
            raise taken(name, error.held, error.hint) from error
        assert lock is not None
        return lock

    def _signed(self, name: str, lock: Lock) -> Hold:
        holder = this_process()
        for _ in range(TRIES):
            data, version = self._found(name)
            kept = _kept(data)
            if data is not None and kept is None:
                return Hold(lock, holder, version, data)  # damaged, and left as it is: nothing can follow it
            record = None if kept is None else kept.content
            if (written := self._swap(name, holder, record, version)) is not None:
                return Hold(lock, holder, written, record)
        raise replaced(name, None)

    def _let_go(self, name: str, hold: Hold) -> None:
        hold.lock.close()

    def _read(self, name: str) -> bytes | None:
        data, _ = self._found(name)
        kept = _kept(data)
        return data if kept is None else kept.content

    def _write(self, name: str, hold: Hold, checkpoint: Checkpoint, check: Check) -> None:
        check(None if hold.record is None else decoded(name, hold.record))
        self._replace(name, hold, encoded(name, checkpoint))
        failpoints.reached("checkpoint-saved")

    def _remove(self, name: str, hold: Hold) -> bool:
        was_there = hold.record is not None
        self._replace(name, hold, None)
        return was_there

    def _names(self) -> Iterable[str]:
        names = filter(is_name, (file.removesuffix(SUFFIX) for file in self._storage.files(SUFFIX)))
        return [name for name in names if self._read(name) is not None]

    def _replace(self, name: str, hold: Hold, record: bytes | None) -> None:
        """The answer to a write may be lost, and what is sent again refused: then what stands there is ours."""
        written = self._swap(name, hold.holder, record, hold.version)
        if written is None:
            data, version = self._found(name)
            if data != _encoded(hold.holder, record):
                kept = _kept(data)
                raise replaced(name, None if kept is None else kept.holder)
            written = version
        hold.version, hold.record = written, record

    def _swap(self, name: str, holder: Holder, record: bytes | None, version: Version | None) -> Version | None:
        return self._storage.swap(f"{name}{SUFFIX}", _encoded(holder, record), version)

    def _found(self, name: str) -> tuple[bytes | None, Version | None]:
        try:
            return self._storage.read_version(f"{name}{SUFFIX}")
        except FileNotFoundError:
            return None, None
        except OSError as error:
            raise self._storage.trouble(error) from error


def _encoded(holder: Holder, record: bytes | None) -> bytes:
    return msgspec.json.encode(Kept(holder, msgspec.Raw(NONE if record is None else record)))


def _kept(data: bytes | None) -> Kept | None:
    """None for what is not there, or damaged."""
    try:
        return None if data is None else from_json(data, Kept)
    except msgspec.MsgspecError:
        return None
