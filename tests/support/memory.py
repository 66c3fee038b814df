"""The most memory that the processes of a pipeline have held, looked at while it runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from support.watching import Watcher

EVERY_SECONDS = 0.5
CAPTURE, JVM = "tailrace.pipeline.capture_process", "org.apache.spark.deploy.SparkSubmit"


class Peaks(Watcher):
    """In bytes, as Linux counts them (VmHWM), of the driver, its capture process, its JVM and the largest other."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self.driver = self.capture = self.jvm = self.others = 0

    def __str__(self) -> str:
        names = ("driver", "capture", "jvm", "others")
        return ", ".join(f"{name} {getattr(self, name) >> 20:,} MiB" for name in names)

    def _watch(self) -> None:
        while not self._done.wait(EVERY_SECONDS):
            with suppress(psutil.NoSuchProcess, OSError, ValueError):
                self.driver = max(self.driver, peak_of(self._pid))
                for child in psutil.Process(self._pid).children(recursive=True):
                    self._look_at(child)

    def _look_at(self, child: psutil.Process) -> None:
        words = " ".join(child.cmdline())
        name = "capture" if CAPTURE in words else "jvm" if JVM in words else "others"
        setattr(self, name, max(getattr(self, name), peak_of(child.pid)))


def peak_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024
