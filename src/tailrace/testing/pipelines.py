"""A pipeline under test: `tailrace run` as a user starts it, watched by its JSON lines, killed for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from tailrace.testing.processes import wait_until

WAIT_SECONDS = 120.0


def write_pipeline(folder: Path, source: str, sinks: Mapping[str, str], **settings: Any) -> Path:
    """A pipeline file in `folder`; `settings` are more keys of the file, `tables` of its source."""
    tables = settings.pop("tables", ["*.*"])
    name = settings.pop("name", "under_test")
    document = {
        "name": name,
        "source": {"url": source, "tables": tables, **settings.pop("source", {})},
        "sinks": {sink: {"url": url} for sink, url in sinks.items()},
        **settings,
    }
    path = folder / "pipeline.yml"
    path.write_text(yaml.safe_dump(document))
    return path


class RunningPipeline:
    """`tailrace run FILE` in a process of its own."""

    def __init__(self, file: Path, *options: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "tailrace.cli.main", "run", str(file), *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self.lines: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("{"):
                self.events.append(json.loads(line))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, is_so: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until `is_so`; fails with what the pipeline said when it does not come or the pipeline ends first."""

        def look() -> bool:
            if is_so():
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"the pipeline ended while waiting for {what}:\n{self.output}")
            return False

        try:
            wait_until(look, seconds=seconds, what=what)
        except TimeoutError as error:
            raise AssertionError(f"waited in vain for {what}:\n{self.output}") from error

    def wait_until_live(self, *tables: str) -> None:
        def is_live() -> bool:
            live = {e["table"] for e in list(self.events) if e["event"] == "table" and e["state"] == "live"}
            return bool(live) and live.issuperset(tables)

        self.wait_for(is_live, "the tables to be live")

    def ended(self, seconds: float = WAIT_SECONDS) -> int:
        """The exit code, once it has ended."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise AssertionError(f"the pipeline did not end in {seconds:g} s:\n{self.output}") from error
        self._reader.join(5)
        return code

    def stop(self, seconds: float = 60.0) -> int:
        """As an operator does: SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.ended(seconds)

    def kill(self) -> None:
        """SIGKILL of the driver. Its JVM and its capture process must notice by themselves."""
        self.process.kill()
        self.process.wait(10)

    def kill_capture(self) -> None:
        self._kill_child("tailrace.pipeline.capture")

    def kill_jvm(self) -> None:
        self._kill_child("org.apache.spark.deploy.SparkSubmit")

    def _kill_child(self, mark: str) -> None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        found = [child for child in children if mark in " ".join(child.cmdline())]
        assert found, f"the pipeline has no process {mark}"
        found[0].kill()


def run_until_current(file: Path, environment: Mapping[str, str] | None = None) -> RunningPipeline:
    """Run to the end; the exit code must be 0."""
    pipeline = RunningPipeline(file, "--until-current", environment=environment)
    code = pipeline.ended(300)
    assert code == 0, f"exit code {code}:\n{pipeline.output}"
    return pipeline
