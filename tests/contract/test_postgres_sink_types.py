"""Every type of PostgreSQL from one server into another: the server's own text is the same on both sides."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import config
from tailrace.columns.net import NetChanges
from tailrace.model.lifecycle import TableState
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.base import Batch
from tailrace.sinks.sql.postgres.dialect import PostgresSink
from tailrace.sinks.sql.postgres.types import declared, fits, has_same_form
from tailrace.sources.postgres import snapshot
from tailrace.sources.postgres.source import PostgresSource
from tailrace.testing.sink_changes import SourceRows, chunk, live, status, watermark

SESSION = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c bytea_output=hex -c search_path=public"
ARRAYS = {
    "smallint[]": ["{}", "{1,NULL,-2}"],
    "text[]": [
        r'{{"a,b","\""},{"\\",NULL}}',
        '[0:0]={"{x},]=["}',
        r'{"a,b","\"","\\","",NULL,"NULL",null,"{c}"}',
        "{}",
    ],
    "character varying(9)[]": ["{a,NULL}"],
    "character(3)[]": ['{a,"",NULL}'],
    "real[]": ["{0.1,NaN,-Infinity,-0,1e-7,NULL}"],
    "double precision[]": ["{0.1,NaN,-Infinity,-0,1e-7,1e22}"],
    "numeric[]": ["{1.50,NULL,NaN,1e30}"],
    "numeric(12,2)[]": ["{1.50,NULL,NaN}", "{{NaN},{1.00}}"],
    "boolean[]": ["{t,f,NULL}"],
    "bytea[]": [r'{"\\x00ff","\\x"}'],
    "uuid[]": ["{6ba7b810-9dad-11d1-80b4-00c04fd430c8}"],
    "date[]": ['{2024-02-29,"0044-03-15 BC",-infinity}'],
    "timestamptz[]": ['{"1970-01-01 00:00:00.5+00",infinity,NULL,"0044-03-15 12:00:00.25+00 BC"}'],
    "timetz[]": ["{12:00:00.5+05:30,24:00:00-15:59:59}"],
    "interval[]": ["{P1Y2M-3DT4H5M6.789S,PT0S}"],
    "jsonb[]": [r'{"{\"a\": [1, null]}","null"}'],
    "inet[]": ["{::1,10.0.0.0/8,1.2.3.4}"],
    "mood[]": ["{sad}"],
    "int4range[]": ['{"[1,5)",empty}'],
    "integer[]": ["{{1,2},{3,NULL}}", "[0:1]={1,2}", "{1}", "[-2:-1][5:5]={{1},{2}}", "{}"],
    "timestamp[]": ['{"294276-12-31 23:59:59.999999"}'],
    "box[]": ["{(2,2),(1,1);(4,4),(3,3);NULL}", "{{(2,2),(1,1)};{(4,4),(3,3)}}", "{}"],
    "numbers[]": [r'{"{1,2}","{3}",NULL}', "{}", r'{{"{1}","[0:0]={2}"}}'],
    "boxy[]": ["{(2,2),(1,1);(4,4),(3,3)}"],
    "shape[]": [r'{"\\x00":"\\x01"}'],
    "point[]": ['{"(1,2)","(-0,1e300)"}'],
}


def edges() -> ModuleType:
    """The values of the decoder's own property test."""
    path = Path(__file__).parent.parent / "property" / "test_values_against_postgres.py"
    spec = importlib.util.spec_from_file_location("values_against_postgres", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VALUES = edges()
CASES: dict[str, list[str]] = VALUES.CASES | VALUES.TEXT_ONLY | ARRAYS


class Pair:
    """A source database with a table a type, and a sink."""

    def __init__(self, source_url: str, sink_url: str, state: Path) -> None:
        self.source_url, self.sink_url = source_url, sink_url
        self.connection = psycopg.connect(source_url, autocommit=True, options=SESSION)
        self.connection.execute("SET client_min_messages = error")
        self.connection.execute(VALUES.DEFINITIONS)
        source = config.Source(source_url, ("public.*",), own={"slot": "pair", "publication": "pair"})
        self.pipeline = config.Pipeline("pair", source, {"sink": config.Sink(sink_url)}, state=str(state))
        self.source = PostgresSource(self.pipeline)
        self.sink = PostgresSink(self.pipeline, "sink")
        self.offset = 0

    def close(self) -> None:
        self.sink.close()
        self.connection.close()

    def make(self, type_: str, values: list[str]) -> TableSchema:
        self.connection.execute("DROP TABLE IF EXISTS v")
        self.connection.execute(f"CREATE TABLE v (n int PRIMARY KEY, c {type_}, d {type_})")
        with self.connection.cursor().copy("COPY v FROM STDIN") as copy:
            for number, value in enumerate([*values, None]):
                copy.write_row((number, value, None if number % 2 else value))
        self.connection.execute("DROP PUBLICATION IF EXISTS pair; CREATE PUBLICATION pair FOR TABLE v")
        (schema,) = self.source.tables()
        return schema

    def load(self, schema: TableSchema) -> None:
        """A copy that takes the place of what is there."""
        begun = self.sink.begin_snapshot(status(schema, TableState.SNAPSHOT), [chunk(schema)], clear=True)
        mark = msgspec.structs.replace(chunk(schema), is_beside=begun.is_beside)
        self.sink.load_chunk(schema, mark, snapshot.read_all(self.source_url, schema))
        self.sink.finish_snapshot(begun)
        live(self.sink, begun, schema)

    def apply(self, schema: TableSchema) -> None:
        """Delete all, and bring it again: by a truncate, then by an upsert."""
        self.offset += 1
        batches = snapshot.read_all(self.source_url, schema)
        changes = [NetChanges(schema, n == 0, b.slice(0, 0).select([0]), b) for n, b in enumerate(batches)]
        part = self.sink.stage("batch", 0, changes)
        self.sink.commit(
            Batch((part,), watermark(self.offset), before=self.sink.read_state().watermark), SourceRows(schema)
        )

    def assert_same(self, schema: TableSchema) -> None:
        query = (
            "SELECT n, format('%s', c), c IS NOT DISTINCT FROM NULL, format('%s', d), d IS NOT DISTINCT FROM NULL"
            " FROM public.v ORDER BY n"
        )
        with psycopg.connect(self.sink_url, options=SESSION) as sink:
            assert sink.execute(query).fetchall() == self.connection.execute(query).fetchall()
        found = sorted(row for rows in self.sink.read_table(schema) for row in rows)
        wanted = sorted(row for batch in self.source.read_all(schema) for row in self.sink.expected_rows(schema, batch))
        assert found == wanted


@pytest.fixture(scope="module")
def pair(postgres_server, tmp_path_factory) -> Iterator[Pair]:
    urls = [postgres_server.create_database(name) for name in ("types_source", "types_sink")]
    pair = Pair(*urls, tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()
    for name in ("types_source", "types_sink"):
        postgres_server.drop_database(name)


@pytest.mark.server
@pytest.mark.parametrize("type_", CASES)
def test_values_are_the_same_on_both_servers(pair, type_):
    schema = pair.make(type_, CASES[type_])
    pair.load(schema)
    pair.assert_same(schema)
    pair.apply(schema)
    pair.assert_same(schema)


NUMBERS = st.builds(
    lambda sign, digits, scale: sign + (f"{digits[:-scale] or '0'}.{digits[-scale:]}" if scale else digits),
    st.sampled_from(["", "-"]),
    st.text("0123456789", min_size=1, max_size=70).map(lambda text: text.lstrip("0") or "0"),
    st.integers(0, 30),
)


@pytest.mark.server
@pytest.mark.parametrize("type_", ["numeric", "numeric(38,20)", "numeric(14,3)", "numeric(17,5)", "numeric(4,4)"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_numbers_are_the_same_on_both_servers(pair, type_, data):
    numbers = data.draw(st.lists(NUMBERS, min_size=1, max_size=40))
    limit = {"numeric": "1e80", "numeric(38,20)": "1e17", "numeric(14,3)": "1e10", "numeric(17,5)": "1e11"}
    fitting = [
        text
        for text in numbers
        if pair.connection.execute(f"SELECT abs(%s::numeric) < {limit.get(type_, '0.999')}", [text]).fetchone()[0]
    ]
    schema = pair.make(type_, fitting)
    pair.load(schema)
    pair.assert_same(schema)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("public.mood", Kind.ENUM, "text"),
        ("public.citext", Kind.TEXT, "text"),
        ("varchar(20)", Kind.TEXT, "text"),  # another database's spelling
        ("character varying(20)", Kind.TEXT, "character varying(20)"),
        ("money", Kind.OTHER, "text"),
        ("regclass", Kind.OTHER, "text"),
        ("inet", Kind.OTHER, "inet"),
        ("public.pair", Kind.OTHER, "text"),
        ("int unsigned", Kind.INT64, "bigint"),
        ("oid", Kind.INT64, "oid"),
        ("datetime(3)", Kind.TIMESTAMP, "timestamp without time zone"),
        ("timestamp(3) without time zone", Kind.TIMESTAMP, "timestamp(3) without time zone"),
        ("numeric(40,2)", Kind.NUMERIC, "numeric(40,2)"),
        ("json); DROP TABLE x --", Kind.JSON, "json"),
    ],
)
def test_a_type_that_every_server_has_keeps_its_name(name, kind, expected):
    assert declared(ColumnType(kind, name)) == expected


@pytest.mark.parametrize(
    ("wanted", "existing", "is_fit"),
    [
        ("integer", "integer", True),
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("real", "double precision", False),
        ("character varying(20)", "text", True),
        ("character varying(20)", "character varying(20)", True),
        ("character varying(20)", "character varying(10)", False),
        ("text", "character varying", True),
        ("text", "character varying(10)", False),
        ("numeric(12,2)", "numeric", True),
        ("numeric(12,2)", "numeric(14,2)", True),
        ("numeric(12,2)", "numeric(12,1)", False),
        ("numeric", "numeric(12,2)", False),
        ("timestamp with time zone", "timestamp without time zone", False),
        ("timestamp(3) with time zone", "timestamp with time zone", True),
        ("timestamp with time zone", "timestamp(3) with time zone", False),
        ("json", "jsonb", False),
        ("text", "integer", False),
    ],
)
def test_an_existing_column_takes_what_it_can_hold_unchanged(wanted, existing, is_fit):
    assert fits(wanted, existing) is is_fit


def test_a_wider_integer_has_another_binary_form():
    assert not has_same_form("integer", "bigint")
    assert has_same_form("character varying(20)", "text")
