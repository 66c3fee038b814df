"""The rows and keys of one table in a binary format, by columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.tables import Table, refused
from tailrace.codecs.debezium.values import array_of, arrow_of, convert_of, converted
from tailrace.codecs.wire.parts import Wire, fields, join
from tailrace.errors import ValueRefused
from tailrace.model.changes import Flags


class WireRows:
    """`key_head` stands before every key; `placeholders`: whether a value stands for one that was not sent."""

    def __init__(
        self, table: Table, row_schema: Schema, value_schema: Schema, wire: Wire, *, placeholders: bool
    ) -> None:
        self.table, self.wire, self.row_schema, self.value_schema = table, wire, row_schema, value_schema
        self.key_schema, self.key_head = table.key_schema, b""
        self._placeholders = placeholders
        settings = table.settings
        self._converts = {
            column.name: convert_of(column.type, table.columns[column.name], settings)
            for column in table.schema.columns
        }
        self.types = {name: arrow_of(logical.schema) for name, logical in table.columns.items()}

    @property
    def has_key(self) -> bool:
        return self.table.has_key

    def columns(self, rows: pa.RecordBatch, names: Iterable[str]) -> dict[str, pa.Array]:
        """As Connect has their values."""
        found: dict[str, pa.Array] = {}
        for name in names:
            try:
                found[name] = converted(rows.column(name), self._converts[name], self.types[name])
            except ValueRefused as error:
                raise refused(self.table.schema, name, error) from error
        return found

    def write_rows(self, rows: pa.RecordBatch, unchanged: Flags | None) -> pa.BinaryArray:
        columns = self.columns(rows, self.table.columns)
        if unchanged is not None and self._placeholders:
            self._stand_in(columns, unchanged)
        return join(fields(self.wire, self.row_schema, columns), rows.num_rows)

    def write_old_rows(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        return self.write_rows(rows, None)

    def write_keys(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        columns = self.columns(rows, self.table.key)
        return join([self.key_head, *fields(self.wire, self.key_schema, columns)], rows.num_rows)

    def _stand_in(self, columns: dict[str, pa.Array], unchanged: Flags) -> None:
        """Put the placeholder where a value was not sent."""
        for place, (name, array) in enumerate(columns.items()):
            if unchanged[:, place].any():
                schema = self.table.columns[name].schema
                stand_in = array_of([self.table.placeholder(name)], schema)
                rows = np.where(unchanged[:, place], len(array), np.arange(len(array)))
                columns[name] = pa.concat_arrays([array.cast(stand_in.type), stand_in]).take(pa.array(rows))
