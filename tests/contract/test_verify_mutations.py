"""`verify` is itself verified: one value of each type is changed in each sink, ever so little, and its row is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from support.sinks import SinkDatabase
from tailrace import config, registry
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.pipeline import verify
from tailrace.sinks.sql.writers import columns_of
from tailrace.testing.sample_values import SAMPLES, TEXTS
from tailrace.testing.sink_changes import INT, TEXT, apply, net, table_of

pytestmark = pytest.mark.server

SINKS = ("sqlite", "postgresql", "mysql", "mariadb")


@dataclass(frozen=True)
class Near:
    """Another value for a row, as SQL: in PostgreSQL, in MySQL, and in SQLite where that is not MySQL's."""

    row: int
    postgresql: str
    mysql: str = ""
    sqlite: str = ""

    def literal(self, kind: str) -> str:
        shared = self.mysql or self.postgresql
        return {"postgresql": self.postgresql, "sqlite": self.sqlite or shared}.get(kind, shared)


NEAR = {
    "boolean": Near(0, "false"),
    "int16": Near(0, "-1"),
    "int32": Near(1, "2147483646"),
    "int64": Near(1, "9223372036854775806"),
    "float32": Near(1, "0.50000006"),
    "float64": Near(1, "0.10000000000000002"),
    "decimal": Near(1, "12.51", sqlite="'12.51'"),
    "wide decimal": Near(0, "9" * 28 + "." + "9" * 9 + "8", sqlite="'" + "9" * 28 + "." + "9" * 9 + "8'"),
    "numeric": Near(2, "-1.51", sqlite="'-1.51'"),
    "text": Near(1, "'  '"),
    "bytes": Near(2, r"'\xdeadbeee'", "X'DEADBEEE'"),
    "uuid": Near(0, "'00000000-0000-0000-0000-000000000001'"),
    "date": Near(0, "'1970-01-02'"),
    "time": Near(0, "'00:00:00.000001'"),
    "timetz": Near(0, "'00:00:00+00:01'"),
    "timestamp": Near(0, "'1970-01-01 00:00:00.000001'"),
    "timestamptz": Near(0, "'1970-01-01 00:00:00.000001+00'", "'1970-01-01 00:00:00.000001'"),
    "interval": Near(2, "'P1M'"),
    "json": Near(1, "'\"null\"'"),
    "enum": Near(0, "'Sad'"),
    "other": Near(0, "'10.0.0.0/9'"),
    "integers": Near(0, "'{NULL}'", "'[null]'"),
    "texts": Near(1, "'{NULL}'", "'[\"\"]'"),
    "floats": Near(1, "'{1.0000000000000002}'", "'[1.0000000000000002]'"),
    "decimals": Near(0, "'{1.51,NULL}'", '\'["1.50","NULL"]\''),
    "booleans": Near(0, "'{t,f}'", "'[true,false,false]'"),
    "blobs": Near(0, r"""'{"\\x00fe","\\x"}'""", r"""'["\\\\x00fe","\\\\x"]'""", r"""'["\\x00fe","\\x"]'"""),
    "moments": Near(0, "'{1970-01-01 00:00:00.000001+00,infinity,NULL}'", "'[]'"),
    "undefined": Near(1, "'NaN'", "0.01"),
    "late": Near(0, "'294247-01-10 04:00:54.775809'"),
    "late_utc": Near(0, "'infinity'"),
    "matrices": Near(1, "'{1,2}'", "'[1,2]'"),
    "word tables": Near(0, """'{{"a\\"b","",NULL,"{,}"}}'""", """'[["a\\\\"b","",null,"{,}"]]'"""),
    "boxes": Near(0, "'{(2,2),(1,1)}'", "'[\"(2,2),(1,1)\"]'"),
    "days": Near(0, "'{2024-02-29,0044-03-15 BC,infinity}'", "'[\"2024-02-29\"]'"),
}


