"""Tables with transforms, in tasks: what goes to Catalyst, and what is staged of that. Without Spark.

Where Catalyst stands there is a function of Python here, which hands the rows on in batches of its own size, as Spark
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pytest

from support.messages import Feed, delete, insert, transaction, truncate, update
from tailrace.columns.net import absent_from
from tailrace.config import Transform
from tailrace.errors import EngineDisturbed, SourceUnavailable, ValueRefused
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.chunk import Chunk
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.null import NullSink
from tailrace.sources.base import TableRewritten
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.source import PostgresSource
from tailrace.state.storage import Storage
from tailrace.tasks.load import ChunkWork
from tailrace.tasks.stage import ApplyPlan, PartResult, TablePlan
from tailrace.tasks.transform import Unfit, emit_chunks, emit_part, load_emitted, stage_emitted
from tailrace.transforms import wire
from tailrace.transforms.shaping import Shaping, problem

INT, TEXT = ColumnType(Kind.INT64, "bigint"), ColumnType(Kind.TEXT, "text")
COLUMNS = (Column("id", INT, 1), Column("name", TEXT, 2), Column("body", TEXT, 3), Column("secret", TEXT, 4))
ITEMS = TableSchema("public", "items", COLUMNS, ("id",), relation=1)
LOOSE = TableSchema("public", "loose", COLUMNS[:2], (), Identity.FULL, relation=2)
RULE = Transform(where="name <> 'hidden'", columns={"name": "upper(name)", "long": "length(name)"}, drop=("secret",))
LOOSE_RULE = Transform(where="name <> 'hidden'", columns={"name": "upper(name)"})
READS = pa.schema([("name", pa.string())])
SHAPING = Shaping(ITEMS.table, RULE, COLUMNS[1:2], READS, (Column("name", TEXT), Column("long", INT)))
LOOSE_SHAPING = Shaping(LOOSE.table, LOOSE_RULE, COLUMNS[1:2], READS, (Column("name", TEXT),))
BOTH = [SHAPING, LOOSE_SHAPING]


def made_of(name: str | None, count: int) -> dict[str, object]:
    """What the expressions say of a row; `count` are the columns that they make."""
    values = [None if name is None else name.upper(), None if name is None else len(name)]
    return {wire.PASSES: name is not None and name != "hidden", **dict(zip(("c0", "c1"), values[:count], strict=False))}


TYPES = [
    pa.struct([(wire.PASSES, pa.bool_()), ("c0", pa.string()), ("c1", pa.int64())]),
    pa.struct([(wire.PASSES, pa.bool_()), ("c0", pa.string())]),
]


def through(batches: Iterable[pa.RecordBatch], size: int = 3) -> Iterator[pa.RecordBatch]:
    """Catalyst's part, in batches of at most `size` rows."""
    for batch in batches:
        branches = batch.column(wire.BRANCH).to_pylist()
        columns = {wire.NOTE: batch.column(wire.NOTE)}
        for place in range(batch.num_columns - 2):
            read = batch.column(wire.read_by(place)).to_pylist()
            rows = [made_of(r["c0"], 2 - place) if b == place else None for r, b in zip(read, branches, strict=True)]
            columns[wire.made_by(place)] = pa.array(rows, TYPES[place])
        whole = pa.RecordBatch.from_pydict(columns)
        yield from (whole.slice(first, size) for first in range(0, whole.num_rows, size))


