"""The PostgreSQL sink: held to the contract of all SQL sinks, and to what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pytest

from tailrace import config
from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch
from tailrace.sinks.sql import sessions
from tailrace.sinks.sql import sink as sql_sink
from tailrace.sinks.sql.postgres import session as postgres_session
from tailrace.sinks.sql.postgres.dialect import PostgresSink
from tailrace.testing.plugin import requires
from tailrace.testing.postgres import PostgresServer
from tailrace.testing.sample_values import DIGITS, SAMPLES, TEXTS, UUIDS
from tailrace.testing.sink_changes import (
    INT,
    ITEMS,
    LOOSE,
    ORDERS,
    PAIRS,
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
from tailrace.testing.sink_contract_tables import Execute, ForeignKeysContract, assert_table_is_refused

pytestmark = pytest.mark.server

EXPECTED = {
    "boolean": ["true", "false", None],
    "int16": ["0", "32767", "-32768", None],
    "int32": ["0", "2147483647", "-2147483648", None],
    "int64": ["0", "9223372036854775807", "-9223372036854775808", None],
    "float32": ["0", "0.5", "1.6777216e+07", "1e-45", "NaN", "Infinity", "-Infinity", None],
    "float64": ["0", "0.1", "1e+15", "5e-324", "1.7976931348623157e+308", "NaN", "Infinity", "-Infinity", None],
    "decimal": ["0.00", "12.50", "-0.01", "9999999999.99", None],
    "wide decimal": ["9" * 28 + "." + "9" * 10, "-" + "9" * 28 + ".0000000001", None],
    "numeric": ["0", "0.000", "-1.50", DIGITS, "NaN", "Infinity", "-Infinity", None],
    "text": [*TEXTS, None],
    "bytes": ["\\x", "\\x00", "\\xdeadbeef", "\\x74657874", "\\x" + "00ff" * 3000, None],
    "uuid": [*UUIDS, None],
    "date": [
        *("1970-01-01", "2024-02-29", "0044-03-15 BC", "9999-12-31", "10000-01-01"),
        *("infinity", "-infinity", None),
    ],
    "time": ["00:00:00", "12:00:00.5", "23:59:59.999999", "24:00:00", None],
    "timetz": ["00:00:00+00", "24:00:00-15:59:59", "00:00:00.000001+05:30", None],
    "timestamp": [
        *("1970-01-01 00:00:00", "1970-01-01 00:00:00.000001", "1969-12-31 23:59:59.999999"),
        *("2024-02-29 23:59:59.5", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00"),
        *("infinity", "-infinity", None),
    ],
    "timestamptz": [
        *("1970-01-01 00:00:00+00", "1970-01-01 00:00:00.000001+00", "1969-12-31 23:59:59.999999+00"),
        *("2024-02-29 23:59:59.5+00", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"),
        *("infinity", "-infinity", None),
    ],
    "interval": ["PT0S", "P1Y2M-3DT4H5M6.789S", "P30D", "P1M", "infinity", None],
    "json": ['{"a": [1, null, "ü"]}', "null", '"t"', None],
    "enum": ["sad", "it's ok", None],
    "other": ["10.0.0.0/8", "::1/128", None],
    "integers": ["{}", "{1,NULL,-2}", "{NULL}", None],
    "texts": [r'{"a,b","\"","\\","",NULL,"NULL"}', "{}", None],
    "floats": ["{0.1,NaN,-Infinity,NULL}", "{1}", None],
    "decimals": ["{1.50,NULL}", None],
    "booleans": ["{t,f,NULL}", None],
    "blobs": [r'{"\\x00ff","\\x"}', None],
    "moments": ['{"1970-01-01 00:00:00+00",infinity,NULL}', None],
    "days": ['{2024-02-29,"0044-03-15 BC",-infinity}', None],
    "undefined": ["NaN", "0.00", None],
    "late": ["294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999999", None],
    "late_utc": [
        *("294247-01-10 04:00:54.775807+00", "294247-01-10 04:00:54.775808+00", "294276-12-31 23:59:59.999999+00"),
        None,
    ],
    "matrices": ["{{1,2},{3,NULL}}", "[0:1]={1,2}", "{1}", "{}", "[-1:0][7:7]={{1},{2}}", None],
    "word tables": [r'{{"a\"b",""},{NULL,"{,}"}}', None],
    "boxes": ["{(2,2),(1,1);NULL;(4,4),(3,3)}", "{}", None],
}
"""What psql prints."""

SESSION = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1"


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def pipeline(folder: Path, url: str, name: str, **sink: object) -> config.Pipeline:
    document = {
        "name": name,
        "source": {"url": "postgresql://nowhere/shop", "tables": ["*.*"]},
        "sinks": {"replica": {"url": url, **sink}},
        "state": str(folder / "state" / name),
    }
    return msgspec.convert(document, config.Pipeline)


@pytest.fixture
def make_sink(tmp_path, postgres_url) -> Callable[..., PostgresSink]:
    return lambda name="shop", **options: PostgresSink(pipeline(tmp_path, postgres_url, name, **options), "replica")


@pytest.fixture
def sink(make_sink) -> Iterator[PostgresSink]:
    sink = make_sink()
    yield sink
    sink.close()


@pytest.fixture
def query(postgres_url) -> Callable[..., list[tuple]]:
    def run(statement: str) -> list[tuple]:
        with psycopg.connect(postgres_url, options=SESSION, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return run


INTEGERS = {Kind.INT16, Kind.INT32, Kind.INT64}


@pytest.fixture
def rows(query) -> Callable[[TableSchema], list[tuple]]:
    """Integers and doubles as Python's, as the suite gives them; all else as text that the server made."""

    def read(schema: TableSchema) -> list[tuple]:
        names = ", ".join(_selected(column.name, column.type.kind) for column in schema.columns)
        return query(f"SELECT {names} FROM {quote(schema.schema)}.{quote(schema.name)}")

    return read


