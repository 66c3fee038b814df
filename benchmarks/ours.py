"""tailrace's side of each benchmark: thin adapters onto the product, which the suite calls and times.

Each returns its own seconds, without what its peer does not pay either: starting a JVM or a Spark session.
"""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.backlog import PUBLICATION, Backlog
from tailrace import config, events, registry
from tailrace.log.reader import LogReader
from tailrace.model.frames import Frames
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.watermark import Watermark
from tailrace.pipeline.capture_process import Order, Progress
from tailrace.pipeline.capture_supervisor import CaptureSupervisor
from tailrace.pipeline.runner import Runner
from tailrace.sinks.base import Batch, Snapshots
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.describing import described_schema
from tailrace.spark.registering import register
from tailrace.spark.session import open_session
from tailrace.state.layout import LOG
from tailrace.state.storage import Storage
from tailrace.views.lines import JsonLines


def prepare_streams(url: str) -> None:
    """The backlog's table is there and empty: nothing needs to be brought to life before it is filled."""


def capture(backlog: Backlog, slot: str, log: Path) -> float:
    """Capture the whole backlog into a change log in `log`."""
    pipeline = _pipeline(backlog.server.url, "null://", log, slot=slot)
    with _capturing(pipeline) as progress:
        began = time.perf_counter()
        _wait(lambda: (p := progress()) is not None and _lsn(p.received) >= _lsn(backlog.end_lsn))
        return time.perf_counter() - began


def decode(messages: Sequence[bytes]) -> float:
    """Decode messages, packed beforehand as the change log holds them, into typed Arrow columns."""
    frames = _frames(messages)
    list(pgoutput.decode(frames, 1, min(frames.last, 50_000)))
    began = time.perf_counter()
    rows = sum(len(changes) for changes in pgoutput.decode(frames, 1, frames.last))
    seconds = time.perf_counter() - began
    assert rows
    return seconds


def stream_to_null(backlog: Backlog, slot: str, state: Path) -> float:
    """Capture, decode and net the whole backlog, and write nothing."""
    return _stream(backlog, slot, state, "null://")


def stream_to_sqlite(backlog: Backlog, slot: str, state: Path, replica: Path) -> float:
    """The whole backlog into table `measured` of the SQLite file `replica`."""
    return _stream(backlog, slot, state, f"sqlite:///{replica}")


def stream_to_postgres(backlog: Backlog, slot: str, state: Path, target_url: str) -> float:
    """The whole backlog into table `measured` of another PostgreSQL server."""
    return _stream(backlog, slot, state, target_url)


def stream_to_kafka(backlog: Backlog, slot: str, state: Path, url: str, prefix: str) -> float:
    """The whole backlog into topic `<prefix>.public.measured`, in Debezium's envelope."""
    return _stream(backlog, slot, state, url, {"prefix": prefix})


def snapshot_to_null(url: str, table: str, connections: int) -> float:
    """Read a table as a snapshot does, to Arrow, by `connections` tasks, and write nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return _snapshot(url, table, connections, Path(folder), "null://")


def snapshot_to_sqlite(url: str, table: str, connections: int, state: Path, replica: Path) -> float:
    """The snapshot of a table into the SQLite file `replica`."""
    return _snapshot(url, table, connections, state, f"sqlite:///{replica}")


def snapshot_to(url: str, table: str, connections: int, state: Path, target_url: str) -> float:
    """The snapshot of a table into another server."""
    return _snapshot(url, table, connections, state, target_url)


@contextlib.contextmanager
def live_pipeline(url: str, table: str, state: Path, sink: str, **own: object) -> Iterator[None]:
    """A pipeline that is live, from one table into a sink, for as long as the block runs."""
    from support.pipelines import RunningPipeline, write_pipeline

    file = write_pipeline(state, url, {"sink": {"url": sink, **own}}, tables=[f"public.{table}"])
    pipeline = RunningPipeline(file)
    try:
        pipeline.wait_until_live()
        yield
    finally:
        pipeline.stop()


@contextlib.contextmanager
def capture_process(url: str, publication: str, slot: str, log: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """A running capture: its process id, and a function that returns when it has all that was committed before."""
    pipeline = _pipeline(url, "null://", log, slot=slot, publication=publication)
    source = registry.make_source(pipeline)
    supervisor = CaptureSupervisor(
        Order(pipeline, source.prepare(lambda _: None, lambda: None), source.identify()), lambda *_, **__: None
    )
    supervisor.start()
    _wait(lambda: supervisor.progress is not None)

    def wait_until_current() -> None:
        target = _lsn(source.current_position())
        _wait(lambda: supervisor.progress is not None and _lsn(supervisor.progress.received) >= target)

    try:
        assert supervisor.pid is not None
        yield supervisor.pid, wait_until_current
    finally:
        supervisor.stop()


def _pipeline(
    url: str,
    sink: str,
    state: Path,
    *,
    slot: str,
    publication: str = PUBLICATION,
    own: Mapping[str, object] | None = None,
) -> config.Pipeline:
    source = config.Source(url, ("public.measured",), own={"slot": slot, "publication": publication})
    return config.Pipeline("bench", source, {"sink": config.Sink(sink, own=dict(own or {}))}, state=str(state))


@contextlib.contextmanager
def _capturing(pipeline: config.Pipeline) -> Iterator[Callable[[], Progress | None]]:
    source: Any = registry.make_source(pipeline)
    supervisor = CaptureSupervisor(
        Order(pipeline, source.prepare(lambda _: None, lambda: None), source.identify()), lambda *_, **__: None
    )
    supervisor.start()
    try:
        _wait(lambda: LogReader(Storage(pipeline.state).folder(LOG)).identity() is not None)
        yield lambda: supervisor.progress
    finally:
        supervisor.stop()


def _stream(backlog: Backlog, slot: str, state: Path, sink_url: str, own: Mapping[str, object] | None = None) -> float:
    """Everything comes by the stream, from the slot's beginning."""
    pipeline = _pipeline(backlog.server.url, sink_url, state, slot=slot, own=own)
    source: Any = registry.make_source(pipeline)
    return run_until_current(pipeline, source.prepare(lambda _: None, lambda: None))