class AnsweringSource:
    """The part of the PostgreSQL source that tasks use, with `present` rows that can be read."""

    decode = staticmethod(pgoutput.decode)
    end_positions = PostgresSource.end_positions
    seen = PostgresSource.seen
    unseen = PostgresSource.unseen

    def __init__(self, present: Iterable[tuple[object, ...]] = (), shown_after: int = 0) -> None:
        self.present = {str(row[0]): row for row in present}
        self.asked: list[str] = []
        self.looks = -shown_after

    def captures(self, table: TableSchema) -> bool:
        return True

    def is_shown(self, transactions: Iterable[pa.RecordBatch]) -> bool:
        assert [batch.num_rows for batch in transactions]
        self.looks += 1
        return self.looks > 0

    def read_rows(self, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        assert self.looks > 0, "rows are read before the source shows what is told of them"
        wanted = keys.column(0).to_pylist()
        self.asked += wanted
        found = [self.present[key] for key in wanted if key in self.present]
        arrays = [pa.array([row[place] for row in found], f.type) for place, f in enumerate(table.arrow)]
        return table.rows(arrays)


class ListingSink(NullSink):
    """Its receipt is all that was staged, and it lists what is loaded."""

    name = "listing"

    def __init__(self) -> None:
        self.loaded: list[tuple[object, ...]] = []

    def stage(self, batch, part, changes):
        return list(changes)

    def load_chunk(self, schema, mark, batches):
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        self.loaded += rows
        return len(rows)


@pytest.fixture
def feed(tmp_path):
    writer = LogWriter.create(Storage(str(tmp_path)), None, "0/0")
    yield Feed(writer, {1: ITEMS, 2: LOOSE})
    writer.close()


Through = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stage(
    feed: Feed, source: AnsweringSource | None = None, catalyst: Through = through, shapings: Sequence[Shaping] = BOTH
) -> PartResult | Unfit:
    reader = LogReader(feed.writer.storage)
    plan = ApplyPlan(
        source or AnsweringSource(),
        ListingSink(),
        LogReader(feed.writer.storage),
        "batch",
        {ITEMS.table: TablePlan(), LOOSE.table: TablePlan()},
    )
    slices = reader.slices(0, reader.end())
    return stage_emitted(plan, shapings, 0, slices, catalyst(emit_part(plan, shapings, slices)))


def told(result: PartResult | Unfit) -> list[str]:
    """What is staged, in order, in words."""
    assert isinstance(result, PartResult)
    words = []
    for net in result.staged or []:
        words += ["truncate"] if net.truncate else []
        words += [f"- {tuple(row.values())}" for row in net.deletes.to_pylist()]
        words += [f"+ {tuple(row.values())}" for row in net.upserts.to_pylist()]
        for partial in net.partials:
            words += [f"~ {tuple(row.values())} but {partial.unchanged}" for row in partial.rows.to_pylist()]
    return words


def test_a_row_is_staged_with_what_its_expressions_make_of_it(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), insert(1, "2", None, "b", "s")))
    assert told(stage(feed)) == ["- (2,)", "+ (1, 'ANN', 'b', 3)"]


def test_the_sink_is_told_of_the_columns_that_it_has_and_the_pipeline_of_the_sources(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s")))
    result = stage(feed)
    assert [c.name for c in result.staged[0].schema.columns] == ["id", "name", "body", "long"]
    assert result.schemas == {ITEMS.table: [ITEMS]}


def test_a_row_that_leaves_the_filter_is_deleted_and_one_that_enters_is_written(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), insert(1, "2", "hidden", "b", "s")))
    feed.append(*transaction(update(1, "1", "hidden", "b", "s"), update(1, "2", "bob", "c", "s")))
    assert told(stage(feed)) == ["- (1,)", "+ (2, 'BOB', 'c', 3)"]


def test_a_change_of_the_key_deletes_the_old_one(feed):
    feed.append(*transaction(update(1, "9", "ann", "b", "s", key=("1", None, None, None))))
    assert told(stage(feed)) == ["- (1,)", "+ (9, 'ANN', 'b', 3)"]


def test_a_truncate_stays_a_barrier(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), truncate(1), insert(1, "2", "bob", "b", "s")))
    result = stage(feed)
    assert told(result) == ["truncate", "+ (2, 'BOB', 'b', 3)"]
    assert result.truncated == {ITEMS.table}


