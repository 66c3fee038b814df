"""Tables and net changes for contract suites, by hand: rows are tuples in the order of the columns, or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial
from tailrace.model.chunk import Chunk
from tailrace.model.lifecycle import TableState, TableStatus
from tailrace.model.schema import Column, Identity, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.model.watermark import Watermark
from tailrace.sinks.base import Batch, ChunkMark, DatabaseSink

Rows: TypeAlias = Sequence[tuple[Any, ...]] | pa.RecordBatch
MakeSink = Callable[..., DatabaseSink]
ReadRows = Callable[[TableSchema], list[tuple[Any, ...]]]
Inventory = Callable[[], list[str]]

LOG_ID = "0123456789abcdef"
INT = ColumnType(Kind.INT64, "bigint")
TEXT = ColumnType(Kind.TEXT, "text")

ITEMS = TableSchema("public", "items", (Column("id", INT), Column("name", TEXT), Column("notes", TEXT)), ("id",))
ORDERS = TableSchema("public", "orders", (Column("id", INT), Column("item", INT)), ("id",))
PAIRS = TableSchema(  # neither does the key come first, nor are its columns in the order of the table
    "billing",
    "pairs",
    (Column("v", TEXT), Column("a", INT), Column("w", TEXT), Column("b", INT)),
    ("b", "a"),
)
LOOSE = TableSchema("public", "loose", (Column("x", INT), Column("y", TEXT)), (), Identity.FULL)

ODD = TableSchema(
    "Wörter",
    'or"der; DROP TABLE x --',
    (
        Column('Grö"ße', INT),
        Column("select", TEXT),
        Column("a b", TEXT),
        Column("c'd", TEXT),
        Column("日本", INT),
        Column("%s", TEXT),
        Column("c0", TEXT),
    ),
    ("日本", 'Grö"ße'),
)


def table_of(schema: TableSchema, rows: Rows) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema.arrow)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def keys_of(schema: TableSchema, keys: Rows) -> pa.RecordBatch:
    """Keys as tuples in the order of `schema.key`."""
    if isinstance(keys, pa.RecordBatch):
        return keys
    fields = [schema.arrow.field(name) for name in schema.key]
    arrays = [pa.array([key[i] for key in keys], field.type) for i, field in enumerate(fields)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def net(
    schema: TableSchema,
    upserts: Rows = (),
    *,
    deletes: Rows = (),
    copies: Sequence[int] = (),
    truncate: bool = False,
    partials: Iterable[Partial] = (),
) -> NetChanges:
    """`deletes` are keys; for a table without a key they are rows, of which `copies` go."""
    gone = keys_of(schema, deletes) if schema.key else table_of(schema, deletes)
    return NetChanges(schema, truncate, gone, table_of(schema, upserts), tuple(partials), np.array(copies, np.int64))


def partial(schema: TableSchema, unchanged: tuple[str, ...], rows: Rows, old_keys: Rows | None = None) -> Partial:
    moved = None if old_keys is None else keys_of(schema, old_keys)
    return Partial(unchanged, table_of(schema, rows), moved)


def watermark(offset: int, log_id: str = LOG_ID) -> Watermark:
    return Watermark(log_id, offset, f"0/{offset:X}")


def status(
    schema: TableSchema, state: TableState = TableState.LIVE, offset: int = 0, generation: int = 1
) -> TableStatus:
    return TableStatus(schema.table, state, watermark(offset), schema, generation)


def chunk(schema: TableSchema, number: int = 0, generation: int = 1) -> ChunkMark:
    return ChunkMark(generation, Chunk(schema.table, number, 10, "1", 'pages 0 to 10 of "quoted" ü'))


class SourceRows:
    """Stands for the source when a sink asks it for rows; remembers for which keys it was asked."""

    def __init__(self, schema: TableSchema, rows: Rows = ()) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._schema = schema
        self._rows = {tuple(str(row[i]) for i in schema.key_indexes): row for row in rows}

    def __call__(self, schema: TableSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        assert schema == self._schema
        assert tuple(keys.schema.names) == schema.key, "keys come in the order of the key"
        wanted = [tuple(str(value) for value in key.values()) for key in keys.to_pylist()]
        self.asked += wanted
        return table_of(schema, [self._rows[key] for key in wanted if key in self._rows])


def apply(sink: Any, changes: Sequence[NetChanges], offset: int, fetch: SourceRows | None = None) -> int:
    """One micro-batch in one part, from where the sink is up to `offset` of the log."""
    part = sink.stage(f"batch-{offset}", 0, changes)
    batch = Batch((part,), watermark(offset), before=sink.read_state().watermark)
    return int(sink.commit(batch, fetch or SourceRows(changes[0].schema)))


def load(sink: Any, schema: TableSchema, rows: Rows, generation: int = 1) -> TableStatus:
    """A copy of a table in one chunk, loaded and finished, and not yet live."""
    begun: TableStatus = sink.begin_snapshot(
        status(schema, TableState.SNAPSHOT, generation=generation), [chunk(schema, generation=generation)], clear=True
    )
    mark = msgspec.structs.replace(chunk(schema, generation=generation), is_beside=begun.is_beside)
    sink.load_chunk(schema, mark, iter([table_of(schema, rows)]))
    sink.finish_snapshot(begun)
    return begun


def live(sink: Any, begun: TableStatus, schema: TableSchema) -> None:
    """Make a loaded table live."""
    done = msgspec.structs.replace(begun, state=TableState.LIVE, is_beside=False)
    sink.commit(Batch(tables=(done,)), SourceRows(schema))


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    """Equal as multisets."""
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    return True
