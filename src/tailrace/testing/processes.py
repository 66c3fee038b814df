"""Server processes for tests: unprivileged, on a free port, gone when we are gone."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from tailrace.errors import TailraceError

LAUNCHER = Path(__file__).with_name("launch.py")


class ServerUnavailable(TailraceError):
    """A server for tests cannot be had on this machine. Tests skip at home and fail in CI."""


class ServerFailed(TailraceError):
    """A server was found, and did not start or did not stop."""


class Owner:
    """The user that servers run as: ourselves or, because databases refuse to run as root, `nobody`."""

    def __init__(self) -> None:
        self.uid, self.gid = os.geteuid(), os.getegid()
        if self.uid == 0:
            try:
                nobody = pwd.getpwnam("nobody")
            except KeyError:
                raise ServerUnavailable("we are root, and there is no user `nobody` to run a server as") from None
            self.uid, self.gid = nobody.pw_uid, nobody.pw_gid

    def can_reach(self, path: Path) -> bool:
        """Whether this user may read `path` and enter every folder above it."""
        return self.obstacle(path) is None and self._has(path, 4)

    def obstacle(self, path: Path) -> Path | None:
        """The outermost folder above `path` that this user may not enter."""
        return next((folder for folder in reversed(path.absolute().parents) if not self._has(folder, 1)), None)

    def own(self, folder: Path) -> None:
        if os.geteuid() != self.uid:
            os.chown(folder, self.uid, self.gid)

    def _has(self, path: Path, bit: int) -> bool:
        if os.geteuid() == self.uid:
            return os.access(path, os.X_OK if bit == 1 else os.R_OK)
        status = path.stat()
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return bool(status.st_mode >> shift & bit)


def cache_folder() -> Path:
    """Where things that are costly to make are kept between runs. Everybody can read it, only we can write it."""
    chosen = os.environ.get("TAILRACE_CACHE")
    if chosen:
        folder = Path(chosen)
    elif os.geteuid() == 0:
        folder = Path("/var/cache/tailrace")  # /root is closed to the user that servers run as
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder


def cached_copy(parts: Mapping[str, Path], name: str) -> Path:
    """Folders, copied once as `parts` of the cached folder `name`: whole or not there, also when two processes try."""
    target = cache_folder() / name
    if not target.exists():
        beside = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=cache_folder()))
        beside.chmod(0o755)
        for part, tree in parts.items():
            shutil.copytree(tree, beside / "whole" / part, symlinks=True)
        try:
            (beside / "whole").rename(target)
        except OSError:
            if not target.exists():
                raise
        shutil.rmtree(beside)
    return target


def free_port() -> int:
    """A port nobody listens on, below the range that outgoing connections take: it is still free after a restart."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def launch(
    command: Sequence[str | Path], owner: Owner, folder: Path, log: IO[bytes], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start `command` as our direct child, in a session of its own so that Ctrl-C on the terminal does not reach it.

    It gets SIGQUIT when the thread that called this ends: start servers from a thread that outlives them.
    """
    identity = [str(os.getpid()), str(owner.uid), str(owner.gid)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", LAUNCHER, *identity, *command],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process and all of its children, and return when every one of them is gone."""
    family = _suspended_family(process.pid)
    process.kill()
    for member in family:
        _kill(member)
    process.wait()
    wait_until(lambda: not any(map(lives, family)), seconds=30, what="killed processes to be gone")


def _suspended_family(pid: int) -> list[psutil.Process]:
    """The process and all below it. Each is stopped before its children are listed: so it starts no further one."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family.append(psutil.Process(pid))
    for member in family:  # which grows meanwhile
        with contextlib.suppress(psutil.NoSuchProcess):
            member.suspend()
            family += member.children()
    return family


def remove_tree(folder: Path, seconds: float = 5) -> None:
    """Remove a folder, also while a process that was just killed writes its last file into it."""
    deadline = time.monotonic() + seconds
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(is_so: Callable[[], bool], *, seconds: float, what: str, every: float = 0.01) -> None:
    """Return as soon as the condition holds; raise `TimeoutError` naming `what` if it does not in time.

    The seconds are those of a machine that has nothing else to do: where more processes want to run than there are
    cores, they are so much longer.
    """
    left, before = seconds, time.monotonic()
    while not is_so():
        now = time.monotonic()
        left, before = left - (now - before) / _crowding(), now
        if left < 0:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(every)


def _crowding() -> float:
    """How many processes a core has to serve, by the last minute's load; at least one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def last_lines(path: Path, count: int = 15) -> str:
    lines: Iterable[str] = path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []
    return "\n".join(lines)


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def lives(process: psutil.Process) -> bool:
    """False also for one that has ended and that nobody has asked how."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
