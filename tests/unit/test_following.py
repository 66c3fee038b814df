"""A sink that follows the log, without Spark: what it does after a commit whose answer was lost, or a restored backup.

The table has no key, so that whatever is applied twice, or not at all, shows.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from support.messages import Feed, insert, transaction
from tailrace import config, events
from tailrace.errors import PositionLost, SinkChanged, SinkRejected, SinkUnavailable, SourceUnavailable, StateError
from tailrace.log.reader import LogReader, Slice
from tailrace.log.writer import LogWriter
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import StoredAs, TableState, TableStatus
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.pipeline import staging
from tailrace.pipeline import table_supervisor as tables
from tailrace.pipeline.follower import SinkFollower
from tailrace.pipeline.table_supervisor import TableSupervisor
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.sql.sqlite.dialect import SqliteSink
from tailrace.sources.base import Published, TableFacts, TableLocked
from tailrace.sources.postgres import pgoutput, positions
from tailrace.sources.postgres.source import PostgresSource
from tailrace.spark.expressions import Expressions
from tailrace.state import requests
from tailrace.state.storage import Storage
from tailrace.tasks.stage import ApplyPlan, PartResult, TablePlan, stage_part

EVENTS = TableSchema("public", "events", (Column("n", ColumnType(Kind.INT64, "bigint")),), (), Identity.FULL, 1)
OTHERS = TableSchema("public", "others", (Column("n", ColumnType(Kind.INT64, "bigint")),), (), Identity.FULL, 2)


class Source:
    """The part of the PostgreSQL source that is needed here; it has no server."""

    decode = staticmethod(pgoutput.decode)
    reached = staticmethod(positions.reached)

    end_positions = PostgresSource.end_positions


class Context:
    defaultParallelism = 1  # noqa: N815 - Spark's name


class Session:
    sparkContext = Context()  # noqa: N815 - Spark's name


class Following:
    """One SQLite sink behind one log. Rows are numbered as they come."""

    def __init__(self, folder: Path) -> None:
        source = config.Source("postgresql://localhost/none", ("public.*",))
        sinks = {"replica": config.Sink(f"sqlite:///{folder}/replica.db")}
        self.pipeline = config.Pipeline("under_test", source, sinks, state=str(folder / "state"))
        self.path = folder / "replica.db"
        self.writer = LogWriter.create(Storage(self.pipeline.state).folder("log"), None, "0/100")
        self.feed = Feed(self.writer, {1: EVENTS, 2: OTHERS})
        self.sink = SqliteSink(self.pipeline, "replica")
        self.sink.claim("a run")
        self.count = 0
        self.follower = self.begin()

    def begin(self) -> SinkFollower:
        """As a run does at its start."""
        spark: Any = Session()
        log_id = self.writer.identity.id
        self.follower = SinkFollower(spark, self.pipeline, "replica", Source(), self.sink, log_id, lambda _: None)
        self.follower.load_state("0/100")
        self.follower.start()
        return self.follower

    def happen(self) -> int:
        """A transaction with a row for each table; the offset of its end."""
        self.count += 1
        n = str(self.count)
        self.feed.append(*transaction(insert(1, n), insert(2, n), xid=700 + self.count, at=0x1000 * self.count))
        return self.writer.end

    def copied(self, *schemas: TableSchema) -> list[TableStatus]:
        """The tables, empty and copied, at the beginning of the log."""
        for schema in schemas:
            status = TableStatus(schema.table, TableState.SNAPSHOT, self.follower.watermark, schema)
            self.follower.tables[schema.table] = self.sink.begin_snapshot(status, [], clear=True)
            self.follower.write(status.move(TableState.CATCH_UP))
        return [self.follower.tables[schema.table] for schema in schemas]

    def follow(self, after: int | None = None) -> None:
        """A micro-batch: all that the log has behind an offset, which is the sink's place."""
        log = LogReader(self.writer.storage)
        frame: Any = log.slices(self.follower.watermark.offset if after is None else after, log.end())
        self.follower._on_batch(frame, 0)

    def step(self, schema: TableSchema, last: int, *, finish: bool = False) -> None:
        self.follower.make_sure()
        self.follower.catch_up_to([self.follower.tables[schema.table]], last, finish=finish)

    def lose_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next commit is done, and nobody is told."""
        commit = self.sink.commit

        def lost(*arguments: Any) -> int:
            monkeypatch.setattr(self.sink, "commit", commit)
            commit(*arguments)
            raise SinkUnavailable("the connection is gone")

        monkeypatch.setattr(self.sink, "commit", lost)

    def rows(self, schema: TableSchema = EVENTS) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [n for (n,) in connection.execute(f"SELECT n FROM {schema.name} ORDER BY n")]


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    def staged(plan: ApplyPlan, slices: list[Slice]) -> list[PartResult]:
        return [stage_part(plan, 0, slices)] if slices else []

    monkeypatch.setattr(staging, "stage_range", lambda spark, plan, slices, most: staged(plan, slices))
    monkeypatch.setattr(SinkFollower, "_query", lambda _: None)
    monkeypatch.setattr(staging, "stage_batch", lambda frame, plan: staged(plan, frame))
    found = Following(tmp_path)
    yield found
    found.sink.close()
    found.writer.close()


def test_a_step_of_a_catch_up_whose_answer_was_lost_is_not_applied_twice(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.copied(EVENTS)
    end = following.happen()
    following.lose_an_answer(monkeypatch)
    with pytest.raises(SinkUnavailable):
        following.step(EVENTS, end)
    following.step(EVENTS, following.happen())
    assert following.rows() == [1, 2]


def test_a_table_that_became_live_and_nobody_was_told_misses_nothing(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.copied(EVENTS)
    following.happen()
    following.follow()
    following.lose_an_answer(monkeypatch)
    with pytest.raises(SinkUnavailable):
        following.step(EVENTS, following.follower.watermark.offset, finish=True)
    following.happen()
    following.follow()
    following.begin()  # the run died, and another goes on
    following.happen()
    following.follow()
    assert following.rows() == [1, 2, 3]


def live_in_another_log(following: Following) -> None:
    """The table is live; then the log is made anew, and begins before what the sink has."""
    following.copied(EVENTS)
    following.happen()
    following.follow()
    following.step(EVENTS, following.follower.watermark.offset, finish=True)
    following.writer.close()
    shutil.rmtree(following.writer.storage.path)
    following.writer = LogWriter.create(following.writer.storage, None, "0/100")
    following.feed = Feed(following.writer, {1: EVENTS, 2: OTHERS})


def test_a_sink_that_is_asked_where_it_is_does_not_go_on_in_another_log(following: Following) -> None:
    """That one may not be as far as the sink is: what it tells next, the sink has."""
    live_in_another_log(following)
    with pytest.raises(StateError, match="was made anew while the pipeline ran"):
        following.follower.load_state("0/100")


def test_what_was_planned_is_not_read_from_another_log(following: Following) -> None:
    live_in_another_log(following)
    for _ in range(3):
        following.happen()
    with pytest.raises(StateError, match="was made anew while the pipeline ran"):
        following.follow()
    with pytest.raises(StateError, match="was made anew while the pipeline ran"):
        following.follower.catch_up_to(following.copied(OTHERS), following.writer.end, finish=True)
    assert following.rows() == [1]


def test_the_first_table_to_be_live_does_not_speak_for_the_second(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is first writes the sink's own place, which is where the second would write it too."""
    following.copied(EVENTS, OTHERS)
    end = following.happen()
    following.follower.watermark = following.follower.log.place() or following.follower.watermark
    following.lose_an_answer(monkeypatch)
    with pytest.raises(SinkUnavailable):
        following.step(EVENTS, end, finish=True)
    following.step(OTHERS, end, finish=True)
    assert following.rows(OTHERS) == [1]
    assert following.sink.read_state().tables[OTHERS.table].state is TableState.LIVE


