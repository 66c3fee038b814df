"""A Spark cluster of this machine: a real standalone master and its workers, each a process of its own on loopback.

It knows nothing of tailrace: its Python has the packages that tailrace needs, and not tailrace itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil

from tailrace.testing.processes import Owner, free_port, kill_tree, last_lines, launch, wait_until

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
        self.spark_home = next((folder / "python").glob("lib/python*/site-packages/pyspark"))
        self._count = 0
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}  # by the port of its page
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
        for process in self._processes():
            kill_tree(process)
        self.workers, self._master = {}, None

    def start_master(self) -> None:
        command = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)]
        self._master = self._launch("master", [*command, "--webui-port", str(self._page)])

    def kill_master(self) -> None:
        assert self._master is not None
        kill_tree(self._master)

    def start_worker(self) -> None:
        self._count += 1
        page = str(free_port())
        place = ["--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", page]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work-{self._count}")]
        command = ["org.apache.spark.deploy.worker.Worker", *place, *size, self.master]
        self.workers[page] = self._launch(f"worker-{self._count}", command)

    def kill_worker(self, page: str) -> None:
        """SIGKILL of the worker alone: its executor must notice by itself."""
        worker = self.workers.pop(page)
        worker.kill()
        worker.wait(10)

    def kill_executor(self, page: str) -> None:
        """SIGKILL of the JVM that a worker's tasks run in. The worker must notice, and start another."""
        for child in psutil.Process(self.workers[page].pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if EXECUTOR in child.cmdline():
                    child.kill()

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [*self.workers.values(), *filter(None, [self._master])]

    def wait_for_workers(self, count: int) -> None:
        wait_until(lambda: self._alive() >= count, seconds=START_SECONDS, what=f"{count} workers", every=0.2)

    def _alive(self) -> int:
        for process in self._processes():
            assert process.poll() is None, self.words()
        try:
            with urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (URLError, OSError):
            return 0

    def words(self) -> str:
        return "\n".join(f"{log.name}:\n{last_lines(log)}" for log in sorted(self.folder.glob("*.log")))

    @property
    def conf(self) -> dict[str, Any]:
        """What a pipeline on this cluster is given: half of a worker's memory, and all workers from the beginning."""
        whole = {
            "spark.cores.max": len(self.workers),
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        }
        address = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        return {**address, **whole, "spark.pyspark.python": str(self.python), "spark.executor.memory": "512m"}

    @property
    def environment(self) -> dict[str, str]:
        """That of whoever uses the cluster: its own Spark, and no address but loopback."""
        return {"SPARK_HOME": str(self.spark_home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def _launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        ours = Owner()
        ours.uid, ours.gid = os.geteuid(), os.getegid()  # who reads a state folder is who wrote it
        script = self.spark_home / "bin" / "spark-class"
        with (self.folder / f"{name}.log").open("ab") as log:
            return launch([script, *command], ours, self.folder, log, self._environment())

    def _environment(self) -> dict[str, str]:
        left_out = ("PYTHON", "PYSPARK", "SPARK_", "TAILRACE", "AWS_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        recovery = {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": self.folder / "master"}
        options = [f"-D{key}={value}" for key, value in recovery.items()]
        return {
            **kept,
            **self.environment,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([_QUICK, *options]),
        }


def worker_python(folder: Path, without: Iterable[str] = ()) -> Path:
    """A Python with the packages of ours but some, by a word in their names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", show], check=True, timeout=60, capture_output=True, text=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(word in entry.name for word in without):
            (Path(packages.stdout.strip()) / entry.name).symlink_to(entry)
    return python


class Driver:
    """What the application's own page says, while its context lives: `spark.ui.enabled` and its port are given."""

    def __init__(self) -> None:
        self._port = free_port()

    @property
    def conf(self) -> dict[str, Any]:
        return {"spark.ui.enabled": True, "spark.ui.port": self._port, "spark.ui.showConsoleProgress": False}

    def is_busy(self) -> bool:
        """Whether a task is running at this moment, on any executor."""
        return any(each["activeTasks"] for each in self._ask("executors") if each["isActive"])

    def busy_worker(self) -> str:
        """The page's port of a worker that has a task; empty if there is none."""
        busy = [each for each in self._ask("executors") if each["isActive"] and each["activeTasks"]]
        return _worker(busy[0]["executorLogs"]) if busy else ""

    def pages(self) -> str:
        """All that can be read of the application."""
        asked = (
            "environment",
            "jobs",
            "stages",
            "executors",
            "sql?details=true",
            "storage/rdd",
            "streaming/statistics",
        )
        return "\n".join(json.dumps(self._ask(page)) for page in asked)

    def _ask(self, page: str) -> Any:
        base = f"http://127.0.0.1:{self._port}/api/v1/applications"
        try:
            with urlopen(base, timeout=10) as answer:
                [application, *_] = json.load(answer)
            with urlopen(f"{base}/{application['id']}/{page}", timeout=30) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return []


class EventLog:
    """What Spark itself has recorded of its applications, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def conf(self) -> dict[str, Any]:
        return {
            "spark.eventLog.enabled": True,
            "spark.eventLog.compress": False,
            "spark.eventLog.dir": self.folder.absolute().as_uri(),
        }

    def workers_of(self, pool: str, *, done: bool = True) -> set[str]:
        """The workers, by the port of their page, that have done tasks of jobs in a scheduler's pool, or begun some."""
        stages: set[int] = set()
        homes: dict[str, str] = {}
        found: set[str] = set()
        for event in self._events():
            match event["Event"]:
                case "SparkListenerApplicationStart":
                    stages.clear()  # another application counts from the beginning
                case "SparkListenerExecutorAdded":
                    homes[event["Executor ID"]] = _worker(event["Executor Info"]["Log Urls"])
                case "SparkListenerJobStart" if event["Properties"].get("spark.scheduler.pool") == pool:
                    stages |= set(event["Stage IDs"])
                case "SparkListenerTaskStart" if event["Stage ID"] in stages and not done:
                    found.add(homes[event["Task Info"]["Executor ID"]])
                case "SparkListenerTaskEnd" if event["Stage ID"] in stages:
                    if event["Task End Reason"]["Reason"] == "Success":
                        found.add(homes[event["Task Info"]["Executor ID"]])
        return found

    def settings(self) -> dict[str, str]:
        """Those of the application that began last."""
        updates = [event for event in self._events() if event["Event"] == "SparkListenerEnvironmentUpdate"]
        return dict(updates[-1]["Spark Properties"]) if updates else {}

    def _events(self) -> Iterator[dict[str, Any]]:
        files = [path for path in self.folder.rglob("events_*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.stat().st_mtime):
            for line in file.read_text().splitlines():
                if line.startswith("{") and line.endswith("}"):
                    yield json.loads(line)


def _worker(logs: dict[str, str]) -> str:
    """An executor's logs are shown by its worker's page."""
    return str(urlsplit(logs["stderr"]).port)
