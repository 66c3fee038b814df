"""The PostgreSQL sink: held to the contract of all SQL sinks, and to what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tailrace import config
from tailrace.model.schema import TableSchema
from tailrace.model.types import Kind
from tailrace.sinks.sql import server
from tailrace.sinks.sql.postgres import PostgresSink
from tailrace.testing.sample_values import DIGITS, SAMPLES, TEXTS, UUIDS
from tailrace.testing.sink_contract import SinkContract

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
}
"""What psql prints."""

SESSION = "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=iso_8601 -c bytea_output=hex"


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


class TestPostgresSink(SinkContract):
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
        monkeypatch.setattr(server, "INLINE_BYTES", -1)


def test_the_mapping_of_every_type_is_tested():
    assert {sample.type.kind for sample in SAMPLES.values()} == set(Kind)
    assert EXPECTED.keys() == SAMPLES.keys()
