"""A Spark cluster of this machine: a real standalone master and its workers, each a process of its own on loopback.

It knows nothing of tailrace: its Python has the packages that tailrace needs, and not tailrace itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from pyspark.find_spark_home import _find_spark_home

from tailrace.testing.processes import Owner, free_port, kill_tree, last_lines, launch, lives, wait_until

START_SECONDS = 120.0
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_QUICK = "-Xrs -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""With -Xrs a process ends with ours: a JVM would take the signal for a request to show its threads."""


class StandaloneCluster:
    """`spark://127.0.0.1:…` with workers of one core and 1 GB. The master's memory is a folder: it may be restarted."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder, self.port, self._page = folder, free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.python = worker_python(folder / "python", without=("tailrace",))
        self._count = 0
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        try:
            self._begin(workers)
        except BaseException:
            self.stop()
            raise

    def _begin(self, workers: int) -> None:
        self.start_master()
        for _ in range(workers):
            self.start_worker()
        self.wait_for_workers(workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in [*self.workers, *filter(None, [self._master])]:
            kill_tree(process)
        self.workers, self._master = [], None

    def start_master(self) -> None:
        command = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)]
        self._master = self._launch("master", [*command, "--webui-port", str(self._page)])

    def kill_master(self) -> None:
        assert self._master is not None
        kill_tree(self._master)

    def start_worker(self) -> None:
        self._count += 1
        place = ["--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", str(free_port())]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{self._count}")]
        command = ["org.apache.spark.deploy.worker.Worker", *place, *size, self.master]
        self.workers.append(self._launch(f"worker-{self._count}", command))

    def kill_worker(self, number: int = 0) -> None:
        """SIGKILL of the worker alone: its executor must notice by itself."""
        worker = self.workers.pop(number)
        worker.kill()
        worker.wait(10)

    def executors(self) -> list[psutil.Process]:
        """The JVMs that have tasks, one a worker and application."""
        return [child for worker in self.workers for child in _children(worker.pid) if _is(child, EXECUTOR)]

    def wait_for_workers(self, count: int) -> None:
        wait_until(lambda: self._alive() >= count, seconds=START_SECONDS, what=f"{count} workers", every=0.2)

    def _alive(self) -> int:
        for process in [*self.workers, *filter(None, [self._master])]:
            assert process.poll() is None, self.words()
        try:
            with urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (URLError, OSError):
            return 0

    def words(self) -> str:
        return "\n".join(f"{log.name}:\n{last_lines(log)}" for log in sorted(self.folder.glob("*.log")))

    def _launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        ours = Owner()
        ours.uid, ours.gid = os.geteuid(), os.getegid()  # who reads a state folder is who wrote it
        script = Path(_find_spark_home()) / "bin" / "spark-class"
        with (self.folder / f"{name}.log").open("ab") as log:
            return launch([script, *command], ours, self.folder, log, self._environment())

    def _environment(self) -> dict[str, str]:
        left_out = ("PYTHON", "PYSPARK", "SPARK_", "TAILRACE", "AWS_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        recovery = {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": self.folder / "master"}
        options = [f"-D{key}={value}" for key, value in recovery.items()]
        return {
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([_QUICK, *options]),
        }


def worker_python(folder: Path, without: Iterable[str] = ()) -> Path:
    """A Python with the packages of ours but some, by the beginnings of their names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", show], check=True, timeout=60, capture_output=True, text=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lstrip("_").startswith(tuple(without)):
            (Path(packages.stdout.strip()) / entry.name).symlink_to(entry)
    return python


def _children(pid: int) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(pid).children(recursive=True) if lives(child)]
    except psutil.NoSuchProcess:
        return []


def _is(process: psutil.Process, mark: str) -> bool:
    try:
        return mark in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


class EventLog:
    """What Spark itself has recorded of its applications, in the folder of `spark.eventLog.dir`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def events(self) -> Iterator[Mapping[str, Any]]:
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            for line in file.read_text().splitlines():
                if line.startswith("{") and line.endswith("}"):
                    yield json.loads(line)

    def executors_of(self, pool: str) -> set[str]:
        """Who has done tasks of jobs in a scheduler's pool, with success."""
        stages: set[int] = set()
        found: set[str] = set()
        for event in self.events():
            if event["Event"] == "SparkListenerJobStart":
                is_of_pool = event.get("Properties", {}).get("spark.scheduler.pool") == pool
                stages |= set(event["Stage IDs"]) if is_of_pool else set()
            elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages:
                if event["Task End Reason"]["Reason"] == "Success":
                    found.add(event["Task Info"]["Executor ID"])
        return found
