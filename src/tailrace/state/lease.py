"""A lock for storage that has none: an object that its holder renews every few seconds.

Where the store can refuse a write (`Storage.is_conditional`), each one replaces the version that its writer knows, so
the object is also a fence: who lost the lease can not write it again, however long it slept. What its holder publishes
there (`publish`) therefore has one author at a time, and `epoch` grows with each: it is the time of the taking, so that
it grows as well where somebody deleted the object, or all of the state, and the holder of before still lives.

Elsewhere (HDFS, say) the last writer wins: who finds no lease, or one that is dead, writes its own, waits a moment, and
holds it if that is what it reads back. A holder that lost it, or could not renew it for so long that others may think
it dead, is told so by `check`, and never holds it again. What such a process does between `check` and the end of a
write that takes longer than `DEAD_SECONDS` is not fenced.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.errors import StateError, StateUnavailable
from tailrace.model.stored import from_json
from tailrace.state.objects import Version

if TYPE_CHECKING:
    from tailrace.state.storage import Storage

RENEW_SECONDS = 5.0
DEAD_SECONDS = 30.0
SETTLE_SECONDS = 1.0
SAFE_SECONDS = DEAD_SECONDS - 2 * RENEW_SECONDS
"""How long a holder may trust a lease that it could not renew; less than others do, for the time that a write takes."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the object says. `machine` is where `pid` means something: one boot, one namespace of processes.

    `begin` and `end` are what the holder, or those before it, published; None if nobody did.
    """

    owner: str
    host: str
    pid: int
    machine: str
    since: float
    renewed: float
    epoch: int = 0
    end: int | None = None
    begin: int | None = None
    is_released: bool = False

    @property
    def age_seconds(self) -> float:
        return time.time() - self.renewed

    @property
    def is_fresh(self) -> bool:
        """By our clock; the holder's may differ, so neither answer is a proof."""
        return not self.is_over and abs(self.age_seconds) < DEAD_SECONDS

    @property
    def is_over(self) -> bool:
        """For sure: its holder let go, or was a process of this machine, and is gone."""
        if self.is_released:
            return True
        if not self.machine or self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # somebody else's, and alive
        return False

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"pid {self.pid} on {self.host} since {since}, last heard of {max(self.age_seconds, 0):.0f} s ago"


class InUse(StateError):
    """Somebody else has the lease: `held`."""

    held: Note | None = None


class Lease:
    """A lease that is ours; a thread renews it until `close`."""

    def __init__(self, storage: Storage, name: str, note: Note, version: Version) -> None:
        self._storage, self._name = storage, name
        self._note, self._version = note, version
        self._writing = threading.Lock()
        self._trusted_until = time.monotonic() + SAFE_SECONDS
        self._lost = ""  # how, if it is
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name=f"lease {name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def epoch(self) -> int:
        return self._note.epoch if self._storage.is_conditional else 0

    @property
    def end(self) -> int | None:
        return self._note.end if self._storage.is_conditional else None

    @property
    def begin(self) -> int | None:
        return self._note.begin if self._storage.is_conditional else None

    def check(self) -> None:
        """Raise StateError unless the lease is still ours: one small write, or read."""
        self._refuse_if_lost()
        if self._storage.is_conditional:
            self._renew()
        else:
            self._look()
            self._refuse_if_lost()

    def publish(self, begin: int, end: int) -> None:
        """Make both known as the holder of the lease, or raise StateError. What is not published, is not there."""
        if self._storage.is_conditional:
            self._write(begin=begin, end=end)

    def refuse_careless(self) -> None:
        """A store that has never heard of conditions, or of one of the two, ignores them: then nothing is fenced."""
        data, old = msgspec.json.encode(self._note), self._version
        self._write()
        for version in (None, old):
            if self._storage.swap(self._name, data, version) is not None:
                self.close()
                raise _careless(self._storage)

    def touch(self) -> None:
        """Its thread does that; raise StateError if it found that the lease is lost. Nothing is asked."""
        self._refuse_if_lost()

    def close(self) -> None:
        """Let go. What belongs to somebody else by now stays, as does what a forked child has of its parent."""
        atexit.unregister(self.close)
        if self._stopping.is_set() or self._note.pid != os.getpid():
            return
        self._stopping.set()
        self._thread.join(RENEW_SECONDS)
        with suppress(StateError, OSError):  # the store may be gone; the lease dies by itself
            if self._storage.is_conditional:
                self._write(is_released=True)
            else:
                self.check()
                self._storage.delete(self._name)

    def _refuse_if_lost(self) -> None:
        if self._lost:
            raise StateError(self._lost)
        if not self._storage.is_conditional and time.monotonic() > self._trusted_until:
            raise StateUnavailable(
                f"the hold on the state directory {self._storage.path} could not be renewed for {SAFE_SECONDS:g} s"
            )

    def _look(self) -> None:
        found, _ = read_version(self._storage, self._name)
        if found is not None and found.owner != self._note.owner:
            self._lose_to(found)

    def _lose_to(self, other: Note | None) -> None:
        path = self._storage.path
        self._lost = f"another tailrace process took over the state directory {path}: {other}"
        if other is None:
            self._lost = f"the lock {self._name} was deleted from the state directory {path} while it was held"

    def _renew_always(self) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            with suppress(StateError, OSError):  # tried again; `check` tells when it has been too long
                self._renew()

    def _renew(self) -> None:
        """A holder that was stopped for long does not begin to trust its lease again: others had their turn."""
        began = time.monotonic()
        if not self._storage.is_conditional:
            self.check()
        self._write()
        if time.monotonic() <= self._trusted_until:
            self._trusted_until = began + SAFE_SECONDS

    def _write(self, **changes: Any) -> None:
        with self._writing:
            self._refuse_if_lost()
            note = msgspec.structs.replace(self._note, renewed=time.time(), **changes)
            self._note, self._version = self._swapped(note)

    def _swapped(self, note: Note) -> tuple[Note, Version]:
        """What was written. The answer to an earlier write may have been lost: what stands there may be ours already.

        What was published so is known to readers, and stays.
        """
        version: Version | None = self._version
        for _ in range(2):
            if (written := self._storage.swap(self._name, msgspec.json.encode(note), version)) is not None:
                return note, written
            found, version = read_version(self._storage, self._name)
            if found == note and version is not None:
                return note, version
            if found is None or found.owner != note.owner:
                break
            kept = {"begin": _later(note.begin, found.begin), "end": _later(note.end, found.end)}
            note = msgspec.structs.replace(note, **kept)
        self._lose_to(found)
        self._refuse_if_lost()
        raise AssertionError("unreachable")


