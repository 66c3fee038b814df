"""The SQLite sink: held to the contract of all SQL sinks, and to what is its own."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tailrace.sinks.sql import sink as sql_sink
from tailrace.sinks.sql.quarantine.entries import delete_again
from tailrace.sinks.sql.sqlite import session as sqlite_session
from tailrace.sinks.sql.sqlite.dialect import SqliteSink
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
    live,
    load,
    net,
    partial,
    status,
    table_of,
    watermark,
)
from tailrace.testing.sink_contract import SinkContract
from tailrace.testing.sink_contract_settings import Keep, QuarantineContract, Refuse, RenamesContract
from tailrace.testing.sink_contract_tables import TablesContract, assert_table_is_refused

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
    "undefined": ["NaN", "0.00", None],
    "late": ["294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999999", None],
    "late_utc": [
        *(
            "294247-01-10 04:00:54.775807+00:00",
            "294247-01-10 04:00:54.775808+00:00",
            "294276-12-31 23:59:59.999999+00:00",
        ),
        None,
    ],
    "matrices": ["[[1,2],[3,null]]", '{"[0:1]":[1,2]}', "[1]", "[]", '{"[-1:0][7:7]":[[1],[2]]}', None],
    "word tables": [r'[["a\"b",""],[null,"{,}"]]', None],
    "boxes": ['["(2,2),(1,1)",null,"(4,4),(3,3)"]', "[]", None],
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
def execute(tmp_path) -> Callable[..., None]:
    """Somebody else changes the file."""

    def run(*statements: str) -> None:
        with closing(sqlite3.connect(tmp_path / "replica.db", isolation_level=None)) as somebody:
            for statement in statements:
                somebody.execute(statement)

    return run


@pytest.fixture
def rows(query) -> Callable[[TableSchema], list[tuple]]:
    def read(schema: TableSchema) -> list[tuple]:
        name = schema.name if schema.schema == "public" else f"{schema.schema}_{schema.name}"
        return query(f"SELECT {', '.join(quote(column.name) for column in schema.columns)} FROM {quote(name)}")

    return read


class TestSqliteSink(SinkContract, RenamesContract, QuarantineContract, TablesContract):
    @pytest.fixture
    def refuse(self, tmp_path) -> Refuse:
        """A CHECK can not be added to a table of SQLite's, a trigger can."""

        def forbid(schema: TableSchema, column: str, value: str) -> None:
            with closing(sqlite3.connect(tmp_path / "replica.db")) as connection:
                for event in ("INSERT", "UPDATE"):
                    connection.execute(
                        f"CREATE TRIGGER forbid_{event} BEFORE {event} ON {quote(schema.name)}"
                        f" WHEN NEW.{quote(column)} = '{value}' BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
                    )

        return forbid

    @pytest.fixture
    def keep(self, tmp_path) -> Keep:
        def execute(statement: str) -> None:
            with closing(sqlite3.connect(tmp_path / "replica.db")) as connection:
                connection.execute(statement)

        def forbid(schema: TableSchema) -> Callable[[], None]:
            body = "BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
            execute(f"CREATE TRIGGER keep BEFORE DELETE ON {quote(schema.name)} {body}")
            return lambda: execute("DROP TRIGGER keep")

        return forbid

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


class TestStagedSqliteSink(TestSqliteSink):
    """The same by way of staging files, which only larger batches take."""

    @pytest.fixture(autouse=True)
    def nothing_inline(self, monkeypatch):
        monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)


def test_the_mapping_of_every_type_is_tested():
    assert {sample.type.kind for sample in SAMPLES.values()} == set(Kind)
    assert EXPECTED.keys() == SAMPLES.keys()


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_is_in_wal_mode_and_commits_are_synced(sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert query("PRAGMA journal_mode") == [("wal",)]
    with sink._sessions.use("being tested") as session:
        session.begin()
        assert session.execute("PRAGMA synchronous") == [(2,)]
        session.rollback()


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


def test_nothing_but_a_write_makes_the_file(sink, tmp_path):
    sink.check()
    sink.clean()
    sink.forget()
    assert sink.read_state().watermark is None
    assert sink.count_rows(ITEMS, 10) is None
    assert list(tmp_path.iterdir()) == []


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
    monkeypatch.setattr(sqlite_session, "BUSY_SECONDS", 0.01)
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    sink.close()
    with closing(sqlite3.connect(tmp_path / "replica.db", isolation_level=None)) as somebody:
        somebody.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailable, match="locked"):
            apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    assert sink.read_state().watermark == watermark(20)


