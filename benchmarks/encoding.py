"""How fast codecs encode a table of six columns: `python -m benchmarks.encoding`. Rows a second of CPU, best of 5."""

import time
from decimal import Decimal

import numpy as np
import pyarrow as pa

from tailrace.codecs.base import Codec, Facts
from tailrace.codecs.cloudevents import CloudEventsCodec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.flat.codec import FlatCodec
from tailrace.codecs.formats import AvroFormat
from tailrace.codecs.json_events import JsonCodec
from tailrace.codecs.registered import RegisteredCodec
from tailrace.codecs.registry.client import Registry, RegistrySchema
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.wire.envelopes import EnvelopeShape
from tailrace.codecs.wire.flat import FlatShape
from tailrace.model.changes import Changes, Op
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

ROWS = 32_768
TYPES = {
    "id": ColumnType(Kind.INT64, "bigint"),
    "customer": ColumnType(Kind.TEXT, "text"),
    "total": ColumnType(Kind.DECIMAL, "numeric(12,2)", 12, 2),
    "at": ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone"),
    "quantity": ColumnType(Kind.INT32, "integer"),
    "note": ColumnType(Kind.TEXT, "text"),
}
ORDERS = TableSchema("public", "orders", tuple(Column(n, t, i) for i, (n, t) in enumerate(TYPES.items(), 1)), ("id",))


class Numbered(Registry):
    """A registry in memory: what it costs to ask for a number once a table is of no interest here."""

    def __init__(self) -> None:
        self.settings = RegistrySettings("http://127.0.0.1")

    def id_of(self, subject: str, schema: RegistrySchema) -> int:
        return 1


CODECS: dict[str, Codec] = {
    "json": JsonCodec(),
    "debezium": DebeziumCodec(DebeziumSettings("shop", "db", schemas=False)),
    "debezium with schemas": DebeziumCodec(DebeziumSettings("shop", "db")),
    "flat": FlatCodec(DebeziumSettings("shop", "db", schemas=False)),
    "debezium, avro": RegisteredCodec(EnvelopeShape(DebeziumSettings("shop", "db")), AvroFormat(), Numbered, "t"),
    "flat, avro": RegisteredCodec(FlatShape(DebeziumSettings("shop", "db")), AvroFormat(), Numbered, "t"),
    "cloudevents": CloudEventsCodec(DebeziumSettings("shop", "db", schemas=False)),
}


def inserts(rows_each: int) -> tuple[Changes, Facts]:
    """Transactions of so many rows each."""
    random = np.random.default_rng(1)
    transaction = np.arange(ROWS) // rows_each
    count = int(transaction[-1]) + 1
    at = pa.array(random.integers(17 * 10**14, 171 * 10**13, ROWS)).view(pa.timestamp("us", "UTC"))
    values = [
        pa.array(random.integers(0, 10**9, ROWS)),
        pa.array([f"customer {row * 7919}" for row in range(ROWS)]),
        pa.array([Decimal(row).scaleb(-2) for row in random.integers(0, 10**6, ROWS).tolist()], pa.decimal128(12, 2)),
        at,
        pa.array(random.integers(0, 100, ROWS).astype(np.int32)),
        pa.array([f'note of order {row}, "quoted"' if row % 3 else None for row in range(ROWS)]),
    ]
    told = pa.RecordBatch.from_arrays([at.slice(0, count)], names=["_commit_time"])
    none = np.zeros(0, np.int64)
    changes = Changes(
        schema=ORDERS,
        op=np.full(ROWS, Op.INSERT, np.int8),
        offset=np.arange(ROWS),
        transaction=transaction,
        transactions=told,
        after=ORDERS.rows(values),
        unchanged=None,
        before_rows=none,
        before=ORDERS.no_rows(),
    )
    ids, positions = [str(row) for row in range(count)], [f"0/{row * 4096:X}" for row in range(count)]
    return changes, Facts(ids, positions, np.arange(ROWS) % rows_each + 1)


def rows_per_second(codec: Codec, changes: Changes, facts: Facts) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        codec.encode_changes(changes, facts)
        best = min(best, time.process_time() - began)
    return ROWS / best


if __name__ == "__main__":
    for rows_each in (1, 100):
        changes, facts = inserts(rows_each)
        for name, codec in CODECS.items():
            rate = rows_per_second(codec, changes, facts)
            print(f"{name:24} {rows_each:4} rows a transaction {rate:12,.0f} rows/s")
