"""The SQLite sink: held to the contract of all SQL sinks, and to what is its own."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tailrace import config
from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch
from tailrace.sinks.sql import sqlite as module
from tailrace.sinks.sql.sqlite import SqliteSink
from tailrace.testing.sample_values import DIGITS, SAMPLES, TEXTS, UUIDS
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    ORDERS,
    TEXT,
    SourceRows,
    apply,
    chunk,
    net,
    partial,
    status,
    watermark,
)
from tailrace.testing.sink_contract import SinkContract

EXPECTED = {
    "boolean": [1, 0, None],
    "int16": [0, 32_767, -32_768, None],
    "int32": [0, 2_147_483_647, -2_147_483_648, None],
    "int64": [0, 2**63 - 1, -(2**63), None],
    "float32": [0.0, 0.5, 16_777_216.0, 1.401298464324817e-45, "NaN", float("inf"), -float("inf"), None],
    "float64": [0.0, 0.1, 1e15, 5e-324, 1.7976931348623157e308, "NaN", float("inf"), -float("inf"), None],
    "decimal": ["0.00", "12.50", "-0.01", "9999999999.99", None],
    "wide decimal": ["9" * 28 + "." + "9" * 10, "-" + "9" * 28 + ".0000000001", None],
    "numeric": ["0", "0.000", "-1.50", DIGITS, "NaN", "Infinity", "-Infinity", None],
    "text": [*TEXTS, None],
    "bytes": [b"", b"\0", b"\xde\xad\xbe\xef", b"text", b"\0\xff" * 3000, None],
    "uuid": [*UUIDS, None],
    "date": [
        *("1970-01-01", "2024-02-29", "0044-03-15 BC", "9999-12-31", "10000-01-01"),
        *("infinity", "-infinity", None),
    ],
    "time": ["00:00:00", "12:00:00.500000", "23:59:59.999999", "24:00:00", None],
    "timetz": ["00:00:00+00:00", "24:00:00-15:59:59", "00:00:00.000001+05:30", None],
    "timestamp": [
        *("1970-01-01 00:00:00", "1970-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999"),
        *("2024-02-29 23:59:59.500000", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00"),
        *("infinity", "-infinity", None),
    ],
    "timestamptz": [
        *("1970-01-01 00:00:00+00:00", "1970-01-01 00:00:00.000001+00:00", "1969-12-31 23:59:59.999999+00:00"),
        *("2024-02-29 23:59:59.500000+00:00", "0044-03-15 12:00:00+00:00 BC", "10000-01-01 00:00:00+00:00"),
        *("infinity", "-infinity", None),
    ],
    "interval": ["PT0S", "P1Y2M-3DT4H5M6.789S", "P30D", "P1M", "infinity", None],
    "json": ['{"a": [1, null, "ü"]}', "null", '"t"', None],
    "enum": ["sad", "it's ok", None],
    "other": ["10.0.0.0/8", "::1", None],
    "integers": ["[]", "[1,null,-2]", "[null]", None],
    "texts": [r'["a,b","\"","\\","",null,"NULL"]', "[]", None],
    "floats": ['[0.1,"NaN","-Infinity",null]', "[1]", None],
    "decimals": ['["1.50",null]', None],
    "booleans": ["[true,false,null]", None],
    "blobs": [r'["\\x00ff","\\x"]', None],
    "moments": ['["1970-01-01 00:00:00+00:00","infinity",null]', None],
    "days": ['["2024-02-29","0044-03-15 BC","-infinity"]', None],
}


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def pipeline(folder: Path, name: str, **sink: object) -> config.Pipeline:
    document = {
        "name": name,
        "source": {"url": "postgresql://nowhere/shop", "tables": ["*.*"]},
        "sinks": {"replica": {"url": f"sqlite:///{folder}/replica.db", **sink}},
        "state": str(folder / "state" / name),
    }
    return msgspec.convert(document, config.Pipeline)


@pytest.fixture
def make_sink(tmp_path) -> Callable[..., SqliteSink]:
    return lambda name="shop", **options: SqliteSink(pipeline(tmp_path, name, **options), "replica")


@pytest.fixture
def sink(make_sink) -> Iterator[SqliteSink]:
    sink = make_sink()
    yield sink
    sink.close()


@pytest.fixture
def query(tmp_path) -> Callable[..., list[tuple]]:
    def run(statement: str) -> list[tuple]:
        with closing(sqlite3.connect(f"file:{tmp_path}/replica.db?mode=ro", uri=True)) as connection:
            return connection.execute(statement).fetchall()

    return run


@pytest.fixture
def rows(query) -> Callable[[TableSchema], list[tuple]]:
    def read(schema: TableSchema) -> list[tuple]:
        name = schema.name if schema.schema == "public" else f"{schema.schema}_{schema.name}"
        return query(f"SELECT {', '.join(quote(column.name) for column in schema.columns)} FROM {quote(name)}")

    return read


class TestSqliteSink(SinkContract):
    @pytest.fixture
    def inventory(self, tmp_path) -> Callable[[], list[str]]:
        def everything() -> list[str]:
            files = [str(path) for path in tmp_path.rglob("*") if path.is_file() and path.name != "work.pickle"]
            files = [path for path in files if not path.endswith(("-wal", "-shm"))]
            if not (tmp_path / "replica.db").exists():
                return sorted(files)
            with closing(sqlite3.connect(tmp_path / "replica.db")) as connection:
                return sorted([*files, *(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))])

        return everything

    @pytest.fixture
    def expected_values(self) -> dict[str, list]:
        return EXPECTED


def test_the_mapping_of_every_type_is_tested():
    assert {sample.type.kind for sample in SAMPLES.values()} == set(Kind)
    assert EXPECTED.keys() == SAMPLES.keys()


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_is_in_wal_mode_and_commits_are_synced(sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert query("PRAGMA journal_mode") == [("wal",)]
    assert sink._open().execute("PRAGMA synchronous").fetchone() == (2,)


def test_columns_have_the_best_matching_types_and_the_key(sink, query):
    columns = tuple(Column(name, sample.type) for name, sample in SAMPLES.items())
    apply(sink, [net(TableSchema("public", "wide", columns, ("int64",)))], 10)
    found = {name: (type_, key) for _, name, type_, _, _, key in query("PRAGMA table_info(wide)")}
    integers, floats = {"boolean", "int16", "int32", "int64"}, {"float32", "float64"}
    assert {name for name, (type_, _) in found.items() if type_ == "INTEGER"} == integers
    assert {name for name, (type_, _) in found.items() if type_ == ""} == floats
    assert {name for name, (type_, _) in found.items() if type_ == "BLOB"} == {"bytes"}
    assert {type_ for type_, _ in found.values()} == {"INTEGER", "", "BLOB", "TEXT"}
    assert {name for name, (_, key) in found.items() if key} == {"int64"}


def test_an_integer_key_is_the_row_id(sink, query):
    apply(sink, [net(ITEMS, [(41, "a", None)])], 10)
    assert query("SELECT rowid FROM items") == [(41,)]


def test_checking_makes_no_file(sink, tmp_path):
    sink.check()
    assert sink.read_state().watermark is None
    assert not (tmp_path / "replica.db").exists()


def test_a_folder_that_is_missing_is_one_clear_sentence_with_the_remedy(tmp_path):
    sink = SqliteSink(pipeline(tmp_path / "nowhere", "shop"), "replica")
    for use in (sink.check, lambda: sink.commit(Batch((), watermark(1)), SourceRows(ITEMS))):
        with pytest.raises(
            SinkRejected, match=f"sink replica: the folder {tmp_path}/nowhere .* does not exist"
        ) as caught:
            use()
        assert caught.value.hint == f"mkdir -p {tmp_path}/nowhere"


def test_a_file_that_is_no_database_is_refused(sink, tmp_path):
    (tmp_path / "replica.db").write_bytes(b"not a database, certainly not" * 100)
    for use in (sink.check, sink.read_state):
        with pytest.raises(SinkRejected, match=r"replica\.db .*not a database"):
            use()


def test_a_file_that_somebody_else_has_locked_is_tried_again(sink, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.01)
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    sink.close()
    with closing(sqlite3.connect(tmp_path / "replica.db", isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailable, match="locked"):
            apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    assert sink.read_state().watermark == watermark(20)


def test_a_table_that_somebody_else_made_differently_is_refused(sink, tmp_path):
    with closing(sqlite3.connect(tmp_path / "replica.db")) as somebody:
        somebody.execute("CREATE TABLE items (id INTEGER, name TEXT, notes TEXT)")  # no key to match rows by
    with pytest.raises(SinkRejected, match="sink replica"):
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert sink.read_state().watermark is None


def test_as_many_parts_as_the_sink_asks_for_are_committed_together(sink, rows):
    parts = tuple(sink.stage("batch", n, [net(ITEMS, [(n, "a", None)])]) for n in range(sink.max_parts))
    sink.commit(Batch(parts, watermark(10)), SourceRows(ITEMS))
    assert len(rows(ITEMS)) == sink.max_parts


def test_a_path_with_odd_characters_is_that_path(tmp_path):
    folder = tmp_path / "100% sure? #1 ü"
    folder.mkdir()
    sink = SqliteSink(msgspec.structs.replace(pipeline(folder, "shop")), "replica")
    sink.path = str(folder / "a%20b?.db")
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    sink.close()
    assert (folder / "a%20b?.db").exists()


# --- names -----------------------------------------------------------------------------------------------------------


def test_two_tables_that_would_be_one_are_refused(sink):
    flat = TableSchema("public", "billing_items", (Column("id", INT),), ("id",))
    folded = msgspec.structs.replace(flat, schema="Billing", name="ITEMS")
    sink.begin_snapshot(status(flat, TableState.SNAPSHOT), [], clear=True)
    with pytest.raises(SinkRejected, match=r"public\.billing_items and Billing\.ITEMS would both be"):
        sink.begin_snapshot(status(folded, TableState.SNAPSHOT), [], clear=True)


def test_a_schema_may_be_given_another_name(make_sink, query):
    sink = make_sink(schemas={"billing": "b", "archive": ""})
    for offset, schema in enumerate(("billing", "archive")):
        apply(sink, [net(msgspec.structs.replace(ITEMS, schema=schema), [(1, "a", None)])], offset)
    sink.close()
    tables = {name for (name,) in query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"b_items", "items"} <= tables


def test_a_source_table_is_never_taken_for_the_sinks_own(sink):
    ours = TableSchema("public", "_tailrace_tables", (Column("id", INT),), ("id",))
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    with pytest.raises(SinkRejected, match="_tailrace_tables"):
        sink.begin_snapshot(status(ours, TableState.SNAPSHOT), [], clear=True)
    with pytest.raises(SinkRejected, match="_tailrace_tables"):
        apply(sink, [net(ours, [(1,)])], 20)
    assert sink.read_state().watermark == watermark(10)


@pytest.mark.parametrize("names", [("rowid", "y"), ("ROWID", "oid"), ("_rowid_", "oid"), ("oid", "rowid")])
def test_a_table_without_a_key_may_have_columns_named_as_the_row_id(sink, rows, names):
    schema = msgspec.structs.replace(LOOSE, columns=(Column(names[0], INT), Column(names[1], TEXT)))
    apply(sink, [net(schema, [(1, "a"), (1, "a"), (1, "b")])], 10)
    apply(sink, [net(schema, deletes=[(1, "a")], copies=[1])], 20)
    assert sorted(rows(schema)) == [(1, "a"), (1, "b")]


def test_a_table_without_a_key_that_leaves_no_name_for_the_row_id_is_refused(sink):
    names = ("rowid", "oid", "_rowid_")
    schema = msgspec.structs.replace(LOOSE, columns=tuple(Column(name, INT) for name in names))
    apply(sink, [net(schema, [(1, 2, 3)])], 10)
    with pytest.raises(SinkRejected, match=r"public\.loose"):
        apply(sink, [net(schema, deletes=[(1, 2, 3)], copies=[1])], 20)


def test_rows_without_a_key_are_looked_up_and_not_each_compared_with_the_whole_table(sink):
    """Or deleting ten thousand rows of a hundred thousand would take minutes."""
    apply(sink, [net(LOOSE, [(1, "a")])], 10)
    statements: list[str] = []
    sink._open().set_trace_callback(statements.append)
    apply(sink, [net(LOOSE, deletes=[(1, "a")], copies=[1])], 20)
    (statement,) = [text for text in statements if text.startswith("DELETE") and "loose" in text]
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.execute("CREATE TABLE loose (x INTEGER, y TEXT)")
        plain.execute("ATTACH ':memory:' AS part0")
        plain.execute("CREATE TABLE part0.s1 (c0, c1, x0)")
        plan = [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert any("SEARCH t USING AUTOMATIC COVERING INDEX (x=? AND y=?)" in step for step in plan)


# --- values ----------------------------------------------------------------------------------------------------------

FLOAT = ColumnType(Kind.FLOAT64, "double precision")


def test_both_zeros_of_a_table_without_a_key_go_when_both_are_deleted(sink, rows):
    schema = TableSchema("public", "zeros", (Column("x", FLOAT),), (), Identity.FULL)
    apply(sink, [net(schema, [(0.0,), (-0.0,), (0.0,)])], 10)
    apply(sink, [net(schema, deletes=[(0.0,), (-0.0,)], copies=[1, 1])], 20)
    assert rows(schema) == [(0.0,)]


def test_nan_can_be_a_key(sink, rows):
    schema = TableSchema("public", "nans", (Column("k", FLOAT), Column("v", TEXT), Column("w", TEXT)), ("k",))
    nan = float("nan")
    apply(sink, [net(schema, [(nan, "a", "long"), (1.0, "b", "x")])], 10)
    apply(sink, [net(schema, partials=[partial(schema, ("w",), [(nan, "a2", None)])])], 20)
    assert sorted(rows(schema), key=str) == [("NaN", "a2", "long"), (1.0, "b", "x")]
    apply(sink, [net(schema, partials=[partial(schema, ("w",), [(2.0, "a3", None)], [(nan,)])])], 30)
    assert sorted(rows(schema)) == [(1.0, "b", "x"), (2.0, "a3", "long")]


@pytest.mark.parametrize("name", ["boolean", "decimal", "bytes", "uuid", "date", "timestamptz", "float64", "interval"])
def test_the_source_is_asked_with_keys_it_can_read_whatever_their_type(sink, name):
    schema = TableSchema("public", "typed", (Column("v", TEXT), Column("k", SAMPLES[name].type)), ("k",))
    asked = []

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(keys.column(0).to_pylist())
        return net(schema).upserts

    keys = SAMPLES[name].values.drop_null()
    rows = pa.RecordBatch.from_arrays([pa.nulls(len(keys), pa.string()), keys], schema=schema.arrow)
    apply(sink, [net(schema, partials=[partial(schema, ("v",), rows)])], 10, fetch)
    texts = [value if isinstance(value, bytes) else str(value) for value in EXPECTED[name][:-1]]
    assert sorted(asked) == sorted(texts)


def test_chunks_of_tables_with_similar_names_do_not_meet(sink, rows):
    one, two = (msgspec.structs.replace(ORDERS, name=name) for name in ("a/b", "a_b"))
    for schema in (one, two):
        sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)

    def reading():
        sink.load_chunk(two, chunk(two), iter([net(two, [(2, 2)]).upserts]))
        yield net(one, [(1, 1)]).upserts

    sink.load_chunk(one, chunk(one), reading())
    assert (rows(one), rows(two)) == ([(1, 1)], [(2, 2)])


def test_a_folder_that_may_not_be_written_is_one_clear_sentence(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(SinkRejected, match="cannot be written"):
        SqliteSink(pipeline(tmp_path, "shop"), "replica").check()