def test_a_column_that_was_not_sent_and_that_nobody_reads_stays_unchanged(feed):
    feed.append(*transaction(update(1, "1", "ann", ..., ...)))
    source = AnsweringSource()
    assert told(stage(feed, source)) == ["~ (1, 'ANN', None, 3) but ('body',)"]
    assert not source.asked


def test_a_row_that_only_lacks_what_is_dropped_is_whole(feed):
    feed.append(*transaction(update(1, "1", "ann", "b", ...)))
    assert told(stage(feed)) == ["+ (1, 'ANN', 'b', 3)"]


def test_a_column_that_an_expression_reads_is_read_from_the_source_once_it_shows_the_transaction(feed):
    feed.append(*transaction(*(update(1, str(number), ..., "new", "s") for number in (1, 2, 3))))
    source = AnsweringSource([(1, "ann", "newer", "s"), (2, "hidden", "new", "s")], shown_after=2)
    assert told(stage(feed, source)) == ["- (3,)", "- (2,)", "+ (1, 'ANN', 'newer', 3)"]
    assert source.asked == ["1", "2", "3"]


def test_a_column_that_an_earlier_change_of_the_run_has_sent_is_not_asked_for(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), update(1, "1", ..., "new", "s")))
    source = AnsweringSource()
    assert told(stage(feed, source)) == ["+ (1, 'ANN', 'new', 3)"]
    assert not source.asked


def test_a_partial_row_that_moves_is_read_from_the_source_whatever_it_lacks(feed):
    feed.append(*transaction(update(1, "9", "ann", ..., "s", key=("1", None, None, None))))
    source = AnsweringSource([(9, "ann", "from the source", "s")])
    assert told(stage(feed, source)) == ["- (1,)", "+ (9, 'ANN', 'from the source', 3)"]


def test_rows_without_a_key_come_and_go_as_the_expressions_have_them(feed):
    feed.append(*transaction(insert(2, "1", "a"), insert(2, "1", "a"), insert(2, "2", "hidden")))
    feed.append(*transaction(delete(2, old=("3", "c")), delete(2, old=("3", "c")), delete(2, old=("4", "hidden"))))
    result = stage(feed)
    assert told(result) == ["- (3, 'C')", "+ (1, 'A')", "+ (1, 'A')"]
    assert [net.delete_counts.tolist() for net in result.staged if net.deletes.num_rows] == [[2]]


def test_a_truncate_of_a_table_without_a_key_has_the_columns_of_the_sink(feed):
    rule = msgspec.structs.replace(LOOSE_RULE, drop=("id",))
    shaping = msgspec.structs.replace(LOOSE_SHAPING, transform=rule)
    feed.append(*transaction(truncate(2)))
    (net,) = stage(feed, shapings=[SHAPING, shaping]).staged
    renamed = SchemaMapping({LOOSE.table: {"name": "label"}}, lambda _: False).net(net)
    assert renamed.truncate
    assert renamed.deletes.schema.names == ["label"]


def test_rows_of_a_table_whose_expressions_read_nothing_pass(feed):
    shaping = Shaping(ITEMS.table, Transform(drop=("secret",)), (), pa.schema([]), ())
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), update(1, "2", "bob", ..., "s")))

    def passing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = pa.array([{wire.PASSES: True}] * batch.num_rows)
            yield pa.RecordBatch.from_pydict({wire.NOTE: batch.column(wire.NOTE), wire.made_by(0): made})

    result = stage(feed, catalyst=passing, shapings=[shaping, LOOSE_SHAPING])
    assert told(result) == ["+ (1, 'ann', 'b')", "~ (2, 'bob', None) but ('body',)"]


def test_rows_of_several_tables_travel_together_and_stay_apart(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), insert(2, "1", "a"), insert(1, "2", "bob", "b", "s")))
    assert sorted(told(stage(feed))) == ["+ (1, 'A')", "+ (1, 'ANN', 'b', 3)", "+ (2, 'BOB', 'b', 3)"]


