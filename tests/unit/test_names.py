"""Names of tables: no two tables share one, whatever PostgreSQL lets them be called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.messages import Feed, frames_of, insert, transaction
from tailrace.config.patterns import by_table
from tailrace.errors import ConfigError, SinkRejected, StateError
from tailrace.log.reader import LogReader
from tailrace.log.writer import LogWriter
from tailrace.model.chunk import Chunk
from tailrace.model.frames import Definition
from tailrace.model.names import parse_table, table_name
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks import null
from tailrace.sinks.base import ChunkMark
from tailrace.sinks.sql.dialect import Target
from tailrace.sinks.sql.dialect.naming import flat_name
from tailrace.sinks.sql.places import refuse_collision
from tailrace.spark.datasource import newest_schema
from tailrace.state.storage import Storage

PARTS = st.text(st.sampled_from('ab."_\n /ü'), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("schema", "name", "written"),
    [
        ("public", "orders", "public.orders"),
        ("public", "odd.name", 'public."odd.name"'),
        ("a.b", "c", '"a.b".c'),
        ("a", "b.c", 'a."b.c"'),
        ("public", 'say "hi"', 'public."say ""hi"""'),
        ("S", "T x", "S.T x"),
    ],
)
def test_a_name_is_quoted_only_where_it_could_be_misread(schema, name, written):
    assert table_name(schema, name) == written
    assert TableSchema(schema, name, (Column("id", ColumnType(Kind.INT32, "integer")),)).table == written


@given(PARTS, PARTS)
def test_a_name_can_be_read_back(schema, name):
    assert parse_table(table_name(schema, name)) == (schema, name)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("public", "orders")),
        ('"odd.name"', ("public", "odd.name")),
        ('"a"."b"', ("a", "b")),
        ("a.b.c", None),
        ('a."b', None),
        ("", None),
        ("a.", None),
        ('a""b', None),
    ],
)
def test_what_people_write(text, parts):
    assert parse_table(text) == parts


def test_settings_of_tables_are_found_however_their_names_are_written():
    settings = {'"public"."orders"': 1, "items": 2, 'public."odd.name"': 3, 'public."a*b"': 4}
    assert by_table(settings) == {"public.orders": 1, "public.items": 2, 'public."odd.name"': 3, "public.a*b": 4}


@pytest.mark.parametrize("text", ["a.b.c", "", 'public."open'])
def test_a_setting_of_no_table_is_refused(text):
    with pytest.raises(ConfigError, match="not the name of a table"):
        by_table({text: 1})


def test_a_table_that_is_set_twice_is_refused():
    with pytest.raises(ConfigError, match="twice"):
        by_table({"orders": 1, "public.orders": 2})


def test_a_change_log_is_asked_for_a_table_by_its_name(tmp_path):
    columns = (Column("id", ColumnType(Kind.INT32, "integer")),)
    tables = {
        1: TableSchema("a.b", "c", columns),
        2: TableSchema("a", "b.c", columns),
        3: TableSchema("public", "d", columns),
    }
    storage = Storage(str(tmp_path / "log"))
    feed = Feed(LogWriter.create(storage, "test", "0/1"), tables)
    feed.append(*transaction(*(insert(number, "1") for number in tables)))
    found = [newest_schema(LogReader(storage), text) for text in ('"a.b".c', 'a."b.c"', "d")]
    assert found == list(tables.values())
    with pytest.raises(ConfigError, match="a table's name"):
        newest_schema(LogReader(storage), "a.b.c")


def test_a_partition_is_not_read_by_its_name_until_it_is_a_table_by_itself(tmp_path):
    columns = (Column("id", ColumnType(Kind.INT32, "integer")),)
    root, leaf = TableSchema("public", "root", columns), TableSchema("public", "leaf", columns)
    storage = Storage(str(tmp_path / "log"))
    writer = LogWriter.create(storage, None, "0/1")
    log = LogReader(storage)
    described = [Definition(1, 0, root), Definition(2, 2, leaf, root=1)]
    writer.append(frames_of(transaction(insert(1, "1")), described)[0], "0/2")
    with pytest.raises(StateError, match=r"public\.leaf is a partition: its changes come as those of public\.root"):
        newest_schema(log, "leaf")
    writer.append(frames_of(transaction(insert(2, "1")), [Definition(2, 4, leaf)], first=4)[0], "0/3")
    assert newest_schema(log, "leaf") == leaf
    writer.close()


def test_targets_with_dots_are_not_mistaken_for_each_other():
    refuse_collision("one", str(Target("a.b", "c")), [("other", str(Target("a", "b.c")))])


@pytest.mark.parametrize("other", [("a_b", "c"), ("public", "a_b_c"), ("A", "B_c")])
def test_flat_names_that_collide_are_refused_with_both_tables(other):
    first, second = ((table_name(*table), flat_name(*table, {})) for table in (("a", "b_c"), other))
    with pytest.raises(SinkRejected, match=f"{first[0]} and {second[0]} would both be"):
        refuse_collision(*second, [first])


def test_marks_of_the_null_sink_take_any_name(tmp_path):
    names = ["public.a/b", "public.a_b", "public.." + "ü" * 31, f'"{"." * 60}"."{chr(10) * 60}"']
    for name in names:
        mark = tmp_path / null._mark(ChunkMark(1, Chunk(name, 0, 0)))
        assert not mark.exists()
        mark.touch()
