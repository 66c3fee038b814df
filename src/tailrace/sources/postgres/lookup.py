"""Reading rows by the values of any of their columns, many at a time, as an exported snapshot sees them.

One connection answers many questions. A table is locked (ACCESS SHARE) while a question about it is answered, and no
longer: whoever waits to truncate or alter it does not wait for what is done with the answers.

A snapshot does not see the rows of a table that was truncated, or rewritten as it was, since: such a table is read as
it is now. What it became is in the stream behind the snapshot, so whoever follows that ends equal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.errors import SourceRefused
from tailrace.model import shapes
from tailrace.model.rows import ReadRows
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sources.base import TableRewritten
from tailrace.sources.postgres import snapshot as rows
from tailrace.sources.postgres.connection import connect, source_errors
from tailrace.sources.postgres.values.arrays import array_literal

_READABLE = {
    Kind.BOOLEAN: r"^(true|false)$",
    Kind.INT16: r"^-?\d{1,19}$",
    Kind.INT32: r"^-?\d{1,19}$",
    Kind.INT64: r"^-?\d{1,19}$",
    Kind.DECIMAL: r"^(-?\d+(\.\d+)?|NaN|-?Infinity)$",
    Kind.NUMERIC: r"^(-?\d+(\.\d+)?|NaN|-?Infinity)$",
    Kind.BYTES: r"^\\x([0-9a-f]{2})*$",
    Kind.UUID: r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
}
"""What our texts look like of values of types to which the server would not cast other texts."""
_BIGGEST = "9223372036854775807"
_COMPARED_AS = {
    "smallint": "bigint",
    "integer": "bigint",
    Kind.DECIMAL: "numeric",
    Kind.NUMERIC: "numeric",
    Kind.TIME: "time",
    Kind.TIMETZ: "timetz",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.INTERVAL: "interval",
}
"""By name or kind: types that take any value of theirs as it is, without a cast that would round it."""


@contextmanager
def reader(url: str, snapshot: str) -> Iterator[ReadRows]:
    """Each question is one query. The connection ends with the context."""
    with closing(connect(url, application="tailrace documents", lock_seconds=rows.LOCK_SECONDS)) as connection:
        with source_errors(url, "reading under a snapshot"):
            rows.import_snapshot(connection, url, snapshot)
            connection.execute("SET LOCAL jit = off")  # long lists look costly, and are not
        with ExitStack() as others:
            yield Lookup(url, connection, others)


class Lookup:
    """A `ReadRows` on a connection whose transaction has the snapshot. `others` ends what else it opens."""

    def __init__(self, url: str, connection: psycopg.Connection[Any], others: ExitStack) -> None:
        self._url = url
        self._connection = connection
        self._others = others
        self._present: psycopg.Connection[Any] | None = None

    def __call__(
        self, table: TableSchema, by: tuple[str, ...], values: pa.RecordBatch, columns: tuple[str, ...]
    ) -> pa.RecordBatch:
        known = {column.name: column for column in table.columns}
        told = _part(table, tuple(known[name] for name in dict.fromkeys((*columns, *by))))
        wanted = _readable([known[name].type for name in by], values)
        if not wanted.num_rows:
            return told.no_rows()
        with rows.table_errors(self._url, table, f"reading rows of {table.table}"):
            found = self._seen(table, told, by, wanted)
            if found is None:
                found = self._as_it_is_now(table, told, by, wanted)
        return shapes.concat_batches(found) if found else told.no_rows()

    def _seen(
        self, table: TableSchema, told: TableSchema, by: tuple[str, ...], wanted: pa.RecordBatch
    ) -> list[pa.RecordBatch] | None:
        """What the snapshot sees; None if it can not see the table's rows any more."""
        with self._connection.transaction(force_rollback=True):  # a savepoint: its end gives the lock back
            relation = _locked(self._connection, table, told)
            if rows.is_blind(self._connection, table):
                return None
            return _copied(self._connection, relation, table, told, by, wanted)

    def _as_it_is_now(
        self, table: TableSchema, told: TableSchema, by: tuple[str, ...], wanted: pa.RecordBatch
    ) -> list[pa.RecordBatch]:
        connection = self._now()
        with connection.transaction(force_rollback=True):
            relation = _locked(connection, table, told)
            if rows.shape(connection, table) != rows.shape(self._connection, table):
                raise TableRewritten(table.table)
            return _copied(connection, relation, table, told, by, wanted)

    def _now(self) -> psycopg.Connection[Any]:
        """A connection that sees what there is when it is asked."""
        if self._present is None:
            made = connect(self._url, application="tailrace documents", lock_seconds=rows.LOCK_SECONDS)
            self._present = self._others.enter_context(closing(made))
        return self._present