def _selected(name: str, kind: Kind) -> str:
    return quote(name) if kind in INTEGERS or kind is Kind.FLOAT64 else f"{quote(name)}::text"


class TestPostgresSink(SinkContract, RenamesContract, QuarantineContract, ForeignKeysContract):
    @pytest.fixture
    def execute(self, query) -> Execute:
        return lambda *statements: [query(statement) for statement in statements]

    @pytest.fixture
    def refuse(self, query) -> Refuse:
        def forbid(schema: TableSchema, column: str, value: str) -> None:
            query(f"ALTER TABLE {quote(schema.name)} ADD CHECK ({quote(column)} <> '{value}')")

        return forbid

    @pytest.fixture
    def keep(self, query) -> Keep:
        def forbid(schema: TableSchema) -> Callable[[], None]:
            table = quote(schema.name)
            body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'forbidden'; END $$"
            query(f"CREATE FUNCTION keep() RETURNS trigger {body}")
            query(f"CREATE TRIGGER keep BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION keep()")
            return lambda: query(f"DROP TRIGGER keep ON {table}") and None

        return forbid

    @pytest.fixture
    def inventory(self, query) -> Callable[[], list[str]]:
        def everything() -> list[str]:
            tables = query("SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'i') AND oid >= 16384")
            return sorted(name for (name,) in tables if not name.startswith("pg_toast"))

        return everything

    @pytest.fixture
    def expected_values(self) -> dict[str, list[Any]]:
        integers = {"int16", "int32", "int64"}
        made = {
            name: [None if text is None else int(text) for text in texts] if name in integers else texts
            for name, texts in EXPECTED.items()
        }
        return made | {"float64": [None if text is None else float(text) for text in EXPECTED["float64"]]}


class TestStagedPostgresSink(TestPostgresSink):
    """The same by way of staging tables, which only larger batches take."""

    @pytest.fixture(autouse=True)
    def nothing_inline(self, monkeypatch):
        monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)


def test_the_mapping_of_every_type_is_tested():
    assert {sample.type.kind for sample in SAMPLES.values()} == set(Kind)
    assert EXPECTED.keys() == SAMPLES.keys()


