"""The PostgreSQL source, held to the contract of all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tailrace import config
from tailrace.model.changes import Op
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing import PostgresServer
from tailrace.testing.source_changes import Change, Row
from tailrace.testing.source_contract import SourceContract

pytestmark = pytest.mark.server

CREATE = "CREATE TABLE items (id bigint PRIMARY KEY, name text)"


class Items:
    """The table of a PostgreSQL database, changed on a connection of its own."""

    table = "public.items"

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(CREATE)

    def change(self, *changes: Change) -> None:
        with self._connection.transaction():
            for op, id_, name, old_id in changes:
                match op:
                    case Op.INSERT:
                        self._connection.execute("INSERT INTO items VALUES (%s, %s)", [id_, name])
                    case Op.UPDATE:
                        old = id_ if old_id is None else old_id
                        self._connection.execute("UPDATE items SET id = %s, name = %s WHERE id = %s", [id_, name, old])
                    case _:
                        self._connection.execute("DELETE FROM items WHERE id = %s", [id_])

    def rows(self) -> list[Row]:
        with psycopg.connect(self._url) as connection:
            return connection.execute("SELECT id, name FROM items ORDER BY id").fetchall()

    def close(self) -> None:
        self._connection.close()


def source_of(url: str, name: str = "under_test") -> PostgresSource:
    return PostgresSource(config.Pipeline(name, config.Source(url, ("*.*",)), {}))


class TestPostgresSource(SourceContract):
    @pytest.fixture
    def database(self, postgres_url: str) -> Iterator[Items]:
        items = Items(postgres_url)
        yield items
        items.close()

    @pytest.fixture
    def make_source(self, database: Items, postgres_url: str) -> Callable[[], PostgresSource]:
        return lambda: source_of(postgres_url)

    @pytest.fixture
    def other_source(self, postgres_server: PostgresServer) -> Iterator[PostgresSource]:
        url = postgres_server.create_database("another")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(CREATE)
        yield source_of(url, "another")
        postgres_server.drop_database("another")