def test_as_many_parts_as_the_sink_asks_for_are_committed_together(sink, rows, monkeypatch):
    monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)
    parts = tuple(sink.stage("batch", n, [net(ITEMS, [(n, "a", None)])]) for n in range(sink.max_parts))
    sink.commit(Batch(parts, watermark(10)), SourceRows(ITEMS))
    assert len(rows(ITEMS)) == sink.max_parts


def test_a_path_with_odd_characters_is_that_path(tmp_path):
    folder = tmp_path / "100% sure? #1 ü"
    folder.mkdir()
    sink = SqliteSink(msgspec.structs.replace(pipeline(folder, "shop")), "replica")
    for part in (sink.dialect.server, sink.dialect.staging):
        part._file = msgspec.structs.replace(part._file, path=folder / "a%20b?.db")
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert sink.read_state().watermark == watermark(10)
    sink.close()
    assert sink.read_state().watermark == watermark(10)
    assert (folder / "a%20b?.db").exists()


def test_a_staging_folder_with_odd_characters_is_that_folder(sink, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)
    for part in (sink.dialect.server, sink.dialect.staging):
        part._file = msgspec.structs.replace(part._file, scratch=tmp_path / "100% sure? #1 ü")
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert rows(ITEMS) == [(1, "a", None)]


def test_a_copy_takes_the_place_of_a_table_that_views_are_made_of(sink, execute, query):
    live(sink, load(sink, ITEMS, [(1, "old", None)]), ITEMS)
    execute("CREATE VIEW report AS SELECT name, notes FROM items")
    numbers = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("notes", INT)))
    live(sink, load(sink, numbers, [(1, "new", 5)], generation=2), numbers)
    assert query("SELECT name, notes FROM report") == [("new", 5)]


def test_a_table_whose_name_changed_its_case_is_copied(sink, rows):
    """SQLite takes both names for one; the table of the old name is not at the source any more."""
    old = msgspec.structs.replace(ITEMS, name="Items")
    live(sink, load(sink, old, [(1, "old", None)]), old)
    gone = msgspec.structs.replace(status(old).aside(TableState.PAUSED, "it is public.items now"), membership="")
    sink.commit(Batch(tables=(gone,)), SourceRows(old))
    live(sink, load(sink, ITEMS, [(2, "new", None)]), ITEMS)
    assert rows(ITEMS) == [(2, "new", None)]


def test_what_was_staged_in_a_file_that_is_gone_is_staged_again(sink, monkeypatch):
    monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)
    part = sink.stage("batch", 0, [net(ITEMS, [(1, "a", None)])])
    sink.clean()
    with pytest.raises(SinkUnavailable, match="is gone"):
        sink.commit(Batch((part,), watermark(10)), SourceRows(ITEMS))
    assert sink.read_state().watermark is None


def test_looking_leaves_no_trace(sink, tmp_path):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    sink.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert sink.read_state().watermark == watermark(10)
    assert sink.count_rows(ITEMS, 10) == 1
    sink.check()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_reader_is_told_of_what_is_committed_and_not_yet_in_the_file_itself(sink, make_sink):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    beside = make_sink()
    assert beside.read_state().watermark == watermark(10)
    assert beside.count_rows(ITEMS, 10) == 1
    assert beside.count_rows(ORDERS, 10) is None


def test_chunks_of_several_tasks_wait_for_each_other_and_not_for_the_source(sink, rows):
    numbers = range(8)
    sink.begin_snapshot(status(ORDERS, TableState.SNAPSHOT), [chunk(ORDERS, n) for n in numbers], clear=True)
    everybody_reads = threading.Barrier(len(numbers))

    def load(number: int) -> int:
        def reading():
            everybody_reads.wait(30)
            yield table_of(ORDERS, [(number, number)])

        return sink.load_chunk(ORDERS, chunk(ORDERS, number), reading())

    with ThreadPoolExecutor(len(numbers)) as pool:
        assert list(pool.map(load, numbers)) == [1] * len(numbers)
    assert sorted(rows(ORDERS)) == [(n, n) for n in numbers]


# --- tables that are there already -----------------------------------------------------------------------------------