# --- staging ---------------------------------------------------------------------------------------------------------


def staging_tables(query) -> list[str]:
    return [name for (name,) in query("SELECT relname FROM pg_class WHERE relname LIKE 'staged%' AND relkind = 'r'")]


@pytest.fixture
def staged_only(monkeypatch) -> None:
    monkeypatch.setattr(sql_sink, "INLINE_BYTES", -1)


@pytest.mark.usefixtures("staged_only")
def test_larger_batches_are_staged_in_unlogged_tables(sink, query):
    part = sink.stage("batch", 0, [net(ITEMS, [(1, "a", None)], deletes=[(2,)])])
    assert query("SELECT DISTINCT relpersistence FROM pg_class WHERE relname LIKE 'staged%'") == [("u",)]
    assert len(staging_tables(query)) == len(part.tables) == 2
    sink.commit(Batch((part,), watermark(10)), SourceRows(ITEMS))
    assert staging_tables(query) == []


@pytest.mark.usefixtures("staged_only")
def test_the_changes_of_several_slices_share_a_staging_table(sink, rows):
    part = sink.stage("batch", 0, [net(ITEMS, [(n % 7, f"{n}", None)]) for n in range(50)])
    assert len(part.tables) == 1
    sink.commit(Batch((part,), watermark(10)), SourceRows(ITEMS))
    assert sorted(rows(ITEMS)) == sorted((n % 7, f"{n}", None) for n in range(43, 50))


@pytest.mark.usefixtures("staged_only")
def test_a_part_that_is_held_back_leaves_nothing(sink, query):
    part = sink.stage("batch", 0, [net(ITEMS, [(1, "a", None)]), net(ORDERS, [(1, 1)])])
    kept = msgspec.structs.replace(part, changes=part.changes[:1])
    sink.commit(Batch((kept,), watermark(10)), SourceRows(ITEMS))
    assert staging_tables(query) == []


@pytest.mark.usefixtures("staged_only")
def test_a_server_that_crashed_after_staging_is_not_taken_for_one_without_changes(tmp_path):
    """A crash empties unlogged tables."""
    with requires(PostgresServer.start) as crashing:
        sink = PostgresSink(pipeline(tmp_path, crashing.url, "shop"), "replica")
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        part = sink.stage("batch", 0, [net(ITEMS, deletes=[(1,)])])
        crashing.kill()
        crashing.restart()
        sink.close()
        with pytest.raises(SinkUnavailable, match="is gone"):
            sink.commit(Batch((part,), watermark(20), before=watermark(10)), SourceRows(ITEMS))
        assert sink.read_state().watermark == watermark(10)
        apply(sink, [net(ITEMS, deletes=[(1,)])], 20)
        assert list(sink.read_table(ITEMS)) == []
        assert sink.read_state().watermark == watermark(20)
        sink.close()


def test_a_restarted_server_is_found_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "FRESH_SECONDS", 0)
    with requires(PostgresServer.start) as restarting:
        sink = PostgresSink(pipeline(tmp_path, restarting.url, "shop"), "replica")
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
        restarting.kill()
        with pytest.raises(SinkUnavailable, match="sink replica: PostgreSQL at 127"):
            apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
        restarting.restart()
        apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
        assert sink.read_state().watermark == watermark(20)
        sink.close()


# --- settings of others ----------------------------------------------------------------------------------------------

HOSTILE = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "DateStyle": "'SQL, DMY'",
    "default_transaction_isolation": "serializable",
    "extra_float_digits": "-15",
    "IntervalStyle": "sql_standard",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "TimeZone": "'Asia/Tokyo'",
    "transform_null_equals": "on",
    "xmloption": "document",
}


@pytest.fixture
def hostile_sink(postgres_url, query, make_sink) -> Iterator[PostgresSink]:
    database = postgres_url.rpartition("/")[2]
    for name, value in HOSTILE.items():
        query(f"ALTER DATABASE {quote(database)} SET {name} = {value}")
    sink = make_sink()
    yield sink
    sink.close()


