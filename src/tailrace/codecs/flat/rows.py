"""How a flat record has a table's columns: in canonical JSON, or with Debezium's types where a schema tells them."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
from msgspec.json import encode

from tailrace.codecs import canonical
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.logical import Schema, logical_of, named
from tailrace.codecs.debezium.settings import DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.codecs.json_events import JsonRows, fragment_of
from tailrace.codecs.rows import RowWriter
from tailrace.columns.fragments import literal
from tailrace.columns.times import iso_utc
from tailrace.errors import ValueRefused
from tailrace.model.changes import Flags
from tailrace.model.event import Row
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind

_MOMENT = ColumnType(Kind.TIMESTAMPTZ, "timestamp with time zone")
_canonical_moments = fragment_of(_MOMENT)
_ZONED: Schema = named("string", "io.debezium.time.ZonedTimestamp")
FACTS: dict[str, tuple[Schema, bool]] = {
    "_op": ({"type": "string"}, False),
    "_offset": ({"type": "int64"}, True),
    "_commit_time": (_ZONED, True),
    "_position": ({"type": "string"}, False),
    "_transaction": ({"type": "string"}, True),
    "_number": ({"type": "int64"}, True),
    "_unchanged": ({"type": "array", "items": {"type": "string", "optional": False}}, True),
}
"""What a record has beside the table's columns, and whether it may be null."""


class FlatRows(RowWriter, Protocol):
    """`wrap` is what stands before and behind a value."""

    @property
    def wrap(self) -> tuple[bytes, bytes]: ...
    def moments(self, array: pa.Array) -> pa.StringArray: ...
    def row(self, row: Row) -> dict[str, Any]: ...
    def key(self, row: Row | None) -> bytes | None: ...
    def moment(self, value: Any) -> str: ...


def refuse_clash(schema: TableSchema) -> None:
    if taken := sorted({column.name for column in schema.columns} & FACTS.keys()):
        raise ValueRefused(
            f"table {schema.table} has a column {taken[0]}, a name that flat records have for themselves",
            hint="rename the column, leave it out with a transform, or use shape: debezium",
            table=schema.table,
        )


class CanonicalRows(JsonRows):
    """As `json_events` has them: a row lacks the columns that were not sent."""

    wrap = (b"", b"")
    moment = staticmethod(canonical.moment_text)

    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema)
        refuse_clash(schema)
        self._types = {column.name: column.type for column in schema.columns}

    def moments(self, array: pa.Array) -> pa.StringArray:
        return _canonical_moments(array)

    def row(self, row: Row) -> dict[str, Any]:
        return {name: canonical.to_json(row[name], type_) for name, type_ in self._types.items() if name in row}

    def key(self, row: Row | None) -> bytes | None:
        if row is None or not self.schema.key:
            return None
        return encode({name: canonical.to_json(row[name], self._types[name]) for name in self.schema.key})


class TypedRows:
    """As Debezium's envelope has them: all columns, null where nothing was sent."""

    moment = staticmethod(logical_of(_MOMENT, DebeziumSettings("", "")).write)

    def __init__(self, schema: TableSchema, settings: DebeziumSettings) -> None:
        refuse_clash(schema)
        self.table = Table(schema, {"type": "string"}, settings)
        self.value_schema = value_schema(self.table)
        self.wrap = wrapping(self.value_schema, settings)
        self.nothing = {column.name: None for column in schema.columns}

    def moments(self, array: pa.Array) -> pa.StringArray:
        return literal(iso_utc(array, 6, lambda value: self.moment(pa.scalar(value, array.type).as_py())))

    @property
    def has_key(self) -> bool:
        return self.table.has_key

    def row(self, row: Row) -> dict[str, Any]:
        return self.table.write_row(row) or self.nothing

    def key(self, row: Row | None) -> bytes | None:
        return self.table.write_key(row)

    def write_rows(self, rows: pa.RecordBatch, unchanged: Flags | None) -> pa.StringArray:
        return self.table.write_rows(rows, None)

    def write_old_rows(self, rows: pa.RecordBatch) -> pa.StringArray:
        return self.table.write_rows(rows, None)

    def write_keys(self, rows: pa.RecordBatch) -> pa.StringArray:
        return self.table.write_keys(rows)


def row_schema(table: Table) -> Schema:
    """The table's columns alone. A truncate is a record without a row, so even the key may be null."""
    columns = (schemas.field(name, each.schema, optional=True) for name, each in table.columns.items())
    return schemas.struct(columns, f"{table.prefix}.Flat")


def facts_schema(table: Table) -> Schema:
    facts = (schemas.field(name, schema, optional=optional) for name, (schema, optional) in FACTS.items())
    return schemas.struct(facts, f"{table.prefix}.Flat")


def value_schema(table: Table) -> Schema:
    fields = row_schema(table)["fields"] + facts_schema(table)["fields"]
    return schemas.whole(schemas.struct(fields, f"{table.prefix}.Flat"))