def _locked(connection: psycopg.Connection[Any], table: TableSchema, told: TableSchema) -> str:
    """The table's rows as SQL has them, kept as they are for as long as the transaction lasts."""
    try:
        relation = rows.from_clause(connection, table)
        connection.execute(f"LOCK TABLE {relation} IN ACCESS SHARE MODE".encode())
    except psycopg.errors.UndefinedTable as error:
        raise TableRewritten(table.table) from error
    if not rows.has_name(connection, table) or not rows.has_columns(connection, told):
        raise TableRewritten(table.table)
    return relation


def _copied(
    connection: psycopg.Connection[Any],
    relation: str,
    table: TableSchema,
    told: TableSchema,
    by: tuple[str, ...],
    wanted: pa.RecordBatch,
) -> list[pa.RecordBatch]:
    known = {column.name: column for column in table.columns}
    condition = _condition(connection, [known[name] for name in by], wanted)
    try:
        return list(rows.copy_rows(connection, told, f"{rows.select(told)} FROM {relation} WHERE {condition}"))
    except psycopg.DataError:  # its words have the value
        raise SourceRefused(
            f"rows of {table.table} can not be found by {', '.join(by)}: they are compared with other types",
            hint="join columns of the same type",
            table=table.table,
        ) from None


def _part(table: TableSchema, columns: tuple[Column, ...]) -> TableSchema:
    """The same table, as if it had these columns only."""
    return TableSchema(table.schema, table.name, columns, (), table.identity, table.relation)


def _readable(types: Sequence[ColumnType], values: pa.RecordBatch) -> pa.RecordBatch:
    """Without what no row can be equal to: NULL, and what is not the text of a value of the column's type."""
    kept = functools.reduce(pc.and_, map(_is_possible, types, values.columns))
    return values if pc.all(kept, min_count=0).as_py() else values.filter(kept)


def _is_possible(type_: ColumnType, texts: pa.StringArray) -> pa.BooleanArray:
    pattern = _READABLE.get(type_.kind)
    is_possible = texts.is_valid() if pattern is None else pc.fill_null(pc.match_substring_regex(texts, pattern), False)
    if type_.kind not in (Kind.INT16, Kind.INT32, Kind.INT64):
        return is_possible
    digits = pc.utf8_ltrim(texts, "-")
    is_small = pc.or_(pc.less(pc.binary_length(digits), len(_BIGGEST)), pc.less_equal(digits, _BIGGEST))
    return pc.and_(is_possible, pc.fill_null(pc.or_(is_small, pc.equal(texts, f"-{int(_BIGGEST) + 1}")), False))


def _condition(connection: psycopg.Connection[Any], by: Sequence[Column], values: pa.RecordBatch) -> str:
    """An index of these columns serves it, also one of a narrower integer."""
    names = [sql.Identifier(column.name).as_string(None) for column in by]
    arrays = [_array(connection, column.type, texts) for column, texts in zip(by, values.columns, strict=True)]
    if len(by) == 1 and by[0].type.element is None:
        return f"{names[0]} = ANY ({arrays[0]})"
    listed = ", ".join(f"asked.c{place}{_again(column.type)}" for place, column in enumerate(by))
    aliases = ", ".join(f"c{place}" for place in range(len(by)))
    return f"({', '.join(names)}) IN (SELECT {listed} FROM unnest({', '.join(arrays)}) AS asked ({aliases}))"


def _again(type_: ColumnType) -> str:
    """Arrays are asked for as text: there is no array of arrays."""
    return "" if type_.element is None else f"::{type_.name}"


def _array(connection: psycopg.Connection[Any], type_: ColumnType, texts: pa.StringArray) -> str:
    element = type_.element
    if element is not None:
        texts = pa.array([array_literal(text, element) for text in texts.to_pylist()], pa.string())
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    together = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(quoted)], pa.int32()), quoted), ",")[0].as_py()
    literal = sql.Literal("{" + together + "}").as_string(connection)
    return _labels(connection, type_, literal) if type_.kind is Kind.ENUM else f"{literal}::{_compared_as(type_)}[]"


def _labels(connection: psycopg.Connection[Any], type_: ColumnType, literal: str) -> str:
    """The values of an enum that have these texts, null for others: a cast would refuse all for one that is none."""
    enum = f"{sql.Literal(type_.name).as_string(connection)}::regtype"
    return (
        f"ARRAY(SELECT e.enumlabel::text::{type_.name} FROM unnest({literal}::text[]) WITH ORDINALITY AS a (t, n)"
        f" LEFT JOIN pg_catalog.pg_enum AS e ON e.enumtypid = {enum} AND e.enumlabel::text = a.t ORDER BY a.n)"
    )


def _compared_as(type_: ColumnType) -> str:
    if type_.element is not None:
        return "text"
    if type_.kind is Kind.TEXT and type_.name.startswith("character"):  # a cast would cut what is too long
        return "text" if type_.name.startswith("character varying") else "bpchar"
    return _COMPARED_AS.get(type_.name) or _COMPARED_AS.get(type_.kind) or type_.name
