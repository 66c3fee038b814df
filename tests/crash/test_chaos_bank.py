"""A bank whose books always balance: pgbench's TPC-B, observed in every sink all the time, while everything is killed.

Each of its transactions moves the same amount into an account, a teller, a branch and the history. Whoever reads a sink
in one statement finds four equal sums, or has seen half a transaction, an old one again, or one too few.

`make chaos` runs several rounds (TAILRACE_CHAOS_SCALE=1).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.mysql import MySqlServer
from support.mysql_fixtures import FAST_MYSQL
from support.pipelines import RunningPipeline, captured, position_of, run_until_current, write_pipeline
from support.sinks import (
    Server,
    SinkDatabase,
    SinkView,
    assert_same_rows,
    freeze_between_commits,
    sink_databases,
    wait_until_current,
)
from support.watching import Watcher
from tailrace.sources.postgres.positions import reached
from tailrace.testing import PostgresServer
from tailrace.testing.plugin import FAST, requires
from tailrace.testing.postgres import execute, free_slot

SCALE = float(os.environ.get("TAILRACE_CHAOS_SCALE", "0.1"))
IS_FULL = SCALE >= 1
ROUNDS, CLIENTS, RATE = (4, 8, 200) if IS_FULL else (1, 4, 50)
PGBENCH_SECONDS = 5
READ_SECONDS = 0.02 if IS_FULL else 0.25
"""Between two reads of an observer: each of them adds up all accounts, which is work for the machine that all share."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.timeout(4 * 3600 if IS_FULL else 1800),
]

