"""The demo, told in order: a shop under load, a copy, a murder, a return, and a comparison of everything.

The pipeline is the one that users run: `tailrace run` on a file, in a process of its own. That it is current is the
word of the source's replication slot, or of the sink's watermark; that it is right is the word of `testing.content`,
which reads every row twice.
"""

from __future__ import annotations

import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
from rich.console import Console

from tailrace.demo import shop, summary
from tailrace.demo.child import DemoFailed, PipelineProcess
from tailrace.demo.lag import LagProbe
from tailrace.demo.screen import Screen
from tailrace.demo.side import Side
from tailrace.demo.summary import Facts
from tailrace.testing.processes import remove_tree

COPY_SECONDS = 300
RESTART_SECONDS = 180
CURRENT_SECONDS = 180
LOOK_SECONDS = 0.1
CATCH_SECONDS = 2.0
CATCH_UP_ROUNDS = 6
CLOSE_SECONDS = 3.0

WORDS = {"new": "waiting", "snapshot": "being copied", "catch_up": "catching up"}

PIPELINE = """\
name: demo
source:
  url: {url}
  tables: [{schema}.*]
sinks:
  replica:
    url: sqlite:///replica.db
    schemas: {{{schema}: ""}}
state: ./state
"""


class Options(msgspec.Struct, frozen=True):
    seconds: float
    workload_rate: int
    keep: bool
    rows: int = 100_000
    source: str = "postgresql"


