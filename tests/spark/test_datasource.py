"""`format("tailrace")`: a log made by hand, read by Spark as a batch and as a stream."""

from __future__ import annotations

import datetime
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StringType

import tailrace
from support.messages import Feed, Value, begin, commit, delete, insert, logical_message, transaction, truncate, update
from tailrace.log.writer import LogWriter
from tailrace.model.schema import Column, TableSchema
from tailrace.sources.postgres.types import column_type
from tailrace.spark.installed import START
from tailrace.spark.session import WORKER_PATH
from tailrace.spark.versions import has_read_limits
from tailrace.state.readers import Readers
from tailrace.state.storage import Storage

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def table(name: str, key: str, /, **columns: int) -> TableSchema:
    return TableSchema("public", name, tuple(Column(n, column_type(oid, -1, {})) for n, oid in columns.items()), (key,))


limited = pytest.mark.skipif(not has_read_limits(), reason="Spark 4.1 knows no limits of a Python source")
unlimited = pytest.mark.skipif(has_read_limits(), reason="from Spark 4.2 on a Python source has limits")

ITEMS = table("items", "id", id=20, name=25, notes=25)
ORDERS = table("orders", "id", id=20, item=20)
NOON = datetime.datetime(2024, 6, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config(WORKER_PATH, str(START))  # its Python processes start sooner, and have ten seconds for it
        .getOrCreate()
    )
    tailrace.register(session)
    yield session
    session.stop()


@pytest.fixture
def feed(tmp_path) -> Iterator[Feed]:
    """The log of a state directory; relation 1 is `items`, relation 2 `orders`."""
    writer = LogWriter.create(Storage(str(tmp_path / "state" / "log")), None, "0/0")
    yield Feed(writer, {1: ITEMS, 2: ORDERS})
    writer.close()


@pytest.fixture
def read(spark, tmp_path) -> Callable[..., DataFrame]:
    def load(table: str | None = "public.items", **options: object) -> DataFrame:
        reader = spark.read.format("tailrace").option("path", str(tmp_path / "state"))
        return _with(reader, table, options).load()

    return load


def _with(reader, table: str | None, options: dict[str, object]):
    for name, value in {"table": table, **options}.items():
        reader = reader if value is None else reader.option(name, str(value))
    return reader


