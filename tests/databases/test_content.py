"""The oracle: PostgreSQL's own rendering, and a comparison that misses nothing."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from tailrace.testing import content
from tailrace.testing.rendering import shape_of, tables_of

RENDERED = [
    ("boolean", "true", 1),
    ("smallint", "-32768", -32768),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("oid", "4294967295", 2**32 - 1),
    ("real", "0.5", 0.5),
    ("double precision", "'NaN'", "NaN"),
    ("double precision", "'-Infinity'", float("-inf")),
    ("numeric(12,2)", "1.1", "1.10"),
    ("numeric", "1e30", "1" + "0" * 30),
    ("numeric", "'Infinity'", "Infinity"),
    ("text", "'t'", "t"),
    ("char(5)", "'ab'", "ab   "),
    ("bytea", r"'\x00ff'", b"\x00\xff"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("date", "'2024-02-29'", "2024-02-29"),
    ("date", "'0044-03-15 BC'", "0044-03-15 BC"),
    ("date", "'-infinity'", "-infinity"),
    ("time", "'23:59:59.5'", "23:59:59.500000"),
    ("time", "'24:00:00'", "24:00:00"),
    ("timetz", "'12:00:00.25+05:30'", "12:00:00.250000+05:30"),
    ("timetz", "'12:00:00-02'", "12:00:00-02:00"),
    ("timestamp", "'2024-01-01 10:00:00'", "2024-01-01 10:00:00"),
    ("timestamp", "'2024-01-01 10:00:00.1'", "2024-01-01 10:00:00.100000"),
    ("timestamp", "'0044-03-15 12:00:00.5 BC'", "0044-03-15 12:00:00.500000 BC"),
    ("timestamp", "'294276-12-31 23:59:59.999999'", "294276-12-31 23:59:59.999999"),
    ("timestamp", "'infinity'", "infinity"),
    ("timestamptz", "'2024-01-01 10:00:00+02'", "2024-01-01 08:00:00+00:00"),
    ("timestamptz", "'0044-03-15 12:00:00+00 BC'", "0044-03-15 12:00:00+00:00 BC"),
    ("interval", "'1 year 2 months -3 days 04:05:06.789'", "P1Y2M-3DT4H5M6.789S"),
    ("interval", "'0'", "PT0S"),
    ("json", """'{"b" : 1, "a":2}'""", '{"b" : 1, "a":2}'),
    ("jsonb", """'{"b" : 1, "a":2}'""", '{"a": 2, "b": 1}'),
    ("int[]", "'{1,NULL,-2}'", "[1, null, -2]"),
    ("text[]", """'{}'""", "[]"),
    ("text[]", """'{t,NULL,"a \\"b\\"\n"}'""", '["t", null, "a \\"b\\"\\n"]'),
    ("boolean[]", "'{t,f}'", "[true, false]"),
    ("float8[]", "'{1,0.5,NaN}'", '[1.0, 0.5, "NaN"]'),
    ("numeric(5,2)[]", "'{1.5}'", '["1.50"]'),
    ("timestamptz[]", "'{2024-01-01 10:00:00+02}'", '["2024-01-01 08:00:00+00:00"]'),
    ("bytea[]", r"""'{"\\x00"}'""", r'["\\x00"]'),
    ("int[]", "'{{1,2},{3,4}}'", "[[1, 2], [3, 4]]"),
    ("text[]", """'{{"]=[",b}}'""", '[["]=[", "b"]]'),
    ("int[]", "'[0:1]={1,2}'", '{"[0:1]": [1, 2]}'),
    ("float8[]", "'[0:0][1:2]={{1,0.5}}'", '{"[0:0][1:2]": [[1.0, 0.5]]}'),
    ("text[]", """'{"]=["}'""", '["]=["]'),
    ("int4range", "'[1,5)'", "[1,5)"),
    ("text", "NULL", None),
    ("timestamptz", "NULL", None),
    ("int[]", "NULL", None),
]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def test_every_type_is_rendered_in_its_canonical_form(postgres_url):
    columns = ", ".join(f"c{n} {type_}" for n, (type_, _, _) in enumerate(RENDERED))
    values = ", ".join(value for _, value, _ in RENDERED)
    execute(postgres_url, f"CREATE TABLE every ({columns})", f"INSERT INTO every VALUES ({values})")
    [row] = content.source_rows(postgres_url, "every")
    assert list(zip(RENDERED, row, strict=True)) == [(case, case[2]) for case in RENDERED]


def test_domains_and_enums_are_rendered_as_what_they_are_made_of(postgres_url):
    execute(
        postgres_url,
        "CREATE TYPE mood AS ENUM ('sad', 'it''s fine')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE DOMAIN tiny AS positive",
        "CREATE TABLE t (m mood, p tiny, g int GENERATED ALWAYS AS (1) STORED)",
        "INSERT INTO t VALUES ('it''s fine', 3)",
    )
    assert list(content.source_rows(postgres_url, "public.t")) == [("it's fine", 3)]


def test_a_shape_knows_the_key_and_partitioned_tables_are_one(postgres_url):
    execute(
        postgres_url,
        'CREATE SCHEMA "S"',
        'CREATE TABLE "S"."T x" (v int, b int, a int, PRIMARY KEY (a, b)) PARTITION BY LIST (a)',
        'CREATE TABLE "S".part PARTITION OF "S"."T x" DEFAULT',
        "CREATE TABLE chosen (v int, code text NOT NULL UNIQUE)",
        "ALTER TABLE chosen REPLICA IDENTITY USING INDEX chosen_code_key",
    )
    assert tables_of(postgres_url) == ["S.T x", "public.chosen"]
    assert shape_of(postgres_url, "S.T x").key == ("a", "b")
    assert shape_of(postgres_url, "chosen").key == ("code",)


@pytest.fixture
def pair(postgres_url, tmp_path):
    """A source table and a SQLite table with the same two rows."""
    execute(
        postgres_url,
        "CREATE TABLE t (id int PRIMARY KEY, name text, x float8, tags text[])",
        "INSERT INTO t VALUES (1, 'a', 'NaN', '{x,y}'), (2, NULL, 1, NULL)",
    )
    sink = sqlite3.connect(tmp_path / "sink.db", isolation_level=None)
    sink.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, x REAL, tags TEXT)")
    sink.execute("""INSERT INTO t VALUES (1, 'a', 'NaN', '["x","y"]'), (2, NULL, 1.0, NULL)""")
    yield postgres_url, sink, tmp_path / "sink.db"
    sink.close()


def found(pair, statement: str) -> list[str]:
    url, sink, path = pair
    sink.execute(statement)
    return [str(difference) for difference in content.sqlite_differences(url, path)]


def test_equal_content_has_no_differences(pair):
    assert found(pair, "SELECT 1") == []


def test_a_missing_row_is_named_by_its_key(pair):
    assert found(pair, "DELETE FROM t WHERE id = 2") == ["public.t: row in the source only: (2)"]


def test_a_surplus_row_is_named_by_its_key(pair):
    assert found(pair, "INSERT INTO t (id) VALUES (9)") == ["public.t: row in the sink only: (9)"]


def test_a_different_value_is_named_by_key_and_column(pair):
    assert found(pair, "UPDATE t SET name = '', tags = '[]' WHERE id = 2") == ["public.t: differs in name, tags: (2)"]


def test_a_value_in_another_storage_class_is_a_difference(pair):
    _, sink, _ = pair
    sink.executescript("CREATE TABLE u AS SELECT * FROM t; DROP TABLE t; ALTER TABLE u RENAME TO t")
    assert found(pair, "UPDATE t SET x = 1 WHERE id = 2") == []  # REAL affinity makes it a float
    sink.executescript("CREATE TABLE v (id, name, x, tags); INSERT INTO v SELECT * FROM t; DROP TABLE t")
    sink.execute("ALTER TABLE v RENAME TO t")
    assert found(pair, "UPDATE t SET x = 1 WHERE id = 2") == ["public.t: 1 values of x are not stored as real"]


def test_a_missing_table_or_column_is_a_difference(pair):
    assert found(pair, "ALTER TABLE t DROP COLUMN x") == ["public.t: the sink has no column x"]
    assert found(pair, "DROP TABLE t") == ["public.t: the sink has no table t"]


def test_duplicate_rows_of_a_table_without_a_key_are_counted(postgres_url, tmp_path):
    execute(postgres_url, "CREATE TABLE bag (n int)", "INSERT INTO bag VALUES (1), (1), (1), (NULL)")
    sink = sqlite3.connect(tmp_path / "sink.db", isolation_level=None)
    sink.executescript("CREATE TABLE bag (n INTEGER); INSERT INTO bag VALUES (NULL), (1)")
    assert found((postgres_url, sink, tmp_path / "sink.db"), "SELECT 1") == [
        "public.bag: 2 rows in the source only: (1)"
    ]
    sink.close()


def test_many_differences_are_counted_and_the_first_are_named(postgres_url, tmp_path):
    execute(postgres_url, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 5000)")
    sink = sqlite3.connect(tmp_path / "sink.db", isolation_level=None)
    lines = found((postgres_url, sink, tmp_path / "sink.db"), "CREATE TABLE t (id INTEGER)")
    assert lines[0] == "public.t: row in the source only: (1)"
    assert lines[-1] == "public.t: and 4980 more rows differ"
    sink.close()


def test_another_postgres_is_compared_by_content(postgres_server, postgres_url):
    sink_url = postgres_server.create_database("content_sink")
    try:
        execute(
            postgres_url, "CREATE TABLE t (id int PRIMARY KEY, n numeric)", "INSERT INTO t VALUES (1, 1.10), (2, 0)"
        )
        execute(sink_url, "CREATE TABLE t (n numeric, id int)", "INSERT INTO t VALUES (1.10, 1), (0.0, 2)")
        [difference] = content.postgres_differences(postgres_url, sink_url)
        assert str(difference) == "public.t: differs in n: (2)"
        with pytest.raises(AssertionError, match="source: "):
            content.assert_same([difference])
    finally:
        postgres_server.drop_database("content_sink")