def test_a_step_does_not_begin_where_the_sink_is_not(following: Following, tmp_path: Path) -> None:
    """The sink was put back from a backup in the midst of a catch-up."""
    following.copied(EVENTS)
    following.step(EVENTS, following.happen())
    backed_up(following.path, tmp_path / "backup.db")
    following.step(EVENTS, following.happen())
    put_back(tmp_path / "backup.db", following.path)
    end = following.happen()
    for _ in range(2):  # it is noticed once by the file, and once by what it says
        with pytest.raises((SinkUnavailable, SinkChanged)):
            following.follower.catch_up_to([following.follower.tables[EVENTS.table]], end, finish=False)
    following.step(EVENTS, end)
    assert following.rows() == [1, 2, 3]


def test_a_micro_batch_does_not_begin_where_the_sink_is_not(following: Following, tmp_path: Path) -> None:
    """The sink was put back from a backup, and somebody else has asked it where it is by now."""
    following.copied(EVENTS)
    following.happen()
    following.follow()
    following.step(EVENTS, following.follower.watermark.offset, finish=True)
    backed_up(following.path, tmp_path / "backup.db")
    following.happen()
    following.follow()
    put_back(tmp_path / "backup.db", following.path)
    with pytest.raises(SinkUnavailable):
        following.follower.write(following.follower.tables[EVENTS.table])
    following.follower.make_sure()
    end = following.happen()
    with pytest.raises(SinkChanged):
        following.follow(after=end - 4)
    following.follower.start()
    following.follow()
    assert following.rows() == [1, 2, 3]


