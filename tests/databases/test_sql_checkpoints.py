"""Checkpoints in databases: what is a database's own, or a driver's, beyond the contract of all stores."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from pymysql.cursors import DictCursor

from support.checkpoints import connect, end_session, make_mine, store_over_connection
from support.mysql import MySqlServer
from tailrace.checkpoints import SqlStore, open_store
from tailrace.errors import CheckpointRefused, CheckpointTaken, ConfigError, Misuse, StateError, StateUnavailable
from tailrace.testing.checkpoint_contract import at, rows_of, wrote
from tailrace.testing.postgres import PostgresServer, execute

KINDS = ["sqlite", "postgres", "mysql"]
SERVERS = ["postgres", "mysql"]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = (
        f"sqlite:///{tmp_path}/mine.db"
        if request.param == "sqlite"
        else request.getfixturevalue(f"{request.param}_url")
    )
    make_mine(found)
    return str(found)


@pytest.fixture
def store(url: str):
    with open_store(url) as store:
        store.claim("orders")
        store.save("orders", at(7))
        yield store


def commit_alone(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    elif isinstance(connection, psycopg.Connection):
        connection.autocommit = True
    else:
        connection.autocommit(True)


# --- the user's transaction --------------------------------------------------------------------------------------


def test_a_connection_that_commits_by_itself_is_refused_until_it_begins(url, store):
    with closing(connect(url)) as connection:
        commit_alone(connection)
        with pytest.raises(Misuse, match="has no transaction open, and would commit checkpoint orders alone"):
            store.save_within(connection, "orders", at(8))
        assert store.load("orders") == at(7)
        connection.cursor().execute("BEGIN")
        wrote(connection, 1)
        store.save_within(connection, "orders", at(8))
        assert store.load("orders") == at(7)
        connection.cursor().execute("COMMIT")
        assert (store.load("orders"), rows_of(connection)) == (at(8), [1])


def test_a_connection_to_another_place_is_refused(url, store, tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        message = "no connection to" if not url.startswith("sqlite") else "no such table"
        with pytest.raises((Misuse, StateError), match=message):
            store.save_within(other, "orders", at(8))
    with pytest.raises(Misuse, match="no connection to"):
        store.save_within(object(), "orders", at(8))
    assert store.load("orders") == at(7)


def test_a_row_that_was_deleted_by_hand_is_no_reason_to_write(url, store):
    with closing(connect(url)) as connection:
        connection.cursor().execute("DELETE FROM tailrace_checkpoints")
        connection.commit()
        with pytest.raises(Misuse, match="has no row of checkpoint orders, which was claimed"):
            store.save_within(connection, "orders", at(8))
        connection.rollback()
    with pytest.raises(Misuse, match="has no row"):
        store.save("orders", at(8))


# --- the user's connection ---------------------------------------------------------------------------------------


def test_a_store_over_a_connection_neither_reads_nor_ends_a_transaction_of_the_users(url):
    """What it read there, the user could still roll back: the source would forget what is not kept anywhere."""
    store = store_over_connection(url)
    connection = store._given
    store.claim("orders")
    store.save("orders", at(7))
    wrote(connection, 1)
    store.save_within(connection, "orders", at(8))
    for call in (
        lambda: store.load("orders"),
        lambda: store.age("orders"),
        lambda: store.list(),
        lambda: store.save("orders", at(9)),
        lambda: store.claim("invoices"),
        lambda: store.delete("orders"),
    ):
        with pytest.raises(Misuse, match="has a transaction open, which is not ours to end"):
            call()
    connection.rollback()
    assert (store.load("orders"), rows_of(connection)) == (at(7), [])
    store.close()
    connection.close()


def test_a_store_over_a_connection_leaves_no_transaction_open(url):
    store = store_over_connection(url)
    store.claim("orders")
    for call in (
        lambda: store.save("orders", at(7)),
        lambda: store.load("orders"),
        store.list,
        lambda: store.age("orders"),
    ):
        call()
        assert not store._database.has_transaction(store._given)
    store.close()
    assert not store._database.has_transaction(store._given)
    with open_store(url) as other:
        other.claim("orders")
        assert other.load("orders") == at(7)
    store._given.close()


def test_a_store_that_lets_go_in_the_middle_of_a_transaction_leaves_it_alone(url):
    store = store_over_connection(url)
    store.claim("orders")
    wrote(store._given, 1)
    store.close()
    assert store._database.has_transaction(store._given)
    store._given.commit()
    with open_store(url) as other:
        other.claim("orders")
    assert rows_of(store._given) == [1]
    store._given.close()


@pytest.mark.server
@pytest.mark.parametrize("factory", [dict_row, namedtuple_row])
def test_rows_of_a_psycopg_connection_may_come_as_its_user_likes(postgres_url, factory):
    with psycopg.connect(postgres_url, row_factory=factory) as connection:
        used(open_store(connection))


@pytest.mark.server
def test_rows_of_a_pymysql_connection_may_come_as_its_user_likes(mysql_url):
    with closing(connect(mysql_url)) as connection:
        connection.cursorclass = DictCursor
        used(open_store(connection))


@pytest.mark.parametrize(
    "factory", [sqlite3.Row, lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)}]
)
def test_rows_of_a_sqlite_connection_may_come_as_its_user_likes(factory):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory, connection.text_factory = factory, bytes
        used(open_store(connection))


def used(store: SqlStore) -> None:
    """A part of a life, with characters that not every encoding has."""
    whole = at(7, metadata={"é": "日本 \U0001f9a6"})
    store.claim("orders")
    store.save("orders", whole)
    assert (store.load("orders"), store.list()) == (whole, ["orders"])
    age = store.age("orders")
    assert age is not None
    assert age >= 0
    store.release("orders")


@pytest.mark.server
def test_the_encoding_of_a_connection_does_not_matter(postgres_url, mysql_url):
    with psycopg.connect(postgres_url, client_encoding="LATIN1") as connection:
        used(open_store(connection))
    with closing(connect(mysql_url)) as connection:
        connection.set_character_set("latin1")
        used(open_store(connection))


@pytest.mark.server
def test_a_connection_of_another_kind_is_refused(postgres_url):
    class Mine:
        def cursor(self) -> None: ...

    with pytest.raises(ConfigError, match="Mine is no connection that a checkpoint store knows"):
        open_store(Mine())


# --- servers -----------------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("url", SERVERS, indirect=True)
def test_a_holder_whose_session_was_ended_goes_on_if_nobody_came(url, store):
    """A restart of the server looks the same."""
    end_session(store, url)
    store.save("orders", at(8))
    end_session(store, url)
    assert store.load("orders") == at(8)
    with open_store(url) as other, pytest.raises(CheckpointTaken, match="in session"):
        other.claim("orders")


@pytest.mark.server
@pytest.mark.parametrize("url", SERVERS, indirect=True)
def test_who_holds_a_checkpoint_is_told_with_its_session(url, store):
    session = store._database.session(store._own)
    with (
        open_store(url) as other,
        pytest.raises(CheckpointTaken, match=rf"held by pid \d+ on .* in session {session} of") as caught,
    ):
        other.claim("orders")
    assert "session ends" in caught.value.hint


@pytest.mark.server
@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "mysql://nobody@127.0.0.1:1/none"])
def test_a_server_that_is_not_there_is_tried_again(url):
    with (
        open_store(url) as store,
        pytest.raises(StateUnavailable, match=r"cannot use the checkpoints in .*127\.0\.0\.1:1/none") as caught,
    ):
        store.load("orders")
    assert caught.value.retry


@pytest.mark.server
@pytest.mark.parametrize("url", SERVERS, indirect=True)
def test_a_database_that_does_not_exist_is_not_tried_again(url):
    with (
        open_store(f"{url}_absent") as store,
        pytest.raises(StateError, match=r"cannot use the checkpoints in .*_absent") as caught,
    ):
        store.load("orders")
    assert not caught.value.retry


@pytest.mark.server
def test_a_mysql_url_without_a_database_is_refused(mysql_server: MySqlServer):
    with (
        open_store(mysql_server.url_of("")) as store,
        pytest.raises(StateError, match="is no database to keep checkpoints in"),
    ):
        store.list()


def test_a_sqlite_file_in_no_folder_is_refused(tmp_path):
    with (
        open_store(f"sqlite:///{tmp_path}/none/mine.db") as store,
        pytest.raises(StateError, match="does not exist") as caught,
    ):
        store.claim("orders")
    assert caught.value.hint == f"mkdir -p {tmp_path}/none"


def test_a_sqlite_file_that_was_removed_or_replaced_is_not_written_to(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/mine.db") as store:
        store.claim("orders")
        store.save("orders", at(7))
        (tmp_path / "mine.db").rename(tmp_path / "moved.db")
        for _ in range(2):
            with pytest.raises(StateError, match=r"mine\.db of the checkpoints was replaced while it was open"):
                store.save("orders", at(8))
            (tmp_path / "mine.db").touch()


def test_a_password_never_shows():
    for url in ("postgresql://me:secret@127.0.0.1:1/x", "mysql://me:secret@127.0.0.1:1/x"):
        with open_store(url) as store:
            assert "secret" not in repr(store)
            with suppress(StateUnavailable):
                store.load("orders")
                pytest.fail("there is no server")
    with pytest.raises(ConfigError) as caught:
        open_store("postgresql://me:se[cret@host/x")
    assert "cret" not in str(caught.value)


@pytest.mark.server
def test_the_table_is_where_the_role_keeps_its_own_whatever_its_name_and_the_users_search_path(postgres_url):
    execute(postgres_url, 'CREATE SCHEMA "odd ""%s"', "CREATE TABLE mine (id int)", "CREATE SCHEMA other")
    with open_store(f"{postgres_url}?options={quote(quote_options())}") as store:
        store.claim("orders")
        store.save("orders", at(7))
        with closing(psycopg.connect(postgres_url)) as connection:
            connection.execute("SET search_path = other")
            store.save_within(connection, "orders", at(8))
            connection.commit()
        assert store.load("orders") == at(8)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'tailrace_checkpoints'")
        assert found.fetchall() == [('odd "%s',)]


def quote_options() -> str:
    return '-c search_path="odd\\ ""%s"'


@pytest.mark.server
def test_a_database_of_mysql_may_have_any_name(mysql_server: MySqlServer):
    url = mysql_server.create_database("odd `%s")
    try:
        with open_store(url) as store:
            used(store)
    finally:
        mysql_server.drop_database("odd `%s")


@pytest.mark.server
def test_a_role_that_may_not_create_tables_uses_the_one_that_is_there(postgres_url, postgres_server: PostgresServer):
    execute(postgres_url, "CREATE ROLE plain LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    plain = postgres_url.replace("postgresql://postgres", "postgresql://plain")
    try:
        with open_store(plain) as store, pytest.raises(StateError, match="permission denied for schema public"):
            store.claim("orders")
        with open_store(postgres_url) as store:
            store.claim("made")
        execute(postgres_url, "GRANT SELECT, INSERT, UPDATE, DELETE ON tailrace_checkpoints TO plain")
        with open_store(plain) as store:
            used(store)
    finally:
        execute(postgres_url, "DROP OWNED BY plain", "DROP ROLE plain")


@pytest.mark.server
def test_a_commit_waits_for_the_disk_though_the_role_does_not(postgres_url):
    with open_store(f"{postgres_url}?options={quote('-c synchronous_commit=off')}") as store:
        store.claim("orders")
        assert store._database.execute(store._own, "SHOW synchronous_commit") == [("on",)]


def test_a_record_that_was_edited_in_its_table_is_refused(url, store):
    with closing(connect(url)) as connection:
        connection.cursor().execute("UPDATE tailrace_checkpoints SET record = replace(record, '0/7', '0/9')")
        connection.commit()
    for call in (lambda: store.load("orders"), lambda: store.save("orders", at(10))):
        with pytest.raises(CheckpointRefused, match="does not match its checksum"):
            call()
    assert store.delete("orders")
    store.save("orders", at(1))


@pytest.mark.parametrize("table", ["", "a b", "a;drop", "1a", 'a"', "ä"])
def test_a_table_has_a_plain_name(table, tmp_path):
    database = open_store(f"sqlite:///{tmp_path}/mine.db")._database
    with pytest.raises(ConfigError, match="can not be the table of checkpoints"):
        SqlStore(database, table=table)


def test_two_tables_are_two_stores(url):
    with SqlStore(open_store(url)._database, table="a") as one, SqlStore(open_store(url)._database, table="b") as other:
        for number, store in enumerate((one, other), 1):
            store.claim("orders")
            store.save("orders", at(number))
        assert (one.load("orders"), other.load("orders")) == (at(1), at(2))


def test_pymysql_is_what_mysql_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.delitem(sys.modules, "tailrace.checkpoints.sql.mysql", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'tailrace\[mysql\]'"):
        open_store("mysql://me@host/shop")
