"""Changes of all kinds in a MySQL or MariaDB database, by chance: keys that move, differ in case, or are missing."""

from __future__ import annotations

import random
import threading
import time
from types import TracebackType
from typing import Any, Self

import pymysql

from tailrace.sources.mysql.connection import connect

TABLES = {
    "plain": "id bigint PRIMARY KEY, n int unsigned, t text, d decimal(12,3), at datetime(6), j json,"
    " e enum('a','b','ü'), b varbinary(40)",
    "folded": "code varchar(40) COLLATE utf8mb4_general_ci PRIMARY KEY, v int",
    "exact": "code varchar(40) COLLATE utf8mb4_bin PRIMARY KEY, v int",
    "pair": "a int, b varchar(20) CHARACTER SET latin1, v double, PRIMARY KEY (a, b)",
    "keyless": "a int, b varchar(20), c double",
}
_PASSING = (1062, 1205, 1213, 1412, 1146, 1054, 1136)
"""A key that is there, a deadlock, a table that is being altered."""


def create(url: str) -> None:
    with connect(url) as connection:
        for name, columns in TABLES.items():
            connection.query(f"CREATE TABLE {name} ({columns})")


def run(url: str, *, seed: int, transactions: int) -> None:
    """So many transactions, and no more."""
    chance = random.Random(seed)
    with connect(url) as connection:
        for _ in range(transactions):
            _transaction(connection, chance)


class Workload:
    """Somebody who writes all the time, in a thread."""

    def __init__(self, url: str, *, seed: int, rate: float) -> None:
        self._url, self._chance, self._pause = url, random.Random(seed), 1 / rate
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.transactions = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(120)
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        try:
            with connect(self._url) as connection:
                while not self._done.is_set():
                    _transaction(connection, self._chance)
                    self.transactions += 1
                    time.sleep(self._pause)
        except BaseException as error:
            self._error = error


def _transaction(connection: Any, chance: random.Random) -> None:
    connection.begin()
    try:
        with connection.cursor() as cursor:
            for _ in range(chance.randint(1, 6)):
                cursor.execute(*_change(chance))
        if chance.random() < 0.1:
            connection.rollback()
        else:
            connection.commit()
    except pymysql.MySQLError as error:
        connection.rollback()
        if error.args[0] not in _PASSING:
            raise


def _change(chance: random.Random) -> tuple[str, tuple[object, ...]]:
    id_, other = chance.randint(1, 400), chance.randint(1, 400)
    text = chance.choice(["", "ü 日本 😀", "it's \\ \n\t", "x" * chance.randint(1, 3000)])
    code = chance.choice(["a", "A", "ä", "b", "B ", "straße"]) + str(chance.randint(1, 20))
    match chance.randint(0, 9):
        case 0 | 1:
            row = (
                id_,
                other,
                text,
                f"{id_}.{other % 1000:03d}",
                '{"k": [1, "ü"]}',
                chance.choice("abü"),
                text[:30].encode()[:40],
            )
            return "REPLACE INTO plain (id, n, t, d, at, j, e, b) VALUES (%s, %s, %s, %s, now(6), %s, %s, %s)", row
        case 2:
            return "UPDATE plain SET t = %s, n = n + 1, e = NULL WHERE id BETWEEN %s AND %s", (text, id_, id_ + 5)
        case 3:
            return "UPDATE plain SET id = id + 400 WHERE id = %s", (id_,)
        case 4:
            return "DELETE FROM plain WHERE id IN (%s, %s)", (id_, id_ + 400)
        case 5:
            return "INSERT INTO folded VALUES (%s, %s) ON DUPLICATE KEY UPDATE v = v + 1, code = VALUES(code)", (
                code,
                id_,
            )
        case 6:
            return "REPLACE INTO exact VALUES (%s, %s)", (code, id_)
        case 7:
            return "REPLACE INTO pair VALUES (%s, %s, %s)", (id_ % 20, code[:20], other / 7)
        case 8:
            return "INSERT INTO keyless VALUES (%s, %s, %s), (%s, %s, %s)", (
                id_ % 9,
                "twice",
                0.5,
                id_ % 9,
                "twice",
                0.5,
            )
        case _:
            return "DELETE FROM keyless WHERE a = %s LIMIT 1", (id_ % 9,)