def test_a_sink_that_lost_its_last_commits_is_asked_where_it_is(following: Following, tmp_path: Path) -> None:
    """As a server does that crashes with `innodb_flush_log_at_trx_commit = 0`, or whose standby was behind.

    Its place is the same without them, and nobody was writing when it went away.
    """
    following.copied(EVENTS)
    following.happen()
    following.follow()
    backed_up(following.path, tmp_path / "backup.db")
    following.step(EVENTS, following.follower.watermark.offset, finish=True)
    following.sink.close()
    put_back(tmp_path / "backup.db", following.path)
    following.happen()
    with pytest.raises(SinkChanged, match="2 commits of this run, and had 3"):
        following.follow()
    following.follower.make_sure()
    following.follow()
    following.step(EVENTS, following.follower.watermark.offset, finish=True)
    assert following.rows() == [1, 2]


@pytest.mark.parametrize("lost", ["chunk", "plan"])
def test_a_copy_that_the_sink_lost_after_it_was_looked_at_does_not_catch_up(
    following: Following, tmp_path: Path, lost: str
) -> None:
    """Between the look at its chunks and the status that says that all are loaded there is time for a crash."""
    mark = ChunkMark(0, Chunk(EVENTS.table, 0, 0))
    status = TableStatus(EVENTS.table, TableState.SNAPSHOT, following.follower.watermark, EVENTS)
    if lost == "plan":
        backed_up(following.path, tmp_path / "backup.db")
    following.follower.tables[EVENTS.table] = following.sink.begin_snapshot(status, [mark], clear=True)
    if lost == "chunk":
        backed_up(following.path, tmp_path / "backup.db")
    assert following.sink.load_chunk(EVENTS, mark, iter([pa.RecordBatch.from_pydict({"n": [1]})])) == 1
    following.sink.close()
    put_back(tmp_path / "backup.db", following.path)
    with pytest.raises(SinkChanged, match=r"the copy of public\.events is not in the sink"):
        following.follower.write(status.move(TableState.CATCH_UP))
    following.follower.make_sure()
    with pytest.raises(SinkChanged):
        following.follower.write(status.move(TableState.CATCH_UP))


