"""Who holds a checkpoint, and a file that can be held: it is let go when its holder dies, whatever killed it.

The lock is the system's (flock), so it needs no clock and no guess whether a process lives, also where processes are
in containers that do not see each other. What the file says is only for people. A child that is forked does not
inherit the hold: it would outlive its parent's.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import weakref
from contextlib import suppress
from typing import IO

import msgspec

from tailrace.errors import CheckpointTaken, StateError
from tailrace.model.stored import from_json
from tailrace.state.storage import private

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no advisory locks of this kind
    fcntl = None  # type: ignore[assignment]

TRIES = 10
"""Each fails only if somebody let go at that very moment."""


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`token` is one claim's own, `since` in seconds since 1970, `session` what a server calls the holder's."""

    token: str
    host: str
    pid: int
    since: float
    session: str = ""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        session = f" in session {self.session} of the server" if self.session else ""
        return f"pid {self.pid} on {self.host} since {since}{session}"


def this_process(session: str = "") -> Holder:
    """A new claim of this process."""
    return Holder(uuid.uuid4().hex, socket.gethostname(), os.getpid(), time.time(), session)


def told(data: bytes | str | None) -> Holder | None:
    """Who wrote that; None if nobody did, or it can not be read."""
    try:
        return from_json(data, Holder) if data else None
    except msgspec.MsgspecError:
        return None


def taken(name: str, holder: object | None, hint: str | None = None) -> CheckpointTaken:
    return CheckpointTaken(f"checkpoint {name} is held by {holder or 'another process'}", hint=hint)


def replaced(name: str, holder: object | None) -> CheckpointTaken:
    """What one is told who had it."""
    return CheckpointTaken(f"checkpoint {name} was taken over by {holder or 'another process'}")


class HeldFile:
    """A file that we hold, until `close` or our death."""

    def __init__(self, file: IO[str], path: str, name: str) -> None:
        self._file, self._path, self._name = file, path, name
        _held.add(self)

    @classmethod
    def take(cls, path: str, name: str) -> HeldFile:
        """Hold the file at `path`, which is made, for the checkpoint `name`; or raise CheckpointTaken."""
        if fcntl is None:  # pragma: no cover - Windows
            raise StateError("this system can not lock files", hint="use a checkpoint store in a database")
        for _ in range(TRIES):
            file = open(path, "r+", opener=_opened)  # noqa: SIM115 - held
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                with file:
                    raise taken(name, told(file.read())) from error
            held = cls(file, path, name)
            if held.is_there():
                held._sign()
                return held
            file.close()
        raise taken(name, None)

    def is_there(self) -> bool:
        """Whether the file that we hold is the one that others would find."""
        ours = os.fstat(self._file.fileno())
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def check(self) -> None:
        """Raise CheckpointTaken if others may hold it by now: the file was removed under us."""
        if not self.is_there():
            raise replaced(self._name, holder_at(self._path) or f"whoever removed {self._path}")

    def close(self) -> None:
        """Let go, and leave nothing behind."""
        with suppress(OSError):
            if self.is_there():
                os.unlink(self._path)
        self._file.close()

    def _sign(self) -> None:
        self._file.truncate(0)
        self._file.write(msgspec.json.encode(this_process()).decode())
        self._file.flush()

    def abandon(self) -> None:
        """In a child: what was inherited is closed, and stays its parent's."""
        self._file.close()


def holder_at(path: str) -> Holder | None:
    """Who has signed the file at `path`."""
    try:
        with open(path) as file:
            return told(file.read())
    except OSError:
        return None


def _opened(path: str, flags: int) -> int:
    return private(path, flags | os.O_CREAT)


_held: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def _abandon_all() -> None:
    for held in list(_held):
        held.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
