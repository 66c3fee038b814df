"""Whatever values a table has, of every type at once: each SQL sink gives them back, by its documented mapping.

`expected_rows` is made by another way than what is written, and is what `tailrace verify` compares with.
"""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import count

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace import config, registry
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import INTERVAL, TIMETZ, ColumnType, Kind, arrow_type
from tailrace.testing.sink_changes import INT, apply, net, same

pytestmark = pytest.mark.server

MAX32, MAX64, DAY_US = 2**31 - 1, 2**63 - 1, 86_400_000_000
YEAR_1, YEAR_9999 = -719_162, 2_932_896  # in days since 1970
FIRST_DAY = -2_440_588  # of PostgreSQL: 4714-11-24 BC
LAST_DAY = 106_751_991  # of 64 bits of microseconds
SINKS = ("sqlite", "postgresql", "mysql", "mariadb")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
small = st.integers(-(2**31), MAX32)
documents = st.recursive(
    st.none() | st.booleans() | small | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=4
)
cents = st.decimals(min_value=Decimal("-9999999999.99"), max_value=Decimal("9999999999.99"), places=2)
numbers = st.decimals(min_value=Decimal(-(10**34)), max_value=Decimal(10**34), allow_nan=False, places=6).map(
    lambda number: f"{number:f}"
)
times = st.integers(0, DAY_US)
zones = st.builds(lambda *parts: dict(zip(TIMETZ.names, parts, strict=True)), times, st.integers(-57_599, 57_599))
intervals = st.builds(
    lambda *parts: dict(zip(INTERVAL.names, parts, strict=True)), small, small, st.integers(-MAX64, MAX64)
)

BOUNDED = {
    "real": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double precision": st.floats(allow_nan=False, allow_infinity=False),
    "numeric": numbers,
    "date": st.integers(YEAR_1, YEAR_9999),
    "timestamp": st.integers(YEAR_1 * DAY_US, YEAR_9999 * DAY_US),
    "timestamptz": st.integers(YEAR_1 * DAY_US, YEAR_9999 * DAY_US),
}
UNBOUNDED = {
    "real": st.floats(width=32),
    "double precision": st.floats(),
    "numeric": numbers | st.sampled_from(["NaN", "Infinity", "-Infinity", "9" * 500 + ".5"]),
    "date": st.integers(FIRST_DAY, YEAR_9999 * 3) | st.sampled_from([MAX32, -(2**31)]),
    "timestamp": st.integers(-210_866_803_200_000_000, LAST_DAY * DAY_US) | st.sampled_from([MAX64, -(2**63)]),
    "timestamptz": st.integers(-210_866_803_200_000_000, LAST_DAY * DAY_US) | st.sampled_from([MAX64, -(2**63)]),
}
ALWAYS = {
    "boolean": st.booleans(),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": small,
    "bigint": st.integers(-(2**63), MAX64),
    "numeric(12,2)": cents,
    "text": texts,
    "character varying(20)": texts,
    "bytea": st.binary(max_size=20),
    "uuid": st.uuids().map(str),
    "time": times,
    "timetz": zones,
    "interval": intervals,
    "json": documents.map(json.dumps),
    "public.mood": st.sampled_from(["sad", "it's ok"]),
    "inet": st.ip_addresses(v=4).map(str),
    "integer[]": st.lists(st.none() | small, max_size=4),
    "text[]": st.lists(st.none() | texts, max_size=4),
    "boolean[]": st.lists(st.none() | st.booleans(), max_size=4),
}
KINDS = {
    "boolean": Kind.BOOLEAN,
    "smallint": Kind.INT16,
    "integer": Kind.INT32,
    "bigint": Kind.INT64,
    "real": Kind.FLOAT32,
    "double precision": Kind.FLOAT64,
    "numeric": Kind.NUMERIC,
    "text": Kind.TEXT,
    "character varying(20)": Kind.TEXT,
    "bytea": Kind.BYTES,
    "uuid": Kind.UUID,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "timetz": Kind.TIMETZ,
    "timestamp": Kind.TIMESTAMP,
    "timestamptz": Kind.TIMESTAMPTZ,
    "interval": Kind.INTERVAL,
    "json": Kind.JSON,
    "inet": Kind.OTHER,
}


def type_of(name: str) -> ColumnType:
    if name.endswith("[]"):
        return ColumnType(Kind.ARRAY, name, element=type_of(name[:-2]))
    if name == "numeric(12,2)":
        return ColumnType(Kind.DECIMAL, name, 12, 2)
    if name == "public.mood":
        return ColumnType(Kind.ENUM, name, labels=("sad", "it's ok"))
    return ColumnType(KINDS[name], name)


NAMES = [*ALWAYS, *BOUNDED]
COLUMNS = tuple(Column(f"c{place}", type_of(name)) for place, name in enumerate(NAMES))
TABLE = TableSchema("public", "everything", (Column("id", INT), *COLUMNS), ("id",))


def rows_of(strategies: dict[str, st.SearchStrategy]) -> st.SearchStrategy[pa.RecordBatch]:
    row = st.tuples(*(st.none() | strategies[name] for name in NAMES))
    return st.lists(row, min_size=1, max_size=5).map(_batch)


def _batch(rows: list[tuple]) -> pa.RecordBatch:
    columns = [
        pa.array(list(values), arrow_type(column.type))
        for values, column in zip(zip(*rows, strict=True), COLUMNS, strict=True)
    ]
    return pa.RecordBatch.from_arrays([pa.array(range(len(rows)), pa.int64()), *columns], schema=TABLE.arrow)


def test_every_kind_of_type_is_among_them():
    assert {column.type.kind for column in COLUMNS} == set(Kind)


@pytest.fixture(params=SINKS)
def make_sink(request, tmp_path):
    name = request.param
    url = (
        f"sqlite:///{tmp_path}/replica.db"
        if name == "sqlite"
        else request.getfixturevalue("postgres_url" if name == "postgresql" else f"{name}_url")
    )

    def make(**options):
        document = {
            "name": "shop",
            "source": {"url": "postgresql://nowhere/shop", "tables": ["*.*"]},
            "sinks": {"replica": {"url": url, **options}},
            "state": str(tmp_path / "state"),
        }
        return registry.make_sink(msgspec.convert(document, config.Pipeline), "replica")

    return make


@pytest.mark.parametrize(
    ("options", "values"),
    [({}, ALWAYS | BOUNDED), ({"misfits": "text"}, ALWAYS | UNBOUNDED)],
    ids=["what every sink holds", "anything, misfits as text"],
)
def test_any_values_come_back(make_sink, options, values):
    sink = make_sink(**options)
    offsets = count(1)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(rows_of(values))
    def come_back(batch):
        apply(sink, [net(TABLE, batch, truncate=True)], next(offsets))
        found = [row for rows in sink.read_table(TABLE) for row in rows]
        assert same(found, sink.expected_rows(TABLE, batch))

    come_back()
    sink.close()