class Rows:
    """Stands for the source: it has these rows."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def read_all(self, schema: TableSchema, snapshot: str) -> Iterator[pa.RecordBatch]:
        half = self._batch.num_rows // 2
        yield self._batch.slice(0, half)
        yield self._batch.slice(half)


class Judge:
    """One sink with the rows of one table, and what `verify` says of them."""

    def __init__(self, kind: str, url: str, state: str) -> None:
        self.kind, self.database = kind, SinkDatabase(kind, url)
        document = {
            "name": "shop",
            "source": {"url": "postgresql://nowhere/shop", "tables": ["*.*"]},
            "sinks": {"replica": {"url": url}},
            "state": state,
        }
        self.sink = registry.make_sink(msgspec.convert(document, config.Pipeline), "replica")
        self.offset = 0

    def apply(self, schema: TableSchema, batch: pa.RecordBatch, *, truncate: bool = False) -> None:
        self.offset += 10
        apply(self.sink, [net(schema, batch, truncate=truncate)], self.offset)

    def execute(self, statement: str) -> None:
        with self._writing() as cursor:
            cursor.execute(statement)
            assert cursor.rowcount == 1, statement

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        if self.kind == "sqlite":
            connection: Any = sqlite3.connect(self.database.path, isolation_level=None)
        else:
            connection = self.database._connection()
        try:
            yield connection.cursor()
        finally:
            connection.close()

    def quote(self, name: str) -> str:
        return self.database.quote(name)

    def compare(self, schema: TableSchema, batch: pa.RecordBatch) -> verify.Comparison:
        return verify._compare("replica", schema, Rows(batch), self.sink, "", "")

    def differing(self, schema: TableSchema, batch: pa.RecordBatch) -> tuple[str, ...]:
        found = self.compare(schema, batch)
        assert found.is_equal == (not found.differing)
        return found.differing


@pytest.fixture(params=SINKS)
def judge(request, tmp_path) -> Iterator[Judge]:
    fixtures = {"postgresql": "postgres_url", "mysql": "mysql_url", "mariadb": "mariadb_url"}
    kind = request.param
    url = f"sqlite:///{tmp_path}/r.db" if kind == "sqlite" else request.getfixturevalue(fixtures[kind])
    judge = Judge(kind, url, str(tmp_path / "state"))
    yield judge
    judge.sink.close()


def sample(judge: Judge, number: int, name: str) -> tuple[TableSchema, pa.RecordBatch]:
    """A table with the values of a sample that the sink can hold."""
    type_, values = SAMPLES[name].type, SAMPLES[name].values
    schema = TableSchema("public", f"t{number}", (Column("id", INT), Column("v", type_)), ("id",))
    batch = schema.rows([pa.array(range(len(values)), pa.int64()), values])
    for _, field in columns_of(schema, batch):
        misfits = judge.sink.dialect.encoding.misfits(field)
        if misfits is not None:
            batch = batch.filter(pa.array(~misfits[0]))
    return schema, batch


def test_a_small_change_of_one_value_of_any_type_is_named(judge):
    assert NEAR.keys() == SAMPLES.keys()
    seen = set()
    for number, (name, near) in enumerate(NEAR.items()):
        schema, batch = sample(judge, number, name)
        ids = batch.column("id").to_pylist()
        if near.row not in ids:
            continue
        seen.add(name)
        table, null = judge.quote(schema.name), ids[-1]
        judge.apply(schema, batch)
        assert (name, judge.differing(schema, batch)) == (name, ())
        judge.execute(f"UPDATE {table} SET v = {near.literal(judge.kind)} WHERE id = {near.row}")
        assert (name, judge.differing(schema, batch)) == (name, (str(near.row),))
        judge.apply(schema, batch, truncate=True)
        judge.execute(f"UPDATE {table} SET v = NULL WHERE id = {near.row}")
        judge.execute(f"UPDATE {table} SET v = {near.literal(judge.kind)} WHERE id = {null}")
        assert (name, judge.differing(schema, batch)) == (name, tuple(sorted((str(near.row), str(null)))))
    missing = {"late", "late_utc"} if judge.kind in ("mysql", "mariadb") else set()
    assert SAMPLES.keys() - seen == missing


WORDS = TableSchema("public", "words", (Column("id", INT), Column("n", INT), Column("v", TEXT)), ("id",))
WORD_ROWS = [(n, -n, text) for n, text in enumerate(TEXTS)]


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE words SET n = -2 WHERE id = 1", ("1",)),  # hash(-1) == hash(-2) in Python
        ("UPDATE words SET n = 1 WHERE id = 1", ("1",)),
        ("UPDATE words SET v = NULL WHERE id = 0", ("0",)),  # it was the empty text
        ("UPDATE words SET v = 'null' WHERE id = 3", ("3",)),
        ("DELETE FROM words WHERE id = 5", ("5",)),
        ("INSERT INTO words VALUES (-2, 0, '')", ("-2",)),
        ("UPDATE words SET id = 77 WHERE id = 7", ("7", "77")),
    ],
)
def test_rows_that_differ_are_named_by_their_key(judge, statement, named):
    batch = table_of(WORDS, WORD_ROWS)
    judge.apply(WORDS, batch)
    assert judge.differing(WORDS, batch) == ()
    judge.execute(statement)
    assert judge.differing(WORDS, batch) == named


def test_rows_that_swap_their_values_are_named(judge):
    batch = table_of(WORDS, WORD_ROWS)
    judge.apply(WORDS, batch)
    judge.execute("UPDATE words SET n = -2 WHERE id = 1")
    judge.execute("UPDATE words SET n = -1 WHERE id = 2")
    assert judge.differing(WORDS, batch) == ("1", "2")


LOOSE = TableSchema("public", "loose", (Column("x", INT), Column("y", TEXT)), (), Identity.FULL)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO loose (x, y) VALUES (1, 'secret')",
        "INSERT INTO loose (x, y) VALUES (NULL, 'secret')",
        "DELETE FROM loose WHERE x = 2",
        "UPDATE loose SET y = NULL WHERE x = 2",
    ],
)
def test_of_rows_without_a_key_every_copy_counts_and_no_value_is_shown(judge, statement):
    batch = table_of(LOOSE, [(1, "secret"), (1, "secret"), (2, ""), (None, None)])
    judge.apply(LOOSE, batch)
    assert judge.differing(LOOSE, batch) == ()
    judge.execute(statement)
    names = judge.differing(LOOSE, batch)
    assert names
    assert all(name.startswith("row ") and "secret" not in name for name in names)


def test_in_sqlite_text_bytes_and_numbers_are_not_the_same(tmp_path):
    judge = Judge("sqlite", f"sqlite:///{tmp_path}/r.db", str(tmp_path / "state"))
    with judge._writing() as cursor:
        cursor.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, n BLOB, v BLOB)")
    batch = table_of(WORDS, [(1, 1, "a"), (2, 0, "b")])
    judge.apply(WORDS, batch)
    assert judge.differing(WORDS, batch) == ()
    for statement in (
        "UPDATE words SET v = CAST(v AS BLOB) WHERE id = 1",
        "UPDATE words SET n = 1.0 WHERE id = 1",
        "UPDATE words SET n = '1' WHERE id = 1",
    ):
        judge.apply(WORDS, batch)
        judge.execute(statement)
        assert (statement, judge.differing(WORDS, batch)) == (statement, ("1",))
    judge.sink.close()


def test_many_keys_fill_the_buckets_evenly():
    schema = msgspec.structs.replace(WORDS, columns=WORDS.columns[:1])
    for make in (lambda n: (n,), lambda n: (-n,), lambda n: (n << 14,), lambda n: (str(n),), lambda n: (n * 0.5,)):
        buckets = verify._buckets([make(n) for n in range(4 * verify.BUCKETS)], schema)
        counts = np.bincount(buckets, minlength=verify.BUCKETS)
        assert counts.max() < 32
        assert (counts == 0).mean() < 0.1