def test_more_rows_than_travel_together_are_all_staged_in_order(feed, monkeypatch):
    monkeypatch.setattr(wire, "PIECE_ROWS", 4)
    feed.append(*transaction(*(insert(1, str(n), f"name {n}", "b", "s") for n in range(25))))
    assert told(stage(feed)) == [f"+ ({n}, 'NAME {n}', 'b', {len(f'name {n}')})" for n in range(25)]


def test_a_value_that_is_longer_than_what_rides_in_one_row_arrives_whole(feed, monkeypatch):
    monkeypatch.setattr(wire, "PIECE_BYTES", 1000)
    feed.append(*transaction(insert(1, "1", "ann", "x" * 5000, "s"), insert(1, "2", "bob", "y", "s")))
    assert told(stage(feed)) == [f"+ (1, 'ANN', '{'x' * 5000}', 3)", "+ (2, 'BOB', 'y', 3)"]
    assert max(len(note) for note in notes_of(feed)) <= 1001


def notes_of(feed: Feed) -> list[bytes]:
    """All that goes through the JVM besides what expressions read."""
    reader = LogReader(feed.writer.storage)
    slices = reader.slices(0, reader.end())
    plan = ApplyPlan(AnsweringSource(), ListingSink(), feed.writer.storage, "batch", {ITEMS.table: TablePlan()})
    return [note for batch in emit_part(plan, BOTH, slices) for note in batch.column(wire.NOTE).to_pylist() if note]


