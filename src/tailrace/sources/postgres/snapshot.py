"""Copying existing rows: page ranges of a table, read with binary COPY under an exported snapshot.

COPY and pgoutput share the binary value formats, so the rows go through the same decoder as the stream.

A snapshot can go blind: TRUNCATE, and ALTER TABLE where it rewrites, leave a file in which older snapshots see nothing.
So whoever reads under a snapshot compares the file number that it knows with the present one.
Protocol page: "COPY", Binary Format.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.errors import DecodeError, SourceRefused, SourceUnavailable, about
from tailrace.model import shapes
from tailrace.model.chunk import Chunk
from tailrace.model.rows import POSTGRES_COPY, EncodedRows, Rows
from tailrace.model.schema import Column, TableSchema
from tailrace.model.stored import from_json
from tailrace.model.types import ColumnType
from tailrace.sources.base import ExportedSnapshot, TableLocked, TableRewritten
from tailrace.sources.postgres.connection import connect, current_position, server_of, source_errors
from tailrace.sources.postgres.copy_stream import CopiedRows, check_width, copy_out, together
from tailrace.sources.postgres.types import has_binary_decoder, text_expression
from tailrace.sources.postgres.values.arrays import array_literal
from tailrace.sources.postgres.values.decoders import decode_values
from tailrace.sources.postgres.values.lanes import BINARY, NULL, TEXT, Lane, big_endian

LOCK_SECONDS = 5.0
_LEAVES = """
WITH RECURSIVE part (oid) AS (
    SELECT %(table)s::regclass::oid
    UNION ALL
    SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT format('%%I.%%I', n.nspname, c.relname), c.oid::bigint
FROM part JOIN pg_class c ON c.oid = part.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' ORDER BY 2
"""
_STORAGE = """
SELECT coalesce(pg_relation_filenode(%s::regclass), 0)::bigint, coalesce(pg_relation_size(%s::regclass), 0),
    current_setting('block_size')::bigint
"""
_SEEN = """
SELECT count(*) FROM pg_class WHERE oid = ANY (%s::oid[]) AND relfilenode = coalesce(pg_relation_filenode(oid), 0)
"""
"""How many relations are in the files that they were in when the transaction's snapshot was taken."""
_SHAPE = """
SELECT string_agg(concat_ws(':', attnum, atttypid, atttypmod, attisdropped), ',' ORDER BY attnum)
FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0
"""
_NAMES = """
SELECT ARRAY(SELECT (pg_identify_object_as_address('pg_class'::regclass, %s::oid, number)).object_names[3]
    FROM unnest(%s::int[]) WITH ORDINALITY listed (number, place) ORDER BY place)
"""
"""The names that columns have now, whatever a snapshot says: so do those of a query."""
_SIZE = """
SELECT pg_relation_size(oid) + coalesce(pg_relation_size(nullif(reltoastrelid, 0)), 0)
FROM pg_class WHERE oid = %s::regclass
"""
_GONE = (
    psycopg.errors.InvalidParameterValue,  # up to 16
    psycopg.errors.UndefinedObject,  # from 17 on
    psycopg.errors.ObjectNotInPrerequisiteState,  # while its holder is ending
)


@contextmanager
def export_snapshot(url: str) -> Iterator[ExportedSnapshot]:
    """Hold a snapshot open for as long as the context lasts. That its session was ended is seen by who imports it."""
    with closing(connect(url, application="tailrace snapshot")) as connection:
        with source_errors(url, "exporting a snapshot"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
            assert row is not None
            with connect(url) as other:  # after the snapshot was taken: whatever it sees has been written by now
                position = current_position(other)
        yield ExportedSnapshot(row[0], row[1], position)


def import_snapshot(connection: psycopg.Connection[Any], url: str, snapshot: str) -> None:
    """Begin a transaction that sees what the exported snapshot sees."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except _GONE as error:
        raise SourceUnavailable(f"the snapshot {snapshot} at {server_of(url)} is gone") from error


@contextmanager
def table_errors(url: str, table: TableSchema, doing: str) -> Iterator[None]:
    """As `source_errors`; a lock on the table is the table's own, and so is what the server refuses of it."""
    try:
        with source_errors(url, doing):
            yield
    except SourceUnavailable as error:
        if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise TableLocked(f"{table.table} is locked by somebody: {doing} has to wait", table=table.table) from error
        raise
    except SourceRefused as error:
        if not isinstance(error.__cause__, psycopg.OperationalError):  # it did let us in
            error.table = table.table
        raise


class Pages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a chunk: pages `first … end - 1` of a relation, whose name is quoted."""

    relation: str
    first: int
    end: int


def plan(url: str, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
    """Page ranges that together hold every row. Must be called while the snapshot is already held.

    A page stands for its share of the large values that lie outside of the table's own file (TOAST), too.
    """
    doing = f"planning the snapshot of {table.table}"
    with table_errors(url, table, doing), connect(url, lock_seconds=LOCK_SECONDS) as connection:
        found: list[Chunk] = []
        for relation, oid in _leaves(connection, table):
            storage, pages = _storage(connection, str(oid))
            page_bytes = _size(connection, str(oid)) // pages if pages else 0
            step = max(chunk_bytes // max(page_bytes, 1), 1)
            for first in range(0, max(pages, 1), step):
                end = min(first + step, max(pages, 1))
                place = msgspec.json.encode(Pages(relation, first, end)).decode()
                found.append(Chunk(table.table, len(found), (end - first) * page_bytes, str(storage), place))
        return found


def _leaves(connection: psycopg.Connection[Any], table: TableSchema) -> list[tuple[str, int]]:
    """The names and numbers of the relations that hold a table's rows. Its own name may be another table's by now."""
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    own = str(table.relation or name)
    leaves = connection.execute(_LEAVES, {"table": own}).fetchall()
    return leaves or connection.execute("SELECT %s, %s::regclass::oid::bigint", [name, own]).fetchall()


def _storage(connection: psycopg.Connection[Any], relation: str) -> tuple[int, int]:
    """The number of the file that holds a table, and how many pages it has: of what size, the server was built with."""
    row = connection.execute(_STORAGE, [relation, relation]).fetchone()
    assert row is not None
    return row[0], -(-row[1] // row[2])


def _size(connection: psycopg.Connection[Any], relation: str) -> int:
    """Bytes of a table's rows, with their large values."""
    row = connection.execute(_SIZE, [relation]).fetchone()
    return 0 if row is None else int(row[0])


def _seen_storage(connection: psycopg.Connection[Any], relation: str) -> int | None:
    """The number of the file that held a table when the transaction's snapshot was taken.

    TRUNCATE and the forms of ALTER TABLE that rewrite a table leave a new file in which an older snapshot sees nothing.
    """
    query = "SELECT relfilenode::bigint FROM pg_class WHERE oid = %s::regclass"
    row = connection.execute(query, [relation]).fetchone()
    return None if row is None else int(row[0])


def is_blind(connection: psycopg.Connection[Any], table: TableSchema) -> bool:
    """Whether the transaction's snapshot can not see the rows of a table that is locked."""
    parts = [oid for _, oid in _leaves(connection, table)]
    row = connection.execute(_SEEN, [parts]).fetchone()
    assert row is not None
    return bool(row[0] != len(parts))


def shape(connection: psycopg.Connection[Any], table: TableSchema) -> str | None:
    """A word for the columns of a table, with their types, as the transaction sees them; None if it sees no such table.

    Of two that are equal, one is read as the other is.
    """
    name = sql.Identifier(table.schema, table.name).as_string(None)
    row = connection.execute(_SHAPE, [str(table.relation or name)]).fetchone()
    return None if row is None else row[0]


def has_name(connection: psycopg.Connection[Any], table: TableSchema) -> bool:
    """Whether what has its name is `table`, for as long as a lock on that is held."""
    name = sql.Identifier(table.schema, table.name).as_string(None)
    row = connection.execute("SELECT to_regclass(%s)::oid::bigint", [name]).fetchone()
    assert row is not None
    return not table.relation or bool(row[0] == table.relation)


def has_columns(connection: psycopg.Connection[Any], table: TableSchema) -> bool:
    """Whether the columns of `table` are those of their names, for as long as a lock on one of its parts is held.

    Without a rewrite, and with all its names, a table may have exchanged them.
    """
    columns = [column for column in table.columns if column.number > 0]
    row = connection.execute(_NAMES, [table.relation, [column.number for column in columns]]).fetchone()
    assert row is not None
    return bool(row[0] == [column.name for column in columns])


def read_where(url: str, table: TableSchema, chunk: Chunk, snapshot: str, where: str) -> Iterator[pa.RecordBatch]:
    """The rows of one chunk for which the condition is true. It is the caller's own SQL, read as one expression."""
    for rows in read_chunk(url, table, chunk, snapshot, where=where):
        assert isinstance(rows, pa.RecordBatch)
        yield rows


def read_chunk(
    url: str, table: TableSchema, chunk: Chunk, snapshot: str, form: str = "", *, where: str = ""
) -> Iterator[Rows]:
    """The rows of one chunk, as the snapshot sees them. Raises TableRewritten if its pages are not the planned ones."""
    is_encoded = form == POSTGRES_COPY and all(has_binary_decoder(column.type) for column in table.columns)
    read = _copy_encoded if is_encoded else copy_rows
    pages = from_json(chunk.place, Pages)
    with connect(url, application="tailrace copy", lock_seconds=LOCK_SECONDS) as connection:
        try:
            import_snapshot(connection, url, snapshot)
            # taking the lock first: from here on nobody can rewrite the table under us
            connection.execute(f"LOCK TABLE ONLY {pages.relation} IN ACCESS SHARE MODE".encode())
            files = _storage(connection, pages.relation)[0], _seen_storage(connection, pages.relation)
            if set(map(str, files)) != {chunk.storage}:
                raise TableRewritten(chunk.table)
            if not has_columns(connection, table):
                raise TableRewritten(chunk.table)
            yield from read(connection, table, _pages_query(table, pages, where))
            connection.execute("COMMIT")
        except psycopg.errors.UndefinedTable as error:
            raise TableRewritten(chunk.table) from error
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.UndefinedColumn) and not where:
                raise TableRewritten(chunk.table) from error
            with table_errors(url, table, f"copying {table.table}"):
                raise error


def read_all(
    url: str, table: TableSchema, *, snapshot: str | None = None, as_text: bool = False
) -> Iterator[pa.RecordBatch]:
    """Every row of a table. `as_text` asks the server for text forms: an independent way to the same values.

    Raises TableRewritten if the snapshot can not see the table's rows any more.
    """
    doing = f"reading {table.table}"
    with table_errors(url, table, doing), connect(url, lock_seconds=LOCK_SECONDS) as connection:
        rows = from_clause(connection, table)
        query = f"{select(table, as_text=as_text)} FROM {rows}"
        if snapshot is not None:
            import_snapshot(connection, url, snapshot)
            connection.execute(f"LOCK TABLE {rows} IN ACCESS SHARE MODE".encode())
            if is_blind(connection, table):
                raise TableRewritten(table.table)
        yield from copy_rows(connection, table, query, as_text=as_text)


def from_clause(connection: psycopg.Connection[Any], table: TableSchema) -> str:
    """The table's own rows. Those of tables that inherit from it are streamed, and so copied, under their own names."""
    name = sql.Identifier(table.schema, table.name).as_string(None)
    row = connection.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)", [name]).fetchone()
    return name if row and row[0] else f"ONLY {name}"


