"""A workload that runs in an OS process of its own, at a steady rate of row changes, until it is stopped.

What it does is a `Transactions` class: seeded, so that the same seed on the same data gives the same transactions. A
workload outlives a restart of its server: it reconnects and goes on.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import psycopg

from tailrace.errors import TailraceError

COUNTER_BYTES = 8

REFUSED = (psycopg.IntegrityError, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
"""What a transaction may end with when several workloads meet: it is rolled back, and the next one begins."""


class Driver(NamedTuple):
    """How a workload's process comes to its database: what it connects with, and what its errors mean."""

    connect: Callable[[str], AbstractContextManager[Any]]
    lost: tuple[type[Exception], ...]
    refused: tuple[type[Exception], ...]


def _postgres(url: str) -> AbstractContextManager[Any]:
    return psycopg.connect(url, autocommit=True, application_name="tailrace workload")


POSTGRES = Driver(_postgres, (psycopg.OperationalError,), REFUSED)


class WorkloadFailed(TailraceError):
    """The workload's process ended by itself."""


class Transactions(Protocol):
    """One kind of workload, over one autocommit connection to a database that is already prepared for it.

    One that is not of PostgreSQL names its `driver`.
    """

    def __init__(self, connection: psycopg.Connection[Any], random: random.Random, **options: Any) -> None: ...

    def step(self) -> int:
        """Run one transaction and return how many row changes it committed."""


class LiveWorkload:
    """A running workload process. Subclasses name their transactions; use it as a context manager, or call `stop`.

    The process ends when `stop` is called and also when this process ends, however it ends.
    """

    transactions: ClassVar[str]
    """Where the `Transactions` class is: `module:Class`."""

    def __init__(self, url: str, rate: float, seed: int, options: dict[str, Any]) -> None:
        self.seed = seed
        self._final = 0
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-workload-")
        self._counter = Path(self._folder.name) / "changes"
        self._counter.write_bytes(bytes(COUNTER_BYTES))
        self._errors = Path(self._folder.name) / "errors"
        order = {"url": url, "rate": rate, "seed": seed, "counter": str(self._counter), "options": options}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, self.transactions],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C on the terminal is for whoever started us to handle
            )
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps(order).encode() + b"\n"
        )  # not on the command line: the URL holds a password
        self._process.stdin.flush()

    @property
    def changes(self) -> int:
        """Row changes committed so far."""
        return int.from_bytes(self._counter.read_bytes(), "little") if self._counter.exists() else self._final

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """Let the transaction in flight commit, end the process, and return how many row changes were committed."""
        if not self._counter.exists():
            return self._final
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._final = self.changes
        complaint = self._errors.read_text(errors="replace").strip()
        self._folder.cleanup()
        if code != 0:
            raise WorkloadFailed(f"the workload with seed {self.seed} ended with code {code}:\n{complaint[-2000:]}")
        return self._final

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(seed={self.seed}, changes={self.changes})"


class _Pace:
    """Sleeps so that changes come at `rate` a second; a delay is not made up for by a burst of more than a second's."""

    def __init__(self, rate: float, stopping: threading.Event) -> None:
        self._rate = rate
        self._stopping = stopping
        self._due = time.monotonic()

    def after(self, changes: int) -> None:
        if self._rate <= 0:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1) + max(changes, 0.2) / self._rate
        if self._due > now:
            self._stopping.wait(self._due - now)


def main() -> None:
    """The process: its order is the first line of stdin, and the end of stdin is the order to stop."""
    module, _, name = sys.argv[1].partition(":")
    kind: type[Transactions] = getattr(importlib.import_module(module), name)
    order = json.loads(sys.stdin.buffer.readline())
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    driver: Driver = getattr(kind, "driver", POSTGRES)
    generator = random.Random(order["seed"])
    pace = _Pace(order["rate"], stopping)
    with Path(order["counter"]).open("r+b") as file, mmap.mmap(file.fileno(), COUNTER_BYTES) as counter:
        while not stopping.is_set():
            try:
                with driver.connect(order["url"]) as connection:
                    _run(kind(connection, generator, **order["options"]), pace, counter, stopping, driver.refused)
            except driver.lost:
                stopping.wait(0.2)


def _run(
    transactions: Transactions,
    pace: _Pace,
    counter: mmap.mmap,
    stopping: threading.Event,
    refused: tuple[type[Exception], ...],
) -> None:
    while not stopping.is_set():
        try:
            changes = transactions.step()
        except refused:
            changes = 0
        total = int.from_bytes(counter[:], "little") + changes
        counter[:] = total.to_bytes(COUNTER_BYTES, "little")
        pace.after(changes)


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):  # not through the buffer, whose lock would break the interpreter's exit
        pass
    stopping.set()


if __name__ == "__main__":
    main()