def take(storage: Storage, name: str) -> Lease:
    """Hold `name`, or raise StateError with who holds it."""
    held, version = read_version(storage, name)
    if held is not None and _is_alive(storage, name, held):
        raise _in_use(storage, held)
    now = time.time()
    epoch, published = (0, ()) if held is None else (held.epoch + 1, (held.end, held.begin))
    epoch = max(epoch, int(now * 1000))
    mine = Note(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _machine(), now, now, epoch, *published)
    written = storage.swap(name, msgspec.json.encode(mine), version)
    if not storage.is_conditional:
        time.sleep(SETTLE_SECONDS)
    if not storage.is_conditional or written is None:
        held, written = read_version(storage, name)
        if held is None or held.owner != mine.owner or written is None:
            raise _in_use(storage, held or mine)
    lease = Lease(storage, name, mine, written)
    if storage.is_conditional:
        lease.refuse_careless()
    return lease


def read(storage: Storage, name: str) -> Note | None:
    """Who holds `name`, or was the last to; None if nobody is known, or it is no lease."""
    return read_version(storage, name)[0]


def read_version(storage: Storage, name: str) -> tuple[Note | None, Version | None]:
    try:
        data, version = storage.read_version(name)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise storage.trouble(error) from error
    try:
        return from_json(data, Note), version
    except msgspec.MsgspecError:
        return None, version


def _is_alive(storage: Storage, name: str, held: Note) -> bool:
    """A lease that looks dead is watched for two renewals: its holder's clock may be wrong."""
    if held.is_fresh:
        return True
    if held.is_over:
        return False
    deadline = time.monotonic() + 2 * RENEW_SECONDS
    while time.monotonic() < deadline:
        time.sleep(RENEW_SECONDS / 10)
        now = read(storage, name)
        if now is None or now != held:
            return now is not None
    return False


def _later(one: int | None, other: int | None) -> int | None:
    return max((end for end in (one, other) if end is not None), default=None)


def _careless(storage: Storage) -> StateError:
    return StateError(
        f"the store of the state directory {storage.path} overwrites what it was asked to leave alone",
        hint="it lacks conditional writes (If-None-Match, If-Match): use a newer version of it, or another store",
    )


def _in_use(storage: Storage, held: Note) -> InUse:
    error = InUse(
        f"another tailrace process is using the state directory {storage.path}: {held}",
        hint=f"one that died is let go {DEAD_SECONDS:g} s after it was last heard of",
    )
    error.held = held
    return error


def _machine() -> str:
    """Empty where it can not be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