def _pages_query(table: TableSchema, pages: Pages, where: str) -> str:
    inside = f"ctid >= '({pages.first},0)'::tid AND ctid < '({pages.end},0)'::tid"
    condition = f" AND ({where}\n)" if where else ""
    return f"{select(table)} FROM ONLY {pages.relation} WHERE {inside}{condition}"


def select(table: TableSchema, *, as_text: bool = False) -> str:
    return "SELECT " + ", ".join(_expression(column, as_text) for column in table.columns)


def _expression(column: Column, as_text: bool) -> str:
    name = sql.Identifier(column.name).as_string(None)
    return text_expression(name) if as_text or not has_binary_decoder(column.type) else name


def copy_rows(
    connection: psycopg.Connection[Any], table: TableSchema, query: str, *, as_text: bool = False
) -> Iterator[pa.RecordBatch]:
    is_text = [as_text or not has_binary_decoder(column.type) for column in table.columns]
    copied = copy_out(connection, query, len(table.columns))
    yield from map(functools.partial(_decode_rows, table, is_text), copied)


def _copy_encoded(connection: psycopg.Connection[Any], table: TableSchema, query: str) -> Iterator[EncodedRows]:
    copied = copy_out(connection, query, len(table.columns))
    yield from map(functools.partial(_encoded_rows, len(table.columns)), copied)


