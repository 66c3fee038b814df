"""Reading rows by the values of any of their columns, many at a time, as a moment sees them or as they are.

Each question is one query on a session that is lent for it. Values come as our texts, and the server compares them in
the collation of the column: what it takes for equal and is not (`a` and `A`) is left out afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model import shapes
from tailrace.model.rows import ReadRows
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.mysql import snapshot as rows
from tailrace.sources.mysql.holding import QUESTION, borrowed
from tailrace.sources.mysql.ranges import compared
from tailrace.sources.mysql.types import base_of

_INTEGER = r"^-?\d{1,20}$"
_READABLE = {
    Kind.BOOLEAN: r"^(true|false|0|1)$",
    Kind.INT16: _INTEGER,
    Kind.INT32: _INTEGER,
    Kind.INT64: _INTEGER,
    Kind.DECIMAL: r"^-?\d+(\.\d+)?$",
    Kind.NUMERIC: r"^-?\d+(\.\d+)?$",
    Kind.FLOAT32: r"^-?\d+(\.\d+)?(e[+-]?\d+)?$",
    Kind.FLOAT64: r"^-?\d+(\.\d+)?(e[+-]?\d+)?$",
    Kind.BYTES: r"^\\x([0-9a-f]{2})*$",
    Kind.UUID: r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    Kind.DATE: r"^\d{4}-\d\d-\d\d$",
    Kind.TIMESTAMP: r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$",
    Kind.TIMESTAMPTZ: r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00:00$",
}
"""What our texts look like of values of types that the server would read other texts as, too."""
_BARE = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64, Kind.DECIMAL, Kind.NUMERIC, Kind.FLOAT32, Kind.FLOAT64}
AT_ONCE = 2000
"""Values in one query."""

Values = tuple[Any, ...]
"""Texts of one row, in the order of the columns that are asked for."""


@contextmanager
def reader(url: str, snapshot: str) -> Iterator[ReadRows]:
    """Each question is a query, or a few; a session is lent for each."""

    def read(
        table: TableSchema, by: tuple[str, ...], values: pa.RecordBatch, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        known = {column.name: column for column in table.columns}
        told = _part(table, [known[name] for name in dict.fromkeys((*columns, *by))])
        asked = [known[name] for name in by]
        wanted, found = _wanted(asked, values), []
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            statement = rows.query(told, _condition(asked, some))
            with rows.table_errors(url, table, f"reading rows of {table.table}"), borrowed(snapshot, QUESTION) as loan:
                found += [_exact(batch, asked, some) for batch in rows.asked(loan, told, statement)]
        return shapes.concat_batches(found) if found else told.no_rows()

    yield read


def read_rows(url: str, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    """The present rows that have these keys (few of them), through the same decoder."""
    where = matching(table, table.key, keys)
    found = list(rows.read_now(url, table, where)) if where else []
    return shapes.concat_batches(found) if found else table.no_rows()


def _part(table: TableSchema, columns: Sequence[Column]) -> TableSchema:
    """The same table, as if it had these columns only."""
    return msgspec.structs.replace(table, columns=tuple(columns), key=())


def _exact(found: pa.RecordBatch, by: Sequence[Column], wanted: Sequence[Values]) -> pa.RecordBatch:
    """Without rows that the server took for equal: letters of another case, blanks at an end."""
    if all(column.type.kind not in (Kind.TEXT, Kind.ENUM) for column in by):
        return found
    texts = [to_text(found.column(column.name), column.type).to_pylist() for column in by]
    are_texts = [column.type.kind in (Kind.TEXT, Kind.ENUM) for column in by]
    equal = {tuple(part for part, is_text in zip(row, are_texts, strict=True) if is_text) for row in wanted}
    rows_ = zip(*(text for text, is_text in zip(texts, are_texts, strict=True) if is_text), strict=True)
    return found.filter(pa.array([row in equal for row in rows_], pa.bool_()))


def matching(table: TableSchema, by: Sequence[str], values: pa.RecordBatch) -> str:
    """A condition on the rows that have one of these values; empty if no row can have."""
    known = {column.name: column for column in table.columns}
    columns = [known[name] for name in by]
    wanted = _wanted(columns, values)
    return _condition(columns, wanted) if wanted else ""


def _wanted(columns: Sequence[Column], values: pa.RecordBatch) -> list[Values]:
    """The texts that are asked for, each once, without what no row can be equal to."""
    texts = [_as_texts(values.column(place), column.type) for place, column in enumerate(columns)]
    return [row for row in dict.fromkeys(zip(*texts, strict=True)) if all(part is not None for part in row)]


def _condition(columns: Sequence[Column], wanted: Sequence[Values]) -> str:
    names = [compared(column) for column in columns]
    literals = [tuple(_literal(part, c.type) for part, c in zip(row, columns, strict=True)) for row in wanted]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(row[0] for row in literals)})"
    return f"({', '.join(names)}) IN ({', '.join('(' + ', '.join(row) + ')' for row in literals)})"


def _as_texts(values: pa.Array, type_: ColumnType) -> list[str | None]:
    """Texts of values of the type; None for what no row has."""
    text = values if pa.types.is_string(values.type) else to_text(values, type_)
    pattern = _READABLE.get(type_.kind)
    if pattern is not None:
        text = pc.if_else(pc.fill_null(pc.match_substring_regex(text, pattern), False), text, None)
    found: list[str | None] = text.to_pylist()
    return found


def _literal(text: Any, type_: ColumnType) -> str:
    base = base_of(type_.name)
    if type_.kind is Kind.BYTES:
        return f"_binary x'{text[2:]}'"
    if type_.kind in _BARE:
        return str({"true": "1", "false": "0"}.get(text, text))
    if base in ("enum", "set"):
        return str(_number(text, type_))
    text = text.removesuffix("+00:00") if type_.kind is Kind.TIMESTAMPTZ else text
    return f"_utf8mb4 x'{text.encode().hex()}'"


def _number(text: str, type_: ColumnType) -> int:
    """That of a label, or of a set of them; -1 for what is none."""
    numbers = {label: place for place, label in enumerate(type_.labels, 1)}
    if base_of(type_.name) == "enum":
        return numbers.get(text, 0 if text == "" else -1)
    parts = [numbers.get(part, 0) for part in text.split(",") if part]
    return -1 if 0 in parts else sum(1 << (part - 1) for part in parts)
