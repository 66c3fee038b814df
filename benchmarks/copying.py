"""The 2 million rows of the snapshot benchmarks, and the plain ways to copy them that tailrace is compared with."""

import contextlib
import itertools
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import LiteralString

import psycopg

from benchmarks.backlog import COLUMNS, NEW_ROW, PUBLICATION, TABLE
from benchmarks.race import in_own_process
from tailrace.testing.postgres import PostgresServer

CONNECTIONS = 2
SQLITE_TABLE = f"""
    CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, n INTEGER, label TEXT, amount TEXT, at TEXT, flag INTEGER)
"""
Command = list[str | Path]


def make_rows(server: PostgresServer, rows: int) -> None:
    """Fill the table, and vacuum it: no contender pays for hint bits."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}")
        connection.execute(f"INSERT INTO {TABLE} SELECT {NEW_ROW} FROM generate_series(1, %s::bigint) i", [rows])
        connection.execute(f"VACUUM (ANALYZE, FREEZE) {TABLE}")
        connection.execute("CHECKPOINT")


def copy_out(server: PostgresServer, *, binary: bool = False) -> float:
    """Raw `COPY … TO STDOUT` in parallel, thrown away. Plain, as one types it, or in the cheaper binary format."""
    return _in_parallel([[_psql_out(server, query, binary=binary)] for query in ranges(server)])


def copy_across(source: PostgresServer, target: PostgresServer) -> float:
    """`COPY out | COPY in` by psql, in parallel, into a table that has its key."""
    with _empty_table(target):
        into: Command = [
            target.bin / "psql",
            "--no-psqlrc",
            "--quiet",
            "--command",
            f"COPY {TABLE} FROM STDIN (FORMAT binary)",
        ]
        return _in_parallel([[_psql_out(source, query), [*into, target.url]] for query in ranges(source)])


def subscribe(source: PostgresServer, target: PostgresServer) -> float:
    """Native logical replication, from CREATE SUBSCRIPTION to the table's state `r`: copied, caught up, live."""
    with _empty_table(target), psycopg.connect(target.url, autocommit=True) as connection:
        began = time.perf_counter()
        options = "copy_data = true, binary = true"
        connection.execute(
            f"CREATE SUBSCRIPTION bench CONNECTION '{source.url}' PUBLICATION {PUBLICATION} WITH ({options})".encode()
        )
        try:
            while connection.execute("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r'").rowcount:
                time.sleep(0.01)
            return time.perf_counter() - began
        finally:
            connection.execute("DROP SUBSCRIPTION bench")


def executemany(server: PostgresServer) -> float:
    """Plain sqlite3 `executemany` of the same rows, already in memory as tuples; only it and its commit are timed."""
    return in_own_process(_executemany, server.url)


def _executemany(url: str) -> float:
    columns: LiteralString = "id, n, label, amount::text, at::text, flag::integer"
    with psycopg.connect(url) as connection:
        rows = connection.execute(f"SELECT {columns} FROM {TABLE} ORDER BY id").fetchall()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(sqlite3.connect(f"{folder}/plain.db")) as replica:
        replica.execute("PRAGMA journal_mode = WAL")
        replica.execute(SQLITE_TABLE)
        began = time.perf_counter()
        with replica:
            replica.executemany(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?, ?, ?)", rows)
        return time.perf_counter() - began


def ranges(server: PostgresServer, parts: int = CONNECTIONS) -> list[str]:
    """The table as queries over equal ranges of pages, the last one bounded by nothing: nobody writes here."""
    with psycopg.connect(server.url) as connection:
        size = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint"
        pages: int = connection.execute(size, [TABLE]).fetchall()[0][0]
    starts = [pages * part // parts for part in range(parts)] + [2**32 - 1]
    return [
        f"SELECT * FROM {TABLE} WHERE ctid >= '({first},0)' AND ctid < '({last},0)'"
        for first, last in itertools.pairwise(starts)
    ]


def _psql_out(server: PostgresServer, query: str, *, binary: bool = True) -> Command:
    command = f"COPY ({query}) TO STDOUT{' (FORMAT binary)' if binary else ''}"
    return [server.bin / "psql", "--no-psqlrc", "--quiet", "--command", command, server.url]


def _in_parallel(pipes: Sequence[Sequence[Command]]) -> float:
    """Seconds until all pipes of commands, started together, have ended; what the last of a pipe says is dropped."""
    began = time.perf_counter()
    started: list[subprocess.Popen[bytes]] = []
    for pipe in pipes:
        came = None
        for number, command in enumerate(pipe, start=1):
            out = subprocess.DEVNULL if number == len(pipe) else subprocess.PIPE
            process = subprocess.Popen(command, stdin=came or subprocess.DEVNULL, stdout=out)
            if came is not None:
                came.close()  # so that the first ends when the second does
            came = process.stdout
            started.append(process)
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError("a COPY by psql failed")
    return time.perf_counter() - began


@contextlib.contextmanager
def _empty_table(server: PostgresServer) -> Iterator[None]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
        connection.execute("CHECKPOINT")
        try:
            yield
        finally:
            connection.execute(f"DROP TABLE {TABLE}")
