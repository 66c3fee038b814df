"""A table's version as the envelope sees it: its columns' types, their schemas, and how a row is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.columnar import fragment_of
from tailrace.codecs.debezium.logical import Logical, Schema, logical_of
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.columns import fragments
from tailrace.errors import ValueRefused
from tailrace.model.changes import Flags
from tailrace.model.event import Event, Row
from tailrace.model.schema import TableSchema


class Table:
    """Made once a version, for its schemas cost more than an event."""

    def __init__(self, schema: TableSchema, source: Schema, settings: DebeziumSettings) -> None:
        self.schema, self.settings = schema, settings
        self.prefix = prefix_of(schema, settings)
        self.columns = {column.name: logical_of(column.type, settings) for column in schema.columns}
        self.key = {name: self.columns[name] for name in schema.key}
        self.fragments = {
            column.name: fragment_of(column.type, self.columns[column.name], settings) for column in schema.columns
        }
        self.row_schema = schemas.row_schema(self.prefix, self.columns, schema.key)
        self.key_schema = schemas.key_schema(self.prefix, self.key)
        self.value_schema = schemas.envelope_schema(self.prefix, self.row_schema, source)
        self.wrap_key = wrapping(self.key_schema, settings)
        self.wrap_value = wrapping(self.value_schema, settings)

    def write_key(self, row: Row | None) -> bytes | None:
        if row is None or not self.key:
            return None
        head, tail = self.wrap_key
        return head + encode(self._written(row, self.key)) + tail

    def write_states(self, event: Event, letter: str) -> dict[str, dict[str, Any] | None]:
        """The row before and after, as far as a record of this letter has them."""
        before = self.write_row(event.before) if letter in "ud" else None
        after = self.write_row(event.after, event.unchanged) if letter in "cur" else None
        return {"before": before, "after": after}

    def write_row(self, row: Row | None, unchanged: tuple[str, ...] = ()) -> dict[str, Any] | None:
        """All columns: null where nothing was sent, and the placeholder where it is `unchanged`."""
        if row is None:
            return None
        written = self._written(row, self.columns)
        for name in unchanged:
            written[name] = self.placeholder(name)
        return written

    def write_rows(self, rows: pa.RecordBatch, unchanged: Flags | None) -> pa.StringArray:
        """`write_row` of all rows."""
        written = self._fragments(rows, self.columns)
        if unchanged is not None:
            for place, (name, texts) in enumerate(written.items()):
                if unchanged[:, place].any():
                    stand_in = encode(self.placeholder(name)).decode()
                    written[name] = pc.if_else(pa.array(unchanged[:, place]), stand_in, texts)
        return fragments.objects(written, rows.num_rows)

    def write_old_rows(self, rows: pa.RecordBatch) -> pa.StringArray:
        return self.write_rows(rows, None)

    @property
    def has_key(self) -> bool:
        return bool(self.key)

    def write_keys(self, rows: pa.RecordBatch) -> pa.StringArray:
        """`write_key` of all rows; there has to be a key."""
        head, tail = (part.decode() for part in self.wrap_key)
        keys = self.key_objects(rows)
        return fragments.join([head, keys, tail]) if head or tail else keys

    def key_objects(self, rows: pa.RecordBatch) -> pa.StringArray:
        """The keys without their schema."""
        return fragments.objects(self._fragments(rows, self.key), rows.num_rows)

    def _fragments(self, rows: pa.RecordBatch, names: Iterable[str]) -> dict[str, pa.StringArray]:
        written: dict[str, pa.StringArray] = {}
        for name in names:
            try:
                written[name] = fragments.written(rows.column(name), self.fragments[name])
            except ValueRefused as error:
                raise refused(self.schema, name, error) from error
        return written

    def placeholder(self, name: str) -> Any:
        found = self.columns[name].placeholder
        if found is None:
            raise ValueRefused(
                f"column {self.schema.table}.{name} was not sent, for it did not change, and no value says that",
                hint=f"ALTER TABLE {self.schema.table} REPLICA IDENTITY FULL; a numeric has one with decimals: string",
                table=self.schema.table,
            )
        return found

    def _written(self, row: Row, columns: Mapping[str, Logical]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for name, logical in columns.items():
            value = row.get(name)
            try:
                written[name] = None if value is None else logical.write(value)
            except ValueRefused as error:
                raise refused(self.schema, name, error) from error
        return written


def prefix_of(schema: TableSchema, settings: DebeziumSettings) -> str:
    """What the names of a table's schemas begin with."""
    return f"{settings.name}.{schema.schema}.{schema.name}"


def refused(schema: TableSchema, name: str, error: ValueRefused) -> ValueRefused:
    """The same error with the column that it is of."""
    type_ = next(column.type.name for column in schema.columns if column.name == name)
    return ValueRefused(f"column {schema.table}.{name} ({type_}): {error}", hint=error.hint, table=schema.table)


def wrapping(schema: Schema, settings: DebeziumSettings) -> tuple[bytes, bytes]:
    """What stands before and behind a payload."""
    return (b'{"schema":' + encode(schema) + b',"payload":', b"}") if settings.schemas else (b"", b"")
