"""The plain bulk load into MySQL and MariaDB that tailrace is compared with: COPY out of PostgreSQL, LOAD DATA in.

Each connection streams a range of the table's pages from one server into the other, in memory, without a file between.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

import psycopg

from benchmarks import copying
from benchmarks.backlog import FINGERPRINT, TABLE
from support.mysql import MariaDbServer, MySqlServer
from tailrace.sinks.sql.mysql.flavor import MYSQL
from tailrace.sinks.sql.mysql.session import MySqlSession
from tailrace.testing.postgres import PostgresServer

SETTINGS = {"innodb_buffer_pool_size": "1G"}
COLUMNS = """
    id bigint PRIMARY KEY, n int, label longtext, amount decimal(12,2), at datetime(6), flag tinyint(1)
"""
SELECTED = "id, n, label, amount, at AT TIME ZONE 'UTC', flag::int"
NAMES = ("id", "n", "label", "amount", "at", "flag")


def bulk_load(source: PostgresServer, target: MySqlServer | MariaDbServer, database: str) -> float:
    """Seconds for all rows, by as many connections as the snapshot has."""
    url = target.url_of(database)
    target.execute(f"CREATE TABLE {TABLE} ({COLUMNS}) CHARACTER SET utf8mb4", database=database)
    queries = [query.replace("*", SELECTED, 1) for query in copying.ranges(source)]
    with ProcessPoolExecutor(len(queries), get_context("spawn")) as pool:
        list(pool.map(_wait, range(len(queries))))  # processes are up, and have imported what they need
        began = perf_counter()
        list(pool.map(_load, [source.url] * len(queries), queries, [url] * len(queries)))
        return perf_counter() - began


def fingerprint(url: str) -> tuple[int, ...]:
    session = MySqlSession(url, MYSQL)
    try:
        return tuple(map(int, session.execute(FINGERPRINT)[0]))
    finally:
        session.close()


def _wait(_: int) -> None:
    return


def _load(source: str, query: str, target: str) -> None:
    session = MySqlSession(target, MYSQL)
    try:
        session.begin()
        session.load(TABLE, NAMES, _copied(source, query))
        session.commit()
    finally:
        session.close()


def _copied(url: str, query: str) -> Iterator[bytes]:
    """PostgreSQL's text format is what LOAD DATA reads by default; gathered, because a packet a row is slow."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        gathered: list[bytes] = []
        size = 0
        with cursor.copy(f"COPY ({query}) TO STDOUT".encode()) as copy:
            for block in copy:
                gathered.append(bytes(block))
                size += len(block)
                if size > 1 << 20:
                    yield b"".join(gathered)
                    gathered, size = [], 0
        yield b"".join(gathered)
