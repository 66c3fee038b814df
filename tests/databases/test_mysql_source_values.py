"""Every type of MySQL and MariaDB: what a copy and the stream tell is what the server itself prints."""

from __future__ import annotations

import json
import random
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.mysql_sources import Logging
from support.mysql_types import OWN, TYPES, fill
from tailrace import config
from tailrace.columns.text import to_text
from tailrace.errors import ValueRefused
from tailrace.model import shapes
from tailrace.model.schema import Column
from tailrace.model.types import Kind
from tailrace.sources.mysql.connection import connect, database_of
from tailrace.sources.mysql.source import MysqlSource
from tailrace.testing.source_changes import read_on, schema_of

pytestmark = pytest.mark.server


@pytest.fixture
def types(logging: Logging) -> dict[str, list[str]]:
    return TYPES | OWN[logging.flavor.scheme]


@pytest.fixture
def source(logged_url: str, types: dict[str, list[str]]) -> MysqlSource:
    columns = ", ".join(f"c{place} {type_} NULL" for place, type_ in enumerate(types))
    with connect(logged_url) as connection:
        connection.query(f"CREATE TABLE every_type (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    return source_of(logged_url)


def source_of(url: str, **own: Any) -> MysqlSource:
    return MysqlSource(config.Pipeline("values", config.Source(url, ("*.*",), own=own), {}))


def streamed(source: MysqlSource, begin: str, table: str) -> dict[int, dict[str, Any]]:
    """The rows that inserts and updates leave behind."""
    found: dict[int, dict[str, Any]] = {}
    with closing(source.capture(begin, 1, {}, None)) as opened:
        for frames in read_on(source, opened).frames:
            for changes in source.decode(frames, frames.first, frames.last, {table}):
                before = dict(zip(changes.before_rows.tolist(), changes.before.to_pylist(), strict=True))
                for number, row in enumerate(plain(changes.after)):
                    found.pop(before[number]["id"] if number in before else row["id"], None)
                    found[row["id"]] = row
    return found


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return list(batch.to_pylist())


def printed(url: str, column: Column, rows: int) -> list[Any]:
    """What the server says of a column, in the order of ids."""
    name, base = f"`{column.name}`", column.type.name
    shown = f"CAST({name} AS CHAR)"
    if column.type.kind is Kind.BYTES:
        is_geometry = base in ("geometry", "point")
        shown = f"HEX(ST_AsWKB({name}))" if is_geometry else f"HEX({name})"
    elif base.startswith("bit"):
        shown = f"CAST({name} + 0 AS CHAR)"
    elif base == "float":
        shown = f"CAST(CAST({name} AS DOUBLE) AS CHAR)"
    elif base.startswith("vector"):
        shown = f"vector_to_string({name})"
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {shown} FROM every_type ORDER BY id")
        found = [row[0] for row in cursor.fetchall()]
    assert len(found) == rows
    return [_understood(each, column) for each in found]


def _understood(text: Any, column: Column) -> Any:
    if text is None:
        return None
    match column.type.kind:
        case Kind.FLOAT32:
            return float(np.float32(text))
        case Kind.FLOAT64:
            return float(text)
        case Kind.INT16 | Kind.INT32 | Kind.INT64:
            return int(text)
        case Kind.BOOLEAN:
            return text == "1"
        case Kind.BYTES:
            return bytes.fromhex(text)
        case Kind.ARRAY:
            return [float(np.float32(each)) for each in json.loads(text)]
        case _:
            return text.decode() if isinstance(text, bytes) else text


def told(array: pa.Array, column: Column) -> list[Any]:
    match column.type.kind:
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            digits = int(column.type.name.partition("(")[2].rstrip(")") or 0)
            texts = [None if t is None else t.removesuffix("+00:00") for t in to_text(array, column.type).to_pylist()]
            return [
                None if t is None else (t if "." in t else t + ".000000")[: 20 + digits if digits else 19]
                for t in texts
            ]
        case Kind.DATE | Kind.DECIMAL:
            return list(to_text(array, column.type).to_pylist())
        case _:
            return list(array.to_pylist())


def test_a_copy_and_the_stream_tell_what_the_server_prints(
    source: MysqlSource, logged_url: str, types: dict[str, list[str]]
) -> None:
    table = f"{database_of(logged_url)}.every_type"
    begin = source.current_position()
    fill(logged_url, types, seed=random.randrange(10**6))
    schema = schema_of(source, table)
    with source.export_snapshot() as snapshot:
        copied = shapes.concat_batches(list(source.read_all(schema, snapshot.id)))
    copied = copied.sort_by("id")
    for column, array in zip(schema.columns, copied.columns, strict=True):
        assert told(array, column) == printed(logged_url, column, copied.num_rows), f"{column.name} {column.type.name}"
    rows = streamed(source, begin, table)
    assert sorted(rows) == [row["id"] for row in plain(copied)]
    for row in plain(copied):
        for column in schema.columns:
            got = rows[row["id"]][column.name]
            assert got == row[column.name], f"row {row['id']}: {column.name} {column.type.name}"


def test_zero_dates_are_refused_read_as_null_or_as_text(logged_url: str) -> None:
    table = f"{database_of(logged_url)}.zeros"
    with connect(logged_url) as connection:
        connection.query("CREATE TABLE zeros (id int PRIMARY KEY, d date, t datetime(3), s timestamp NULL)")
        begin = source_of(logged_url).current_position()
        connection.query("INSERT INTO zeros VALUES (1, '0000-00-00', '0000-00-00', 0), (2, '2024-00-00', NULL, NULL)")
    for policy, expected in {
        "null": [(1, None, None, None), (2, None, None, None)],
        "text": [(1, "0000-00-00", "0000-00-00 00:00:00.000", "0000-00-00 00:00:00"), (2, "2024-00-00", None, None)],
    }.items():
        source = source_of(logged_url, zero_dates=policy)
        schema = schema_of(source, table)
        copied = [tuple(row.values()) for batch in source.read_all(schema) for row in plain(batch)]
        assert sorted(copied) == expected, policy
        assert [tuple(row.values()) for _, row in sorted(streamed(source, begin, table).items())] == expected, policy
    source = source_of(logged_url)
    with pytest.raises(ValueRefused, match=r"zeros\.d \(date\)"):
        list(source.read_all(schema_of(source, table)))
    with pytest.raises(ValueRefused, match=r"zeros\.d"):
        streamed(source, begin, table)
