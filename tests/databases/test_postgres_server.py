"""The PostgreSQL server that tests and the demo run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import psycopg
import pytest

from tailrace.testing import PostgresServer, ServerFailed
from tailrace.testing.plugin import FAST, requires, unavailable
from tailrace.testing.processes import Owner, ServerUnavailable, cached_copy, wait_until


@pytest.fixture
def server(request):
    with requires(PostgresServer.start, version=request.config.getoption("--postgres"), settings=FAST) as server:
        yield server


def one(url: str, query: str):
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchone()[0]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_server_starts_ready_for_logical_replication():
    with requires(PostgresServer.start) as server:
        assert one(server.url, "SHOW wal_level") == "logical"
        assert one(server.url, "SHOW listen_addresses") == "127.0.0.1"
        assert one(server.url, "SHOW fsync") == "on"


@pytest.mark.parametrize("version", [16, 18])
def test_each_version_of_the_wheel_runs(version):
    with requires(PostgresServer.start, version=version, settings=FAST) as server:
        assert one(server.url, "SHOW server_version_num").startswith(str(version))
        assert (server.bin / "pg_recvlogical").exists()


def test_a_version_that_the_wheel_does_not_have_is_unavailable():
    with pytest.raises(ServerUnavailable, match="PostgreSQL 9 is not in"):
        PostgresServer.start(version=9)


def test_stop_ends_every_process_and_removes_the_temporary_folder(server):
    family = [server.pid, *(child.pid for child in psutil.Process(server.pid).children())]
    server.stop()
    assert not server.is_running
    assert all(map(is_gone, family))
    assert not server.folder.exists()


def test_a_killed_server_recovers_with_everything_that_was_committed(server):
    server.execute("CREATE TABLE kept (id int)")
    server.execute("INSERT INTO kept VALUES (1)")
    family = [server.pid, *(child.pid for child in psutil.Process(server.pid).children())]
    server.kill()
    assert all(map(is_gone, family))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url)
    url = server.url
    server.restart()
    assert one(url, "SELECT count(*) FROM kept") == 1


def test_restart_lays_settings_over_the_earlier_ones(server):
    server.restart(settings={"wal_level": "replica"})
    assert one(server.url, "SHOW wal_level") == "replica"
    assert one(server.url, "SHOW fsync") == "off"


def test_alter_system_has_the_last_word_over_settings(server):
    server.execute("ALTER SYSTEM SET max_wal_senders = 7")
    server.restart()
    assert one(server.url, "SHOW max_wal_senders") == "7"


def test_a_wrong_password_is_refused_and_the_right_one_taken():
    with requires(PostgresServer.start, password="it's / a secret") as server:
        assert one(server.url, "SELECT 1") == 1
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url_of("postgres", password="wrong"))


def test_a_server_as_root_runs_as_nobody(server):
    if os.geteuid() != 0:
        pytest.skip("we are not root")
    assert psutil.Process(server.pid).username() == "nobody"
    assert server._data.stat().st_uid == Owner().uid


def test_a_wheel_that_nobody_cannot_reach_is_copied_to_the_cache(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("we are not root")
    monkeypatch.setenv("TAILRACE_CACHE", "/var/tmp/tailrace-test-cache")
    closed = tmp_path / "closed"  # pytest's own folders are closed to others
    closed.mkdir()
    (closed / "file").write_text("x")
    assert not Owner().can_reach(closed / "file")
    copy = cached_copy({"part": closed}, f"copy-{os.getpid()}")
    try:
        assert Owner().can_reach(copy / "part" / "file")
    finally:
        subprocess.run(["rm", "-r", copy.parent], check=True)


def test_a_folder_that_nobody_cannot_enter_is_one_clear_sentence(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("we are not root")
    with pytest.raises(ServerUnavailable, match="cannot enter /"):
        PostgresServer.start(folder=tmp_path / "data")


def test_a_setting_that_postgres_refuses_is_said_with_its_own_words():
    with pytest.raises(ServerFailed, match="unrecognized configuration parameter"):
        requires(PostgresServer.start, settings={"no_such_setting": 1})


def test_a_server_dies_with_the_process_that_started_it():
    program = (
        "from tailrace.testing import PostgresServer\n"
        "server = PostgresServer.start()\n"
        "print(server.pid, server.folder, flush=True)\n"
        "input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        pid, folder = child.stdout.readline().split()
        assert not is_gone(int(pid))
        child.send_signal(signal.SIGKILL)
        child.wait()
        wait_until(lambda: is_gone(int(pid)), seconds=10, what="the orphaned server to end")
    subprocess.run(["rm", "-r", folder], check=True)


def test_dropping_a_database_takes_its_slots_and_their_readers_along(server):
    url = server.create_database("Busy db")
    command = [server.bin / "pg_recvlogical", "-d", url, "--slot", "busy", "--create-slot", "--plugin", "pgoutput"]
    subprocess.run(command, check=True)
    server.execute("CREATE PUBLICATION p FOR ALL TABLES", database="Busy db")
    options = ["-o", "proto_version=1", "-o", "publication_names=p", "--no-loop", "-f", "-"]
    reader = subprocess.Popen(
        [server.bin / "pg_recvlogical", "-d", url, "--slot", "busy", "--start", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(
        lambda: one(server.url, "SELECT active FROM pg_replication_slots WHERE slot_name = 'busy'"),
        seconds=20,
        what="the slot to be read",
    )
    server.drop_database("Busy db")
    assert reader.wait(20) != 0
    assert one(server.url, "SELECT count(*) FROM pg_replication_slots") == 0
    assert one(server.url, "SELECT count(*) FROM pg_database WHERE datname = 'Busy db'") == 0


def test_the_url_fixture_is_an_empty_database_of_its_own(postgres_url):
    assert one(postgres_url, "SELECT count(*) FROM pg_stat_user_tables") == 0
    assert one(postgres_url, "SELECT current_database()").startswith("test_")


def test_what_is_missing_is_a_skip_at_home(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no server here"):
        unavailable("no server here")


def test_what_is_missing_is_a_failure_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no server here"):
        unavailable("no server here")
