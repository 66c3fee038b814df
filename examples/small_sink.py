"""A sink of your own in twenty lines: every change exactly once, in one table of SQLite; `audit:////folder/audit.db`."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing

from tailrace.model.changes import Changes
from tailrace.sinks.noted import NotedSink


class AuditSink(NotedSink):
    def read_note(self) -> bytes | None:
        if not self.path.exists() or not self.path.stat().st_size:  # a crash leaves an empty file
            return None
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute("SELECT note FROM notes WHERE pipeline = ?", [self.pipeline]).fetchone()
        return found[0] if found else None

    def write(self, note: bytes, changes: Iterable[Changes]) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("CREATE TABLE IF NOT EXISTS notes (pipeline PRIMARY KEY, note)")
            database.execute("CREATE TABLE IF NOT EXISTS audit (pipeline, place, tbl, op, row)")
            for each in changes:
                for row in each.to_arrow().to_pylist():
                    told = [self.pipeline, row["_offset"], each.schema.table, row["_op"], json.dumps(row, default=str)]
                    database.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?)", told)
            database.execute("REPLACE INTO notes VALUES (?, ?)", [self.pipeline, note])
            database.execute("COMMIT")
