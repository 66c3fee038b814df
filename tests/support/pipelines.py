"""A pipeline under test: `tailrace run` as a user starts it, watched by its JSON lines, killed for real."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil
import psycopg
import yaml

from tailrace.config import load
from tailrace.errors import SinkError
from tailrace.log.reader import LogReader
from tailrace.model.lifecycle import TableState
from tailrace.registry import make_sink
from tailrace.sinks.base import SinkState
from tailrace.sources.postgres.positions import reached
from tailrace.state.layout import LOG
from tailrace.state.storage import Storage
from tailrace.testing import content
from tailrace.testing.processes import wait_until

WAIT_SECONDS = 180.0
LONGEST_SECONDS = 600.0


def write_pipeline(folder: Path, source: str, sinks: Mapping[str, str | dict[str, Any]], /, **settings: Any) -> Path:
    """A pipeline file in `folder`. A sink is its URL, or all of its settings.

    `settings` are more keys of the file, `tables` and those of `source` are its source's.
    """
    tables = settings.pop("tables", ["*.*"])
    name = settings.pop("name", "under_test")
    document = {
        "name": name,
        "source": {"url": source, "tables": tables, **settings.pop("source", {})},
        "sinks": {name: {"url": sink} if isinstance(sink, str) else sink for name, sink in sinks.items()},
        **settings,
    }
    path = folder / "pipeline.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def tailrace(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command to its end, as a user types it; whatever it says is kept."""
    command = [sys.executable, "-m", "tailrace.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False, cwd=folder)


class RunningPipeline:
    """`tailrace run FILE` in a process of its own. As a context manager it kills what still runs at the end.

    It has a process group of its own, as a job of a shell has: Ctrl-C reaches all of it.
    """

    def __init__(
        self,
        file: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        command: str = "run",
        folder: Path | None = None,
        python: str = sys.executable,
    ) -> None:
        words = [python, "-m", "tailrace.cli.main", command, str(file), *options]
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
            process_group=0,
        )
        self.lines: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._frozen: list[psutil.Process] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())
            if line.startswith("{"):
                with suppress(ValueError):  # the line that a killed process did not finish
                    self.events.append(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._join()

    @property
    def output(self) -> str:
        return "\n".join(list(self.lines))

    def said(self, event: str) -> list[dict[str, Any]]:
        """All events of one kind so far."""
        return [each for each in list(self.events) if each["event"] == event]

    def copies(self, table: str, sink: str | None = None) -> int:
        """How often a table's copy has begun in this life."""
        began = [each for each in self.said("table") if each["table"] == table and each["state"] == "snapshot"]
        return sum(sink in (None, each["sink"]) for each in began)

    def wait_for(self, is_so: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until `is_so`; fails with what the pipeline said when it does not come or the pipeline ends first."""

        def look() -> bool:
            if is_so():
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"the pipeline ended while waiting for {what}:\n{self.output}")
            return False

        try:
            wait_until(look, seconds=seconds, what=what, every=0.05)
        except TimeoutError as error:
            raise AssertionError(f"waited in vain for {what}:\n{self.output}") from error

    def wait_until_live(self, *tables: str) -> None:
        def is_live() -> bool:
            live = {each["table"] for each in self.said("table") if each["state"] == "live"}
            return bool(live) and live.issuperset(tables)

        self.wait_for(is_live, "the tables to be live")

    def ended(self, seconds: float = WAIT_SECONDS) -> int:
        """The exit code, once it has ended."""
        try:
            wait_until(lambda: self.process.poll() is not None, seconds=seconds, what="its end", every=0.02)
        except TimeoutError as error:
            self.kill()
            raise AssertionError(f"the pipeline did not end in {seconds:g} s:\n{self.output}") from error
        self._join()
        return self.process.wait()

    def _join(self) -> None:
        """Wait for its last words; a child that outlives it for a moment may hold its output open."""
        for reader in self._readers:
            reader.join(5)

    def stop(self, seconds: float = 60.0) -> int:
        """As an operator does: SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.ended(seconds)

    def interrupt(self, seconds: float = 60.0) -> int:
        """As Ctrl-C on a terminal does: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ended(seconds)

    def kill(self) -> None:
        """SIGKILL of the driver. Its JVM and its capture process must notice by themselves."""
        self.process.kill()
        self.thaw()  # or they could not notice
        self.process.wait(10)

    def freeze(self, *, but_capture: bool = False) -> None:
        """SIGSTOP of all of its processes, the driver first: as a machine that is suspended, or out of reach."""
        running = self.capture_process() if but_capture else None
        self._frozen = [psutil.Process(self.process.pid)]
        for member in self._frozen:  # which grows meanwhile
            with suppress(psutil.NoSuchProcess):
                member.suspend()
                self._frozen += [child for child in member.children() if child != running]

    def thaw(self) -> None:
        """SIGCONT of whatever `freeze` has stopped."""
        for member in reversed(self._frozen):
            with suppress(psutil.NoSuchProcess):
                member.resume()
        self._frozen = []

    def kill_capture(self) -> None:
        """SIGKILL of the capture process. The pipeline must notice, and start another."""
        self.capture_process().kill()

    def kill_jvm(self) -> None:
        """SIGKILL of Spark's JVM. The pipeline must notice, and end."""
        self.jvm_process().kill()

    def capture_process(self) -> psutil.Process:
        """The capture process, once there is one: a dead one's successor takes a moment to come."""
        return self._child("tailrace.pipeline.capture_process")

    def jvm_process(self) -> psutil.Process:
        return self._child("org.apache.spark.deploy.SparkSubmit")

    def _child(self, mark: str) -> psutil.Process:
        self.wait_for(lambda: list(self._children(mark)), f"a process {mark}")
        return next(self._children(mark))

    def _children(self, mark: str) -> Iterator[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if mark in " ".join(child.cmdline()):
                        yield child


def run_until_current(file: Path, environment: Mapping[str, str] | None = None) -> RunningPipeline:
    """Run to the end; the exit code must be 0."""
    with RunningPipeline(file, "--until-current", environment=environment) as pipeline:
        code = pipeline.ended(LONGEST_SECONDS)
        assert code == 0, f"exit code {code}:\n{pipeline.output}"
        return pipeline


class Replica:
    """What a sink remembers of its pipeline, seen from beside it."""

    def __init__(self, file: Path, sink: str = "replica") -> None:
        self._pipeline, self._sink = load(file), sink

    def state(self) -> SinkState:
        """Empty while there is no file, or one that is just being made."""
        try:
            return make_sink(self._pipeline, self._sink).read_state()
        except SinkError:
            return SinkState(None, {}, {})

    def is_copying(self) -> bool:
        """In the middle of a snapshot: some chunks of a table are loaded, others are not."""
        marks = [mark.is_loaded for chunks in self.state().chunks.values() for mark in chunks]
        return any(marks) and not all(marks)

    def is_catching_up(self) -> bool:
        """In the middle of a catch-up: a table has come some way through the log, and is not live."""
        tables = self.state().tables.values()
        return any(table.state is TableState.CATCH_UP and table.watermark.offset > 0 for table in tables)

    def is_live(self) -> bool:
        tables = self.state().tables.values()
        return bool(tables) and all(table.state is TableState.LIVE for table in tables)

    def has_reached(self, position: str) -> bool:
        """Whether all tables are live, and have what the source committed before `position` of its log."""
        mark = self.state().watermark
        return mark is not None and bool(mark.position) and self.is_live() and reached(mark.position, position)


def wait_until_same(
    pipeline: RunningPipeline, url: str, path: Path, *tables: str, seconds: float = WAIT_SECONDS
) -> None:
    """Wait until a SQLite replica has the rows of its source, in all tables or in those given; fails with the rest."""
    found: list[content.Difference] = []

    def is_same() -> bool:
        try:
            found[:] = content.sqlite_differences(url, path, tables or None)
        except sqlite3.OperationalError:  # it is just being made, or written
            return False
        return not found

    try:
        pipeline.wait_for(is_same, "the replica to be the same", seconds)
    except AssertionError as error:
        raise AssertionError("\n".join([*(each.values for each in found), str(error)])) from error


def states(file: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """What `tailrace status` says of each sink and table: its state, and the reason for it."""
    said = tailrace("status", file, "--json")
    assert said.returncode == 0, said
    return {(line["sink"], line["table"]): (line["state"], line.get("reason", "")) for line in json.loads(said.stdout)}


def captured(file: Path) -> str:
    """How far the change log of a pipeline goes, as a position of its source; empty while it has nothing."""
    log = LogReader(Storage(load(file).state).folder(LOG))
    ends = [name for name in log.names() if name.committed >= name.first]
    return log.header(ends[-1]).position if ends else ""


def position_of(url: str) -> str:
    """The present end of a PostgreSQL server's log: whatever was committed lies before it."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])
