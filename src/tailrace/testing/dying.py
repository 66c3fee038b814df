"""Work that is killed by SIGKILL at any of its steps, without a failpoint in it.

A step is what Python tells its audit hooks of before it is done: a file that is opened to be written, renamed or
removed, a connection that is made, a failpoint that is reached. `Mortal` forks a child for each piece of work: a death
takes milliseconds.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, Self

STEPS = ("os.", "shutil.", "socket.", "sqlite3.", "tailrace.")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_LENGTH = struct.Struct("<Q")


class Mortal:
    """A process that forks others to die; a context manager."""

    def __enter__(self) -> Self:
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def dies(self, work: Callable[[], object], step: int) -> bool:
        """Do `work`, which pickles, in a process that dies before its step of this number; False if it has fewer."""
        data = pickle.dumps((work, step))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_LENGTH.pack(len(data)) + data)
        self._process.stdin.flush()
        code = int(self._process.stdout.readline() or -1)
        assert code in (0, -signal.SIGKILL), f"the work ended with {code}"
        return code != 0


def _serve() -> None:
    while head := sys.stdin.buffer.read(_LENGTH.size):
        work, step = pickle.loads(sys.stdin.buffer.read(*_LENGTH.unpack(head)))  # what it imports, it does once
        child = os.fork()
        if not child:
            _die(work, step)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _die(work: Callable[[], object], left: int) -> None:
    def step(event: str, facts: tuple[Any, ...]) -> None:
        nonlocal left
        if facts[2] & WRITING if event == "open" else event.startswith(STEPS):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    _serve()