def _encoded_rows(width: int, rows: CopiedRows) -> EncodedRows:
    check_width(rows, width)
    return EncodedRows(len(rows.starts), together(rows))


def _decode_rows(table: TableSchema, is_text: list[bool], rows: CopiedRows) -> pa.RecordBatch:
    with about(table.table):
        cells = _walk_rows(rows, len(table.columns), is_text)
        columns = [
            decode_values(rows.buffer, c.place, c.length, c.kind, column.type, where=f"{table.table}.{column.name}")
            for c, column in zip(cells, table.columns, strict=True)
        ]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows.starts), pa.struct([])))
    return table.rows(columns)


def _walk_rows(rows: CopiedRows, width: int, is_text: list[bool]) -> list[Lane]:
    """The columns of COPY tuples: a count, then a length and the bytes for each, the length of NULL being -1."""
    check_width(rows, width)
    buffer, cursor, ends = rows.buffer, rows.starts + 2, rows.ends
    cells = []
    for index in range(width):
        length = big_endian(buffer, cursor, 4)
        cursor = cursor + 4
        kind = np.full(len(cursor), TEXT if is_text[index] else BINARY, np.uint8)
        if int(length.min(initial=0)) < 0:
            kind[length < 0] = NULL
            length = np.maximum(length, 0)
        cells.append(Lane(kind, cursor, length))
        cursor = cursor + length
        if (cursor > ends).any():
            raise DecodeError("a copied row is shorter than its contents claim")
    if (cursor != ends).any():
        raise DecodeError("a copied row is longer than its contents")
    return cells


