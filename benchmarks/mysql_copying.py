"""The 2 million rows in MySQL, and MySQL's own clients that read them: the limit of a snapshot.

The clients throw away what they read. `mysql --quick` writes the rows as text lines, `mysqldump` as statements.
"""

import itertools
import os
import subprocess
import time
from pathlib import Path

from benchmarks import copying
from benchmarks import mysql_source as my
from benchmarks.ours import copy_tables
from support import debian
from support.mysql_sources import LoggingMySql
from tailrace import config
from tailrace.sources.mysql.connection import connect, rows

STEP = 100_000
Command = list[str | Path]


def make_rows(server: LoggingMySql, count: int) -> None:
    with connect(server.url_of("")) as connection:
        rows(connection, f"CREATE DATABASE {my.DATABASE}")
        rows(connection, my.CREATE)
        for low in range(1, count + 1, STEP):
            my.insert_rows(connection, low, min(low + STEP - 1, count))
        rows(connection, f"ANALYZE TABLE {my.TABLE}")


def snapshot_to_null(server: LoggingMySql, state: Path) -> float:
    """Read the table as a snapshot does, to Arrow, and write nothing."""
    source = config.Source(server.url_of(my.DATABASE), (my.TABLE,))
    pipeline = config.Pipeline("bench", source, {"sink": config.Sink("null://")}, state=str(state))
    return copy_tables(pipeline, copying.CONNECTIONS)


def mysql_quick(server: LoggingMySql, count: int) -> float:
    """`mysql --quick`, a connection a range of the key."""
    options = ["--quick", "--batch", "--raw", "--skip-column-names", my.DATABASE]
    return _in_parallel(
        [
            [*_client("mysql", server), *options, f"--execute=SELECT * FROM {my.TABLE} WHERE {condition}"]
            for condition in _ranges(count)
        ]
    )


def mysqldump(server: LoggingMySql, count: int) -> float:
    """`mysqldump`, which reads unbuffered as well."""
    options = ["--no-create-info", "--skip-lock-tables", "--set-gtid-purged=OFF", "--no-tablespaces"]
    return _in_parallel(
        [
            [*_client("mysqldump", server), *options, f"--where={condition}", my.DATABASE, "measured"]
            for condition in _ranges(count)
        ]
    )


def _client(program: str, server: LoggingMySql) -> Command:
    unpacked = debian.unpack("mysql-client-core", server.flavor.suite)
    where = ["--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]
    return [*unpacked.command(f"usr/bin/{program}"), *where]


def _ranges(count: int) -> list[str]:
    bounds = [count * part // copying.CONNECTIONS for part in range(copying.CONNECTIONS + 1)]
    return [f"id > {low} AND id <= {high}" for low, high in itertools.pairwise(bounds)]


def _in_parallel(commands: list[Command]) -> float:
    began = time.perf_counter()
    environment = {**os.environ, "OPENSSL_CONF": "/dev/null"}
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) for command in commands]
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError("a client of MySQL failed")
    return time.perf_counter() - began
