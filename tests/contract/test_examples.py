"""The connectors in `examples/`: held to the contracts, and to a whole life of a pipeline each."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import tailrace
from tailrace import config, registry
from tailrace.errors import ConfigError
from tailrace.model.changes import Op
from tailrace.model.schema import TableSchema
from tailrace.pipeline.runner import Runner
from tailrace.sinks.base import ChangeSink
from tailrace.sources.base import Source
from tailrace.spark.session import open_session
from tailrace.testing.change_sink_contract import ChangeSinkContract
from tailrace.testing.source_changes import Change, Row, delete, insert, update
from tailrace.testing.source_contract import SourceContract, play, writing
from tailrace.views.lines import JsonLines

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

    def __init__(self, path: Path, outbox: str = "outbox") -> None:
        self._path, self._outbox = path, outbox
        with closing(self._open()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
            database.execute(
                f"CREATE TABLE {outbox}"
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
            query = f"INSERT INTO {self._outbox} (at_us, changes) VALUES (?, ?)"
            database.execute(query, [time.time_ns() // 1000, told])

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


def test_the_toy_source_has_a_setting_of_its_own_in_the_pipeline_file(tmp_path: Path) -> None:
    shop, file = Shop(tmp_path / "shop.db", "events"), tmp_path / "pipeline.yml"
    text = (
        f"{{name: toys, source: {{url: '{shop.url}', tables: ['*'], outbox: events}}, sinks: {{n: {{url: 'null:'}}}}}}"
    )
    file.write_text(text)
    source = registry.make_source(config.load(file))
    shop.change(insert(1, "a"), insert(2, "b"))
    assert source.current_position() == "1"
    assert [schema.table for schema in source.tables()] == ["main.items"], "the outbox is no table of the shop"
    file.write_text(text.replace("outbox: events", "outbox: Events!"))
    with pytest.raises(ConfigError, match=r"source\.outbox: expected text of another form") as caught:
        config.load(file)
    assert caught.value.hint == "name of the outbox: a-z and _"


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


class TestSmallSink(ChangeSinkContract):
    @pytest.fixture
    def make_sink(self, tmp_path: Path) -> Callable[..., ChangeSink]:
        from small_sink import AuditSink

        def make(name: str = "under_test") -> ChangeSink:
            source = config.Source("postgresql://h/d", ("*.*",))
            return AuditSink(
                config.Pipeline(name, source, {"audit": config.Sink(f"audit://{tmp_path}/audit.db")}), "audit"
            )

        return make

    @pytest.fixture
    def told(self, tmp_path: Path) -> Callable[[TableSchema], list[tuple[int, str, tuple[object, ...]]]]:
        def told(schema: TableSchema) -> list[tuple[int, str, tuple[object, ...]]]:
            found = [(place, op, json.loads(row)) for place, op, row in audited(tmp_path / "audit.db", schema.table)]
            return [(place, op, tuple(row.get(name) for name in schema.arrow.names)) for place, op, row in found]

        return told

    @pytest.fixture
    def inventory(self, tmp_path: Path) -> Callable[[], list[str]]:
        return lambda: sorted(str(path) for path in tmp_path.rglob("*"))


def audited(path: Path, table: str) -> list[tuple[int, str, str]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT place, op, row FROM audit WHERE tbl = ? ORDER BY place"
        return database.execute(query, [table]).fetchall()


@pytest.mark.parametrize(("file", "name"), [("small_sink.py", "AuditSink"), ("small_source.py", "LinesSource")])
def test_a_connector_of_ones_own_has_twenty_lines(file: str, name: str) -> None:
    text = (EXAMPLES / file).read_text().partition(f"class {name}")[2]
    assert 0 < len([line for line in text.splitlines() if line.strip()]) <= 20


def test_a_line_that_is_still_being_written_is_not_read_by_the_small_source(tmp_path: Path) -> None:
    from small_source import READINGS, LinesSource

    file = tmp_path / "readings.jsonl"
    file.write_text(f"{reading('insert', 1, 20.5)}\n{reading('insert', 2, 0.5)}")
    source = LinesSource(config.Pipeline("p", config.Source(f"lines://{file}", ("*.*",)), {}))
    capture = source.capture("0", 1, {}, None)
    capture.poll(0)
    taken = capture.take()
    assert taken is not None
    assert taken[1] == source.current_position() == str(file.read_bytes().index(b"\n") + 1)
    (changes,) = source.decode(taken[0], 1, taken[0].last)
    assert (changes.schema, changes.after.to_pylist()) == (READINGS, [{"sensor": 1, "value": 20.5}])


def test_the_small_source_is_streamed_and_acknowledged_in_a_program_of_ones_own(
    installed: None, tmp_path: Path
) -> None:
    file = tmp_path / "readings.jsonl"
    file.write_text(f"{reading('insert', 1, 20.5)}\n{reading('update', 1, 21.5)}\n")

    def taken(lines: int) -> list[tuple[str, object, object]]:
        found: list[tuple[str, object, object]] = []
        with tailrace.capture(f"lines://{file}", "main.*", checkpoint=tmp_path / "checkpoints") as stream:
            while len(found) < lines:
                batch = stream.poll(60)
                assert batch is not None
                found += [(str(event.op), event.key, event.after) for event in batch.events()]
                batch.ack()
            assert stream.poll(0) is None
        return found

    sensor = {"sensor": 1}
    assert taken(2) == [("insert", sensor, sensor | {"value": 20.5}), ("update", sensor, sensor | {"value": 21.5})]
    with open(file, "a") as lines:
        lines.write(f"{reading('delete', 1, 0)}\n")
    assert taken(1) == [("delete", sensor, None)]


def reading(op: str, sensor: int, value: float) -> str:
    return json.dumps({"op": op, "row": {"sensor": sensor, "value": value}})


# --- whole lives -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One for all: runs leave a session alone that was there before them. Its JVM has to know our path."""
    if (left := SparkContext._gateway) is not None:  # by another file of tests
        SparkContext._gateway = SparkContext._jvm = None
        left.shutdown()
        left.proc.stdin.close()
        left.proc.wait()
    source, sinks = config.Source("outbox:///none", ("*.*",)), {"none": config.Sink("null:")}
    session = open_session(config.Pipeline("toys", source, sinks, state=str(tmp_path_factory.mktemp("spark"))))
    yield session
    session.stop()