@pytest.mark.parametrize("name", SAMPLES)
def test_values_do_not_depend_on_the_settings_of_a_database(hostile_sink, query, name):
    schema = TableSchema("public", "typed", (Column("id", INT), Column("v", SAMPLES[name].type)), ("id",))
    values = SAMPLES[name].values
    numbers = pa.array(range(len(values)), pa.int64())
    batch = schema.rows([numbers, values])
    live(hostile_sink, load(hostile_sink, schema, batch), schema)
    hostile_sink._ready.forget_tables()  # so that the table is looked at as one that is there already
    apply(hostile_sink, [net(schema, batch)], 10)
    found = query("SELECT v::text FROM typed ORDER BY id")
    assert found == [(text,) for text in EXPECTED[name]]


def test_what_is_read_as_xml_or_as_a_literal_does_not_depend_on_the_settings_of_a_database(hostile_sink):
    with hostile_sink._sessions.use("being tested") as session:
        assert session.execute("SHOW xmloption") == [("content",)]
        assert session.execute("SHOW standard_conforming_strings") == [("on",)]


def test_rows_that_a_policy_hides_from_us_are_an_error(tmp_path, query, poor_url):
    query("CREATE SCHEMA _tailrace AUTHORIZATION poor")
    query("CREATE TABLE items (id bigint PRIMARY KEY, name text, notes text)")
    query("GRANT ALL ON items TO poor")
    query("GRANT ALL ON SCHEMA public TO poor")
    sink = PostgresSink(pipeline(tmp_path, poor_url, "shop"), "replica")
    apply(sink, [net(ITEMS, [(1, "a", None), (2, "b", None)])], 10)
    query("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    query("CREATE POLICY odd ON items USING (id % 2 = 1)")
    with pytest.raises(SinkRejected, match=r"merging public\.items: .*row-level security"):
        apply(sink, [net(ITEMS, deletes=[(2,)])], 20)
    sink.close()


# --- the server's refusals -------------------------------------------------------------------------------------------


def test_a_table_that_somebody_holds_locked_is_tried_again(postgres_url, make_sink, rows, monkeypatch):
    monkeypatch.setitem(postgres_session._SETTINGS, "lock_timeout", "50ms")
    sink = make_sink()
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    with psycopg.connect(postgres_url) as somebody:
        somebody.execute("LOCK TABLE items")
        with pytest.raises(SinkUnavailable, match=r"merging public\.items.*lock timeout"):
            apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    apply(sink, [net(ITEMS, [(2, "b", None)])], 20)
    assert len(rows(ITEMS)) == 2
    sink.close()


def test_a_refused_row_is_named_without_its_values(sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    query("ALTER TABLE items ADD CONSTRAINT short CHECK (length(name) < 5)")
    with pytest.raises(SinkRejected, match=r"merging public\.items: check violation \(short\)") as caught:
        apply(sink, [net(ITEMS, [(2, "secret words", None)])], 20)
    assert "secret" not in str(caught.value)


def test_a_value_that_the_server_can_not_read_is_refused_without_it(sink):
    schema = TableSchema("public", "hosts", (Column("id", INT), Column("at", ColumnType(Kind.OTHER, "inet"))), ("id",))
    with pytest.raises(SinkRejected, match=r"merging public\.hosts: invalid text representation") as caught:
        apply(sink, [net(schema, [(1, "nobody's address")])], 10)
    assert "nobody" not in str(caught.value)


def test_a_table_that_somebody_dropped_is_one_clear_sentence(sink, make_sink, query):
    sink.begin_snapshot(status(ITEMS), [], clear=True)
    apply(sink, [net(ITEMS, [(1, "a", None)])], 5)
    query("DROP TABLE items")
    with pytest.raises(SinkRejected, match=r"merging public\.items.*does not exist"):
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    with pytest.raises(SinkRejected, match=r"table public\.items is gone from the sink") as caught:
        apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert "`tailrace drop` on this pipeline" in caught.value.hint
    assert sink.read_state().watermark == watermark(5)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://nobody@127.0.0.1:{port}/postgres", "does not exist"),
        ("postgresql://postgres@127.0.0.1:{port}/nowhere", "does not exist"),
    ],
)
def test_a_server_that_refuses_us_is_one_clear_sentence(tmp_path, postgres_server, url, words):
    sink = PostgresSink(pipeline(tmp_path, url.format(port=postgres_server.port), "shop"), "replica")
    with pytest.raises(SinkRejected, match=f"sink replica: PostgreSQL at .*{words}"):
        sink.check()