def run_until_current(pipeline: config.Pipeline, start: str) -> float:
    """All that follows `start`, into a sink that believes that its (empty) tables are live since then."""
    source: Any = registry.make_source(pipeline)
    _warm_spark(pipeline)
    mark = Watermark("before", 0, start)
    sink = registry.make_sink(pipeline, "sink")
    assert isinstance(sink, Snapshots)
    for schema in source.tables():
        sink.begin_snapshot(TableStatus(schema.table, TableState.LIVE, mark, schema), [], clear=True)
    sink.commit(Batch(watermark=mark), lambda *_: None)
    sink.close()
    view = _Clock()
    Runner(pipeline, view).run(until_current=True)
    return view.seconds


class _Clock(JsonLines):
    """Runs until the sink has all. A polite shutdown proves nothing, and no peer is charged for its own."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self._began, self._ended = time.perf_counter(), 0.0

    def say(self, event: events.Event) -> None:
        if isinstance(event, events.Current):
            self._ended = time.perf_counter()
        super().say(event)

    @property
    def seconds(self) -> float:
        assert self._ended, "the run was never current"
        return self._ended - self._began


def _snapshot(url: str, table: str, connections: int, state: Path, sink_url: str) -> float:
    own = {"slot": "snapshot_bench", "publication": "snapshot_bench"}
    source_settings = config.Source(url, (f"public.{table}",), own=own)
    pipeline = config.Pipeline("bench", source_settings, {"sink": config.Sink(sink_url)}, state=str(state))
    return copy_tables(pipeline, connections)


def copy_tables(pipeline: config.Pipeline, connections: int) -> float:
    """From the exported snapshot to the last chunk loaded: what the peers do, and the marks."""
    from tailrace.pipeline.follower import SinkFollower
    from tailrace.pipeline.table_supervisor import TableSupervisor

    spark = _warm_spark(pipeline, connections)
    source = registry.make_source(pipeline)
    sink = registry.make_sink(pipeline, "sink")
    try:
        start = source.prepare(lambda _: None, lambda: None)
        follower = SinkFollower(spark, pipeline, "sink", source, sink, "bench", lambda *_, **__: None)
        sink.claim("bench")
        follower.watermark = Watermark("bench", 0, start)
        keeper = TableSupervisor(follower)
        began = time.perf_counter()
        keeper.copy_tables()
        return time.perf_counter() - began
    finally:
        sink.close()
        source.drop()


def _warm_spark(pipeline: config.Pipeline, tasks: int = 2) -> Any:
    """A session whose Python workers are up, as Debezium's JVM is."""
    Path(pipeline.state).mkdir(parents=True, exist_ok=True)
    spark = open_session(pipeline)
    register(spark)

    def touch(_: int) -> int:
        import tailrace.pipeline.follower
        import tailrace.sinks.kafka
        import tailrace.sinks.sql.sqlite.dialect
        import tailrace.sources.mysql.source
        import tailrace.sources.postgres.source  # noqa: F401

        time.sleep(0.5)
        return 0

    spark.sparkContext.parallelize(range(tasks), tasks).map(touch).collect()
    return spark


def _frames(messages: Sequence[bytes]) -> Frames:
    """What capture would have written for these messages."""
    from benchmarks.backlog import COLUMNS, TABLE
    from tailrace.model.frames import Definition
    from tailrace.testing.postgres import PostgresServer

    buffer, bounds = pgoutput.pack(messages)
    kinds = pgoutput.kinds_of(buffer, bounds, 1)
    transactions, _ = pgoutput.index_transactions(buffer, bounds, kinds, 1, None)
    relation = pgoutput.parse_relation(next(bytes(m) for m in messages if m[:1] == b"R"), 1)
    with PostgresServer.start() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
        schema, _ = described_schema(connection, relation, 0, {}, None, 0)
    schema = msgspec.structs.replace(schema, key=("id",))
    return Frames(
        pgoutput.KIND, 1, buffer, bounds, transactions, (Definition(relation.id, 0, schema),), {schema.table: 1}
    )


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def _wait(condition: Callable[[], object], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.005)
