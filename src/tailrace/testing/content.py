"""Comparing the content of a PostgreSQL source with a sink, row by row, for tests and the demo.

Certain rather than clever: every row of both sides is read and matched, as multisets. Both sides are streamed in key
order, which keeps the unmatched rows few; the order has no influence on the answer. Compare when nothing is being
written, or the two sides show two moments.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tailrace.model.names import table_name
from tailrace.testing.rendering import (
    FLOATS,
    INTEGERS,
    Column,
    Row,
    Shape,
    quote,
    read,
    readers_of,
    rows_of,
    shape_of,
    tables_of,
)

MOST = 20
"""Differences that are named, a table."""


@dataclass(frozen=True)
class Difference:
    """One row that is not the same on both sides. `str` names key and columns; `values` shows the rows as well."""

    table: str
    what: str
    key: Row = ()
    source: Row | None = None
    sink: Row | None = None

    def __str__(self) -> str:
        return f"{self.table}: {self.what}" + (f" {_short(self.key)}" if self.key else "")

    @property
    def values(self) -> str:
        rows = [f"\n    {side}: {_short(row)}" for side, row in (("source", self.source), ("sink", self.sink)) if row]
        return str(self) + "".join(rows)


def source_rows(url: str, table: str) -> Iterator[Row]:
    """The rows of a PostgreSQL table in their canonical form, rendered by the server."""
    return rows_of(url, shape_of(url, table))


def sqlite_differences(
    url: str, path: str | Path, tables: Iterable[str] | None = None, names: dict[str, str] | None = None
) -> list[Difference]:
    """How the SQLite file differs from the database at `url`, in all of its tables or in those given as `schema.name`.

    `names` says what a table is called in SQLite where that is not `name`, or `schema_name` outside of `public`.
    """
    found: list[Difference] = []
    with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as sink:
        for table in tables_of(url) if tables is None else tables:
            shape = shape_of(url, table)
            found += _sqlite_table(url, shape, sink, (names or {}).get(table, shape.flat_name))
    return found


def postgres_differences(
    url: str, sink_url: str, tables: Iterable[str] | None = None, names: dict[str, str] | None = None
) -> list[Difference]:
    """How the database at `sink_url` differs from the one at `url`. `names` maps a source table to the sink's table."""
    found: list[Difference] = []
    for table in tables_of(url) if tables is None else tables:
        shape, sink = shape_of(url, table), shape_of(sink_url, (names or {}).get(table, table))
        by_name = {column.name: column for column in sink.columns}
        missing = [column.name for column in shape.columns if column.name not in by_name]
        if missing:
            found.append(Difference(table, f"the sink has no column {', '.join(missing)}"))
            continue
        same_order = Shape(sink.schema, sink.name, tuple(by_name[column.name] for column in shape.columns), shape.key)
        found += differences(shape, rows_of(url, shape), rows_of(sink_url, same_order))
    return found


def assert_same(found: list[Difference]) -> None:
    """Fail with every difference and its values."""
    assert not found, "source and sink differ:\n" + "\n".join(difference.values for difference in found)


def differences(shape: Shape, source: Iterable[Row], sink: Iterable[Row], most: int = MOST) -> list[Difference]:
    """Match two streams of rows as multisets."""
    balance = _unmatched(source, sink)
    by_key: dict[Row, tuple[list[Row], list[Row]]] = {}
    for row, count in balance.items():
        sides = by_key.setdefault(tuple(row[place] for place in shape.key_places), ([], []))
        sides[0 if count > 0 else 1].extend([row] * abs(count))
    named = [_explain(shape, key, *sides) for key, sides in islice(by_key.items(), most)]
    if len(by_key) > most:
        named.append(Difference(_full_name(shape), f"and {len(by_key) - most} more rows differ"))
    return named


def _unmatched(source: Iterable[Row], sink: Iterable[Row]) -> dict[Row, int]:
    """Rows with how many more of them the source has than the sink; those in balance are forgotten on the way."""
    balance: dict[Row, int] = {}
    streams = [(iter(source), 1), (iter(sink), -1)]
    while streams:
        for stream, sign in list(streams):
            rows = list(islice(stream, 1_000))
            if not rows:
                streams.remove((stream, sign))
            for row in rows:
                count = balance.pop(row, 0) + sign
                if count:
                    balance[row] = count
    return balance


def _explain(shape: Shape, key: Row, source: list[Row], sink: list[Row]) -> Difference:
    table = _full_name(shape)
    if not source:
        return Difference(table, f"{_times(sink)} in the sink only:", key, None, sink[0])
    if not sink:
        return Difference(table, f"{_times(source)} in the source only:", key, source[0], None)
    names = [column.name for column, a, b in zip(shape.columns, source[0], sink[0], strict=True) if a != b]
    return Difference(table, f"differs in {', '.join(names)}:", key, source[0], sink[0])


def _times(rows: list[Row]) -> str:
    return "row" if len(rows) == 1 else f"{len(rows)} rows"


def _full_name(shape: Shape) -> str:
    return table_name(shape.schema, shape.name)


def _short(row: Row) -> str:
    texts = (repr(value) for value in row)
    return "(" + ", ".join(text if len(text) <= 60 else f"{text[:50]}… of {len(text)}" for text in texts) + ")"


def _sqlite_table(url: str, shape: Shape, sink: sqlite3.Connection, name: str) -> list[Difference]:
    there = {row[1] for row in sink.execute(f"PRAGMA table_info({quote(name)})")}
    missing = [column.name for column in shape.columns if column.name not in there]
    if missing:
        what = f"the sink has no column {', '.join(missing)}" if there else f"the sink has no table {name}"
        return [Difference(_full_name(shape), what)]
    return [
        *_wrong_storage(shape, sink, name),
        *differences(shape, rows_of(url, shape), _sqlite_rows(shape, sink, name)),
    ]


def _wrong_storage(shape: Shape, sink: sqlite3.Connection, name: str) -> Iterator[Difference]:
    """Python would call 1 and 1.0 equal: so SQLite itself says how it stores each value."""
    for column in shape.columns:
        value = quote(column.name)
        expected = _storage(column)
        wrong = f"typeof({value}) NOT IN ('{expected}', 'null')"
        if expected == "real":
            wrong += f" AND {value} IS NOT 'NaN'"
        [count] = sink.execute(f"SELECT count(*) FROM {quote(name)} WHERE {wrong}").fetchone()
        if count:
            yield Difference(_full_name(shape), f"{count} values of {column.name} are not stored as {expected}")


def _storage(column: Column) -> str:
    if column.element is None and column.type in INTEGERS:
        return "integer"
    if column.element is None and column.type in FLOATS:
        return "real"
    return "blob" if column.type == "bytea" else "text"


def _sqlite_rows(shape: Shape, sink: sqlite3.Connection, name: str) -> Iterator[Row]:
    columns = ", ".join(quote(column.name) for column in shape.columns)
    order = ", ".join(quote(column) for column in shape.key) or columns
    readers = readers_of(shape)
    for row in sink.execute(f"SELECT {columns} FROM {quote(name)} ORDER BY {order}"):
        yield read(row, readers)