def test_a_name_that_leads_nowhere_at_the_moment_is_tried_again(tmp_path):
    sink = PostgresSink(pipeline(tmp_path, "postgresql://postgres@no.such.host.invalid/x", "shop"), "replica")
    with pytest.raises(SinkUnavailable, match=r"sink replica: PostgreSQL at no\.such\.host\.invalid.*resolve"):
        sink.check()


def test_a_server_that_is_down_is_tried_again(tmp_path):
    sink = PostgresSink(pipeline(tmp_path, "postgresql://postgres:secret@127.0.0.1:1/x", "shop"), "replica")
    with pytest.raises(SinkUnavailable, match=r"sink replica: PostgreSQL at 127\.0\.0\.1:1/x") as caught:
        sink.check()
    assert "secret" not in str(caught.value)


def test_a_database_that_can_not_hold_every_text_is_refused(tmp_path, postgres_server):
    postgres_server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    try:
        with pytest.raises(SinkRejected, match="encoding LATIN1"):
            PostgresSink(pipeline(tmp_path, postgres_server.url_of("latin"), "shop"), "replica").check()
    finally:
        postgres_server.drop_database("latin")


@pytest.fixture
def poor_url(postgres_server, postgres_url) -> Iterator[str]:
    """The database as a user sees it who may do nothing in it."""
    postgres_server.execute("CREATE ROLE poor LOGIN")
    yield postgres_url.replace("postgres@", "poor@")
    database = postgres_url.rpartition("/")[2]
    postgres_server.execute("DROP OWNED BY poor CASCADE", database)
    postgres_server.execute("DROP ROLE poor")


def test_a_user_who_may_not_create_tables_is_told_what_to_grant(tmp_path, query, poor_url):
    sink = PostgresSink(pipeline(tmp_path, poor_url, "shop", schemas={"public": "copies"}), "replica")
    with pytest.raises(SinkRejected, match="schema _tailrace") as caught:
        sink.check()
    assert caught.value.hint == 'CREATE SCHEMA "_tailrace" AUTHORIZATION "poor"'
    query(caught.value.hint)
    query("CREATE SCHEMA copies")
    with pytest.raises(SinkRejected, match="schema copies") as caught:
        sink.check()
    query(caught.value.hint)
    sink.check()
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    assert query("SELECT name FROM copies.items") == [("a",)]
    sink.close()


# --- tables that are there already -----------------------------------------------------------------------------------


def test_an_existing_table_is_used_with_its_extra_columns(sink, query):
    query("CREATE TABLE items (id bigint PRIMARY KEY, at timestamptz DEFAULT now() NOT NULL, name varchar, own int)")
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [chunk(ITEMS)], clear=True)
    sink.load_chunk(ITEMS, chunk(ITEMS), iter([table_of(ITEMS, [(1, "a", "x")])]))
    query("UPDATE items SET own = 7")
    apply(sink, [net(ITEMS, [(1, "b", "y"), (2, "c", None)])], 10)
    found = query("SELECT id, name, notes, own, at IS NOT NULL FROM items ORDER BY id")
    assert found == [(1, "b", "y", 7, True), (2, "c", None, None, True)]


