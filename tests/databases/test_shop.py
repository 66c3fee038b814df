"""The demo's shop and the workloads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import psycopg
import pytest

from support import hot
from tailrace.demo import shop
from tailrace.demo.workload import WorkloadFailed
from tailrace.testing import content
from tailrace.testing.processes import wait_until


def ask(url: str, query: str):
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchone()[0]


def everything(url: str) -> dict[str, list]:
    return {table: list(content.source_rows(url, table)) for table in content.tables_of(url)}


@pytest.fixture
def shop_url(postgres_url):
    shop.create(postgres_url)
    shop.load(postgres_url, rows=2_000)
    return postgres_url


def test_a_shop_has_as_many_rows_as_asked_for(shop_url):
    counts = {table: ask(shop_url, f"SELECT count(*) FROM {table}") for table in shop.TABLES}
    assert all(counts.values())
    assert sum(counts.values()) == pytest.approx(2_000, rel=0.02)


def test_a_shop_of_one_row_a_table_can_be_loaded(postgres_url):
    shop.create(postgres_url)
    assert shop.load(postgres_url, rows=1) >= 4


def test_two_shops_of_one_size_have_the_same_content(postgres_server, shop_url):
    other = postgres_server.create_database("other_shop")
    try:
        shop.create(other)
        shop.load(other, rows=2_000)
        assert everything(other) == everything(shop_url)
    finally:
        postgres_server.drop_database("other_shop")


def test_the_workload_changes_every_table_in_every_way(shop_url):
    with shop.Workload.start(shop_url, rate=0) as workload:
        wait_until(lambda: workload.changes > 3_000, seconds=60, what="3,000 changes")
    wait_until(lambda: ask(shop_url, IN_EVERY_WAY), seconds=20, what="the server's own statistics to tell", every=0.2)


IN_EVERY_WAY = """
SELECT bool_and(n_tup_ins > 0 AND n_tup_upd > 0) AND bool_or(n_tup_del > 0) AND pg_stat_get_db_xact_rollback(
    (SELECT oid FROM pg_database WHERE datname = current_database())) > 0 FROM pg_stat_user_tables
"""


def test_the_workload_keeps_to_its_rate(shop_url):
    with shop.Workload.start(shop_url, rate=200) as workload:
        wait_until(lambda: workload.changes > 0, seconds=30, what="the first change")
        before, clock = workload.changes, time.monotonic()
        wait_until(lambda: workload.changes > before + 400, seconds=60, what="400 changes")
        seconds = time.monotonic() - clock
    assert 400 / seconds < 300


def test_a_stopped_workload_knows_how_much_it_did_and_writes_no_more(shop_url):
    workload = shop.Workload.start(shop_url, rate=300)
    wait_until(lambda: workload.changes > 50, seconds=30, what="some changes")
    changes = workload.stop()
    assert workload.changes == changes == workload.stop()
    assert not workload.is_running
    assert ask(shop_url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tailrace workload'") == 0


def test_a_workload_that_cannot_work_says_why(postgres_url):
    workload = shop.Workload.start(postgres_url)
    wait_until(lambda: not workload.is_running, seconds=30, what="the workload to give up")
    with pytest.raises(WorkloadFailed, match='relation "products" does not exist'):
        workload.stop()


def test_a_workload_goes_on_after_its_sessions_are_cut(shop_url):
    with shop.Workload.start(shop_url, rate=0) as workload:
        wait_until(lambda: workload.changes > 0, seconds=30, what="the first change")
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tailrace workload'"
        assert ask(shop_url, cut)
        before = workload.changes
        wait_until(lambda: workload.changes > before + 100, seconds=30, what="more changes")


def test_a_workload_ends_with_the_process_that_started_it(shop_url):
    program = (
        "import sys; from tailrace.demo.shop import Workload\n"
        "print(Workload.start(sys.argv[1]).pid, flush=True); input()"
    )
    command = [sys.executable, "-c", program, shop_url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        pid = int(starter.stdout.readline())
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
        wait_until(lambda: not psutil.pid_exists(pid) or is_zombie(pid), seconds=20, what="the workload to end")


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_hot_workload_of_one_seed_ends_with_the_same_content(postgres_server, postgres_url):
    other = postgres_server.create_database("other_hot")
    try:
        for url in (postgres_url, other):
            hot.create(url)
            hot.run(url, seed=11, transactions=300)
        assert everything(other) == everything(postgres_url)
        assert sum(map(bool, everything(postgres_url).values())) > len(hot.TABLES) / 2
    finally:
        postgres_server.drop_database("other_hot")


def test_hot_workloads_run_side_by_side_on_published_tables(postgres_url):
    hot.create(postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")  # so that a missing identity is an error
    with hot.HotWorkload.start(postgres_url, rate=0) as one, hot.HotWorkload.start(postgres_url, rate=0) as two:
        wait_until(lambda: min(one.changes, two.changes) > 300, seconds=60, what="both to make changes")
