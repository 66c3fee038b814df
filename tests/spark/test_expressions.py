"""What Catalyst is asked about a table's expressions, and whole parts that go through it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.messages import Feed, insert, transaction, update
from tailrace.config import Transform
from tailrace.errors import ConfigError, ValueRefused
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.null import NullSink
from tailrace.sources.postgres import pgoutput
from tailrace.sources.postgres.source import PostgresSource
from tailrace.spark.expressions import Expressions, analysed
from tailrace.spark.frames import shaped_rows, stage_range_shaped
from tailrace.state.storage import Storage
from tailrace.tasks.stage import ApplyPlan, PartResult, TablePlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

TEXT = ColumnType(Kind.TEXT, "text")
COLUMNS = (
    Column("id", ColumnType(Kind.INT64, "bigint"), 1),
    Column("name", TEXT, 2),
    Column("total", ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2), 3),
    Column("at", ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone"), 4),
    Column("tags", ColumnType(Kind.ARRAY, "text[]", element=TEXT), 5),
)
ITEMS = TableSchema("public", "items", COLUMNS, ("id",), relation=1)
DIVIDED = TableSchema("public", "divided", COLUMNS[:2], ("id",), relation=2)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
        .config("spark.python.daemon.module", "tailrace.spark.daemon")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_catalyst_says_what_is_read_and_what_comes_of_it(spark):
    rule = Transform(
        where="NAME <> 'x'",
        columns={
            "name": "upper(name)",
            "cents": "cast(total * 100 as bigint)",
            "double": "total * 2",
            "day": "to_date(at)",
            "tags": "array_sort(tags)",
            "is_large": "total > 100",
        },
    )
    found = analysed(spark, ITEMS, rule)
    assert found.read_names == ["name", "total", "at", "tags"]
    held = {column.name: column.type for column in found.schema(ITEMS).columns}
    assert {name: type_.kind for name, type_ in held.items()} == {
        "id": Kind.INT64,
        "name": Kind.TEXT,
        "total": Kind.DECIMAL,
        "at": Kind.TIMESTAMPTZ,
        "tags": Kind.ARRAY,
        "cents": Kind.INT64,
        "double": Kind.DECIMAL,
        "day": Kind.DATE,
        "is_large": Kind.BOOLEAN,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("upper(nobody)", "nobody"),
        ("upper(name", "PARSE_SYNTAX_ERROR"),
        ("rand()", "every time"),
        ("uuid()", "every time"),
        ("current_timestamp()", "depends on the moment"),
        ("current_date()", "depends on the moment"),
        ("date'today'", "depends on the moment"),
        ("cast(' Now' as timestamp)", "depends on the moment"),
        ("at > 'yesterday'", "depends on the moment"),
        ("sum(total)", "one row"),
        ("explode(tags)", "one row"),
        ("hash(*)", "name each"),
        ("row_number() over (order by id)", "one row"),
        ("(select max(1))", "one row"),
        ("map(name, total)", "which no column can be"),
        ("null", "which no column can be"),
    ],
)
def test_an_expression_that_is_not_of_one_row_alone_is_refused_with_its_place_and_why(spark, text, words):
    with pytest.raises(ConfigError) as refused:
        analysed(spark, ITEMS, Transform(columns={"made": text}))
    assert str(refused.value).startswith("transforms.public.items.columns.made: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.table == ITEMS.table


def test_a_filter_that_is_neither_true_nor_false_is_refused(spark):
    with pytest.raises(ConfigError, match=r"transforms\.public\.items\.where: is string"):
        analysed(spark, ITEMS, Transform(where="name"))


def test_a_text_that_is_only_compared_with_texts_may_say_today(spark):
    assert analysed(spark, ITEMS, Transform(where="name <> 'today'")).read_names == ["name"]


class DecodingSource:
    """The part of the PostgreSQL source that these tasks use."""

    decode = staticmethod(pgoutput.decode)
    end_positions = PostgresSource.end_positions
    seen = PostgresSource.seen
    unseen = PostgresSource.unseen

    def captures(self, table):
        return True


class ListingSink(NullSink):
    """Its receipt is all that was staged, a sentence a row."""

    name = "listing"

    def __init__(self):
        pass

    def stage(self, batch, part, changes):
        return [
            sentence
            for net in changes
            for sentence in (
                *(f"- {tuple(row.values())}" for row in net.deletes.to_pylist()),
                *(f"+ {tuple(row.values())}" for row in net.upserts.to_pylist()),
            )
        ]


@pytest.fixture
def feed(tmp_path) -> Iterator[Feed]:
    writer = LogWriter.create(Storage(str(tmp_path)), None, "0/0")
    yield Feed(writer, {1: ITEMS, 2: DIVIDED})
    writer.close()


RULES = {
    ITEMS.table: Transform(where="name <> 'hidden'", columns={"name": "upper(name)", "twice": "total * 2"}),
    DIVIDED.table: Transform(columns={"share": "100 div length(name)"}),
}
BOTH = {schema.table: schema for schema in (ITEMS, DIVIDED)}


def stage(spark: SparkSession, feed: Feed, expressions: Expressions) -> list[PartResult]:
    reader = LogReader(feed.writer.storage)
    plan = ApplyPlan(
        DecodingSource(), ListingSink(), LogReader(feed.writer.storage), "batch", {name: TablePlan() for name in BOTH}
    )
    return stage_range_shaped(spark, plan, reader.slices(0, reader.end()), 2, expressions, BOTH)


def staged(results: list[PartResult]) -> list[str]:
    return [each for result in results for each in result.staged or []]


def test_two_tables_go_through_their_expressions_in_one_job(spark, feed):
    feed.append(*transaction(insert(1, "1", "ann", "1.50", None, "{a}"), insert(2, "1", "abcd")))
    feed.append(*transaction(insert(1, "2", "hidden", "2", None, None), update(1, "1", "bob", "3", None, None)))
    results = stage(spark, feed, Expressions(spark, RULES))
    assert sorted(staged(results)) == [
        "+ (1, 'ANN', Decimal('1.50'), None, ['a'], Decimal('3.00'))",
        "+ (1, 'BOB', Decimal('3.00'), None, None, Decimal('6.00'))",
        "+ (1, 'abcd', 25)",
        "- (2,)",
    ]
    assert not any(result.failed for result in results)


def test_a_table_whose_expression_fails_is_named_and_the_other_is_staged(spark, feed):
    feed.append(*transaction(insert(1, "1", "ann", "1.50", None, None), insert(2, "1", "")))
    results = stage(spark, feed, Expressions(spark, RULES))
    assert staged(results) == ["+ (1, 'ANN', Decimal('1.50'), None, None, Decimal('3.00'))"]
    (error,) = results[0].failed.values()
    assert error.table == DIVIDED.table
    assert "DIVIDE_BY_ZERO" in str(error)


def test_a_version_that_comes_along_is_analysed_too(spark, feed):
    feed.append(*transaction(insert(2, "1", "abcd")))
    wider = msgspec.structs.replace(DIVIDED, columns=(COLUMNS[0], Column("name", ColumnType(Kind.BYTES, "bytea"), 2)))
    feed.redefine(2, wider)
    feed.append(*transaction(insert(2, "2", "\\x0102")))
    results = stage(spark, feed, Expressions(spark, RULES))
    assert staged(results) == ["+ (1, 'abcd', 25)", "+ (2, b'\\x01\\x02', 50)"]


def test_a_version_without_the_column_that_an_expression_reads_fails_its_table(spark, feed):
    feed.append(*transaction(insert(1, "1", "ann", "1.50", None, None), insert(2, "1", "abcd")))
    feed.redefine(2, msgspec.structs.replace(DIVIDED, columns=(COLUMNS[0], Column("renamed", TEXT, 2))))
    feed.append(*transaction(insert(2, "2", "efgh")))
    results = stage(spark, feed, Expressions(spark, RULES))
    assert staged(results) == ["+ (1, 'ANN', Decimal('1.50'), None, None, Decimal('3.00'))"]
    assert "`name` cannot be resolved" in str(results[0].failed[DIVIDED.table])


def test_rows_on_the_driver_take_the_same_way(spark):
    expressions = Expressions(spark, RULES)
    arrays = [
        pa.array([1, 2], pa.int64()),
        pa.array(["ann", "hidden"]),
        pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)),
        pa.nulls(2, pa.timestamp("us", "UTC")),
        pa.nulls(2, pa.list_(pa.string())),
    ]
    shaped = shaped_rows(expressions, ITEMS, ITEMS.rows(arrays))
    assert shaped.select(["id", "name", "twice"]).to_pylist() == [{"id": 1, "name": "ANN", "twice": Decimal("3.00")}]


def test_a_row_on_the_driver_that_an_expression_fails_for_is_its_tables_trouble(spark):
    rows = DIVIDED.rows([pa.array([1], pa.int64()), pa.array([""])])
    with pytest.raises(ValueRefused, match="DIVIDE_BY_ZERO") as refused:
        shaped_rows(Expressions(spark, RULES), DIVIDED, rows)
    assert refused.value.table == DIVIDED.table


def test_nothing_is_computed_of_a_row_that_the_filter_keeps_out(spark):
    rule = Transform(where="name rlike '^[0-9]+$' as is_number", columns={"number": "cast(name as int)"})
    rows = DIVIDED.rows([pa.array([1, 2], pa.int64()), pa.array(["7", "seven"])])
    shaped = shaped_rows(Expressions(spark, {DIVIDED.table: rule}), DIVIDED, rows)
    assert shaped.to_pylist() == [{"id": 1, "name": "7", "number": 7}]


MIDNIGHT = pa.array([86_400_000_000], pa.time64("us"))
TIMED = TableSchema(
    "public", "timed", (Column("at", ColumnType(Kind.TIME, "time"), 1), *COLUMNS[:2]), ("id",), relation=3
)


def test_where_only_columns_are_dropped_no_value_becomes_sparks(spark):
    rows = TIMED.rows([MIDNIGHT, pa.array([1], pa.int64()), pa.array(["a secret"])])
    shaped = shaped_rows(Expressions(spark, {TIMED.table: Transform(drop=("name",))}), TIMED, rows)
    assert shaped.schema.names == ["at", "id"]
    assert shaped.column("at").equals(MIDNIGHT)


def test_a_row_on_the_driver_that_spark_can_not_hold_is_its_tables_trouble(spark):
    rows = TIMED.rows([MIDNIGHT, pa.array([1], pa.int64()), pa.array(["a"])])
    with pytest.raises(ValueRefused, match="24:00:00") as refused:
        shaped_rows(Expressions(spark, {TIMED.table: Transform(where="at is not null")}), TIMED, rows)
    assert refused.value.table == TIMED.table