def test_a_wider_integer_is_filled_by_way_of_a_cast(sink, query):
    schema = TableSchema("public", "small", (Column("id", ColumnType(Kind.INT16, "smallint")),), ("id",))
    query("CREATE TABLE small (id bigint PRIMARY KEY)")
    sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)
    sink.load_chunk(schema, chunk(schema), iter([table_of(schema, [(1,), (-1,)])]))
    apply(sink, [net(schema, [(2,)], deletes=[(-1,)])], 10)
    assert sorted(query("SELECT id FROM small")) == [(1,), (2,)]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("id bigint PRIMARY KEY, name integer", r"column name of table public\.items in the sink is integer"),
        ("id integer PRIMARY KEY", "column id .* is integer, and public.items.id .bigint. needs bigint"),
        ("id bigint PRIMARY KEY, own int NOT NULL", "column own .* must have a value"),
        ("id bigint", r"no unique index on \(id\)"),
        ("id bigint, name text, PRIMARY KEY (id, name)", r"no unique index on \(id\)"),
    ],
)
def test_an_existing_table_that_can_not_take_the_rows_is_refused(sink, query, columns, words):
    query(f"CREATE TABLE items ({columns})")
    assert_table_is_refused(sink, words)


@pytest.mark.parametrize("table", ["items (id bigint PRIMARY KEY)", "leaf PARTITION OF items FOR VALUES IN (1)"])
def test_an_existing_table_that_a_crash_would_empty_is_refused(sink, query, table):
    if table.startswith("leaf"):
        query("CREATE TABLE items (id bigint PRIMARY KEY) PARTITION BY LIST (id)")
    query(f"CREATE UNLOGGED TABLE {table}")
    assert_table_is_refused(sink, r"table public\.items in the sink is unlogged")


def test_a_table_of_ours_that_was_made_unlogged_is_replaced_by_its_next_copy(sink, query, rows):
    live(sink, load(sink, ITEMS, [(1, "a", None)]), ITEMS)
    query("ALTER TABLE items SET UNLOGGED")
    live(sink, load(sink, ITEMS, [(2, "b", None)], generation=2), ITEMS)
    assert (query("SELECT relpersistence FROM pg_class WHERE relname = 'items'"), rows(ITEMS)) == (
        [("p",)],
        [(2, "b", None)],
    )


def test_a_table_that_we_made_is_made_again_when_its_types_change(sink, query):
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
    changed = msgspec.structs.replace(ITEMS, columns=(*ITEMS.columns[:2], Column("notes", INT)))
    sink.begin_snapshot(status(changed, TableState.SNAPSHOT, generation=2), [], clear=True)
    assert query("SELECT format_type(atttypid, -1) FROM pg_attribute WHERE attname = 'notes'") == [("bigint",)]


NUMERIC = ColumnType(Kind.NUMERIC, "numeric")


@pytest.mark.parametrize(
    ("type_", "first", "second", "text"),
    [
        (NUMERIC, "1.0", "1.00", "1.00"),
        (SAMPLES["float64"].type, 0.0, -0.0, "-0"),
        (ColumnType(Kind.OTHER, "numrange"), "[1.0,2)", "[1.00,2)", "[1.00,2)"),
        (ColumnType(Kind.JSON, "jsonb"), '{"a": 1.0}', '{"a": 1.00}', '{"a": 1.00}'),
        (ColumnType(Kind.TEXT, "bpchar"), "a", "a  ", "a  "),
    ],
)
@pytest.mark.parametrize("others", [(), (Column("v", TEXT),)])
def test_a_table_that_is_copied_again_has_its_keys_in_their_new_form(sink, query, type_, first, second, text, others):
    """They are equal, and look different."""
    schema = TableSchema("public", "forms", (Column("k", type_), *others), ("k",))
    live(sink, load(sink, schema, [(first, "a")]), schema)
    live(sink, load(sink, schema, [(second, "a")], generation=2), schema)
    assert query("SELECT concat(k) FROM forms") == [(text,)]


def test_a_table_that_is_copied_again_has_its_intervals_in_their_new_form(sink, query):
    schema = TableSchema("public", "forms", (Column("k", SAMPLES["interval"].type),), ("k",))
    days, month = (SAMPLES["interval"].values.slice(place, 1) for place in (2, 3))
    for generation, keys in enumerate((days, month), 1):
        rows = pa.RecordBatch.from_arrays([keys], schema=schema.arrow)
        live(sink, load(sink, schema, rows, generation=generation), schema)
    assert query("SELECT k::text FROM forms") == [("P1M",)]


