"""A snapshot's chunk at load speed: straight into the table, and by way of staged rows where that is not possible.

The straight way fails when a row's key is there already: after a crash, chunks are read under a later snapshot, and a
row may have moved between pages meanwhile. The rows are kept at hand for that. A table whose key is yet to be built is
being loaded under one snapshot, in which no row is seen twice.

A database that takes one writer at a time gets the chunk from a file, so that nobody waits while the source is read.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

import msgspec
import pyarrow as pa

from tailrace.errors import about
from tailrace.model.rows import Rows
from tailrace.model.schema import TableSchema
from tailrace.sinks.sql.dialect import Dialect, Encoded, ExistingTable, Session
from tailrace.sinks.sql.merge_statements import upsert
from tailrace.sinks.sql.staged import Relation, StagedColumn, StagedRows
from tailrace.sinks.sql.writers import FileWriter, TableWriter, encoded, fields_of

Merge = Callable[[StagedRows, Callable[[Relation], None]], None]

SPOOL_BYTES = 32 << 20
"""Kept in memory; what is more goes into a temporary file."""
Spool = tempfile.SpooledTemporaryFile[bytes]
_PIECE = 1 << 20

Gathered = Iterable[Rows] | StagedRows


class ChunkLoader:
    """Loads the rows of one chunk, inside of the caller's transaction."""

    def __init__(self, dialect: Dialect, session: Session, new_name: Callable[[], str], merge: Merge) -> None:
        """`merge` runs something on staged rows: all of them, or all that the database does not refuse."""
        self._dialect, self._session, self._new_name, self._merge = dialect, session, new_name, merge
        self.rows = 0

    @contextmanager
    def gathered(self, schema: TableSchema, batches: Iterable[Rows]) -> Iterator[Gathered]:
        """Before the transaction: where tasks stage in files, the rows are in one when this begins."""
        name = self._new_name()
        file = self._dialect.staging.file(name)
        if file is None:
            yield batches
            return
        try:
            with closing(file):
                payload = self._encoded(schema, batches)
                staged = FileWriter(self._dialect, file, name).load(_columns(schema), payload)
            yield staged
        finally:
            self._dialect.staging.drop(self._session, name)

    def load(self, table: str, schema: TableSchema, existing: ExistingTable, rows: Gathered, *, isolates: bool) -> None:
        """With `isolates`, rows that are refused are left to `merge`, which knows what to do with them."""
        if self._dialect.statements.builds_keys_late and frozenset(schema.key) not in existing.unique:
            schema = msgspec.structs.replace(schema, key=())
        if isinstance(rows, StagedRows):
            self._upsert(table, schema, existing, rows)
            return
        payload = self._encoded(schema, rows)
        if not self._dialect.statements.loads_directly(schema, existing):
            self._by_staging(table, schema, existing, payload)
        elif not isolates and (not schema.key or self._dialect.statements.load_replaces):
            self._straight(table, schema, payload)
        else:
            with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
                self._straight_or_not(table, schema, existing, payload, spool, isolates=isolates)

    def _encoded(self, schema: TableSchema, batches: Iterable[Rows]) -> Iterator[Encoded]:
        """Raises SinkRejected, with the table, for a value that the database can not hold."""
        with about(schema.table):
            yield from encoded(self._dialect.encoding, fields_of(schema), self._counted(batches))

    def _counted(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        return map(self._count, batches)

    def _count(self, batch: Rows) -> Rows:
        self.rows += batch.num_rows
        return batch

    def _straight(self, table: str, schema: TableSchema, payload: Iterable[bytes | pa.Buffer]) -> None:
        names = [self._dialect.naming.quote(column.name) for column in schema.columns]
        self._session.load(table, names, payload, [column.type for column in schema.columns])

    def _straight_or_not(
        self,
        table: str,
        schema: TableSchema,
        existing: ExistingTable,
        payload: Iterator[bytes | pa.Buffer],
        spool: Spool,
        *,
        isolates: bool,
    ) -> None:
        self._session.execute("SAVEPOINT chunk")
        try:
            self._straight(table, schema, _kept(payload, spool))
        except Exception as error:
            found = self._dialect.server.explain(error)
            if found is None or not (found.is_duplicate or (isolates and found.is_about_rows)):
                raise
            self._session.execute("ROLLBACK TO SAVEPOINT chunk")
            spool.seek(0)
            again = itertools.chain(iter(lambda: spool.read(_PIECE), b""), payload)
            self._by_staging(table, schema, existing, again)
        self._session.execute("RELEASE SAVEPOINT chunk")

    def _by_staging(
        self, table: str, schema: TableSchema, existing: ExistingTable, payload: Iterable[bytes | pa.Buffer]
    ) -> None:
        staging = TableWriter(self._dialect, self._session, self._new_name, is_private=True)
        self._upsert(table, schema, existing, staging.load(_columns(schema), payload))
        for name in staging.names:
            self._dialect.staging.drop(self._session, name, is_private=True)

    def _upsert(self, table: str, schema: TableSchema, existing: ExistingTable, staged: StagedRows) -> None:
        is_single = self._dialect.statements.is_single_key(existing, schema)

        def run(relation: Relation) -> None:
            for statement in upsert(self._dialect, table, schema, relation, is_single_key=is_single):
                self._session.merge(statement, relation)

        self._merge(msgspec.structs.replace(staged, rows=self.rows), run)  # by now all of them are read


def _columns(schema: TableSchema) -> tuple[StagedColumn, ...]:
    return tuple(StagedColumn(column.name, column.type) for column in schema.columns)


def _kept(payload: Iterable[bytes | pa.Buffer], spool: Spool) -> Iterator[bytes | pa.Buffer]:
    """The pieces, each of them written to `spool` when it is asked for."""

    def keep(piece: bytes | pa.Buffer) -> bytes | pa.Buffer:
        view = memoryview(piece)
        if len(view) > SPOOL_BYTES:
            spool.rollover()  # else it would grow by the whole piece first
        spool.write(view)
        return piece

    return map(keep, payload)