SLOT = "tailrace_bank"
TABLES = {
    "pgbench_accounts": (("aid", "bid", "abalance"), "aid"),
    "pgbench_tellers": (("tid", "bid", "tbalance"), "tid"),
    "pgbench_branches": (("bid", "bbalance"), "bid"),
}
SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
    (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
"""
HISTORY = """
SELECT tid, bid, aid, delta, count(*) FROM pgbench_history GROUP BY tid, bid, aid, delta ORDER BY tid, bid, aid, delta
"""


class Observer(Watcher):
    """Reads the four sums of one sink all the time, from the moment its tables are live. Outages do not trouble it."""

    def __init__(self, file: Path, sink: SinkDatabase) -> None:
        super().__init__()
        self._view, self._sink = SinkView(file, sink.kind), sink
        self.reads = 0
        self.outages = 0
        self.faults: list[str] = []

    def _watch(self) -> None:
        while not self._done.wait(0.1) and not self._view.is_live():
            pass
        while not self._done.wait(0.1):
            try:
                self._read()
            except Exception:  # its server is down: whatever the driver calls it
                self.outages += 1

    def _read(self) -> None:
        with self._sink.connect() as connection, closing(connection.cursor()) as cursor:
            while not self._done.wait(READ_SECONDS):
                cursor.execute(SUMS)
                [sums] = cursor.fetchall()
                self.reads += 1
                if len(set(sums)) != 1:
                    self.faults.append(f"{self._sink.kind}, read {self.reads}: {tuple(map(str, sums))}")


class Customers(Watcher):
    """pgbench in a loop, begun again when its server or its sessions were killed."""

    _patience = 10 * PGBENCH_SECONDS

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server

    def _watch(self) -> None:
        command: list[str | Path] = [self._server.bin / "pgbench", "--no-vacuum", "--builtin", "tpcb-like"]
        command += ["--client", str(CLIENTS), "--jobs", "1", "--rate", str(RATE), "--time", str(PGBENCH_SECONDS)]
        while not self._done.wait(0.2):
            subprocess.run([*command, self._server.url], capture_output=True, check=False)

    def __exit__(self, *ended: Any) -> None:
        super().__exit__(*ended)
        assert not self._thread.is_alive()


@dataclass
class Bank:
    """Source, sinks and the run that follows the one into the others. `run` is whatever lives at the moment."""

    folder: Path
    source: PostgresServer
    servers: dict[str, Server]
    sinks: dict[str, SinkDatabase]
    random: random.Random
    file: Path = Path()
    run: RunningPipeline = None  # type: ignore[assignment]
    kills: Counter[str] = field(default_factory=Counter)

    def begin(self, *, with_new_state: bool = False) -> None:
        if with_new_state:
            home = Path(tempfile.mkdtemp(prefix="run_", dir=self.folder))
            urls = {kind: sink.url for kind, sink in self.sinks.items()}
            self.file = write_pipeline(home, self.source.url, urls, name="bank", tables=["public.*"])
        self.run = RunningPipeline(self.file)

    def wait_until_current(self) -> None:
        wait_until_current(self.run, self.file, self.source.url, self.sinks)

    def wait_a_little(self) -> None:
        """So that a kill comes at any moment."""
        threading.Event().wait(self.random.uniform(0, 2))

    # --- what is killed

    def kill_driver(self) -> None:
        self.run.kill()
        self.begin()

    def kill_jvm(self) -> None:
        self.run.kill_jvm()
        assert self.run.ended() == 1, self.run.output
        self.begin()

    def kill_capture(self) -> None:
        self.run.kill_capture()

    def kill_workers(self) -> None:
        """All Python processes that Spark has at the moment."""
        for child in self.run.jvm_process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "python" in child.name():
                    child.kill()

    def kill_backends(self) -> None:
        """Sessions of the source, ours and the customers'."""
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
        execute(self.source.url, query)

    def kill_source(self) -> None:
        self.source.kill()
        self.wait_a_little()
        self.source.restart()

    def kill_sinks(self) -> None:
        for server in self.servers.values():
            server.kill()
        self.wait_a_little()
        for server in self.servers.values():
            server.restart()

    def wake_a_zombie(self) -> None:
        """A run that is frozen with changes in its log, and wakes when another has gone past them."""
        zombie, file = self.run, self.file
        freeze_between_commits(zombie, self.sinks.values())
        end = position_of(self.source.url)
        zombie.wait_for(lambda: reached(captured(file), end), "the zombie's log to go on")
        zombie.freeze()
        free_slot(self.source.url, SLOT)
        with zombie:
            self.begin(with_new_state=True)
            self.wait_until_current()
            zombie.thaw()
            assert zombie.ended() == 1, zombie.output
            assert "another run" in zombie.output

    def kills_of_a_round(self) -> list[Callable[[], None]]:
        kills = [self.kill_driver, self.kill_capture, self.kill_workers, self.kill_backends]
        kills += [self.kill_source, self.kill_sinks, self.wake_a_zombie]
        if IS_FULL:  # the others' tests have it, and it costs a life
            kills.append(self.kill_jvm)
        self.random.shuffle(kills)
        return kills


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    seed = int(os.environ.get("TAILRACE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    sys.stderr.write(f"a bank in chaos with seed {seed}\n")
    with ExitStack() as stack:
        source = stack.enter_context(requires(PostgresServer.start, settings=FAST))
        servers: dict[str, Server] = {
            "postgresql": stack.enter_context(requires(PostgresServer.start, settings=FAST)),
            "mysql": stack.enter_context(requires(MySqlServer.start, settings=FAST_MYSQL)),
        }
        sinks = stack.enter_context(sink_databases(servers, tmp_path))
        init: list[str | Path] = [source.bin / "pgbench", "--initialize", "--quiet", "--scale", "1", source.url]
        subprocess.run(init, check=True, capture_output=True)
        execute(source.url, "ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
        made = Bank(tmp_path, source, servers, sinks, random.Random(seed))
        made.begin(with_new_state=True)
        stack.callback(lambda: made.run.__exit__(None, None, None))
        yield made


def assert_equal(bank: Bank) -> int:
    """The transactions that the books have, which are the same everywhere."""
    history = SinkDatabase("postgresql", bank.source.url).query(HISTORY)
    for sink in bank.sinks.values():
        for table, (columns, key) in TABLES.items():
            assert_same_rows(bank.source.url, sink, table, columns, key)
        assert [tuple(map(int, row)) for row in sink.query(HISTORY)] == history
    return sum(row[-1] for row in history)


def test_the_books_of_a_bank_balance_in_every_sink_at_every_moment_of_the_chaos(bank: Bank) -> None:
    observers = {kind: Observer(bank.file, sink) for kind, sink in bank.sinks.items()}
    with ExitStack() as stack:
        for observer in observers.values():
            stack.enter_context(observer)
        with Customers(bank.source):
            bank.wait_until_current()
            for _ in range(ROUNDS):
                for kill in bank.kills_of_a_round():
                    bank.wait_a_little()
                    kill()
                    bank.kills[kill.__name__] += 1
                    bank.wait_until_current()
                    assert_balanced(observers)
        bank.run.kill()
        bank.kills["kill_driver"] += 1
        run_until_current(bank.file)
        transactions = assert_equal(bank)
    assert_balanced(observers)
    reads = {kind: observer.reads for kind, observer in observers.items()}
    outages = {kind: observer.outages for kind, observer in observers.items()}
    sys.stderr.write(f"{transactions} transactions, kills {dict(bank.kills)}, reads {reads}, outages {outages}\n")
    assert all(reads.values())


def assert_balanced(observers: dict[str, Observer]) -> None:
    faults: list[Any] = [fault for observer in observers.values() for fault in observer.faults]
    assert not faults, "\n".join(map(str, faults[:20]))
