"""A lock for storage that has none: an object that its holder renews every few seconds.

pyarrow can not ask an object store to refuse a write, so the last writer wins: who finds no lease, or one that is dead,
writes its own, waits a moment, and holds it if that is what it reads back.

Guarantee: the object names one holder at a time. A holder that lost it, or could not renew it for so long that others
may think it dead, is told so by `check`, and never holds it again. What a process does between `check` and the end of a
write that takes longer than `DEAD_SECONDS` is not fenced: that needs a store's conditional write.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from tailrace.errors import StateError, StateUnavailable

if TYPE_CHECKING:
    from tailrace.state.storage import Storage

RENEW_SECONDS = 5.0
DEAD_SECONDS = 30.0
SETTLE_SECONDS = 1.0
SAFE_SECONDS = DEAD_SECONDS - 2 * RENEW_SECONDS
"""How long a holder may trust a lease that it could not renew; less than others do, for the time that a write takes."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the object says. `machine` is where `pid` means something: one boot, one namespace of processes."""

    owner: str
    host: str
    pid: int
    machine: str
    since: float
    renewed: float

    @property
    def age_seconds(self) -> float:
        return time.time() - self.renewed

    @property
    def is_fresh(self) -> bool:
        """By our clock; the holder's may differ, so neither answer is a proof."""
        return not self._is_process_gone() and abs(self.age_seconds) < DEAD_SECONDS

    def _is_process_gone(self) -> bool:
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


class Lease:
    """A lease that is ours; a thread renews it until `close`."""

    def __init__(self, storage: Storage, name: str, note: Note) -> None:
        self._storage, self._name, self._note = storage, name, note
        self._trusted_until = time.monotonic() + SAFE_SECONDS
        self._taken_by: Note | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name=f"lease {name}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def check(self) -> None:
        """Raise StateError unless the lease is still ours: one small read."""
        self._refuse_if_lost()
        self._look()
        self._refuse_if_lost()

    def touch(self) -> None:
        """Its thread does that."""

    def close(self) -> None:
        """Let go. What belongs to somebody else by now stays."""
        atexit.unregister(self.close)
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join(RENEW_SECONDS)
        with suppress(StateError, OSError):  # the store may be gone; the lease dies by itself
            self.check()
            self._storage.delete(self._name)

    def _refuse_if_lost(self) -> None:
        if self._taken_by is not None:
            raise StateError(
                f"another tailrace process took over the state directory {self._storage.path}: {self._taken_by}"
            )
        if time.monotonic() > self._trusted_until:
            raise StateUnavailable(
                f"the hold on the state directory {self._storage.path} could not be renewed for {SAFE_SECONDS:g} s"
            )

    def _look(self) -> None:
        found = read(self._storage, self._name)
        if found is not None and found.owner != self._note.owner:
            self._taken_by = found

    def _renew_always(self) -> None:
        while not self._stopping.wait(RENEW_SECONDS):
            with suppress(StateError, OSError):  # tried again; `check` tells when it has been too long
                self._renew()

    def _renew(self) -> None:
        """A holder that was stopped for long does not begin to trust its lease again: others had their turn."""
        began = time.monotonic()
        self.check()
        self._note = msgspec.structs.replace(self._note, renewed=time.time())
        self._storage.publish(self._name, msgspec.json.encode(self._note))
        if time.monotonic() <= self._trusted_until:
            self._trusted_until = began + SAFE_SECONDS


def take(storage: Storage, name: str) -> Lease:
    """Hold `name`, or raise StateError with who holds it."""
    held = read(storage, name)
    if held is not None and _is_alive(storage, name, held):
        raise _in_use(storage, held)
    now = time.time()
    mine = Note(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _machine(), now, now)
    storage.publish(name, msgspec.json.encode(mine))
    time.sleep(SETTLE_SECONDS)
    held = read(storage, name)
    if held is not None and held.owner != mine.owner:
        raise _in_use(storage, held)
    return Lease(storage, name, mine)


def read(storage: Storage, name: str) -> Note | None:
    """Who holds `name`; None if nobody does, or it is no lease."""
    try:
        return storage.decode(name, Note)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    except OSError as error:
        raise storage.trouble(error) from error


def _is_alive(storage: Storage, name: str, held: Note) -> bool:
    """A lease that looks dead is watched for two renewals: its holder's clock may be wrong."""
    if held.is_fresh:
        return True
    if held._is_process_gone():
        return False
    deadline = time.monotonic() + 2 * RENEW_SECONDS
    while time.monotonic() < deadline:
        time.sleep(RENEW_SECONDS / 10)
        now = read(storage, name)
        if now is None or now != held:
            return now is not None
    return False


def _in_use(storage: Storage, held: Note) -> StateError:
    return StateError(
        f"another tailrace process is using the state directory {storage.path}: {held}",
        hint=f"one that died is let go {DEAD_SECONDS:g} s after it was last heard of",
    )


def _machine() -> str:
    """Empty where it can not be known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""
