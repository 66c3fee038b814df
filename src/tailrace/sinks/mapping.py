"""Under which names, and as which types, a sink holds the source's columns. Rows are mapped where they enter a sink.

State, staged receipts and the pipeline know the source's own schemas; only what is written knows the sink's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa

from tailrace.columns.net import NetChanges, Partial
from tailrace.columns.text import to_text
from tailrace.model.rows import EncodedRows, Rows
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind

TEXT = ColumnType(Kind.TEXT, "text")

Renames = Mapping[str, Mapping[str, str]]
"""By table of the source: what some of its columns are called in the sink."""


class SchemaMapping:
    """`is_text` says which types of the source are held as their text. Picklable if that is."""

    def __init__(self, renames: Renames, is_text: Callable[[ColumnType], bool]) -> None:
        self._renames, self._is_text = renames, is_text

    def schema(self, source: TableSchema) -> TableSchema:
        """The sink's columns; schema and name of the table stay the source's."""
        if self._is_identity(source):
            return source
        names = self.sink_names(source)
        columns = tuple(self._column(column, names) for column in source.columns)
        return msgspec.structs.replace(source, columns=columns, key=tuple(names[name] for name in source.key))

    def arriving(self, source: TableSchema, rows: Rows) -> Rows:
        """Encoded rows have no names, and are of types that stay as they are."""
        return rows if isinstance(rows, EncodedRows) else self.rows(source, rows)

    def rows(self, source: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows, or some columns of rows, as the sink takes them."""
        if self._is_identity(source):
            return batch
        names, types = self.sink_names(source), {column.name: column.type for column in source.columns}
        arrays = [
            to_text(array, types[name]) if self._is_text(types[name]) else array
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, [names[name] for name in batch.schema.names])

    def net(self, net: NetChanges) -> NetChanges:
        source = net.schema
        if self._is_identity(source):
            return net
        names = self.sink_names(source)
        partials = [
            Partial(
                tuple(names[name] for name in partial.unchanged),
                self.rows(source, partial.rows),
                None if partial.old_keys is None else self.rows(source, partial.old_keys),
            )
            for partial in net.partials
        ]
        deletes, upserts = self.rows(source, net.deletes), self.rows(source, net.upserts)
        return NetChanges(self.schema(source), net.truncate, deletes, upserts, tuple(partials), net.delete_counts)

    def sink_names(self, source: TableSchema) -> dict[str, str]:
        """From the source's names to the sink's."""
        renames = self._renames.get(source.table, {})
        return {column.name: renames.get(column.name, column.name) for column in source.columns}

    def source_names(self, source: TableSchema) -> dict[str, str]:
        """From the sink's names to the source's."""
        return {name: original for original, name in self.sink_names(source).items()}

    def unknown(self, source: TableSchema) -> list[str]:
        """Columns that are to be renamed, and that the table does not have."""
        return sorted(self._renames.get(source.table, {}).keys() - {column.name for column in source.columns})

    def _is_identity(self, source: TableSchema) -> bool:
        return source.table not in self._renames and not any(self._is_text(column.type) for column in source.columns)

    def _column(self, column: Column, names: Mapping[str, str]) -> Column:
        type_ = TEXT if self._is_text(column.type) else column.type
        return msgspec.structs.replace(column, name=names[column.name], type=type_)
