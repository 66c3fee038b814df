"""MySQL and MariaDB as sources: their backlog, `mysqlbinlog` as the limit of streaming, and decoding on one core.

The backlog is PostgreSQL's, in MySQL's words: the same columns and the same mix of inserts, updates and deletes.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from benchmarks.backlog import FINGERPRINT
from benchmarks.ours import _capturing, _wait, run_until_current
from support.mysql import MariaDbServer
from support.mysql_sources import Logging, LoggingMySql, start_mariadb, start_mysql
from tailrace import config
from tailrace.model.frames import Frames
from tailrace.sources.mysql.capture import MysqlCapture
from tailrace.sources.mysql.connection import connect, read_server, rows
from tailrace.sources.mysql.decode import decode
from tailrace.sources.mysql.positions import current_position, reached
from tailrace.sources.mysql.wanted import Wanted

DATABASE = "measured"
TABLE = f"{DATABASE}.measured"
REPLICA = "measured_measured"  # what SQLite, which has no schemas, calls it
SETTINGS: dict[str, object | None] = {
    "innodb_buffer_pool_size": "512M",
    "max_binlog_size": 1 << 30,  # all of it in one file
}
MOST_NUMBERS = 10_000_000
INSERTS, UPDATES, DELETES = 500_000, 250_000, 100_000
PER_TRANSACTION = 1_000
ONE_ROW_EVENTS = 50_000
CREATE = """
CREATE TABLE measured.measured (id bigint PRIMARY KEY, n integer, label text, amount decimal(12,2),
at timestamp(6) NULL, flag boolean)
"""
_NEW_ROW = """
i, mod(i, 1000), concat('payload text number ', i), mod(i, 1000000) / 100,
timestamp'2026-01-01 00:00:00' + interval i second, mod(i, 2) = 0
"""
_ONE_BY_ONE = f"""
CREATE PROCEDURE measured.one_by_one(first bigint, last bigint)
BEGIN
    DECLARE i bigint DEFAULT first;
    WHILE i <= last DO INSERT INTO measured.measured SELECT {_NEW_ROW}; SET i = i + 1; END WHILE;
END
"""


class Backlog:
    """The changes between two places of a server's log."""

    def __init__(self, server: Logging, scale: float) -> None:
        self.server = server
        self.inserts, self.updates, self.deletes = (max(1, round(n * scale)) for n in (INSERTS, UPDATES, DELETES))
        self.single = max(1, round(ONE_ROW_EVENTS * scale))
        self.url = server.url_of("")
        with connect(self.url) as connection:
            rows(connection, f"CREATE DATABASE {DATABASE}")
            rows(connection, CREATE)
            self.start = current_position(connection, read_server(connection))
            self._change(connection)
            self.end = current_position(connection, read_server(connection))
            rows(connection, "FLUSH BINARY LOGS")
            self.file = str(rows(connection, "SHOW BINARY LOGS")[0][0])
            [found] = rows(connection, FINGERPRINT.replace("measured", TABLE))
            self.fingerprint = tuple(map(int, found))

    @property
    def changes(self) -> int:
        return self.inserts + self.updates + self.deletes

    def go_on_one_by_one(self) -> str:
        """Changes behind the backlog, in transactions of one row; where they end."""
        with connect(self.url) as connection:
            rows(connection, _ONE_BY_ONE)
            rows(connection, f"CALL measured.one_by_one({self.inserts + 1}, {self.inserts + self.single})")
            return current_position(connection, read_server(connection))

    def _change(self, connection: Connection[Any]) -> None:
        for low, high in _steps(1, self.inserts):
            insert_rows(connection, low, high)
        for low, high in _steps(1, self.updates):
            changed = "n = n + 1, amount = amount + 0.01, label = concat(label, ', updated')"
            rows(connection, f"UPDATE measured.measured SET {changed} WHERE id BETWEEN {low} AND {high}")
        for low, high in _steps(self.inserts - self.deletes + 1, self.inserts):
            rows(connection, f"DELETE FROM measured.measured WHERE id BETWEEN {low} AND {high}")


def _steps(first: int, last: int) -> list[tuple[int, int]]:
    return [(low, min(low + PER_TRANSACTION - 1, last)) for low in range(first, last + 1, PER_TRANSACTION)]


def insert_rows(connection: Connection[Any], low: int, high: int) -> None:
    numbers = f"WITH RECURSIVE s AS (SELECT {low} i UNION ALL SELECT i + 1 FROM s WHERE i < {high})"
    rows(connection, f"INSERT INTO measured.measured {numbers} SELECT {_NEW_ROW} FROM s")


def make_mysql() -> LoggingMySql:
    return start_mysql(SETTINGS | {"cte_max_recursion_depth": MOST_NUMBERS})


def make_mariadb() -> MariaDbServer:
    return start_mariadb(SETTINGS | {"max_recursive_iterations": MOST_NUMBERS})


def mysqlbinlog(backlog: Backlog, folder: Path) -> float:
    """Seconds in which MySQL's own client copies the file that has the backlog."""
    server = backlog.server
    command = [*server._unpacked.command("usr/bin/mysqlbinlog"), "--no-defaults", "--read-from-remote-server", "--raw"]
    command += ["--host=127.0.0.1", f"--port={server.port}", "--user=root", f"--result-file={folder}/", backlog.file]
    began = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "OPENSSL_CONF": "/dev/null"})
    return time.perf_counter() - began


def stream_to_sqlite(backlog: Backlog, state: Path, replica: Path) -> float:
    """The whole backlog into table `measured_measured` of the SQLite file `replica`."""
    return run_until_current(_pipeline(backlog, f"sqlite:///{replica}", state), backlog.start)


def _pipeline(backlog: Backlog, sink: str, state: Path) -> config.Pipeline:
    source = config.Source(backlog.server.url_of(DATABASE), (TABLE,))
    return config.Pipeline("bench", source, {"sink": config.Sink(sink)}, state=str(state))


def capture(backlog: Backlog, state: Path) -> float:
    """Capture the whole backlog into a change log in `state`."""
    pipeline = _pipeline(backlog, "null://", state)
    with _capturing(pipeline) as progress:
        began = time.perf_counter()
        _wait(lambda: (p := progress()) is not None and reached(p.received, backlog.end))
        return time.perf_counter() - began


def record(backlog: Backlog, after: str, end: str) -> list[Frames]:
    """What capture makes of a stretch, in segments of their usual size."""
    opened = MysqlCapture(backlog.url, 4_000_000_001, Wanted([f"{DATABASE}.*"], ""), after, 1, {})
    frames: list[Frames] = []
    while not reached(opened.received, end):
        opened.poll(0.1)
        if opened.pending_bytes >= 8 << 20 or not opened._stream.wait(0.2):
            while (taken := opened.take()) is not None:
                frames.append(taken[0])
    opened.close()
    return frames


def decode_on_one_core(frames: list[Frames]) -> float:
    """Changes a second, typed."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # for this process only, which is about to end
    list(decode(frames[0], frames[0].first, frames[0].last))
    began = time.perf_counter()
    changes = sum(len(each) for part in frames for each in decode(part, part.first, part.last))
    return changes / (time.perf_counter() - began)