def test_an_existing_table_is_used_with_its_extra_columns(sink, query, execute):
    execute("CREATE TABLE items (id INT NOT NULL UNIQUE, at TEXT DEFAULT 'now' NOT NULL, name VARCHAR(9), own INT)")
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
    sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, [(1, "a", "x")])]))
    execute("UPDATE items SET own = 7")
    apply(sink, [net(ITEMS, [(1, "b", "y"), (2, "c", None)])], 10)
    found = query("SELECT id, name, notes, own, at FROM items ORDER BY id")
    assert found == [(1, "b", "y", 7, "now"), (2, "c", None, None, "now")]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("id INTEGER PRIMARY KEY, name INTEGER", "column name of table items in the sink is INTEGER"),
        ("id REAL PRIMARY KEY", r"column id .* is REAL, and public\.items\.id .bigint. needs INTEGER"),
        ("id INTEGER PRIMARY KEY, name DECIMAL(9, 2)", r"is DECIMAL\(9, 2\), and .* needs TEXT"),
        ("id INTEGER PRIMARY KEY, own INT NOT NULL", "column own .* must have a value"),
        ("id INTEGER, name TEXT, notes TEXT", r"no unique index on \(id\)"),
        ("id INTEGER, name TEXT, PRIMARY KEY (id, name)", r"no unique index on \(id\)"),
        ("id INTEGER COLLATE NOCASE UNIQUE", r"no unique index on \(id\)"),
    ],
)
def test_an_existing_table_that_can_not_take_the_rows_is_refused(sink, execute, columns, words):
    execute(f"CREATE TABLE items ({columns})")
    assert_table_is_refused(sink, words)


def test_a_table_that_somebody_made_in_the_place_of_ours_is_theirs(sink, query, execute):
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
    sink.forget()
    execute("DROP TABLE items", "CREATE TABLE items (id INTEGER PRIMARY KEY)", "INSERT INTO items VALUES (1)")
    with pytest.raises(SinkRejected, match="items has rows that tailrace did not write"):
        sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)


def test_a_table_that_we_made_is_made_again_when_its_types_change(sink, query):
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
    changed = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("notes", INT)))
    sink.begin_snapshot(status(changed, TableState.SNAPSHOT, generation=2), [], clear=True)
    assert [type_ for _, name, type_, *_ in query("PRAGMA table_info(items)") if name == "notes"] == ["INTEGER"]


def test_a_table_that_we_made_is_ours_after_it_got_a_column(sink, make_sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    wider = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns, Column("added", INT)))
    apply(sink, [net(wider, [(2, "b", None, 5)])], 20)
    live(sink, load(sink, wider, []), wider)
    assert query("SELECT count(*) FROM items") == [(0,)]


def test_indexes_and_views_of_others_survive_a_new_snapshot(sink, query, execute):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    execute("CREATE INDEX by_name ON items (name)", "CREATE VIEW names AS SELECT name FROM items")
    live(sink, load(sink, ITEMS, [(1, "b", None)]), ITEMS)
    assert query("SELECT name FROM sqlite_master WHERE name = 'by_name'") == [("by_name",)]
    assert query("SELECT * FROM names") == [("b",)]


def test_a_table_that_somebody_dropped_is_one_clear_sentence(sink, execute):
    sink.begin_snapshot(status(ITEMS), [], clear=True)
    apply(sink, [net(ITEMS, [(1, "a", None)])], 5)
    execute("DROP TABLE items")
    with pytest.raises(SinkRejected, match=r"merging public\.items.*no such table"):
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    with pytest.raises(SinkRejected, match="table items is gone from the sink") as caught:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert "`tailrace drop` on this pipeline" in caught.value.hint
    assert sink.read_state().watermark == watermark(5)


def test_doubles_go_unchanged_into_a_column_that_somebody_declared_real(sink, rows, execute):
    schema = TableSchema("public", "floats", (Column("id", INT), Column("x", FLOAT)), ("id",))
    execute("CREATE TABLE floats (id INTEGER PRIMARY KEY, x REAL)")
    values = list(enumerate([0.1, 1.0, 1e300, 5e-324, float("inf"), None]))
    apply(sink, [net(schema, [*values, (9, float("nan"))])], 10)
    assert rows(schema) == [*values, (9, "NaN")]


FOLDING = "k TEXT COLLATE NOCASE, v TEXT COLLATE NOCASE, w TEXT COLLATE RTRIM"
FOLDED = TableSchema("public", "folded", (Column("k", TEXT), Column("v", TEXT), Column("w", TEXT)), ("k",))


@pytest.fixture
def folded(sink, execute) -> SqliteSink:
    """Somebody's table whose key is exact, though a comparison with its columns is not by itself."""
    execute(f"CREATE TABLE folded ({FOLDING})", "CREATE UNIQUE INDEX exact ON folded (k COLLATE BINARY)")
    apply(sink, [net(FOLDED, [("a", "x", "y"), ("A", "x", "y"), ("b", "x", "y"), ("B", "x", "y")])], 10)
    return sink


