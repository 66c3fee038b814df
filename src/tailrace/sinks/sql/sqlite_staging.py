"""Staging for SQLite: each task fills a database file of its own, the driver attaches it and merges in C.

Files are written through ADBC, which binds Arrow columns without a Python object a value.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import adbc_driver_sqlite.dbapi as adbc
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.model.net import NetChanges, Partial
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.sqlite_values import has_nan, stored


class StagedRows(msgspec.Struct, frozen=True):
    """A staging table: `values` are the SQL expressions that give its columns back, the table being called `s`."""

    name: str
    rows: int
    values: dict[str, str]


class StagedPartial(msgspec.Struct, frozen=True):
    unchanged: tuple[str, ...]
    rows: StagedRows
    moves: bool


class StagedChanges(msgspec.Struct, frozen=True):
    """The net changes of one run of one table, as they lie in the file."""

    schema: TableSchema
    truncate: bool
    deletes: StagedRows | None
    upserts: StagedRows | None
    partials: tuple[StagedPartial, ...]
    count: int


class StagedPart(msgspec.Struct, frozen=True):
    """One task's file, and what is in it, in the order to apply."""

    path: str
    changes: tuple[StagedChanges, ...]


class StagingFile:
    """A scratch database: no journal, no sync, because a crash discards it whole."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self.path = str(path)
        self._connection = adbc.connect(self.path, autocommit=True)
        self._cursor = self._connection.cursor()
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-4096"):
            self._cursor.execute(f"PRAGMA {pragma}")
            self._cursor.fetchall()
        self._count = 0

    def write(
        self, schema: TableSchema, rows: Iterable[pa.RecordBatch], extra: dict[str, pa.Array] | None = None
    ) -> StagedRows:
        """A new table with these rows. `extra` columns come behind those of the batches (one batch only)."""
        self._count += 1
        name = f"s{self._count}"
        total, nans, fields = 0, set(), pa.schema([])
        for batch in rows:
            if not len(fields):
                fields = batch.schema
                self._create(name, fields, len(extra or {}))
            table = _columns(schema, batch) | {f"x{place}": array for place, array in enumerate((extra or {}).values())}
            nans |= {column for column in table if column.startswith("n")}
            self._cursor.adbc_ingest(name, pa.RecordBatch.from_pydict(table), mode="append")
            total += batch.num_rows
        values = {field.name: _value(place, f"n{place}" in nans) for place, field in enumerate(fields)}
        values |= {label: _extra(place, array) for place, (label, array) in enumerate((extra or {}).items())}
        return StagedRows(name, total, values)

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()

    def _create(self, name: str, fields: pa.Schema, extras: int) -> None:
        nans = [f"n{place}" for place, field in enumerate(fields) if pa.types.is_floating(field.type)]
        names = [f"c{place}" for place in range(len(fields))] + nans + [f"x{place}" for place in range(extras)]
        self._cursor.execute(f"CREATE TABLE {name} ({', '.join(names)})")


def _columns(schema: TableSchema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The batch as it is stored: `c<place>` for each column, `n<place>` marking NaN where there is one."""
    types = {column.name: column.type for column in schema.columns}
    table = {}
    for place, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        table[f"c{place}"] = array = stored(column, types[field.name])
        if has_nan(array):
            table[f"n{place}"] = pc.is_nan(array).fill_null(False).cast(pa.int8())
    return table


def _extra(place: int, array: pa.Array) -> str:
    """Extra columns are never NULL, so a NULL among floats is what SQLite made of NaN."""
    return f"coalesce(s.x{place}, 'NaN')" if pa.types.is_floating(array.type) else f"s.x{place}"


def _value(place: int, may_be_nan: bool) -> str:
    return f"CASE WHEN s.n{place} THEN 'NaN' ELSE s.c{place} END" if may_be_nan else f"s.c{place}"


def stage(folder: Path, part: int, changes: Iterable[NetChanges]) -> StagedPart:
    """Write `changes` into the file of this part."""
    file = StagingFile(folder / f"part-{part:05d}-{os.getpid()}.db")
    try:
        staged = tuple(_stage_changes(file, piece) for piece in changes)
    finally:
        file.close()
    return StagedPart(file.path, staged)


def _stage_changes(file: StagingFile, net: NetChanges) -> StagedChanges:
    counts = {"copies": pa.array(net.delete_counts)} if not net.schema.key else None
    return StagedChanges(
        schema=net.schema,
        truncate=net.truncate,
        deletes=file.write(net.schema, [net.deletes], counts) if net.deletes.num_rows else None,
        upserts=file.write(net.schema, [net.upserts]) if net.upserts.num_rows else None,
        partials=tuple(_stage_partial(file, net.schema, partial) for partial in net.partials),
        count=net.count,
    )


def _stage_partial(file: StagingFile, schema: TableSchema, partial: Partial) -> StagedPartial:
    olds = None
    if partial.old_keys is not None:
        types = {column.name: column.type for column in schema.columns}
        olds = {
            f"old {field.name}": stored(column, types[field.name])
            for field, column in zip(partial.old_keys.schema, partial.old_keys.columns, strict=True)
        }
    return StagedPartial(partial.unchanged, file.write(schema, [partial.rows], olds), olds is not None)
