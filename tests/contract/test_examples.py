"""The connectors in `examples/`: held to the contracts, and to a whole life of a pipeline each."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tailrace import config
from tailrace.model.changes import Op
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import ChangeSink
from tailrace.sources.base import Source
from tailrace.testing.change_sink_contract import ChangeSinkContract
from tailrace.testing.source_changes import Change, Row
from tailrace.testing.source_contract import SourceContract

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As `pip install ./examples` does it: the modules on the path, and the entry points that their file declares."""
    project = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    (site / "toys-0.dist-info").mkdir()
    (site / "toys-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = project["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (site / "toys-0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        added = [str(EXAMPLES), str(site)]
        patch.setattr(sys, "path", [*added, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join([*added, os.environ.get("PYTHONPATH", "")]))
        yield


class Shop:
    """An application that keeps an outbox."""

    table = "main.items"

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
            database.execute(
                "CREATE TABLE outbox"
                " (id INTEGER PRIMARY KEY AUTOINCREMENT, at_us INTEGER NOT NULL, changes TEXT NOT NULL)"
            )

    @property
    def url(self) -> str:
        return f"outbox://{self._path}"

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)

    def change(self, *changes: Change) -> None:
        with closing(self._open()) as database, database:
            database.execute("PRAGMA synchronous = OFF")
            for op, id_, name, old_id in changes:
                if op is not Op.INSERT:
                    database.execute("DELETE FROM items WHERE id = ?", [id_ if old_id is None else old_id])
                if op is not Op.DELETE:
                    database.execute("INSERT INTO items VALUES (?, ?)", [id_, name])
            told = json.dumps([_event(change) for change in changes])
            database.execute("INSERT INTO outbox (at_us, changes) VALUES (?, ?)", [time.time_ns() // 1000, told])

    def rows(self) -> list[Row]:
        with closing(self._open()) as database:
            return database.execute("SELECT id, name FROM items ORDER BY id").fetchall()


def _event(change: Change) -> list[object]:
    row = {"id": change.id} if change.op is Op.DELETE else {"id": change.id, "name": change.name}
    old = [] if change.old_id is None else [{"id": change.old_id}]
    return [change.op.name.lower(), "items", row, *old]


class TestToySource(SourceContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Shop:
        return Shop(tmp_path / "shop.db")

    @pytest.fixture
    def make_source(self, database: Shop) -> Callable[[], Source]:
        return lambda: source_of(database)

    @pytest.fixture
    def other_source(self, tmp_path: Path) -> Source:
        return source_of(Shop(tmp_path / "other.db"))


def source_of(shop: Shop) -> Source:
    from toy_source import OutboxSource

    return OutboxSource(config.Pipeline("under_test", config.Source(shop.url, ("*.*",)), {}))


class TestToySink(ChangeSinkContract):
    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> Callable[..., ChangeSink]:
        from toy_sink import JsonLinesSink

        def make(name: str = "under_test") -> ChangeSink:
            source = config.Source("postgresql://h/d", ("*.*",))
            sinks = {"lines": config.Sink(f"jsonlines://{tmp_path}/lines")}
            return JsonLinesSink(config.Pipeline(name, source, sinks), "lines")

        return make

    @pytest.fixture
    def told(self, tmp_path: Path) -> Callable[[TableSchema], list[tuple[int, str, tuple[object, ...]]]]:
        from toy_sink import read_changes

        def told(schema: TableSchema) -> list[tuple[int, str, tuple[object, ...]]]:
            found = read_changes(tmp_path / "lines" / "under_test", schema.table)
            names = schema.arrow.names
            return [(row["_offset"], row["_op"], tuple(row.get(name) for name in names)) for row in found]

        return told

    @pytest.fixture
    def inventory(self, tmp_path: Path) -> Callable[[], list[str]]:
        return lambda: sorted(str(path) for path in tmp_path.rglob("*"))
