"""The MySQL source, on MySQL and on MariaDB, held to the contract of all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pymysql
import pytest

from support.mysql_sources import Logging
from tailrace import config
from tailrace.model.changes import Op
from tailrace.sources.mysql.connection import connect, database_of
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.source_changes import Change, Row
from tailrace.testing.source_contract import SourceContract

pytestmark = pytest.mark.server

CREATE = "CREATE TABLE items (id bigint PRIMARY KEY, name text)"


class Items:
    """The table of a database, changed on a connection of its own."""

    def __init__(self, url: str) -> None:
        self.table = f"{database_of(url)}.items"
        self._url = url
        self._connection = connect(url)
        self._connection.query(CREATE)

    def change(self, *changes: Change) -> None:
        self._connection.begin()
        with self._connection.cursor() as cursor:
            for op, id_, name, old_id in changes:
                match op:
                    case Op.INSERT:
                        cursor.execute("INSERT INTO items VALUES (%s, %s)", (id_, name))
                    case Op.UPDATE:
                        old = id_ if old_id is None else old_id
                        cursor.execute("UPDATE items SET id = %s, name = %s WHERE id = %s", (id_, name, old))
                    case _:
                        cursor.execute("DELETE FROM items WHERE id = %s", (id_,))
        self._connection.commit()

    def rows(self) -> list[Row]:
        with connect(self._url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, name FROM items ORDER BY id")
            return list(cursor.fetchall())

    def close(self) -> None:
        self._connection.close()


def source_of(url: str, name: str = "under_test") -> MysqlSource:
    return MysqlSource(config.Pipeline(name, config.Source(url, ("*.*",)), {}))


def forget_the_past(server: Logging) -> None:
    """So that a stream from the oldest place is short."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in ("RESET BINARY LOGS AND GTIDS", "RESET MASTER"):
            try:
                cursor.execute(statement)
                return
            except pymysql.err.ProgrammingError:
                continue


class MysqlContract(SourceContract):
    @pytest.fixture
    def server(self) -> Logging:
        raise NotImplementedError

    @pytest.fixture
    def url(self, server: Logging) -> Iterator[str]:
        forget_the_past(server)
        yield server.create_database("contract")
        server.drop_database("contract")

    @pytest.fixture
    def database(self, url: str) -> Iterator[Items]:
        items = Items(url)
        yield items
        items.close()

    @pytest.fixture
    def make_source(self, database: Items, url: str) -> Callable[[], MysqlSource]:
        return lambda: source_of(url)

    @pytest.fixture
    def other_source(self, server: Logging) -> Iterator[MysqlSource]:
        url = server.create_database("another")
        with connect(url) as connection:
            connection.query(CREATE)
        yield source_of(url, "another")
        server.drop_database("another")


class TestMysqlSource(MysqlContract):
    @pytest.fixture
    def server(self, mysql_logging: Logging) -> Logging:
        return mysql_logging


class TestMariadbSource(MysqlContract):
    @pytest.fixture
    def server(self, mariadb_logging: Logging) -> Logging:
        return mariadb_logging