def run(options: Options, console: Console) -> int:
    """0 if every table ended identical, 1 if not. Nothing is left behind, unless asked for or something differs."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    folder.chmod(0o711)  # the server's user must be able to pass
    keep = options.keep
    try:
        with ExitStack() as stack:
            story = Story(options, folder, stack, stack.enter_context(Screen(console)))
            facts = _told(story)
            keep |= bool(facts.differences)
        console.print(summary.render(facts))
        if keep:
            console.print(summary.how_to_look(folder, story.side), soft_wrap=True)
        return 1 if facts.differences else 0
    finally:
        if not keep:
            remove_tree(folder)


def _told(story: Story) -> Facts:
    try:
        return story.tell()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough: what follows is the end of everything
        story.screen.say("interrupted: ending and removing everything")
        raise
    except Exception as error:
        if not isinstance(error, (OSError, sqlite3.Error, *story.side.errors)):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DemoFailed(f"the demo cannot go on: {reason}") from error


def side_of(source: str) -> Side:
    """Drivers are imported where they are needed: each has an extra of its own."""
    if source == "postgresql":
        from tailrace.demo.on_postgres import OnPostgres

        return OnPostgres()
    from tailrace.demo.on_mysql import OnMysql

    return OnMysql(source)


class Story:
    """`stack` ends what was started, in reverse order, however the story ends."""

    def __init__(self, options: Options, folder: Path, stack: ExitStack, screen: Screen) -> None:
        self.options, self.folder, self.stack, self.screen = options, folder, stack, screen
        self.file = folder / "replica.db"
        self.side = side_of(options.source)
        self.facts = Facts(source=self.side.name)

    def tell(self) -> Facts:
        self._open_shop()
        self.child = self._start_pipeline()
        self._copy()
        with LagProbe(self.file) as self.probe:
            self._catch_up(self._live_line)
            self.probe.begin()
            self._follow(self.options.seconds / 2)
            self._kill()
            self._come_back()
            self._follow(self.options.seconds / 2)
            self._settle()
        self.facts.waits, self.facts.longest_wait = self.probe.live(), self.probe.longest()
        self._stop()
        self._compare()
        return self.facts

    def _open_shop(self) -> None:
        self.screen.say(f"starting {self.side.name} in {self.folder}")
        self.side.open(self.folder, self.stack)
        self.facts.loaded = self.side.load(self.options.rows)
        rate = self.options.workload_rate
        self.workload = self.stack.enter_context(self.side.workload(rate))
        self.screen.say(f"a shop with {self.facts.loaded:,} rows is open; {rate:,} changes a second from now on")

    def _start_pipeline(self) -> PipelineProcess:
        file = self.pipeline = self.folder / "pipeline.yml"
        file.write_text(PIPELINE.format(url=self.side.url, schema=self.side.schema))
        self.facts.runs += 1
        child = PipelineProcess(file, self.folder / f"run-{self.facts.runs}.log")
        self.stack.callback(child.end)
        self.screen.say(f"started `tailrace run pipeline.yml` into replica.db (process {child.pid})")
        return child

    def _copy(self) -> None:
        self._wait(lambda: self.child.is_running, COPY_SECONDS, "start Spark", self._start_line)
        live = lambda: self.child.is_live(len(shop.TABLES))  # noqa: E731 - a condition with a name
        self._wait(live, COPY_SECONDS, "copy the tables", self._copy_line)
        self.facts.copied_after = time.monotonic() - self.child.began
        self.screen.say(f"all {len(shop.TABLES)} tables are copied and live")

    def _changes(self) -> str:
        return f"{self.workload.changes:,} changes in the shop"

    def _start_line(self) -> str:
        return f"Spark is starting; {self._changes()}"

    def _copy_line(self) -> str:
        states = Counter(WORDS.get(state, state) for state in self.child.states.values())
        told = ", ".join(f"{count} tables are {state}" for state, count in states.items()) or "looking at the tables"
        return f"{told}; {self._changes()}"

    def _follow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() >= end, seconds + 10, "follow the changes", self._live_line)

    def _live_line(self) -> str:
        return f"live: {self._changes()}; the newest order in the file is {self.probe.age:.1f} s old"

    def _kill(self) -> None:
        """In the middle of it: as soon as an order is committed that the file does not have."""
        deadline = time.monotonic() + CATCH_SECONDS
        while not (missing := self._orders_missing()) and time.monotonic() < deadline:
            time.sleep(0.005)
        self.killed_at = time.time()
        self.child.kill()
        self.facts.killed_after = self.killed_at - self.probe.began_at
        self.facts.missing_at_kill = missing
        self.screen.say(
            f"SIGKILL to process {self.child.pid}, with {missing} committed orders on their way to the file", "bold red"
        )

    def _come_back(self) -> None:
        self.child = self._start_pipeline()
        self._wait(lambda: self.child.is_running, RESTART_SECONDS, "come back", self._dead_line)
        self.facts.running_after = time.time() - self.killed_at
        self._catch_up(self._dead_line)
        now = time.time()
        self.facts.back_after = now - self.killed_at
        self.probe.mark_outage(self.killed_at, now)
        self.screen.say(f"current again, {self.facts.back_after:.1f} s after the kill", "bold green")

    def _dead_line(self) -> str:
        doing = "catching up" if self.child.is_running else "Spark is starting"
        return f"{doing}; the newest order in the file is {self.probe.age:.1f} s old"

    def _settle(self) -> None:
        self.facts.changes = self.workload.stop()
        self.screen.say(f"the workload has stopped after {self.facts.changes:,} changes")
        self._wait_until_current(lambda: "waiting until the file has everything")

    def _stop(self) -> None:
        seconds = self.child.stop()
        self.screen.say(f"the file has everything, and the pipeline is stopped (SIGTERM, {seconds:.1f} s)")

    def _compare(self) -> None:
        self.screen.show("comparing every row")
        began = time.monotonic()
        with closing(sqlite3.connect(f"{self.file.as_uri()}?mode=ro", uri=True)) as sink:
            for table in shop.TABLES:
                [count] = sink.execute(f"SELECT count(*) FROM {table}").fetchone()
                self.facts.rows[table] = (self.side.count(table), count)
                self.facts.differences += self.side.differences(self.file, table)
        self.facts.compared_after = time.monotonic() - began

    def _orders_missing(self) -> int:
        return self.side.orders_after(self.probe.newest_order)

    def _catch_up(self, line: Callable[[], str]) -> None:
        """Until the file follows closely. On a machine that is too busy for that, it is as close as it gets."""
        for _ in range(CATCH_UP_ROUNDS):
            began = time.monotonic()
            self._wait_until_current(line)
            if time.monotonic() - began < CLOSE_SECONDS:
                return

    def _wait_until_current(self, line: Callable[[], str]) -> None:
        """Until the sink has all that is committed now, durably."""
        self._wait(self.side.catching_up(self.pipeline), CURRENT_SECONDS, "become current", line)

    def _check_workload(self) -> None:
        if not self.workload.is_running:
            self.workload.stop()  # raises with the reason, if it did not end by our order

    def _wait(self, is_so: Callable[[], bool], seconds: float, what: str, line: Callable[[], str]) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._check_workload()
            self.child.listen()
            if is_so():
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"the pipeline did not {what} within {seconds:.0f} s: {self.child.last_words()}")
            self.screen.show(line())
            time.sleep(LOOK_SECONDS)
