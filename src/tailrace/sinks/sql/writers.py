"""How a task leaves rows for the driver: in staging tables, in a file of its own, or in its receipt if they are few."""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial
from tailrace.errors import SinkRejected, about
from tailrace.model.rows import EncodedRows, Rows
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.mapping import SchemaMapping
from tailrace.sinks.sql.dialect import Dialect, Encoded, Encoding, Field, Session, StagingFile
from tailrace.sinks.sql.staged import COPIES, StagedChanges, StagedColumn, StagedPartial, StagedRows, old

SLICE_BYTES = 4 << 20
SLICE_ROWS = 1 << 16

Labelled = Sequence[tuple[str, Field]]
Payload = Iterable[Encoded]
"""Encoded rows, in pieces."""


class Writer(Protocol):
    def write(self, columns: Labelled) -> StagedRows: ...


class InlineWriter:
    """Rows that travel in the receipt."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def write(self, columns: Labelled) -> StagedRows:
        packed = self._encoding.pack([field for _, field in columns])
        return StagedRows(_described(columns), len(columns[0][1].array), inline=packed)


class StagingWriter(ABC):
    """Rows where nobody sees them. `names` are what is to be dropped afterwards."""

    names: list[str]

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def write(self, columns: Labelled) -> StagedRows:
        rows = pa.RecordBatch.from_arrays([field.array for _, field in columns], [label for label, _ in columns])
        payload = encoded(self._dialect.encoding, [field for _, field in columns], [rows])
        return self.load(_described(columns), payload, rows.num_rows)

    @abstractmethod
    def load(self, columns: tuple[StagedColumn, ...], payload: Payload, rows: int = 0) -> StagedRows:
        """A new table with rows that are encoded already."""


class FileWriter(StagingWriter):
    """Rows in tables of one file."""

    def __init__(self, dialect: Dialect, file: StagingFile, name: str) -> None:
        super().__init__(dialect)
        self._file, self._name, self.names = file, name, []

    def load(self, columns: tuple[StagedColumn, ...], payload: Payload, rows: int = 0) -> StagedRows:
        self.names = [self._name]
        return StagedRows(columns, rows, self._file.load(columns, payload))


class TableWriter(StagingWriter):
    """Rows in tables of the database; they come to be with the caller's transaction."""

    def __init__(
        self, dialect: Dialect, session: Session, new_name: Callable[[], str], *, is_private: bool = False
    ) -> None:
        super().__init__(dialect)
        self._session, self._new_name, self._is_private = session, new_name, is_private
        self.names = []

    def load(self, columns: tuple[StagedColumn, ...], payload: Payload, rows: int = 0) -> StagedRows:
        table = self._new_name()
        self._session.execute(self._dialect.staging.create(table, columns, is_private=self._is_private))
        types = [column.type for column in columns]
        self._session.load(table, [f"c{place}" for place in range(len(columns))], payload, types)
        self.names.append(table)
        return StagedRows(columns, rows, table)


def encoded(encoding: Encoding, fields: Sequence[Field], batches: Iterable[Rows]) -> Iterator[Encoded]:
    """The rows of `batches`, described by `fields`, for a bulk load, in pieces that fit the caches."""
    return itertools.chain.from_iterable(map(functools.partial(_encoded_batch, encoding, fields), batches))


def _encoded_batch(encoding: Encoding, fields: Sequence[Field], batch: Rows) -> Iterator[Encoded]:
    if isinstance(batch, EncodedRows):
        yield batch.data
        return
    step = SLICE_ROWS
    if batch.nbytes > SLICE_BYTES:
        step = min(step, max(batch.num_rows * SLICE_BYTES // batch.nbytes, 1))
    for first in range(0, batch.num_rows, step):
        piece = batch.slice(first, step)
        columns = [field._replace(array=array) for field, array in zip(fields, piece.columns, strict=True)]
        if piece.nbytes > SLICE_BYTES and piece.num_rows == 1:
            yield from encoding.encode_large(columns)
        else:
            yield encoding.encode(columns)


def stage_changes(writer: Writer, source: NetChanges, mapping: SchemaMapping) -> StagedChanges:
    """Raises SinkRejected, with the table, for a value that the database can not hold."""
    table = source.schema.table
    if not source.schema.columns:
        raise SinkRejected(
            f"{table} has lost all of its columns, and a row without any can not be held",
            hint="add a column to the table, drop it, or exclude it in source.tables",
            table=table,
        )
    with about(table):
        return _staged(writer, source, mapping)


def _staged(writer: Writer, source: NetChanges, mapping: SchemaMapping) -> StagedChanges:
    net = mapping.net(source)
    return StagedChanges(
        schema=source.schema,
        truncate=net.truncate,
        deletes=writer.write(_deletes(net)) if net.deletes.num_rows else None,
        upserts=writer.write(columns_of(net.schema, net.upserts)) if net.upserts.num_rows else None,
        partials=tuple(_stage_partial(writer, net.schema, partial) for partial in net.partials),
        count=net.count,
    )


def columns_of(schema: TableSchema, rows: pa.RecordBatch) -> Labelled:
    types = {column.name: column.type for column in schema.columns}
    return [
        (name, Field(f"{schema.table}.{name}", types[name], array))
        for name, array in zip(rows.schema.names, rows.columns, strict=True)
    ]


def fields_of(schema: TableSchema) -> list[Field]:
    """The columns of a table, without values."""
    return [Field(f"{schema.table}.{column.name}", column.type, None) for column in schema.columns]


def _deletes(net: NetChanges) -> Labelled:
    columns = columns_of(net.schema, net.deletes)
    if net.schema.key:
        return columns
    return [*columns, (COPIES, Field("copies", ColumnType(Kind.INT64, "bigint"), pa.array(net.delete_counts)))]


def _stage_partial(writer: Writer, schema: TableSchema, partial: Partial) -> StagedPartial:
    """What was not sent is not staged."""
    sent = [
        (name, field)
        for name, field in columns_of(schema, partial.rows)
        if name in schema.key or name not in partial.unchanged
    ]
    if partial.old_keys is not None:
        sent += [(old(name), field) for name, field in columns_of(schema, partial.old_keys)]
    return StagedPartial(partial.unchanged, writer.write(sent), partial.old_keys is not None)


def _described(columns: Labelled) -> tuple[StagedColumn, ...]:
    return tuple(StagedColumn(label, field.type) for label, field in columns)