def test_a_streamed_key_in_a_new_form_is_the_key(sink, query):
    schema = TableSchema("public", "forms", (Column("k", NUMERIC), Column("v", TEXT)), ("k",))
    apply(sink, [net(schema, [("1.0", "a"), ("2.0", "b")])], 10)
    apply(sink, [net(schema, [("1.00", "a")], deletes=[("1.0",)])], 20)
    apply(sink, [net(schema, partials=[partial(schema, ("v",), [("2.00", None)], [("2.0",)])])], 30)
    assert sorted(query("SELECT k::text, v FROM forms")) == [("1.00", "a"), ("2.00", "b")]


def test_a_key_that_the_server_would_make_by_itself_is_copied_again(sink, query):
    query("CREATE TABLE items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, notes text)")
    live(sink, load(sink, ITEMS, [(1, "a", None), (2, "b", None)]), ITEMS)
    live(sink, load(sink, ITEMS, [(1, "a2", None), (3, "c", None)], generation=2), ITEMS)
    assert sorted(query("SELECT id, name FROM items")) == [(1, "a2"), (3, "c")]


@pytest.mark.parametrize(
    ("column", "index"),
    [("folding", "folding"), ("folding", '"C"'), ('"C"', "folding")],
    ids=["both", "column", "index"],
)
def test_a_key_whose_collation_takes_different_texts_for_equal_is_refused(sink, query, column, index):
    """As if it were: the servers of these tests have no ICU, which alone makes such collations."""
    query('CREATE COLLATION folding FROM "C"')
    query(f"CREATE TABLE folded (k text COLLATE {column}, v text)")
    query(f"CREATE UNIQUE INDEX by_key ON folded (k COLLATE {index})")
    schema = TableSchema("public", "folded", (Column("k", TEXT), Column("v", TEXT)), ("k",))
    apply(sink, [net(schema, [("a", "x")])], 10)
    query("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'folding'")
    sink._ready.forget_tables()
    with pytest.raises(SinkRejected, match=r"no unique index on \(k\)"):
        apply(sink, [net(schema, [("A", "x")])], 20)


def test_rows_without_a_key_are_deleted_from_columns_of_any_collation(sink, rows, query):
    query('CREATE TABLE loose (x bigint, y text COLLATE "C")')
    apply(sink, [net(LOOSE, [(1, "a"), (1, "a"), (1, "A")])], 10)
    apply(sink, [net(LOOSE, deletes=[(1, "a")], copies=[1])], 20)
    assert sorted(rows(LOOSE)) == [(1, "A"), (1, "a")]


