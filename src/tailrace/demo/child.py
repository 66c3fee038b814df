"""The demo's pipeline: `tailrace run` as a process of its own, known by nothing but what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tailrace.errors import TailraceError
from tailrace.testing.processes import LAUNCHER, kill_tree, last_lines

STOP_SECONDS = 60


class DemoFailed(TailraceError):
    """The demo could not be brought to its end."""


class PipelineProcess:
    """One run. It ends with the process that started it, however that ends.

    `rows` and `states` are what its events said of the tables; `is_running` that its sinks follow the log.
    """

    def __init__(self, file: Path, log: Path) -> None:
        self.log = log
        self.began = time.monotonic()
        self.is_running = False
        self.copied = 0
        self.states: dict[str, str] = {}
        self._read = 0
        self._family: list[psutil.Process] = []
        ourselves = [str(os.getpid()), str(os.geteuid()), str(os.getegid())]
        command = [sys.executable, "-m", "tailrace.cli.main", "run", str(file)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), *ourselves, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C on the terminal is for the demo to handle
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self) -> None:
        """Take in what the run has said since; raise if it has ended."""
        code = self._process.poll()
        with self.log.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        for line in whole.splitlines():
            if line.startswith(b"{"):
                self._hear(json.loads(line))
        if code is not None:
            raise DemoFailed(f"the pipeline ended by itself, with exit code {code}: {self.last_words()}")

    def is_live(self, tables: int) -> bool:
        return len(self.states) >= tables and all(state == "live" for state in self.states.values())

    def last_words(self) -> str:
        """Its own sentence about an error, or else the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        said = [line.removeprefix("error: ") for line in lines if line.startswith(("error: ", "hint: "))]
        return "; ".join(said) or f"the last lines of its log are\n{last_lines(self.log, 8)}"

    def kill(self) -> None:
        """SIGKILL to the driver and nobody else: the capture process and Spark's JVM have to notice by themselves."""
        self._remember_family()
        self._process.kill()
        self._process.wait()

    def stop(self) -> float:
        """SIGTERM; returns how many seconds it took to finish in order."""
        self._remember_family()
        began = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"the pipeline did not stop within {STOP_SECONDS} s of SIGTERM") from None
        if code != 0:
            raise DemoFailed(f"the pipeline answered SIGTERM with exit code {code}: {self.last_words()}")
        return time.monotonic() - began

    def end(self) -> None:
        """Whatever is left of the run, by force. Called more than once without harm."""
        kill_tree(self._process)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()  # psutil knows a process again by its time of birth
        psutil.wait_procs(self._family, timeout=10)

    def _remember_family(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family = psutil.Process(self._process.pid).children(recursive=True)

    def _hear(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "running":
                self.is_running = True
            case "table":
                self.states[event["table"]] = event["state"]
            case "progress":
                self.copied = sum(sink["copied"] for sink in event["sinks"].values())