def test_rows_whose_keys_are_equal_by_a_collation_only_are_not_deleted(folded, rows):
    apply(folded, [net(FOLDED, deletes=[("a",), ("B",)])], 20)
    assert sorted(rows(FOLDED)) == [("A", "x", "y"), ("b", "x", "y")]


def test_rows_whose_keys_are_equal_by_a_collation_only_are_not_changed(folded, rows):
    sent = partial(FOLDED, ("w",), [("a", "x2", None)])
    moved = partial(FOLDED, ("w",), [("C", "x3", None)], [("B",)])
    apply(folded, [net(FOLDED, [("A", "X", "Y")], partials=[sent, moved])], 20)
    assert sorted(rows(FOLDED)) == [("A", "X", "Y"), ("C", "x3", "y"), ("a", "x2", "y"), ("b", "x", "y")]
    again = partial(FOLDED, ("w",), [("c", "x4", None)], [("C",)])
    apply(folded, [net(FOLDED, partials=[again])], 30)
    assert sorted(rows(FOLDED)) == [("A", "X", "Y"), ("a", "x2", "y"), ("b", "x", "y"), ("c", "x4", "y")]


def test_partial_rows_that_are_there_by_a_collation_only_are_read_from_the_source(folded, rows):
    source = SourceRows(FOLDED, [("c", "of the", "source")])
    changes = partial(FOLDED, ("w",), [("c", "x", None)])
    apply(folded, [net(FOLDED, [("C", "x", "y")], partials=[changes])], 20, source)
    assert source.asked == [("c",)]
    assert ("c", "of the", "source") in rows(FOLDED)


def test_a_refused_delete_that_is_repeated_finds_its_row_only(folded, rows):
    with folded._sessions.use("being tested") as session:
        session.begin()
        assert delete_again(session, folded.dialect, '"folded"', FOLDED, ["B"])
        session.commit()
    assert sorted(rows(FOLDED)) == [("A", "x", "y"), ("a", "x", "y"), ("b", "x", "y")]


def test_rows_without_a_key_that_are_equal_by_a_collation_only_are_not_deleted(sink, rows, execute):
    schema = msgspec.structs.replace(FOLDED, key=(), identity=Identity.FULL)
    execute(f"CREATE TABLE folded ({FOLDING})")
    apply(sink, [net(schema, [("A", "x", "y "), ("a", "x", "y"), ("a", "x", "y"), ("a", "x", "y ")])], 10)
    apply(sink, [net(schema, deletes=[("a", "x", "y")], copies=[2])], 20)
    assert sorted(rows(schema)) == [("A", "x", "y "), ("a", "x", "y ")]


def test_a_key_that_is_also_unique_by_another_collation_is_refused(sink, execute):
    """An upsert would take either for the key."""
    execute("CREATE TABLE folded (k TEXT COLLATE NOCASE UNIQUE, v TEXT, w TEXT)")
    execute("CREATE UNIQUE INDEX exact ON folded (k COLLATE BINARY)")
    with pytest.raises(SinkRejected, match=r"no unique index on \(k\)"):
        apply(sink, [net(FOLDED, [("a", "x", "y")])], 10)


LENIENT = [
    "name TEXT UNIQUE ON CONFLICT IGNORE, notes TEXT",
    "name TEXT UNIQUE ON CONFLICT REPLACE, notes TEXT",
    "name TEXT UNIQUE ON CONFLICT FAIL, notes TEXT",
    "name TEXT, notes TEXT NOT NULL ON CONFLICT IGNORE",
    "name TEXT, notes TEXT DEFAULT 'x' NOT NULL ON CONFLICT REPLACE",
    "name TEXT, notes TEXT, CHECK (notes IS NOT NULL) ON CONFLICT IGNORE",
    "name TEXT, notes TEXT, UNIQUE (name) ON CONFLICT ROLLBACK",
]


@pytest.mark.parametrize("columns", LENIENT)
@pytest.mark.parametrize("way", ["insert", "upsert", "update", "move"])
def test_rows_that_a_table_would_drop_without_a_word_are_refused(sink, rows, execute, columns, way):
    execute(f"CREATE TABLE items (id INTEGER PRIMARY KEY ON CONFLICT IGNORE, {columns})")
    apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
    bad = "a", None
    changes = {
        "insert": net(ITEMS, [(3, *bad)]),
        "upsert": net(ITEMS, [(2, *bad)]),
        "update": net(ITEMS, partials=[partial(ITEMS, (), [(2, *bad)])]),
        "move": net(ITEMS, partials=[partial(ITEMS, (), [(9, *bad)], [(2,)])]),
    }
    with pytest.raises(SinkRejected, match="constraint failed"):
        apply(sink, [changes[way]], 20)
    assert sorted(rows(ITEMS)) == [(1, "a", "x"), (2, "b", "y")]