def test_what_was_planned_while_an_answer_was_lost_is_not_written(following: Following, tmp_path: Path) -> None:
    """Somebody waits with it for the sink, while another's commit fails, and what it was planned upon is lost."""
    following.copied(EVENTS)
    backed_up(following.path, tmp_path / "backup.db")
    following.step(EVENTS, following.happen(), finish=True)
    planned = following.follower.tables[EVENTS.table]
    put_back(tmp_path / "backup.db", following.path)
    with pytest.raises(SinkUnavailable):
        following.follow()
    with pytest.raises(SinkChanged, match="what was planned"):
        following.follower.write(planned)
    assert following.sink.read_state().tables[EVENTS.table].state is TableState.CATCH_UP


def test_a_table_whose_failure_the_sink_has_lost_does_not_stay_live(following: Following, tmp_path: Path) -> None:
    following.copied(EVENTS)
    following.step(EVENTS, 0, finish=True)
    backed_up(following.path, tmp_path / "backup.db")
    following.follower.write(following.follower.tables[EVENTS.table].aside(TableState.FAILED, "for a test"))
    following.sink.close()
    put_back(tmp_path / "backup.db", following.path)
    following.happen()
    with pytest.raises(SinkChanged, match="commits"):
        following.follow()
    following.follower.make_sure()
    following.follow()
    assert following.rows() == [1]