def test_a_stream_that_just_ends_is_no_end(feed):
    """Arrow does not tell one that was broken off from a whole one."""
    feed.append(*transaction(insert(1, "1", "ann", "b", "s"), insert(1, "2", "bob", "b", "s")))

    def broken(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from list(through(batches))[:-1]

    with pytest.raises(EngineDisturbed, match="broken off"):
        stage(feed, catalyst=broken)


def test_what_the_first_half_can_not_do_is_raised_in_the_second(feed):
    class AbsentSource(AnsweringSource):
        def is_shown(self, transactions):
            raise SourceUnavailable("gone for a moment")

    feed.append(*transaction(update(1, "1", ..., "new", "s")))
    with pytest.raises(SourceUnavailable, match="gone for a moment"):
        stage(feed, AbsentSource())


def test_a_value_that_spark_would_take_for_another_is_refused_where_it_is_read(feed):
    number = ColumnType(Kind.DECIMAL, "numeric(9,2)", 9, 2)
    wide = msgspec.structs.replace(ITEMS, columns=(COLUMNS[0], Column("name", number, 2), *COLUMNS[2:]))
    shaping = Shaping(
        ITEMS.table, RULE, wide.columns[1:2], pa.schema([("name", pa.decimal128(9, 2))]), SHAPING.computed
    )
    feed.redefine(1, wide)
    feed.append(*transaction(insert(1, "1", "NaN", "b", "s")))
    reader = LogReader(feed.writer.storage)
    plan = ApplyPlan(
        AnsweringSource(), ListingSink(), LogReader(feed.writer.storage), "batch", {ITEMS.table: TablePlan()}
    )
    slices = reader.slices(0, reader.end())
    with pytest.raises(ValueRefused, match="NaN") as refused:
        stage_emitted(plan, [shaping], 0, slices, emit_part(plan, [shaping], slices))
    assert refused.value.table == ITEMS.table


def test_a_version_that_the_expressions_were_not_analysed_for_is_said(feed):
    feed.append(*transaction(insert(1, "1", "ann", "b", "s")))
    other = msgspec.structs.replace(ITEMS, columns=(COLUMNS[0], Column("renamed", TEXT, 2), *COLUMNS[2:]))
    feed.redefine(1, other)
    feed.append(*transaction(insert(1, "2", "bob", "b", "s")))
    assert stage(feed) == Unfit(other)


def test_a_version_with_more_columns_is_one_that_they_are_for_too(feed):
    wider = msgspec.structs.replace(ITEMS, columns=(*COLUMNS, Column("added", TEXT, 5)))
    feed.redefine(1, wider)
    feed.append(*transaction(insert(1, "1", "ann", "b", "s", "more")))
    assert told(stage(feed)) == ["+ (1, 'ANN', 'b', 'more', 3)"]


# --- chunks


class ReadingSource:
    """Has chunks by their numbers: rows, or what goes wrong after the first of them."""

    def __init__(self, chunks: dict[int, list[tuple[object, ...]] | Exception]) -> None:
        self.chunks = chunks

    def read_chunk(self, table, chunk, snapshot, form=""):
        rows = self.chunks[chunk.number]
        if isinstance(rows, Exception):
            yield _batch(table, [(1, "half", "b", "s")])
            raise rows
        yield _batch(table, rows)


def _batch(table: TableSchema, rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(table.arrow)]
    return table.rows(arrays)


def load(chunks: dict[int, list[tuple[object, ...]] | Exception], sink: ListingSink) -> list[object]:
    source = ReadingSource(chunks)
    group = [ChunkWork(ITEMS, ChunkMark(1, Chunk(ITEMS.table, number, 100))) for number in chunks]
    return load_emitted(sink, BOTH, group, through(emit_chunks(source, BOTH, "snapshot", group)))


def test_the_rows_of_a_chunk_go_through_the_expressions():
    sink = ListingSink()
    loaded = load({1: [(1, "ann", "b", "s"), (2, "hidden", "b", "s")], 2: [], 3: [(3, "c", None, "s")]}, sink)
    assert sink.loaded == [(1, "ANN", "b", 3), (3, "C", None, 1)]
    assert [each.rows for each in loaded] == [1, 0, 1]


def test_a_chunk_whose_table_was_rewritten_is_reported_and_the_next_is_loaded():
    sink = ListingSink()
    loaded = load({1: TableRewritten("public.items"), 2: [(3, "c", "b", "s")]}, sink)
    assert [each.is_rewritten for each in loaded] == [True, False]
    assert (3, "C", "b", 1) in sink.loaded


def test_a_table_that_can_not_be_read_is_reported_and_its_other_chunks_are_passed_over():
    sink = ListingSink()
    error = ValueRefused("a value", table=ITEMS.table)
    loaded = load({1: error, 2: [(3, "c", "b", "s")]}, sink)
    assert [str(each.error) for each in loaded] == ["a value"]
    assert not sink.loaded


def test_a_chunk_that_the_sink_has_already_is_passed_over():
    class KnowingSink(ListingSink):
        def load_chunk(self, schema, mark, batches):
            return 0 if mark.number == 1 else super().load_chunk(schema, mark, batches)

    sink = KnowingSink()
    load({1: [(1, "ann", "b", "s")] * 20, 2: [(3, "c", "b", "s")]}, sink)
    assert sink.loaded == [(3, "C", "b", 1)]


# --- the columns that come of it


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (Transform(drop=("nothing",)), "there is no column nothing"),
        (Transform(drop=("id",)), "id is part of the key"),
        (Transform(columns={"id": "id + 1"}), "id is part of the key"),
        (Transform(columns={"name": "1"}, drop=("name",)), "name is dropped as well"),
        (Transform(columns={"__tailrace_note": "1"}), "may not begin with"),
    ],
)
def test_a_transform_that_can_not_be_a_tables_is_refused_in_a_sentence(transform, words):
    found = problem(transform, ITEMS)
    assert found is not None
    assert words in str(found)
    assert found.table == ITEMS.table


def test_a_replaced_column_keeps_its_place_and_its_number():
    held = SHAPING.schema(ITEMS)
    assert [(c.name, c.number) for c in held.columns] == [("id", 1), ("name", 2), ("body", 3), ("long", 0)]
    assert held.key == ("id",)


def test_keys_that_are_absent_are_found_by_all_of_their_columns():
    keys = pa.RecordBatch.from_pydict({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    rows = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"]})
    assert absent_from(keys, rows).to_pylist() == [{"a": 1, "b": "y"}, {"a": 2, "b": "x"}]
