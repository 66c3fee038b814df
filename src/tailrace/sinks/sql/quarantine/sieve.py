"""Rows with a value that the sink's database can not hold, taken out before they are sent."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial
from tailrace.columns.text import to_text
from tailrace.errors import SinkRejected
from tailrace.model import shapes
from tailrace.model.schema import TableSchema
from tailrace.sinks.base import Rejected
from tailrace.sinks.sql.dialect import Encoding
from tailrace.sinks.sql.writers import columns_of

Flags = npt.NDArray[np.bool_]

MOST_REJECTED = 1000
"""By one task: they travel to the driver. Where there are more, the type is the problem, not the rows."""
MOST_REJECTED_BYTES = 64 << 20
"""And how large they may be."""


class Sieve:
    """Keeps what fits, and remembers the rest in `rejected`.

    A delete of a row that does not fit is dropped: the sink never had that row.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.rejected: list[Rejected] = []
        self._bytes = 0

    def net(self, net: NetChanges) -> NetChanges:
        schema = net.schema
        upserts = self.rows(schema, net.upserts, "upsert")
        unmoved: list[pa.RecordBatch] = []
        partials = tuple(self._partial(schema, partial, unmoved) for partial in net.partials)
        is_gone = self._fits(schema, net.deletes)
        if is_gone is None and upserts is net.upserts and all(map(operator.is_, partials, net.partials)):
            return net
        deletes, counts = net.deletes, net.delete_counts
        if is_gone is not None:
            deletes = deletes.filter(pa.array(is_gone))
            counts = counts[is_gone] if len(counts) else counts
        for keys in unmoved:  # a move is the only change of its piece, so these keys are not spoken of otherwise
            pairs = zip(deletes.columns, keys.columns, strict=True)
            deletes = pa.RecordBatch.from_arrays([shapes.concat(pair) for pair in pairs], names=keys.schema.names)
        return NetChanges(schema, net.truncate, deletes, upserts, tuple(p for p in partials if p.rows.num_rows), counts)

    def rows(self, schema: TableSchema, batch: pa.RecordBatch, operation: str) -> pa.RecordBatch:
        fits = self._fits(schema, batch)
        if fits is None:
            return batch
        self._reject(schema, batch.filter(pa.array(~fits)), operation)
        return batch.filter(pa.array(fits))

    def _partial(self, schema: TableSchema, partial: Partial, unmoved: list[pa.RecordBatch]) -> Partial:
        """Rows that fit. Those that do not can not move: what is under their old keys goes, as in a move in full."""
        fits = self._fits(schema, partial.rows)
        if fits is None:
            return partial
        sent = [name for name in partial.rows.schema.names if name in schema.key or name not in partial.unchanged]
        self._reject(schema, partial.rows.filter(pa.array(~fits)).select(sent), "update")
        old = None if partial.old_keys is None else partial.old_keys.filter(pa.array(fits))
        if partial.old_keys is not None:
            unmoved.append(partial.old_keys.filter(pa.array(~fits)))
        return Partial(partial.unchanged, partial.rows.filter(pa.array(fits)), old)

    def _fits(self, schema: TableSchema, batch: pa.RecordBatch) -> Flags | None:
        """None if every row does."""
        result: Flags | None = None
        for _, field in columns_of(schema, batch):
            found = self._encoding.misfits(field)
            if found is not None:
                result = ~found[0] if result is None else result & ~found[0]
        return result

    def _reject(self, schema: TableSchema, batch: pa.RecordBatch, operation: str) -> None:
        if len(self.rejected) + batch.num_rows > MOST_REJECTED:
            raise SinkRejected(
                f"more than {MOST_REJECTED:,} rows of a part of {schema.table} have values that the sink can not hold",
                hint="with `misfits: text` the sink holds the columns of such types as text",
                table=schema.table,
            )
        self._bytes += batch.nbytes
        if self._bytes > MOST_REJECTED_BYTES:
            raise SinkRejected(
                f"rows of {schema.table} have values that the sink can not hold, and are too large to be set aside",
                hint="with `misfits: text` the sink holds the columns of such types as text",
                table=schema.table,
            )
        fields = columns_of(schema, batch)
        reasons = [""] * batch.num_rows
        for _, field in fields:
            found = self._encoding.misfits(field)
            for row in [] if found is None else np.flatnonzero(found[0]).tolist():
                reasons[row] = reasons[row] or f"{field.where} ({field.type.name}) has {found[1]}"  # type: ignore[index]
        texts = {name: to_text(field.array, field.type).to_pylist() for name, field in fields}
        for row, reason in enumerate(reasons):
            payload = {name: as_json(values[row]) for name, values in texts.items()}
            key = {name: payload[name] for name in schema.key}
            self.rejected.append(Rejected(schema.table, operation, key, reason, payload))


def as_json(value: Any) -> Any:
    """Texts, numbers and truths as they are; bytes as the source writes them."""
    return "\\x" + value.hex() if isinstance(value, bytes) else value