def test_a_table_that_can_not_be_read_at_the_moment_catches_up_later_and_holds_up_no_other(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.copied(EVENTS, OTHERS)
    for schema in (EVENTS, OTHERS):
        following.step(schema, 0, finish=True)
    error = TableLocked("public.events is locked by somebody", table=EVENTS.table)

    def locked(plan: ApplyPlan, slices: list[Slice]) -> list[PartResult]:
        result = stage_part(msgspec.structs.replace(plan, tables={OTHERS.table: TablePlan()}), 0, slices)
        return [msgspec.structs.replace(result, failed={EVENTS.table: error})]

    with monkeypatch.context() as patched:
        patched.setattr(staging, "stage_batch", lambda frame, plan: locked(plan, frame))
        patched.setattr(staging, "stage_range", lambda spark, plan, slices, most: locked(plan, slices))
        first = following.happen()
        following.follow()
        waiting = following.sink.read_state().tables[EVENTS.table]
        assert (waiting.state, waiting.watermark.offset, waiting.reason) == (TableState.CATCH_UP, 0, str(error))
        assert (following.rows(), following.rows(OTHERS)) == ([], [1])
        with pytest.raises(TableLocked):
            following.step(EVENTS, first)
    following.happen()
    following.follow()
    assert (following.rows(), following.rows(OTHERS)) == ([], [1, 2])
    following.begin()
    following.step(EVENTS, following.follower.watermark.offset, finish=True)
    assert following.rows() == [1, 2]
    assert following.sink.read_state().tables[EVENTS.table].state is TableState.LIVE


def test_a_sink_with_a_live_table_and_without_a_place_is_refused(following: Following) -> None:
    following.copied(EVENTS)
    following.step(EVENTS, following.happen(), finish=True)
    with closing(sqlite3.connect(following.path)) as connection, connection:
        connection.execute("DELETE FROM _tailrace_watermarks")
    with pytest.raises(SinkChanged, match=r"the watermark of .* is gone"):
        following.follow()
    with pytest.raises(PositionLost, match=r"public\.events"):
        following.begin()


def test_a_sink_put_back_to_before_the_log_begins_is_refused(following: Following, tmp_path: Path) -> None:
    """A log that was made anew begins at 1 again: that is not where the sink is."""
    following.copied(EVENTS)
    following.step(EVENTS, following.happen())
    following.happen()
    following.follow()
    following.writer.close()
    shutil.rmtree(tmp_path / "state" / "log")
    following.writer = LogWriter.create(Storage(following.pipeline.state).folder("log"), None, "0/9000")
    with pytest.raises(PositionLost, match="begins at 0/9000"):
        following.begin()


def test_a_request_that_comes_while_a_table_is_copied_is_not_forgotten(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "REQUEST_SECONDS", 0.0)
    following.copied(EVENTS)
    following.step(EVENTS, 0, finish=True)
    keeper = TableSupervisor(following.follower)
    keeper.copies._taken.add(EVENTS.table)
    requests.ask(following.pipeline.state, requests.CopyAgain("replica", EVENTS.table))
    keeper._hear_requests()
    assert following.follower.tables[EVENTS.table].state is TableState.LIVE
    keeper.copies._taken.clear()
    keeper._hear_requests()
    assert following.follower.tables[EVENTS.table].state is TableState.SNAPSHOT
    assert requests.waiting(following.pipeline.state, "replica") == {}


def test_a_run_is_not_settled_before_it_has_heard_what_was_asked_of_it(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would end, being current, with a copy still to be made."""
    following.copied(EVENTS)
    following.step(EVENTS, 0, finish=True)
    keeper = TableSupervisor(following.follower)
    monkeypatch.setattr(keeper.follower.source, "publish", lambda _: Published(), raising=False)
    monkeypatch.setattr(keeper.follower.source, "facts", list, raising=False)
    monkeypatch.setattr(keeper, "_miss", lambda _: None)
    requests.ask(following.pipeline.state, requests.CopyAgain("replica", EVENTS.table))
    states = []
    heard = keeper._hear_requests
    monkeypatch.setattr(keeper, "_hear_requests", lambda: (states.append(keeper.is_settled), heard()))
    keeper._step()
    assert (states, keeper.is_settled, following.follower.is_live) == ([False], True, False)


def test_a_run_is_not_settled_while_a_table_has_a_column_that_the_stream_has_not_told(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would end, being current, without the column."""
    following.copied(EVENTS)
    following.step(EVENTS, 0, finish=True)
    more = msgspec.structs.replace(EVENTS, columns=(*EVENTS.columns, Column("m", ColumnType(Kind.INT64, "bigint"))))
    keeper = TableSupervisor(following.follower)
    source = keeper.follower.source
    monkeypatch.setattr(source, "publish", lambda _: Published(), raising=False)
    monkeypatch.setattr(source, "facts", lambda _: [TableFacts(more, "", StoredAs({}, ""), 0)], raising=False)
    monkeypatch.setattr(source, "current_position", lambda: "0/1000", raising=False)
    monkeypatch.setattr(source, "old_values", lambda *_: None, raising=False)
    keeper._step()
    assert (keeper.is_settled, following.follower.is_live) == (False, True)
    following.happen()
    following.follow()
    keeper._discovered_at = -math.inf
    keeper._step()
    assert (keeper.is_settled, following.follower.is_live) == (True, False)
    assert following.follower.tables[EVENTS.table].reason == "its columns changed"


def test_a_table_that_gets_other_names_in_the_sink_is_copied_again(following: Following) -> None:
    """What was copied is under the old names, and stays there."""
    held = following.sink.held_as(EVENTS)
    status = TableStatus(EVENTS.table, TableState.LIVE, following.follower.watermark, EVENTS, membership="m")
    following.follower.tables[EVENTS.table] = status = msgspec.structs.replace(status, held_as=held)
    keeper = TableSupervisor(following.follower)
    facts = TableFacts(EVENTS, "m", StoredAs({}, ""), 0)
    assert keeper._break(status, facts) is None
    for setting in ({"columns": {EVENTS.table: {"n": "number"}}}, {"tables": {EVENTS.table: "happenings"}}):
        settings = msgspec.structs.replace(following.pipeline.sinks["replica"], **setting)
        pipeline = msgspec.structs.replace(following.pipeline, sinks={"replica": settings})
        following.follower.sink = SqliteSink(pipeline, "replica")
        assert keeper._break(status, facts) == "its names in the sink were changed in the file"


def test_a_table_of_somebody_else_under_a_new_name_is_not_cleared(following: Following) -> None:
    following.copied(EVENTS)
    with closing(sqlite3.connect(following.path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE happenings (n INTEGER)")
        connection.execute("INSERT INTO happenings VALUES (42)")
    old = msgspec.structs.replace(following.follower.tables[EVENTS.table], held_as=following.sink.held_as(EVENTS))
    following.follower.write(old)
    settings = msgspec.structs.replace(following.pipeline.sinks["replica"], tables={EVENTS.table: "happenings"})
    sink = SqliteSink(msgspec.structs.replace(following.pipeline, sinks={"replica": settings}), "replica")
    sink.claim("another run")
    again = old.again(old.watermark, EVENTS)
    with pytest.raises(SinkRejected, match="rows that tailrace did not write"):
        sink.begin_snapshot(msgspec.structs.replace(again, held_as=sink.held_as(EVENTS)), [], clear=True)
    sink.close()


def backed_up(path: Path, target: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)


def put_back(backup: Path, path: Path) -> None:
    """As an operator does, who does not know that somebody has the file open."""
    for name in (f"{path}-wal", f"{path}-shm"):
        Path(name).unlink(missing_ok=True)
    shutil.move(backup, path)


def test_a_sink_is_well_again_once_nobody_of_it_is_in_trouble(following: Following) -> None:
    follower, said = following.follower, []
    follower.say = said.append
    error = SinkUnavailable("no answer")
    for who in ("the stream", "a copy"):
        follower.tell_recovered(who)  # it was well
        follower.tell_retry(who, error, 1.0)
    follower.tell_recovered("a copy")
    assert said == [events.SinkRetry(sink="replica", message="no answer", retry_seconds=1.0)] * 2
    follower.tell_recovered("the stream")
    follower.tell_recovered("the stream")
    assert said[2:] == [events.Recovered(sink="replica")]


def test_a_source_that_does_not_answer_is_the_sources_trouble(following: Following) -> None:
    follower, said = following.follower, []
    follower.say = said.append
    follower.tell_retry("a copy", SourceUnavailable("no answer"), 1.0)
    assert said == [events.SourceRetry(sink="replica", message="no answer", retry_seconds=1.0)]


# --- a table with a transform


def test_a_table_with_a_transform_that_had_the_name_of_another_for_a_moment_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes are where nobody looks for them who goes by names: in those of a table that has no transform."""

    def staged(plan: ApplyPlan, slices: list[Slice]) -> list[PartResult]:
        return [stage_part(msgspec.structs.replace(plan, sink=found.sink), 0, slices)]

    monkeypatch.setattr(staging, "stage_batch", lambda frame, plan: staged(plan, frame))
    monkeypatch.setattr(staging, "stage_range_shaped", lambda spark, plan, slices, *_: staged(plan, slices))
    monkeypatch.setattr(SinkFollower, "_query", lambda _: None)
    monkeypatch.setattr(Expressions, "held", lambda _, schema: schema)
    monkeypatch.setattr(Source, "captures", lambda *_: True, raising=False)
    found = Following(tmp_path)
    found.pipeline = msgspec.structs.replace(found.pipeline, transforms={OTHERS.table: config.Transform(where="true")})
    found.begin()
    for status in found.copied(EVENTS, OTHERS):
        found.step(status.schema, 0, finish=True)
    found.feed.redefine(2, msgspec.structs.replace(OTHERS, name="events"))
    found.feed.append(*transaction(insert(2, "7")))
    found.feed.redefine(2, OTHERS)
    found.follow()
    assert found.rows(OTHERS) == [7]
    assert found.follower.tables[EVENTS.table].state is TableState.SNAPSHOT
    found.sink.close()
    found.writer.close()


def test_a_table_that_gets_a_transform_is_copied_again_whoever_wrote_its_status(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version has not written what the sink holds it as."""
    monkeypatch.setattr(Expressions, "said", lambda *_: [])
    for status in following.copied(EVENTS, OTHERS):
        following.step(status.schema, 0, finish=True)
    transforms = {OTHERS.table: config.Transform(where="true")}
    following.pipeline = msgspec.structs.replace(following.pipeline, transforms=transforms)
    tables = following.begin().tables
    assert (tables[EVENTS.table].state, tables[OTHERS.table].state) == (TableState.LIVE, TableState.SNAPSHOT)