def read_rows(url: str, table: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
    """The present rows that have these keys (few of them), through the same decoder."""
    columns = {column.name: column for column in table.columns}
    names = [sql.Identifier(name).as_string(None) for name in table.key]
    types = [columns[name].type for name in table.key]
    listed = ", ".join(
        "(" + ", ".join(_literal(value, type_) for value, type_ in zip(row.values(), types, strict=True)) + ")"
        for row in keys.to_pylist()
    )
    where = f"({', '.join(names)}) IN ({listed})"
    doing = f"reading rows of {table.table}"
    with table_errors(url, table, doing), connect(url) as connection:
        connection.execute("BEGIN")  # so that nobody alters it before we have looked
        query = f"{select(table)} FROM {from_clause(connection, table)} WHERE {where}"
        batches = list(copy_rows(connection, table, query))
        if not has_name(connection, table) or not has_columns(connection, table):
            raise SourceRefused(f"{table.table} has other columns by now than the change that is to be completed")
    if not batches:
        return table.no_rows()
    return table.rows([shapes.concat(pieces) for pieces in zip(*(batch.columns for batch in batches), strict=True)])


def _literal(value: Any, type_: ColumnType) -> str:
    """A key as a sink gave it: as text, an array also in the canonical form of `model.text`."""
    text = array_literal(str(value), type_.element) if type_.element is not None else value
    return f"{sql.Literal(text if isinstance(text, bytes) else str(text)).as_string(None)}::{type_.name}"