def run(folder: Path, source: str, sink: str) -> str:
    """`tailrace run --until-current`, and what it said."""
    sinks = {"sink": config.Sink(sink)}
    pipeline = config.Pipeline("toys", config.Source(source, ("*.*",)), sinks, state=str(folder / "state"))
    said = io.StringIO()
    assert Runner(pipeline, JsonLines(said)).run(until_current=True) == 0
    return said.getvalue()


@pytest.mark.spark
def test_the_toy_source_is_copied_and_followed_while_it_is_written_to(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    play(shop)
    replica = tmp_path / "replica.db"
    with writing(shop, first=100, seconds=0.05):
        run(tmp_path, shop.url, f"sqlite:///{replica}")
    shop.change(insert(50, "after the first run"), delete(9), update(51, None, old_id=2))
    said = run(tmp_path, shop.url, f"sqlite:///{replica}")
    with closing(sqlite3.connect(replica)) as database:
        found = database.execute("SELECT id, name FROM main_items ORDER BY id").fetchall()
    assert found == shop.rows()
    assert '"state": "snapshot"' not in said, "it went on, and did not begin again"


@pytest.mark.spark
@pytest.mark.server
def test_every_change_of_postgresql_is_in_the_toy_sink_once(
    spark: SparkSession, tmp_path: Path, postgres_url: str
) -> None:
    """The tables begin with their next change, and the state directory is disposable."""
    from toy_sink import read_changes

    sink = f"jsonlines://{tmp_path}/lines"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for table in ("items", "orders"):
            connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text)")
            connection.execute(f"INSERT INTO {table} VALUES (0, 'before')")
        run(tmp_path, postgres_url, sink)
        for life in (1, 2):
            for table in ("items", "orders"):
                connection.execute(f"INSERT INTO {table} VALUES ({life}, 'new')")
            connection.execute(f"UPDATE items SET name = 'changed' WHERE id = {life}")
            connection.execute(f"DELETE FROM items WHERE id = {life}")
            run(tmp_path, postgres_url, sink)
            shutil.rmtree(tmp_path / "state")

    def told(table: str) -> list[tuple[object, ...]]:
        rows = read_changes(tmp_path / "lines" / "toys", f"public.{table}")
        return [(row["_op"], row["id"], row["name"]) for row in rows]

    each = [[("insert", n, "new"), ("update", n, "changed"), ("delete", n, None)] for n in (1, 2)]
    assert told("items") == [change for changes in each for change in changes]
    assert told("orders") == [("insert", n, "new") for n in (1, 2)]


@pytest.mark.spark
def test_every_line_of_the_small_source_is_in_the_small_sink_once(spark: SparkSession, tmp_path: Path) -> None:
    """The state directory is disposable."""
    file = tmp_path / "readings.jsonl"
    file.write_text("")
    for life in (1, 2):
        with open(file, "a") as lines:
            lines.write(reading("insert", life, 0.5) + "\n" + reading("update", life, 1.5) + "\n")
        run(tmp_path, f"lines://{file}", f"audit://{tmp_path}/audit.db")
        shutil.rmtree(tmp_path / "state")
    found = [(op, json.loads(row)["sensor"]) for _, op, row in audited(tmp_path / "audit.db", "main.readings")]
    assert found == [("insert", 1), ("update", 1), ("insert", 2), ("update", 2)]