@pytest.mark.parametrize("columns", LENIENT)
def test_rows_that_a_table_would_drop_without_a_word_are_refused_in_a_new_copy(sink, rows, execute, columns):
    execute(f"CREATE TABLE items (id INTEGER PRIMARY KEY, {columns})")
    live(sink, load(sink, ITEMS, [(1, "a", "x")]), ITEMS)
    begun = load(sink, ITEMS, [(1, "a", "x"), (3, "a", None)], generation=2)
    with pytest.raises(SinkRejected, match="constraint failed"):
        live(sink, begun, ITEMS)
    assert rows(ITEMS) == [(1, "a", "x")]


@pytest.mark.parametrize("key", ["INTEGER PRIMARY KEY", "INT PRIMARY KEY", "INTEGER UNIQUE"])
@pytest.mark.parametrize("policy", ["IGNORE", "REPLACE", "FAIL"])
def test_rows_are_changed_by_their_key_whatever_it_does_with_conflicts(sink, rows, query, execute, key, policy):
    execute(f"CREATE TABLE items (id {key} ON CONFLICT {policy}, name TEXT, notes TEXT, own INT DEFAULT 7)")
    apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
    execute("UPDATE items SET own = 8")
    apply(sink, [net(ITEMS, [(1, "changed", None), (3, "c", None)])], 20)
    assert query("SELECT id, name, own FROM items ORDER BY id") == [(1, "changed", 8), (2, "b", 8), (3, "c", 7)]


@pytest.mark.parametrize("columns", LENIENT)
def test_rows_that_a_table_would_drop_without_a_word_are_set_aside(make_sink, rows, execute, columns):
    sink = make_sink(on_error="quarantine")
    execute(f"CREATE TABLE items (id INTEGER PRIMARY KEY ON CONFLICT IGNORE, {columns})")
    apply(sink, [net(ITEMS, [(1, "a", "x"), (2, "b", "y")])], 10)
    apply(sink, [net(ITEMS, [(3, "a", None), (4, "d", "z")])], 20)
    assert sorted(rows(ITEMS)) == [(1, "a", "x"), (2, "b", "y"), (4, "d", "z")]
    assert [entry.rejected.key for entry in sink.quarantined()] == [{"id": "3"}]
    sink.close()


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
    with sink._sessions.use("being tested") as session:
        session.connection.set_trace_callback(statements.append)
    apply(sink, [net(LOOSE, deletes=[(1, "a")], copies=[1])], 20)
    (statement,) = [text for text in statements if text.startswith("DELETE") and "loose" in text]
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.execute("CREATE TABLE loose (x INTEGER, y TEXT)")
        plain.execute("CREATE TABLE temp._tailrace_rows_0 (c0, c1, c2)")
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


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_file_that_is_replaced_while_it_is_open_gets_no_rows_that_nobody_will_read(tmp_path, is_removed):
    sink = SqliteSink(pipeline(tmp_path, "under_test"), "replica")
    path = tmp_path / "replica.db"
    apply(sink, [net(LOOSE, [(1, "a")])], 10)
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        connection.backup(backup)
    apply(sink, [net(LOOSE, [(2, "b")])], 20)
    path.unlink() if is_removed else os.replace(tmp_path / "backup.db", path)
    for side in (f"{path}-wal", f"{path}-shm"):
        Path(side).unlink(missing_ok=True)
    part = sink.stage("batch", 0, [net(LOOSE, [(3, "c")])])
    with pytest.raises(SinkUnavailable, match="replaced"):
        sink.commit(Batch((part,), watermark(30), before=watermark(20)), SourceRows(LOOSE))
    assert sink.read_state().watermark == (None if is_removed else watermark(10))
    sink.close()


def test_a_plan_of_another_version_is_no_plan(sink, execute):
    """Its copy begins anew; all else that the sink remembers is read."""
    started = status(ITEMS, TableState.SNAPSHOT)
    sink.begin_snapshot(started, [chunk(ITEMS)], clear=True)
    planned = '{"table":"public.items","number":0,"relation":"items","first":0,"end":9,"storage":7,"bytes":8192}'
    execute(f"UPDATE _tailrace_chunks SET chunk = '{planned}'")
    state = sink.read_state()
    assert (state.tables, state.chunks) == ({ITEMS.table: started}, {})
