"""Looking into a SQLite sink without leaving a trace: no file, no table, no `-wal` beside it that was not there."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from tailrace.model.schema import TableSchema
from tailrace.sinks.base import SinkState
from tailrace.sinks.sql.sqlite import SqliteSink

BUSY_SECONDS = 10
STEPS = 10_000  # of SQLite's machine between two looks at the clock


class SqlitePeek:
    """Reads what `sink` remembers and how many rows it has, beside a pipeline that may be writing to it."""

    def __init__(self, sink: SqliteSink) -> None:
        self._sink = sink
        sink.close()

    def read_state(self) -> SinkState | None:
        """None when the file is not there, or holds nothing of any pipeline."""
        path = Path(self._sink.path).absolute()
        if not path.exists():
            return None
        with self._sink._errors("being read"):
            # Any reader of a file in WAL mode makes a -wal and a -shm if there are none, unless it says `immutable`.
            is_open = Path(f"{path}-wal").exists()
            mode = "mode=ro" if is_open else "mode=ro&immutable=1"
            connection = sqlite3.connect(
                f"{path.as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
            self._sink._connection = connection
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = '_tailrace_chunks'")
            return self._sink.read_state() if known.fetchone() else None

    def count(self, schema: TableSchema, seconds: float) -> int | None:
        """The rows of a table at this moment; None if counting them takes longer than `seconds`."""
        connection = self._sink._open()
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
        try:
            [count] = connection.execute(f"SELECT count(*) FROM {self._sink._target(schema)}").fetchone()
            return int(count)
        except sqlite3.OperationalError:  # interrupted, or the table is not there yet
            return None
        finally:
            connection.set_progress_handler(None, 0)

    def close(self) -> None:
        self._sink.close()