class Stream:
    """A streaming query over one table; `batches` are the rows of each micro-batch, by its number."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.batches: list[tuple[int, list[Row]]] = []
        self.fails_at: int | None = None
        self.order = "_offset"

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches.append((number, sorted(frame.collect(), key=lambda row: row[self.order])))
        if number == self.fails_at:
            raise RuntimeError("the sink is gone")

    def writer(self, table: str | None = "public.items", **options: object):
        reader = self.spark.readStream.format("tailrace").option("path", str(self.folder / "state"))
        frame = _with(reader, table, options).load()
        return frame.writeStream.option("checkpointLocation", str(self.folder / "checkpoint")).foreachBatch(self._take)

    def run(self, **options: object) -> list[list[int]]:
        """Read all there is; the ids of each micro-batch."""
        self.batches.clear()
        query = self.writer(**options).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return self.ids

    def follow(self, *steps: Callable[[], object], **options: object) -> list[list[int]]:
        """Read all there is, after each step, with one query; the ids of each micro-batch."""
        self.batches.clear()
        query = self.writer(**options).start()
        try:
            for step in steps:
                step()
                query.processAllAvailable()
        finally:
            query.stop()
        return self.ids

    @property
    def ids(self) -> list[list[int]]:
        return [[row["id"] for row in rows] for _, rows in self.batches]


@pytest.fixture
def stream(spark, tmp_path) -> Stream:
    return Stream(spark, tmp_path)


def rows(*numbers: int) -> list[bytes]:
    return [insert(1, str(number), f"name {number}", None) for number in numbers]


def ids(frame: DataFrame) -> list[int]:
    return [row["id"] for row in sorted(frame.collect(), key=lambda row: row["_offset"])]


# --- batch -----------------------------------------------------------------------------------------------------------


def test_a_batch_has_the_tables_columns_and_the_changes_own(feed, read):
    feed.append(
        *transaction(
            insert(1, "1", "a", "long"),
            update(1, "1", "b", ...),
            update(1, "2", "b", "new", key=("1", None, None)),
            delete(1, key=("2", None, None)),
            truncate(1, 2),
            xid=77,
            at=0xABC0,
        )
    )
    frame = read()
    assert frame.columns == [
        *("id", "name", "notes"),
        *("_op", "_offset", "_commit_position", "_commit_time", "_xid", "_unchanged", "_before"),
    ]
    assert (frame.schema["id"].dataType, frame.schema["name"].dataType) == (LongType(), StringType())
    found = sorted(frame.collect(), key=lambda row: row["_offset"])
    assert [(r["id"], r["name"], r["notes"], r["_op"], r["_offset"], r["_unchanged"]) for r in found] == [
        (1, "a", "long", "insert", 2, []),
        (1, "b", None, "update", 3, ["notes"]),
        (2, "b", "new", "update", 4, []),
        (2, None, None, "delete", 5, []),
        (None, None, None, "truncate", 6, []),
    ]
    assert [None if r["_before"] is None else tuple(r["_before"]) for r in found] == [
        *(None, None),
        *((1, None, None), (2, None, None)),
        None,
    ]
    assert {(r["_xid"], r["_commit_position"]) for r in found} == {(77, 0xABC0)}
    assert {r["_commit_time"].replace(tzinfo=datetime.UTC) for r in found} == {NOON}


def test_a_batch_reads_one_table_and_knows_the_public_schema(feed, read):
    feed.append(*transaction(*rows(1), insert(2, "5", "1"), *rows(2)))
    assert ids(read("items")) == [1, 2]
    assert ids(read("orders")) == [5]


def test_a_batch_reads_all_segments_in_parallel_and_every_row_once(feed, read):
    for number in range(12):
        feed.append(*transaction(*rows(3 * number, 3 * number + 1, 3 * number + 2)))
    frame = read(numPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert ids(frame) == list(range(36))


def test_a_batch_may_begin_and_end_at_any_transaction(feed, read):
    for number in range(4):
        feed.append(*transaction(*rows(number)))
    assert ids(read(startingOffset=3, endingOffset=9)) == [1, 2]
    assert ids(read(startingOffset=12)) == []


def test_a_transaction_that_has_not_ended_is_not_there(feed, read):
    feed.append(*transaction(*rows(1)), begin(9), *rows(2))
    feed.append(*rows(3))
    assert ids(read()) == [1]
    feed.append(commit())
    assert ids(read()) == [1, 2, 3]


TYPES: dict[str, tuple[int, Value, object]] = {
    "bool": (16, b"\1", True),
    "int2": (21, "-5", -5),
    "int4": (23, struct.pack(">i", 7), 7),
    "float4": (700, "0.5", 0.5),
    "float8": (701, "Infinity", float("inf")),
    "numeric": (1700, "12345678901234567890.12345678901234567890", "12345678901234567890.12345678901234567890"),
    "bytea": (17, b"\0\xff", bytearray(b"\0\xff")),
    "uuid": (2950, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    "date": (1082, "2024-02-29", datetime.date(2024, 2, 29)),
    "time": (1083, "23:59:59.999999", datetime.time(23, 59, 59, 999_999)),
    "timetz": (1266, "12:00:00+05:30", Row(microseconds=43_200_000_000, offset_seconds=19_800)),
    "timestamp": (1114, "2024-02-29 12:00:00.5", datetime.datetime(2024, 2, 29, 12, 0, 0, 500_000)),  # noqa: DTZ001
    "timestamptz": (1184, "2024-02-29 12:00:00+00", datetime.datetime(2024, 2, 29, 12)),  # noqa: DTZ001
    "interval": (1186, "1 year 3 days 00:00:01", Row(months=12, days=3, microseconds=1_000_000)),
    "jsonb": (3802, '{"a": 1}', '{"a": 1}'),
    "int4s": (1007, "{1,NULL}", [1, None]),
    "texts": (1009, '{a,"b,c"}', ["a", "b,c"]),
    "inet": (869, "10.0.0.1", "10.0.0.1"),
}


def test_every_type_reaches_spark_as_a_value_of_its_own(feed, read):
    schema = table("typed", "id", id=20, **{name: oid for name, (oid, _, _) in TYPES.items()})
    feed.redefine(3, schema)
    values = [value for _, value, _ in TYPES.values()]
    nulls = [None] * len(TYPES)
    feed.append(
        *transaction(insert(3, "1", *values), insert(3, "2", *nulls), update(3, "1", *values, key=("1", *nulls)))
    )
    first, second, third = sorted(read("typed").collect(), key=lambda row: row["_offset"])
    assert {name: first[name] for name in TYPES} == {name: value for name, (_, _, value) in TYPES.items()}
    assert {second[name] for name in TYPES} == {None}
    assert (third["_before"]["id"], third["_before"]["time"]) == (1, None)


@pytest.mark.parametrize(("oid", "value"), [(1083, "24:00:00"), (1183, "{12:00:00,24:00:00}")])
def test_a_time_that_spark_can_not_hold_is_refused_and_names_the_column(feed, read, oid, value):
    feed.redefine(3, table("hours", "id", id=20, closes=oid))
    feed.append(*transaction(insert(3, "1", value)))
    with pytest.raises(PySparkException, match=r"column public\.hours\.closes: 24:00:00"):
        read("hours").collect()


def test_a_decimal_keeps_its_digits(feed, read):
    money = TableSchema("public", "money", (Column("v", column_type(1700, (12 << 16) + 2 + 4, {})),))
    feed.redefine(4, money)
    feed.append(*transaction(insert(4, "12.50")))
    assert read("money").collect()[0]["v"] == Decimal("12.50")


def test_without_a_table_a_batch_is_the_slices_of_the_log(feed, read):
    feed.append(*transaction(*rows(1)))
    feed.append(*transaction(*rows(2)))
    found = sorted(read(None, numPartitions=1).collect(), key=lambda row: row["first"])
    assert [(row["part"], row["first"], row["last"]) for row in found] == [(0, 1, 3), (0, 4, 6)]


# --- versions of a table ---------------------------------------------------------------------------------------------

WIDER = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", column_type(23, -1, {}))))


def test_rows_from_before_a_column_was_added_have_null_in_it_and_keep_their_before(feed, read):
    feed.append(*transaction(*rows(1), update(1, "5", "n", None, key=("1", None, None))))
    feed.redefine(1, WIDER)
    feed.append(*transaction(insert(1, "2", "n", None, "7")))
    found = sorted(read().collect(), key=lambda row: row["_offset"])
    assert [(row["id"], row["added"]) for row in found] == [(1, None), (5, None), (2, 7)]
    assert tuple(found[1]["_before"]) == (1, None, None, None)


def test_rows_with_a_column_that_was_dropped_are_read_without_it(feed, read):
    feed.append(*transaction(insert(1, "1", "n", "gone")))
    feed.redefine(1, msgspec.structs.replace(ITEMS, columns=ITEMS.columns[:2]))
    feed.append(*transaction(insert(1, "2", "n")))
    assert read().columns[:3] == ["id", "name", "_op"]
    assert ids(read()) == [1, 2]


def test_a_value_that_does_not_fit_the_columns_present_type_is_refused_and_not_shown(feed, read):
    feed.append(*transaction(insert(1, "1", "secret", None)))
    feed.redefine(1, table("items", "id", id=20, name=20, notes=25))
    feed.append(*transaction(insert(1, "2", "5", None)))
    with pytest.raises(PySparkException, match=r"column public\.items\.name: a value of an earlier string") as caught:
        read().collect()
    assert "secret" not in str(caught.value)


def test_a_stream_keeps_the_columns_that_it_started_with(feed, stream):
    feed.append(*transaction(*rows(1)))
    query = stream.writer().start()
    try:
        query.processAllAvailable()
        feed.redefine(1, WIDER)
        feed.append(*transaction(insert(1, "2", "n", None, "7")))
        query.processAllAvailable()
    finally:
        query.stop()
    found = [row for _, batch in stream.batches for row in batch]
    assert [row["id"] for row in found] == [1, 2]
    assert "added" not in found[1].asDict()


# --- stream ----------------------------------------------------------------------------------------------------------


def test_a_stream_reads_what_there_is_and_then_what_is_new(feed, stream):
    feed.append(*transaction(*rows(1, 2)))
    assert stream.run() == [[1, 2]]
    assert stream.run() == []
    feed.append(*transaction(*rows(3)))
    feed.append(*transaction(*rows(4)))
    assert stream.run() == [[3, 4]]


@limited
def test_micro_batches_are_about_as_large_as_asked_and_keep_transactions_whole(feed, stream):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.append(begin(9), *rows(10, 11))
    feed.append(*rows(12, 13, 14))
    feed.append(*rows(15), commit())
    feed.append(*transaction(*rows(20)))
    assert stream.run(maxRowsPerTrigger=6) == [[0, 1], [2], [10, 11, 12, 13, 14, 15], [20]]


@unlimited
@pytest.mark.parametrize("option", ["maxRowsPerTrigger", "maxBytesPerTrigger"])
def test_a_limit_is_refused_where_spark_has_none(feed, stream, option):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(PySparkException, match=f"the option `{option}` needs Spark 4.2 or newer"):
        stream.run(**{option: 1000})


@pytest.mark.parametrize(("option", "most", "longest"), [("maxRowsPerTrigger", 6, 6), ("maxBytesPerTrigger", 1, 3)])
def test_a_pipelines_micro_batches_are_bounded_whatever_spark_knows(feed, stream, option, most, longest):
    for number in range(5):
        feed.append(*transaction(*rows(number)))
    stream.order = "first"
    query = stream.writer(None, startingOffset=3, **{option: most}).start()
    try:
        query.processAllAvailable()
        for number in range(2):
            feed.append(*transaction(*rows(number)))
        query.processAllAvailable()
    finally:
        query.stop()
    ends = [slices[-1]["last"] for _, slices in stream.batches if slices]
    begins = [slices[0]["first"] for _, slices in stream.batches if slices]
    assert begins == [4, *(end + 1 for end in ends[:-1])]
    assert ends[-1] == 21
    assert max(end - begin + 1 for begin, end in zip(begins, ends, strict=True)) == longest


def test_a_stream_may_begin_in_the_middle(feed, stream):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    assert stream.run(startingOffset=3) == [[1, 2]]


def test_a_stream_of_a_shortened_log_begins_where_it_begins(feed, stream):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    assert stream.run() == [[1, 2]]


def test_a_batch_that_failed_is_replayed_with_the_same_rows_although_the_log_has_grown(feed, stream):
    feed.append(*transaction(*rows(0, 1)))
    assert stream.run() == [[0, 1]]
    feed.append(*transaction(*rows(2, 3)))
    stream.fails_at = 1
    with pytest.raises(PySparkException):
        stream.run()
    (before,) = stream.batches
    feed.append(*transaction(*rows(4)))
    stream.fails_at = None
    replayed = stream.run()
    assert stream.batches[0] == before
    assert replayed + stream.run() == [[2, 3], [4]]  # Spark 4.1 makes one micro-batch of `availableNow`


def test_available_now_stops_at_what_was_there_when_it_started(feed, stream):
    feed.append(*transaction(*rows(1)))
    taken = stream._take

    def take_and_append(frame: DataFrame, number: int) -> None:
        taken(frame, number)
        feed.append(*transaction(*rows(100 + number)))

    stream._take = take_and_append
    assert stream.run() == [[1]]


def test_marks_and_other_tables_move_a_stream_without_rows(feed, stream):
    feed.append(*transaction(insert(1, "1", "a", None)))
    assert stream.run() == [[1]]
    feed.append(*transaction(insert(2, "9", "9")), logical_message(in_transaction=False))
    feed.append(*transaction(*rows(2)))
    assert [numbers for numbers in stream.run() if numbers] == [[2]]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_table_that_the_log_does_not_hold_is_an_error_that_names_it(feed, read):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(AnalysisException, match=r"holds no change of public\.nothing"):
        read("nothing")


def test_a_state_directory_that_is_not_there_is_an_error_that_names_it(read, tmp_path):
    with pytest.raises(AnalysisException, match=f"{tmp_path}/state/log holds no change"):
        read()


def test_a_missing_path_is_an_error_that_names_the_option(spark):
    with pytest.raises(AnalysisException, match="needs the option `path`"):
        spark.read.format("tailrace").option("table", "public.items").load()


def test_a_range_that_is_gone_is_an_error_that_names_what_is_kept_and_what_to_do(feed, read, stream):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    said = r"no longer holds offset 1: it keeps 4 to 9; begin at what is kept, with a new checkpoint; .* `log\.keep`"
    for use in (lambda: read(startingOffset=0).collect(), lambda: stream.run(startingOffset=0)):
        with pytest.raises(PySparkException, match=said):
            use()


def test_a_stream_that_is_to_begin_behind_the_end_is_refused_and_does_not_wait_for_it(feed, stream):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(PySparkException, match="does not hold offset 1001 yet: it ends at 3"):
        stream.run(startingOffset=1000)


def test_a_batch_that_ends_before_it_begins_is_refused(feed, read):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(PySparkException, match="`endingOffset` lies before `startingOffset`"):
        read(startingOffset=3, endingOffset=2).collect()


def test_a_checkpoint_that_the_log_has_outrun_is_refused_and_nothing_is_skipped(feed, stream):
    feed.append(*transaction(*rows(0)))
    assert stream.run() == [[0]]
    for number in (1, 2, 3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(9)
    with pytest.raises(PySparkException, match="no longer holds offset 4: it keeps 10 to 12"):
        stream.run()
    assert stream.batches == []


def test_a_segment_that_goes_while_a_batch_reads_it_is_an_error_that_says_so(feed, read):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    frame = read()
    frame.rdd.getNumPartitions()  # planned
    feed.writer.forget(6)
    with pytest.raises(PySparkException, match=r"no longer holds offset [14]: it keeps 7 to 9; .* the option `reader`"):
        frame.rdd.collect()


def test_a_checkpoint_of_a_log_that_was_made_anew_is_refused(feed, stream, tmp_path):
    feed.append(*transaction(*rows(1)))
    assert stream.run() == [[1]]
    anew(feed, tmp_path)
    with pytest.raises(
        PySparkException, match=r"at offset 3 of a change log that is gone: .* whose offsets began again"
    ):
        stream.run()
    assert stream.batches == []


def anew(feed: Feed, folder: Path) -> None:
    """The state directory is deleted, and a new run fills it again, with other changes."""
    feed.writer.close()
    shutil.rmtree(folder / "state")
    feed.writer = LogWriter.create(Storage(str(folder / "state" / "log")), None, "0/0")
    for number in range(10, 13):
        feed.append(*transaction(*rows(number)))


# --- named readers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def readers(tmp_path) -> Readers:
    return Readers(Storage(str(tmp_path / "state" / "readers")))


def test_a_named_reader_keeps_its_place_as_its_checkpoint_moves(feed, stream, readers):
    before = []
    taken = stream._take

    def look(frame: DataFrame, number: int) -> None:
        before.append(readers.all()["warehouse"].offset)
        taken(frame, number)

    stream._take = look
    steps = [partial(feed.append, *transaction(*rows(number))) for number in range(3)]
    steps.pop(0)()
    assert stream.follow(lambda: None, *steps, reader="warehouse") == [[0], [1], [2]]
    assert before == [0, 3, 6]
    place = readers.all()["warehouse"]
    assert (place.log, place.table) == (feed.writer.identity.id, "public.items")


@limited
def test_a_named_reader_that_has_all_says_so_when_it_starts_again(feed, stream, readers):
    """Spark 4.1 does not tell it whether it has: it says so with its next micro-batch."""
    feed.append(*transaction(*rows(1)))
    assert stream.run(reader="warehouse") == [[1]]
    assert stream.run(reader="warehouse") == []
    assert readers.all()["warehouse"].offset == 3


def test_a_named_readers_failed_batch_stays_until_it_is_done(feed, stream, readers):
    feed.append(*transaction(*rows(0, 1)))
    stream.fails_at = 1
    with pytest.raises(PySparkException):
        stream.follow(lambda: None, partial(feed.append, *transaction(*rows(2, 3))), reader="warehouse")
    assert readers.all()["warehouse"].offset == 4
    with pytest.raises(PySparkException):
        stream.run(reader="warehouse")
    assert readers.all()["warehouse"].offset == 4
    stream.fails_at = None
    assert stream.run(reader="warehouse") == [[2, 3]]


def test_a_named_reader_that_lost_its_checkpoint_goes_on_where_it_was(feed, stream, readers, tmp_path):
    feed.append(*transaction(*rows(1)))
    stream.run(reader="warehouse")
    place = readers.all()["warehouse"].offset
    feed.append(*transaction(*rows(2)))
    shutil.rmtree(tmp_path / "checkpoint")
    assert stream.run(reader="warehouse") == ([[2]] if place == 3 else [[1, 2]])
    shutil.rmtree(tmp_path / "checkpoint")
    assert stream.run(reader="warehouse", startingOffset=0) == [[1, 2]]


def test_a_named_reader_of_a_log_that_was_made_anew_is_refused_until_it_is_dropped(feed, stream, readers, tmp_path):
    feed.append(*transaction(*rows(1)))
    stream.run(reader="warehouse")
    place = (tmp_path / "state" / "readers" / "warehouse.json").read_bytes()
    anew(feed, tmp_path)
    readers.storage.create()
    readers.storage.publish("warehouse.json", place)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(
        PySparkException, match=r"reader warehouse was at offset 0 of a change log that is gone; .*drop"
    ):
        stream.run(reader="warehouse")
    readers.drop("warehouse")
    assert stream.run(reader="warehouse") == [[10, 11, 12]]


def test_two_streams_of_one_name_are_one_too_many(feed, stream, readers):
    feed.append(*transaction(*rows(1)))
    taken = stream._take

    def usurp(frame: DataFrame, number: int) -> None:
        taken(frame, number)
        readers.put("warehouse", feed.writer.identity.id, 6, "public.items", "another")

    stream._take = usurp
    with pytest.raises(PySparkException, match="reader warehouse is another stream's by now"):
        stream.follow(lambda: None, partial(feed.append, *transaction(*rows(2))), reader="warehouse")
    assert readers.all()["warehouse"].owner == "another"


def test_a_reader_whose_first_offset_is_gone_holds_nothing(feed, stream, readers):
    for number in range(3):
        feed.append(*transaction(*rows(number)))
    feed.writer.forget(3)
    with pytest.raises(PySparkException, match="no longer holds offset 1"):
        stream.run(reader="warehouse", startingOffset=0)
    assert readers.all() == {}


@pytest.mark.parametrize("name", ["../escape", "Warehouse", ""])
def test_a_readers_name_is_checked(feed, stream, name):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(PySparkException, match="can not be the name of a reader"):
        stream.run(reader=name)


def test_a_batch_is_no_named_reader(feed, read):
    feed.append(*transaction(*rows(1)))
    with pytest.raises(PySparkException, match="the option `reader` is for streams"):
        read(reader="warehouse").collect()


# --- tables that are quiet, not there yet, or renamed ----------------------------------------------------------------


def test_a_stream_of_a_quiet_table_starts_again_after_its_changes_are_gone(feed, stream):
    feed.append(*transaction(*rows(1)))
    assert stream.run(reader="warehouse") == [[1]]
    Feed(feed.writer, {2: ORDERS}).append(*transaction(insert(2, "9", "9")))
    feed.writer.forget(3)
    assert [numbers for numbers in stream.run(reader="warehouse") if numbers] == []
    feed.append(*transaction(*rows(2)))
    assert [numbers for numbers in stream.run(reader="warehouse") if numbers] == [[2]]


def test_a_table_without_a_change_can_be_followed_by_who_knows_its_columns(feed, spark, stream, tmp_path):
    Feed(feed.writer, {2: ORDERS}).append(*transaction(insert(2, "9", "9")))
    with pytest.raises(AnalysisException, match=r"holds no change of public\.items; .* wait for that, or give them"):
        stream.run()
    known = "id bigint, _op string, _offset bigint"
    frame = spark.readStream.format("tailrace").schema(known).option("path", str(tmp_path / "state"))
    writer = frame.option("table", "items").load().writeStream.foreachBatch(stream._take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for number in (1, 2):
        assert writer.start().awaitTermination(120) is not False
        feed.append(*transaction(*rows(number)))
    assert [row["id"] for _, batch in stream.batches for row in batch] == [1]


def test_a_stream_of_a_renamed_table_says_so_when_it_gets_there(feed, stream, read):
    feed.append(*transaction(*rows(1)))
    feed.redefine(1, msgspec.structs.replace(ITEMS, name="parts"))
    feed.append(*transaction(*rows(2)))
    assert stream.run() == [[1]]
    feed.append(*transaction(*rows(3)))
    said = r"public\.items was renamed to public\.parts in the source; read public\.parts with startingOffset 3"
    with pytest.raises(PySparkException, match=said):
        stream.run()
    assert ids(read("parts", startingOffset=3)) == [2, 3]
    assert ids(read("items")) == [1]
    with pytest.raises(PySparkException, match=said):
        read("items", startingOffset=6).collect()


def test_a_damaged_segment_is_an_error_and_not_fewer_rows(feed, read, tmp_path):
    feed.append(*transaction(*rows(1)))
    feed.append(*transaction(*rows(2)))
    newest = max((tmp_path / "state" / "log").glob("*.segment"))
    data = bytearray(newest.read_bytes())
    data[-30] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.raises(PySparkException, match="is damaged"):
        read().collect()


@pytest.mark.parametrize("option", ["startingOffset", "endingOffset", "maxRowsPerTrigger", "numPartitions"])
def test_an_option_that_is_no_number_is_an_error_that_names_it(feed, stream, read, option):
    feed.append(*transaction(*rows(1)))
    use = stream.run if option == "maxRowsPerTrigger" else lambda **options: read(**options).collect()
    with pytest.raises(PySparkException, match=f"option `{option}`"):
        use(**{option: "many"})
