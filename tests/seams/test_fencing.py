"""Who may write to a sink: the latest run, and nobody else. A run that slept through a take-over writes nothing more.

The zombie has changes in its own log that it has not applied; by the time it wakes, the sinks have newer ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import RunningPipeline, captured, position_of, write_pipeline
from support.sinks import (
    SinkDatabase,
    SinkView,
    assert_same_rows,
    freeze_between_commits,
    wait_until_current,
)
from support.watching import Watcher
from tailrace import config, registry
from tailrace.model.lifecycle import TableState
from tailrace.sources.postgres.positions import parse_lsn, reached
from tailrace.testing.postgres import execute, free_slot
from tailrace.testing.sink_changes import LOOSE, chunk, status, table_of

pytestmark = [pytest.mark.spark, pytest.mark.server]

SLOT = "tailrace_under_test"
ITEMS = ("id", "n", "t")
EVENTS = ("n", "t")


class Watermarks(Watcher):
    """Reads the sinks' watermarks all the time, in a thread; `moved_back` names the sinks where one went back."""

    def __init__(self, file: Path, sinks: dict[str, SinkDatabase]) -> None:
        super().__init__()
        self._views = {name: SinkView(file, name) for name in sinks}
        self._furthest = dict.fromkeys(sinks, 0)
        self.moved_back: dict[str, str] = {}

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            for name, view in self._views.items():
                mark = view.state().watermark
                if mark is None or not mark.position:
                    continue
                place = parse_lsn(mark.position)
                if place < self._furthest[name]:
                    self.moved_back[name] = mark.position
                self._furthest[name] = max(place, self._furthest[name])


def assert_equal(url: str, sinks: dict[str, SinkDatabase]) -> None:
    for sink in sinks.values():
        assert_same_rows(url, sink, "items", ITEMS, "id")
        assert_same_rows(url, sink, "events", EVENTS, "n")


def test_a_run_that_wakes_after_another_took_over_ends_and_writes_nothing(
    postgres_url: str, sinks: dict[str, SinkDatabase], tmp_path: Path
) -> None:
    execute(
        postgres_url,
        "CREATE TABLE items (id int PRIMARY KEY, n int, t text)",
        "CREATE TABLE events (n int, t text)",
        "ALTER TABLE events REPLICA IDENTITY FULL",
        "INSERT INTO items SELECT n, 0, 'first' FROM generate_series(1, 100) n",
        "INSERT INTO events SELECT n, 'first' FROM generate_series(1, 10) n",
    )
    urls = {name: sink.url for name, sink in sinks.items()}
    first = write_pipeline(tmp_path, postgres_url, urls, state=str(tmp_path / "first"))
    second = write_pipeline(_made(tmp_path / "other"), postgres_url, urls, state=str(tmp_path / "second"))
    with RunningPipeline(first) as zombie:
        zombie.wait_until_live("public.items", "public.events")
        wait_until_current(zombie, first, postgres_url, sinks)
        freeze_between_commits(zombie, sinks.values())
        execute(
            postgres_url,
            "UPDATE items SET n = 1, t = 'old'",
            "DELETE FROM items WHERE id = 7",
            "INSERT INTO events SELECT n, 'old' FROM generate_series(11, 20) n",
        )
        end = position_of(postgres_url)
        zombie.wait_for(lambda: reached(captured(first), end), "the zombie's log to have the old changes")
        zombie.freeze()
        free_slot(postgres_url, SLOT)
        with RunningPipeline(second) as successor, Watermarks(second, sinks) as watermarks:
            execute(
                postgres_url,
                "UPDATE items SET n = 2, t = 'new'",
                "INSERT INTO items VALUES (7, 2, 'again')",
                "DELETE FROM events WHERE n > 15",
            )
            wait_until_current(successor, second, postgres_url, sinks)
            assert_equal(postgres_url, sinks)
            zombie.thaw()
            successor.wait_for(
                lambda: watermarks.moved_back or zombie.process.poll() is not None, "the zombie to end or to write"
            )
            assert not watermarks.moved_back
            assert zombie.ended() == 1, zombie.output
            assert "another run" in zombie.output
            assert "Traceback" not in zombie.output
            execute(postgres_url, "UPDATE items SET n = 3 WHERE id < 50", "INSERT INTO events VALUES (21, 'last')")
            wait_until_current(successor, second, postgres_url, sinks)
            assert_equal(postgres_url, sinks)
            assert successor.stop() == 0, successor.output
        assert not watermarks.moved_back


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "sqlite"])
def test_two_attempts_of_one_chunk_at_the_same_time_load_its_rows_once(
    kind: str, sinks: dict[str, SinkDatabase]
) -> None:
    """As when Spark begins a task anew whose answer was lost. Without a key, nothing else tells its rows apart."""
    source = config.Source("postgresql://localhost/none", ("public.*",))
    pipeline = config.Pipeline("under_test", source, {kind: config.Sink(sinks[kind].url)})
    both = threading.Barrier(2)

    def rows() -> Iterator[Any]:
        """Each attempt has begun before the other can have ended; a sink that lets in one at a time is not held."""
        with suppress(threading.BrokenBarrierError):
            both.wait(3)
        yield table_of(LOOSE, [(n, "a") for n in range(3)])

    with closing(registry.make_sink(pipeline, kind)) as sink:
        sink.begin_snapshot(status(LOOSE, TableState.SNAPSHOT), [chunk(LOOSE)], clear=True)
        with ThreadPoolExecutor(2) as pool:
            attempts = [pool.submit(sink.load_chunk, LOOSE, chunk(LOOSE), rows()) for _ in range(2)]
            problems = [attempt.exception() for attempt in attempts]
        assert None in problems, problems
        found = sorted((int(x), y) for batch in sink.read_table(LOOSE) for x, y in batch)
        assert found == [(0, "a"), (1, "a"), (2, "a")]
        [mark] = sink.read_state().chunks[LOOSE.table]
        assert (mark.is_loaded, mark.rows) == (True, 3)
