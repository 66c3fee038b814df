"""A consumer that copies ids into a table of its own, in the transaction that its checkpoint is a part of.

`python -m support.own_tables ORDER` is such a program; it is started anew after each kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

import tailrace

TABLE = "CREATE TABLE IF NOT EXISTS copied (place {}, id int)"
PLACES = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
}


def opened(url: str) -> Any:
    """A connection of the user's own, of the driver that he would take, with his table."""
    parts = urlsplit(url)
    kind = "mysql" if parts.scheme == "mariadb" else parts.scheme
    if kind == "sqlite":
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
    elif kind == "postgresql":
        connection = psycopg.connect(url)
    else:
        place: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "database": parts.path.strip("/")}
        connection = pymysql.connect(user=parts.username or "root", password=parts.password or "", **place)
    with closing(connection.cursor()) as cursor:
        cursor.execute(TABLE.format(PLACES[kind]))
    connection.commit()
    return connection


def copied(url: str) -> list[int]:
    """What anybody finds in the table, in the order in which it came."""
    with closing(opened(url)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT id FROM copied ORDER BY place")
        return [id_ for (id_,) in cursor.fetchall()]


@contextmanager
def transaction(connection: Any) -> Iterator[Any]:
    """The user's own."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE" if isinstance(connection, sqlite3.Connection) else "SELECT 1")
        if not isinstance(connection, sqlite3.Connection):
            cursor.fetchall()
        try:
            yield cursor
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def write(
    batch: tailrace.Batch, connection: Any, prefix: int | None = None, then: Callable[[], Any] = lambda: None
) -> None:
    """Some events of a batch, and the place behind them: both, or neither. `then` comes before the commit."""
    ids = [event.after["id"] for event in batch.events() if event.after]
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    with transaction(connection) as cursor:
        cursor.executemany(f"INSERT INTO copied (id) VALUES ({mark})", [(id_,) for id_ in ids[:prefix]])
        batch.ack(prefix, within=connection)
        then()


def consume(options: dict[str, Any], quiet: float, seed: int | None, dies_behind: int | None) -> None:
    """Till nothing comes; dies behind the commit of a batch by itself, and takes parts of batches with a `seed`."""
    random_ = None if seed is None else random.Random(seed)
    commits = 0
    with closing(opened(options["checkpoint"])) as connection, tailrace.capture(**options) as stream:
        while (batch := stream.poll(quiet)) is not None:
            write(batch, connection, None if random_ is None else random_.randint(1, len(batch)))
            commits += 1
            if commits == dies_behind:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    consume(**json.loads(sys.argv[1]))
