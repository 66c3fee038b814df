"""The demo's shop on a MySQL or MariaDB that is installed here: a server of its own, in the demo's folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql

from tailrace import config, registry
from tailrace.demo import mysql_shop
from tailrace.demo.mysql_server import MysqlServer
from tailrace.testing.content import Difference, differences
from tailrace.testing.rendering import Column, Row, Shape

_MOMENT = "DATE_FORMAT({0}, IF(MICROSECOND({0}) = 0, '%Y-%m-%d %H:%i:%s+00:00', '%Y-%m-%d %H:%i:%s.%f+00:00'))"


class OnMysql:
    """`kind` is `mysql` or `mariadb`."""

    schema = mysql_shop.DATABASE
    errors: tuple[type[Exception], ...] = (pymysql.MySQLError,)

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.name = {"mysql": "MySQL", "mariadb": "MariaDB"}[kind]

    def open(self, folder: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(MysqlServer.start(self._kind, folder / self._kind))

    @property
    def url(self) -> str:
        return self._server.url

    def load(self, rows: int) -> int:
        loaded = mysql_shop.load(self.url, rows)
        self._connection = mysql_shop.in_shop(self.url)
        return loaded

    def workload(self, rate: float) -> mysql_shop.MysqlWorkload:
        return mysql_shop.MysqlWorkload.start(self.url, rate)

    def count(self, table: str) -> int:
        return int(self._ask(f"SELECT count(*) FROM {table}")[0][0])

    def orders_after(self, id_: int) -> int:
        return int(self._ask("SELECT count(*) FROM orders WHERE id > %s", id_)[0][0])

    def _ask(self, query: str, *parameters: object) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(query, parameters or None)
            return cursor.fetchall()

    def catching_up(self, pipeline: Path) -> Callable[[], bool]:
        """The sink's word: its watermark, which is stored with its rows, has reached the end of the log."""
        described = config.load(pipeline)
        source, sink = registry.make_source(described), registry.make_sink(described, "replica")
        target = source.current_position()

        def is_there() -> bool:
            mark = sink.read_state().watermark
            return mark is not None and bool(mark.position) and source.reached(mark.position, target)

        return is_there

    def differences(self, file: Path, table: str) -> list[Difference]:
        listed = self._ask(
            "SELECT column_name, data_type, column_key = 'PRI' FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            self.schema,
            table,
        )
        shape = Shape(
            self.schema,
            table,
            tuple(Column(name, type_, None) for name, type_, _ in listed),
            tuple(name for name, _, is_key in listed if is_key),
        )
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as sink:
            names = ", ".join(f'"{column.name}"' for column in shape.columns)
            ours = sink.execute(f'SELECT {names} FROM "{table}"')
            return differences(shape, self._rows(shape), ours)

    def _rows(self, shape: Shape) -> Iterator[Row]:
        """As the server prints them, in the form that SQLite has."""
        shown = ", ".join(_shown(column) for column in shape.columns)
        yield from self._ask(f"SELECT {shown} FROM {shape.name}")

    def how_to_look(self) -> str:
        return self._server.how_to_look()


def _shown(column: Column) -> str:
    match column.type:
        case "timestamp" | "datetime":
            return _MOMENT.format(column.name)
        case "decimal" | "json" | "enum":
            return f"CAST({column.name} AS CHAR)"
        case _:
            return column.name