def test_indexes_and_grants_of_others_survive_a_new_snapshot(sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    query("CREATE INDEX by_name ON items (name)")
    query("CREATE VIEW names AS SELECT name FROM items")
    live(sink, load(sink, ITEMS, [(1, "b", None)]), ITEMS)
    assert query("SELECT * FROM names") == [("b",)]
    assert query("SELECT 1 FROM pg_indexes WHERE indexname = 'by_name'") == [(1,)]


def test_a_table_that_a_foreign_key_leads_to_can_be_copied_again(sink, query):
    apply(sink, [net(ITEMS, [(1, "a", None), (2, "b", None)])], 10)
    query("CREATE TABLE own (item bigint REFERENCES items ON DELETE CASCADE)")
    query("INSERT INTO own VALUES (1)")
    live(sink, load(sink, ITEMS, [(1, "a2", None)]), ITEMS)
    assert query("SELECT id, name FROM items") == [(1, "a2")]
    assert query("SELECT item FROM own") == [(1,)]


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_schema_may_be_given_another_name(make_sink, query):
    sink = make_sink(schemas={"public": "cdc", "billing": "cdc"})
    apply(sink, [net(ITEMS, [(1, "a", None)]), net(PAIRS, [("v", 1, "w", 2)])], 10)
    assert query("SELECT name FROM cdc.items") == [("a",)]
    assert query("SELECT v FROM cdc.pairs") == [("v",)]
    sink.close()


def test_two_tables_that_would_be_one_are_refused(make_sink):
    sink = make_sink(schemas={"public": "cdc", "archive": "cdc"})
    sink.begin_snapshot(status(ITEMS, TableState.SNAPSHOT), [], clear=True)
    other = msgspec.structs.replace(ITEMS, schema="archive")
    with pytest.raises(SinkRejected, match=r"public\.items and archive\.items would both be cdc\.items"):
        sink.begin_snapshot(status(other, TableState.SNAPSHOT), [], clear=True)
    upper = msgspec.structs.replace(ITEMS, name="ITEMS")
    sink.begin_snapshot(status(upper, TableState.SNAPSHOT), [], clear=True)
    sink.close()


def test_names_that_the_server_would_cut_off_are_refused(sink):
    long = msgspec.structs.replace(ITEMS, name="ä" * 32)
    with pytest.raises(SinkRejected, match="longer than the 63"):
        sink.begin_snapshot(status(long, TableState.SNAPSHOT), [], clear=True)


def test_a_source_table_is_never_taken_for_the_sinks_own(sink):
    ours = TableSchema("_tailrace", "tables", (Column("id", INT),), ("id",))
    apply(sink, [net(ITEMS, [(1, "a", None)])], 10)
    with pytest.raises(SinkRejected, match=r"_tailrace\.tables"):
        sink.begin_snapshot(status(ours, TableState.SNAPSHOT), [], clear=True)
    with pytest.raises(SinkRejected, match=r"_tailrace\.tables"):
        apply(sink, [net(ours, [(1,)])], 20)
    assert sink.read_state().watermark == watermark(10)


def test_two_sinks_of_one_pipeline_may_share_a_database(tmp_path, postgres_url, query):
    url = {"url": postgres_url}
    document = msgspec.to_builtins(pipeline(tmp_path, postgres_url, "shop"))
    document["sinks"] = {"one": url, "two": url | {"schemas": {"public": "second"}}}
    both = msgspec.convert(document, config.Pipeline)
    one, two = PostgresSink(both, "one"), PostgresSink(both, "two")
    apply(one, [net(ITEMS, [(1, "a", None)])], 10)
    assert two.read_state().watermark is None
    apply(two, [net(ITEMS, [(2, "b", None)])], 5)
    assert (one.read_state().watermark, two.read_state().watermark) == (watermark(10), watermark(5))
    assert query("SELECT id FROM second.items") == [(2,)]
    one.close()
    two.close()


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["boolean", "decimal", "bytes", "uuid", "date", "timestamptz", "float64", "interval"])
def test_the_source_is_asked_with_keys_it_can_read_whatever_their_type(sink, query, name):
    schema = TableSchema("public", "typed", (Column("v", TEXT), Column("k", SAMPLES[name].type)), ("k",))
    asked = []

    def fetch(schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        asked.extend(keys.column(0).to_pylist())
        return net(schema).upserts

    keys = SAMPLES[name].values.drop_null()
    rows = pa.RecordBatch.from_arrays([pa.nulls(len(keys), pa.string()), keys], schema=schema.arrow)
    apply(sink, [net(schema, partials=[partial(schema, ("v",), rows)])], 10, fetch)
    assert sorted(asked) == sorted(EXPECTED[name][:-1])


def test_a_thread_that_catches_up_and_one_that_streams_may_commit_at_once(sink, rows):
    def work(schema: TableSchema, first: int) -> None:
        for offset in range(first, first + 20):
            part = sink.stage(
                "batch", 0, [net(schema, [(offset, offset) if schema is ORDERS else (offset, "a", None)])]
            )
            place = None if schema is ORDERS else watermark(offset)
            before = watermark(offset - 1) if offset > first else None
            step = Batch((part,), place, (status(schema, TableState.CATCH_UP, offset),), before)
            sink.commit(step, SourceRows(schema))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [ITEMS, ORDERS], [1, 101]))
    assert (len(rows(ITEMS)), len(rows(ORDERS))) == (20, 20)
    assert sink.read_state().watermark == watermark(20)
