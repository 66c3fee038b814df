"""A sink used by another process: to kill it at a failpoint, or to stop it in the middle of a commit.

`Work` is pickled to a file and done by a child; whatever the child then is — dead, stopped or done — the test goes on
to read the sink. Sinks pickle, that is part of their contract.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace import failpoints
from tailrace.columns.net import NetChanges
from tailrace.model.lifecycle import TableStatus
from tailrace.model.schema import TableSchema
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Batch, ChunkMark, Evolved

SECONDS = 60


@dataclass(frozen=True)
class Commit:
    """Stage `changes` and commit them with this watermark, these statuses and these changes in place."""

    sink: Any
    changes: list[NetChanges]
    watermark: Watermark
    tables: tuple[TableStatus, ...] = ()
    evolved: tuple[Evolved, ...] = ()

    def __call__(self) -> None:
        part = self.sink.stage(f"batch-{self.watermark.offset}", 0, self.changes)
        before = self.sink.read_state().watermark
        self.sink.commit(Batch((part,), self.watermark, self.tables, before, evolved=self.evolved), _no_fetch)


@dataclass(frozen=True)
class LoadChunk:
    sink: Any
    schema: TableSchema
    mark: ChunkMark
    rows: pa.RecordBatch

    def __call__(self) -> None:
        self.sink.load_chunk(self.schema, self.mark, iter([self.rows]))


def kill_at(failpoint: str, work: Commit | LoadChunk, folder: Path) -> None:
    """Do `work` in a process that dies by SIGKILL at this failpoint."""
    with _child(failpoints.environment(failpoint), work, folder) as child:
        code = child.wait(SECONDS)
    assert code == -signal.SIGKILL, f"the process was to be killed at {failpoint} and ended with {code}"


@contextmanager
def stopped_at(failpoint: str, work: Commit | LoadChunk, folder: Path, *, may_fail: bool = False) -> Iterator[None]:
    """Inside of this context the process that does `work` stands still at the failpoint; then it goes on to its end."""
    with _child(failpoints.environment(failpoint, action="stop"), work, folder) as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the process was to stop at {failpoint} and ended"
        try:
            yield
        finally:
            child.send_signal(signal.SIGCONT)
            assert child.wait(SECONDS) == 0 or may_fail


def _child(environment: dict[str, str], work: Commit | LoadChunk, folder: Path) -> subprocess.Popen[bytes]:
    path = folder / "work.pickle"
    path.write_bytes(pickle.dumps(work))
    return subprocess.Popen([sys.executable, "-m", __name__, str(path)], env={**os.environ, **environment})


def _no_fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    raise AssertionError(f"{schema.table}: nothing was to be read from the source")


if __name__ == "__main__":
    pickle.loads(Path(sys.argv[1]).read_bytes())()
