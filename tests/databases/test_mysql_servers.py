"""The MariaDB and MySQL servers that tests run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import psutil
import pytest

from support.mysql import MariaDbServer, MySqlServer
from support.mysql_fixtures import FAST_MYSQL
from tailrace.testing import ServerFailed
from tailrace.testing.plugin import requires
from tailrace.testing.processes import Owner, ServerUnavailable, wait_until

pymysql = pytest.importorskip("pymysql")

BOTH = [MariaDbServer, MySqlServer]


@pytest.fixture(params=BOTH, ids=["mariadb", "mysql"])
def server(request):
    with requires(request.param.start, settings=FAST_MYSQL) as server:
        yield server


@pytest.fixture(params=["mariadb", "mysql"])
def shared(request):
    """The run's own server: for tests that leave it as it was."""
    return request.getfixturevalue(f"{request.param}_server")


def one(server, query: str, database: str | None = None):
    return server.execute(query, database=database)[0][0]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_mariadb_is_10_11(mariadb_server):
    assert one(mariadb_server, "SELECT version()").startswith("10.11.")


def test_mysql_is_9_7_or_later(mysql_server):
    major, minor, *_ = one(mysql_server, "SELECT version()").split(".")
    assert (int(major), int(minor)) >= (9, 7)


def test_a_server_is_strict_unicode_and_on_loopback_only(shared):
    assert "STRICT_ALL_TABLES" in one(shared, "SELECT @@global.sql_mode")
    assert one(shared, "SELECT @@character_set_server") == "utf8mb4"
    assert one(shared, "SELECT @@bind_address") == "127.0.0.1"
    listening = {c.laddr for c in psutil.Process(shared.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", shared.port)}


def test_a_database_is_created_under_any_name_and_its_url_says_it(shared):
    url = shared.create_database("Odd `name`")
    try:
        assert urlsplit(url).path == "/Odd%20%60name%60"
        assert one(shared, "SELECT database()", database="Odd `name`") == "Odd `name`"
    finally:
        shared.drop_database("Odd `name`")


def test_load_data_local_takes_rows_from_the_client(shared, tmp_path):
    rows = tmp_path / "rows.tsv"
    rows.write_text("1\tüñí\n2\t\\N\n")
    shared.create_database("loads")
    try:
        shared.execute("CREATE TABLE t (id int PRIMARY KEY, label text)", database="loads")
        with pymysql.connect(
            host="127.0.0.1", port=shared.port, user="root", database="loads", local_infile=True, autocommit=True
        ) as connection:
            connection.cursor().execute("LOAD DATA LOCAL INFILE %s INTO TABLE t CHARACTER SET utf8mb4", [str(rows)])
        assert shared.execute("SELECT * FROM t ORDER BY id", database="loads") == [(1, "üñí"), (2, None)]
    finally:
        shared.drop_database("loads")


def test_dropping_a_database_ends_the_sessions_that_hold_it(shared):
    shared.create_database("held")
    shared.execute("CREATE TABLE t (id int)", database="held")
    with shared.connect("held") as holder:
        holder.cursor().execute("START TRANSACTION")
        holder.cursor().execute("INSERT INTO t VALUES (1)")
        shared.drop_database("held")
        with pytest.raises(pymysql.OperationalError):
            holder.cursor().execute("SELECT 1")
    assert shared.execute("SHOW DATABASES LIKE 'held'") == []


def test_a_killed_server_recovers_with_everything_that_was_committed(server):
    server.create_database("kept")
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", database="kept")
    server.execute("INSERT INTO t VALUES (1)", database="kept")
    pid, url = server.pid, server.url_of("kept")
    server.kill()
    assert is_gone(pid)
    assert not server.is_running
    with pytest.raises(pymysql.OperationalError):
        server.connect()
    server.restart()
    assert server.url_of("kept") == url
    assert server.execute("SELECT id FROM t", database="kept") == [(1,)]


def test_stop_ends_the_process_and_removes_the_temporary_folder(server):
    pid = server.pid
    server.stop()
    assert is_gone(pid)
    assert not server.folder.exists()
    with pytest.raises(ServerFailed, match="is stopped"):
        _ = server.pid


def test_restart_lays_settings_over_the_earlier_ones(server):
    assert one(server, "SELECT @@log_bin") == 0
    server.restart(settings={"log_bin": "binlog", "server_id": 7, "binlog_format": "ROW"})
    assert one(server, "SELECT @@log_bin") == 1
    assert one(server, "SELECT @@server_id") == 7
    assert one(server, "SELECT @@innodb_flush_log_at_trx_commit") == 2


def test_a_server_as_root_runs_as_nobody(shared):
    if os.geteuid() != 0:
        pytest.skip("we are not root")
    assert psutil.Process(shared.pid).username() == "nobody"
    assert {path.stat().st_uid for path in shared._data.rglob("*")} == {Owner().uid}


@pytest.mark.parametrize("kind", BOTH)
def test_a_wrong_password_is_refused_and_the_right_one_taken(kind):
    secret = "it's / a \\ secret"
    with requires(kind.start, settings=FAST_MYSQL, password=secret) as server:
        assert one(server, "SELECT 1") == 1
        assert "it%27s%20%2F%20a%20%5C%20secret@" in server.url
        assert not list(server.folder.glob("*.sql"))
        with pytest.raises(pymysql.OperationalError, match="Access denied"):
            pymysql.connect(host="127.0.0.1", port=server.port, user="root", password="wrong")


@pytest.mark.parametrize("kind", BOTH)
def test_a_folder_that_is_named_keeps_its_data(kind):
    folder = f"/var/tmp/tailrace-kept-{os.getpid()}"  # pytest's own folders are closed to nobody
    try:
        with requires(kind.start, folder, settings=FAST_MYSQL) as server:
            server.create_database("kept")
        with kind.start(folder, settings=FAST_MYSQL) as server:
            assert server.execute("SHOW DATABASES LIKE 'kept'") == [("kept",)]
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize("kind", BOTH)
def test_a_setting_that_the_server_refuses_is_said_with_its_own_words(kind):
    with pytest.raises(ServerFailed, match="unknown variable 'no_such_setting"):
        requires(kind.start, settings={"no_such_setting": 1})


def test_a_folder_that_nobody_cannot_enter_is_one_clear_sentence(shared, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("we are not root")
    with pytest.raises(ServerUnavailable, match="cannot enter /"):
        type(shared).start(tmp_path / "data")


def test_two_mysql_servers_are_two_to_replication(mysql_server):
    with MySqlServer.start(settings=FAST_MYSQL) as other:
        assert one(other, "SELECT @@server_uuid") != one(mysql_server, "SELECT @@server_uuid")


@pytest.mark.parametrize("kind", BOTH)
def test_a_server_dies_with_the_process_that_started_it(kind):
    program = (
        f"from support.mysql import {kind.__name__}\n"
        f"server = {kind.__name__}.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "input()"
    )
    requires(kind.start).stop()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        pid, folder = child.stdout.readline().split()
        assert not is_gone(int(pid))
        child.send_signal(signal.SIGKILL)
        child.wait()
        wait_until(lambda: is_gone(int(pid)), seconds=30, what="the orphaned server to end")
    subprocess.run(["rm", "-r", folder], check=True)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_the_url_fixture_is_an_empty_database_of_its_own(kind, request):
    parts = urlsplit(request.getfixturevalue(f"{kind}_url"))
    server = request.getfixturevalue(f"{kind}_server")
    assert (parts.scheme, parts.hostname, parts.port, parts.username) == (kind, "127.0.0.1", server.port, "root")
    assert server.execute("SHOW TABLES", database=parts.path[1:]) == []
