"""Rows in messages of any shape and format that can be read: those that were sent, and those that ought to have been.

What ought to be there is made by the codec that sends, of the source's rows as text: so verify finds what was lost,
doubled, stale or damaged, and what the decoder made of a value, but not what the codec is wrong about.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.codecs.base import Codec, Facts
from tailrace.codecs.reading import MessageReader, Seen
from tailrace.codecs.reads import reads_of
from tailrace.errors import DecodeError, SinkRejected, ValueRefused
from tailrace.model.changes import NO_TRANSACTIONS, Changes, Op
from tailrace.model.schema import TableSchema
from tailrace.sinks.replayed import Told, rows_of


class Envelopes:
    """Of one table in one topic or folder. `schema` has the key that messages have."""

    def __init__(self, codec: Codec, reader: MessageReader, schema: TableSchema) -> None:
        self._codec, self.reader, self._schema = codec, reader, schema
        self.columns = [column.name for column in schema.columns]
        self._stand_ins = self._find_stand_ins()

    def read(self, value: bytes) -> Told:
        return self.told(self.reader.read(None, value))

    def seen(self, value: bytes) -> Seen:
        return self.reader.read(None, value)

    def told(self, seen: Seen) -> Told:
        """Raises DecodeError for what is no message of a row."""
        if seen.op == "delete":
            return Told(None)
        if seen.op not in ("insert", "update", "read") or not isinstance(seen.after, dict):
            raise DecodeError("a message is no row")
        missing = seen.facts.get("_unchanged") or ()
        stood_in = (name for name, value in self._stand_ins.items() if seen.after.get(name) == value)
        return Told(seen.after, frozenset((*missing, *stood_in)))

    def expected(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        changes, facts = reads_of(self._schema, batch, "")
        found = [self.read(value) for value in self._codec.encode_changes(changes, facts).values.to_pylist()]
        for name in self.columns if found else ():
            if name not in (found[0].row or {}):
                raise SinkRejected(
                    f"column {self._schema.table}.{name} has another name in messages", table=self._schema.table
                )
        return rows_of(found, self.columns)

    def _find_stand_ins(self) -> dict[str, Any]:
        """What messages have in a column that was not sent, where there is such a value."""
        found: dict[str, Any] = {}
        for place, name in enumerate(self.columns):
            if name in self._schema.key:
                continue
            try:
                changes, facts = _unsent(self._schema, place)
                after = self.reader.read(None, self._codec.encode_changes(changes, facts).values[0].as_py()).after
            except ValueRefused:
                continue
            if isinstance(after, dict) and after.get(name) is not None:
                found[name] = after[name]
        return found


def _unsent(schema: TableSchema, place: int) -> tuple[Changes, Facts]:
    """An update that did not send one column."""
    one = np.zeros(1, np.int64)
    unchanged = np.zeros((1, len(schema.columns)), np.bool_)
    unchanged[0, place] = True
    changes = Changes(
        schema=schema,
        op=np.array([Op.UPDATE], np.int8),
        offset=one,
        transaction=one,
        transactions=NO_TRANSACTIONS,
        after=schema.rows(
            [_any(field.type) if field.name in schema.key else pa.nulls(1, field.type) for field in schema.arrow]
        ),
        unchanged=unchanged,
        before_rows=one[:0],
        before=schema.no_rows(),
    )
    return changes, Facts([""], [""], one, one)


def _any(type_: pa.DataType) -> pa.Array:
    """A value of a type: formats with a schema take no null in a key."""
    for value in (0, False, Decimal(0), "0", bytes(16)):
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([value], type_)
    return pa.nulls(1, type_)
