"""The peak memory of a process and its children, sampled while something happens."""

import contextlib
import threading
from collections.abc import Iterator

import psutil


class Peak:
    """The highest resident size seen, of the whole family of a process."""

    def __init__(self) -> None:
        self.bytes = 0
        self.samples = 0

    @property
    def megabytes(self) -> float:
        return self.bytes / 1_000_000


@contextlib.contextmanager
def peak_of(pid: int, every: float = 0.05) -> Iterator[Peak]:
    """Watch the family of `pid` until the block ends."""
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(every):
            peak.bytes = max(peak.bytes, _resident(pid))
            peak.samples += 1

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _resident(pid: int) -> int:
    """Resident bytes of the family. Pages that its members share count for each, so this errs to the high side."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total
