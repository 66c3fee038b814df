"""A hostile workload for tests: every kind of change that has ever broken a replica, at random, from a seed.

Keys come from a small range, so that the same row is deleted, inserted again, renamed and updated over and over, often
within one transaction. Every transaction may roll back, whole or to a savepoint. Several workloads may run at once.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, Self

import psycopg

from support.hot_tables import TABLES, HotTable, Row, quote
from tailrace.demo.workload import REFUSED, LiveWorkload

MOST_ROWS_WITHOUT_KEY = 400


def create(url: str, tables: Iterable[str] = TABLES) -> None:
    """Make the named tables, empty."""
    with psycopg.connect(url) as connection:
        for name in tables:
            connection.execute(TABLES[name].ddl.encode())


def run(url: str, seed: int, transactions: int, tables: Iterable[str] = TABLES, *, truncate: bool = True) -> int:
    """Run so many transactions here and now; returns the number of row changes that they committed."""
    announce(seed)
    with psycopg.connect(url, autocommit=True) as connection:
        hot = HotTransactions(connection, random.Random(seed), tables=list(tables), truncate=truncate)
        return sum(hot.step() for _ in range(transactions))


def announce(seed: int) -> None:
    """On stderr, where pytest shows it beside a failed test."""
    sys.stderr.write(f"hot workload with seed {seed}\n")


class HotWorkload(LiveWorkload):
    """The hostile workload in a process of its own."""

    transactions = f"{__name__}:HotTransactions"

    @classmethod
    def start(
        cls,
        url: str,
        rate: float = 500,
        seed: int | None = None,
        tables: Iterable[str] = TABLES,
        *,
        truncate: bool = True,
    ) -> Self:
        """Begin to change `tables`, which `create` has made. Without a seed, one is drawn; stderr has it."""
        seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
        announce(seed)
        return cls(url, rate, seed, {"tables": list(tables), "truncate": truncate})


class HotTransactions:
    """One hostile transaction a step."""

    def __init__(
        self, connection: psycopg.Connection[Any], random: random.Random, *, tables: list[str], truncate: bool = True
    ) -> None:
        self._connection = connection
        self._random = random
        self._tables = [TABLES[name] for name in tables]
        self._actions: dict[Callable[[HotTable], int], float] = {
            self._insert: 30,
            self._update: 30,
            self._delete: 12,
            self._change_key: 8,
            self._update_repeatedly: 6,
            self._replace: 4,
            self._insert_and_delete: 3,
            self._touch: 3,
            self._swap_keys: 2,
            self._insert_many: 2,
            self._copy_many: 2,
            self._update_all: 0.5,
            self._in_savepoint: 8,
            self._in_lost_savepoint: 8,
            self._truncate: 0.4 if truncate else 0,
        }

    def step(self) -> int:
        """Up to six actions on random tables; one transaction in ten is rolled back at its end."""
        rolls_back = self._random.random() < 0.1
        try:
            with self._connection.transaction(force_rollback=rolls_back):
                changes = sum(self._act() for _ in range(self._random.choice([0, 1, 1, 1, 2, 3, 6])))
                self._connection.execute(
                    "SELECT txid_current()"
                )  # so that an empty transaction commits in the WAL, too
        except REFUSED:
            return 0
        return 0 if rolls_back else changes

    def _act(self) -> int:
        [action] = self._random.choices(list(self._actions), weights=list(self._actions.values()))
        table = self._random.choice(self._tables)
        return self._insert(table) if table.inserts_only else action(table)

    def _change(self, statement: str, parameters: Iterable[object] = ()) -> int:
        return self._connection.execute(statement.encode(), list(parameters)).rowcount

    def _insert(self, table: HotTable) -> int:
        if not table.key and not table.inserts_only and self._count(table) > MOST_ROWS_WITHOUT_KEY:
            return self._delete(table)
        return self._insert_rows(table, [table.new_row(self._random)])

    def _insert_many(self, table: HotTable) -> int:
        return self._insert_rows(table, [table.new_row(self._random) for _ in range(self._random.randint(5, 40))])

    def _insert_rows(self, table: HotTable, rows: list[Row]) -> int:
        values = ", ".join([f"({', '.join(['%s'] * len(table.columns))})"] * len(rows))
        statement = f"INSERT INTO {table.sql_name} VALUES {values} ON CONFLICT DO NOTHING"
        return self._change(statement, (value for row in rows for value in row))

    def _copy_many(self, table: HotTable) -> int:
        """COPY writes many rows with one WAL record: they share their position."""
        rows = [table.new_row(self._random) for _ in range(self._random.randint(2, 40))]
        if table.key:
            places = [list(table.columns).index(name) for name in table.key]
            by_key = {tuple(row[place] for place in places): row for row in rows}
            rows = [row for key, row in by_key.items() if not self._exists(table, key)]
        with self._connection.cursor() as cursor, cursor.copy(f"COPY {table.sql_name} FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)
        return len(rows)

    def _update(self, table: HotTable) -> int:
        row = self._pick(table)
        return 0 if row is None else self._update_row(table, row)

    def _update_row(self, table: HotTable, reference: Row) -> int:
        """Of one or two columns only: a large value beside them is not sent again."""
        names = self._random.sample(table.others, self._random.randint(1, min(2, len(table.others))))
        sets = ", ".join(f"{quote(name)} = %s" for name in names)
        values = [table.columns[name](self._random) for name in names]
        return self._change(f"UPDATE {table.sql_name} SET {sets} WHERE {table.where}", [*values, *reference])

    def _update_repeatedly(self, table: HotTable) -> int:
        row = self._pick(table)
        if row is None or not table.key:
            return 0
        return sum(self._update_row(table, row) for _ in range(self._random.randint(2, 5)))

    def _update_all(self, table: HotTable) -> int:
        name = self._random.choice(table.others)
        return self._change(f"UPDATE {table.sql_name} SET {quote(name)} = %s", [table.columns[name](self._random)])

    def _touch(self, table: HotTable) -> int:
        """An update that changes nothing."""
        row, name = self._pick(table), quote(self._random.choice(table.others))
        if row is None:
            return 0
        return self._change(f"UPDATE {table.sql_name} SET {name} = {name} WHERE {table.where}", row)

    def _delete(self, table: HotTable) -> int:
        row = self._pick(table)
        return 0 if row is None else self._change(f"DELETE FROM {table.sql_name} WHERE {table.where}", row)

    def _replace(self, table: HotTable) -> int:
        """Deleted and inserted again under the same key, in one transaction."""
        row = self._pick(table)
        if row is None or not table.key:
            return 0
        deleted = self._change(f"DELETE FROM {table.sql_name} WHERE {table.where}", row)
        return deleted + self._insert_rows(table, [table.row_with(row, self._random)])

    def _insert_and_delete(self, table: HotTable) -> int:
        """A row that nobody outside of the transaction ever sees."""
        key = table.new_key(self._random)
        if not table.key or self._exists(table, key):
            return 0
        inserted = self._insert_rows(table, [table.row_with(key, self._random)])
        return inserted + self._change(f"DELETE FROM {table.sql_name} WHERE {table.where}", key)

    def _change_key(self, table: HotTable) -> int:
        row, key = self._pick(table), table.new_key(self._random)
        return 0 if row is None else self._rename(table, row, key)

    def _swap_keys(self, table: HotTable) -> int:
        """Two rows exchange their keys over a third one."""
        one, two, spare = self._pick(table), self._pick(table), table.new_key(self._random)
        if one is None or two is None or one == two or not table.key or self._exists(table, spare):
            return 0
        return self._rename(table, one, spare) + self._rename(table, two, one) + self._rename(table, spare, two)

    def _rename(self, table: HotTable, old: Row, new: Row) -> int:
        if not table.key or self._exists(table, new):
            return 0
        sets = ", ".join(f"{quote(name)} = %s" for name in table.key)
        return self._change(f"UPDATE {table.sql_name} SET {sets} WHERE {table.where}", [*new, *old])

    def _in_savepoint(self, table: HotTable) -> int:
        with self._connection.transaction():
            return self._insert(table) + self._update(table)

    def _in_lost_savepoint(self, table: HotTable) -> int:
        """Rolled back to the savepoint, together with a released savepoint inside of it."""
        with self._connection.transaction(force_rollback=True):
            self._update(table)
            self._in_savepoint(table)
            self._delete(table)
        return 0

    def _truncate(self, table: HotTable) -> int:
        """A truncate counts as one change."""
        other = self._random.choice(self._tables)
        self._change(f"TRUNCATE {table.sql_name}" + (f", {other.sql_name}" if other is not table else ""))
        return 1

    def _pick(self, table: HotTable) -> Row | None:
        """What finds a random row of the table again; none if it is empty."""
        order = table.reference if table.key else "ctid"
        query = f"SELECT {table.reference} FROM {table.sql_name} ORDER BY {order} LIMIT 1 OFFSET %s"
        count = self._count(table)
        place = self._random.randrange(max(count, 1))
        row: Row | None = self._connection.execute(query.encode(), [place]).fetchone()
        return row

    def _count(self, table: HotTable) -> int:
        row = self._connection.execute(f"SELECT count(*) FROM {table.sql_name}".encode()).fetchone()
        return 0 if row is None else int(row[0])

    def _exists(self, table: HotTable, key: Row) -> bool:
        query = f"SELECT 1 FROM {table.sql_name} WHERE {table.where}"
        return self._connection.execute(query.encode(), key).fetchone() is not None
