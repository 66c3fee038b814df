"""Copying existing rows without a lock: ranges of the key, read by the sessions of one moment.

The server orders and compares keys itself, in the collation of their columns; a bound is a condition in its own words,
made of literals that it wrote. A table without a key is one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from pymysql.connections import Connection
from pymysql.err import MySQLError

from tailrace.errors import SourceError, SourceRefused, SourceUnavailable, about
from tailrace.model.chunk import Chunk
from tailrace.model.schema import TableSchema
from tailrace.model.stored import from_json
from tailrace.sources.base import ExportedSnapshot, TableRewritten
from tailrace.sources.mysql import results
from tailrace.sources.mysql.catalog import quoted
from tailrace.sources.mysql.connection import code_of, connect, rows, source_error, source_errors
from tailrace.sources.mysql.holding import CHUNK, Address, Lender, Loan, borrowed
from tailrace.sources.mysql.moment import sessions_at_one_moment
from tailrace.sources.mysql.ranges import Range, condition, plan_ranges
from tailrace.sources.mysql.settings import MysqlSettings
from tailrace.sources.mysql.values import texts

QUESTIONERS = 2
"""Sessions beside those that copy, for questions about single rows."""
_CREATED = """SELECT coalesce(unix_timestamp(create_time), 0) FROM information_schema.tables
    WHERE table_schema = %s AND table_name = %s"""
_GONE = {1146, 1412, 1051, 1054, 1049, 1932}
"""No such table or column, and a definition that is newer than the snapshot."""
_CUTTING = {1292, 1366, 1411, 1525, 1690}
"""Errors whose words may have a value."""


@contextmanager
def export_snapshot(url: str, settings: MysqlSettings) -> Iterator[ExportedSnapshot]:
    """Hold a moment open for as long as the context lasts; tasks read it through us."""
    count = settings.readers + QUESTIONERS
    with sessions_at_one_moment(url, count, settings.moment) as (sessions, seen):
        lender = Lender(settings.copy_address, sessions[: settings.readers], sessions[settings.readers :])
        with closing(lender):
            address = Address(settings.copy_address, lender.port, lender.secret, seen.is_exact)
            yield ExportedSnapshot(msgspec.json.encode(address).decode(), seen.visibility, seen.position)


@contextmanager
def table_errors(url: str, table: TableSchema, doing: str) -> Iterator[None]:
    """As `source_errors`; what the server refuses of a table is the table's own, without its words on values."""
    try:
        yield
    except (MySQLError, OSError) as error:
        if code_of(error) in _GONE:
            raise TableRewritten(table.table) from error
        found: SourceError = source_error(url, doing, error)
        if code_of(error) in _CUTTING:
            found = SourceRefused(f"the server refused {doing}: a value is not of its column's type")
        if isinstance(found, SourceRefused):
            found.table = table.table
        raise found from error


def plan(url: str, table: TableSchema, chunk_bytes: int) -> list[Chunk]:
    """Ranges of the key that together hold every row. Must be called while the snapshot is already held."""
    with table_errors(url, table, f"planning the copy of {table.table}"), connect(url) as connection:
        made = created(connection, table)
        ranges = plan_ranges(connection, table, chunk_bytes)
    return [
        Chunk(table.table, number, size, made, msgspec.json.encode(each).decode())
        for number, (each, size) in enumerate(ranges)
    ]


def created(connection: Connection[Any], table: TableSchema) -> str:
    """A word for the table that has this name now."""
    found = rows(connection, _CREATED, (table.schema, table.name))
    if not found:
        raise TableRewritten(table.table)
    return str(found[0][0])


def read_chunk(url: str, table: TableSchema, chunk: Chunk, snapshot: str, where: str = "") -> Iterator[pa.RecordBatch]:
    """The rows of one chunk, as the snapshot sees them. Raises TableRewritten if the table is another by now."""
    with source_errors(url, f"copying {table.table}"), connect(url) as connection:
        if created(connection, table) != chunk.storage:
            raise TableRewritten(table.table)
    bounds = condition(table, from_json(chunk.place, Range))
    yield from read_under(url, table, snapshot, " AND ".join(f"({each})" for each in (bounds, where) if each))


def read_under(url: str, table: TableSchema, snapshot: str, where: str = "") -> Iterator[pa.RecordBatch]:
    """The rows that a moment sees, by one of its sessions."""
    if not table.key and not from_json(snapshot, Address).is_exact:
        raise SourceUnavailable(
            f"{table.table} has no key, and the server did not rest for the moment that its copy needs",
            hint="give it a primary key, or set source.moment to `lock` (the role then needs RELOAD)",
        )
    with table_errors(url, table, f"copying {table.table}"), borrowed(snapshot, CHUNK) as loan:
        yield from asked(loan, table, query(table, where))


def asked(loan: Loan, table: TableSchema, statement: str) -> Iterator[pa.RecordBatch]:
    loan.ask(statement)
    for found in results.read_rows(loan.wire, len(table.columns)):
        yield decoded(table, found)
    loan.answered()


def read_now(url: str, table: TableSchema, where: str = "") -> Iterator[pa.RecordBatch]:
    """The present rows."""
    with table_errors(url, table, f"reading {table.table}"), closing(connect(url)) as connection:
        wire: Any = connection
        wire._execute_command(3, query(table, where).encode())
        for found in results.read_rows(wire._sock, len(table.columns)):
            yield decoded(table, found)
        wire._result = None


def query(table: TableSchema, where: str = "") -> str:
    listed = ", ".join(texts.expression(quoted(column.name), column.type) for column in table.columns)
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {listed} FROM {quoted(table.schema, table.name)}{condition}"


def decoded(table: TableSchema, found: results.TextRows) -> pa.RecordBatch:
    with about(table.table):
        cells = results.walk(found, len(table.columns))
        columns = [texts.decode(each, column, table.table) for each, column in zip(cells, table.columns, strict=True)]
        return table.rows(columns)
