"""The Kafka Connect schemas of a table's keys, rows and envelopes, as Connect's JSON converter writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tailrace.codecs.debezium.logical import Logical, Schema

_LAST = ("name", "version", "doc", "parameters")  # behind `optional`, in this order
SNAPSHOT = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def field(name: str, schema: Schema, *, optional: bool) -> Schema:
    """A schema as a field of a struct."""
    first = {key: value for key, value in schema.items() if key not in _LAST}
    return first | {"optional": optional} | {key: schema[key] for key in _LAST if key in schema} | {"field": name}


def struct(fields: Iterable[Schema], name: str, version: int | None = None) -> Schema:
    schema: Schema = {"type": "struct", "fields": list(fields), "name": name}
    return schema if version is None else schema | {"version": version}


def whole(schema: Schema) -> Schema:
    """A schema that is no field of another."""
    found = field("", schema, optional=False)
    del found["field"]
    return found


def key_schema(prefix: str, columns: Mapping[str, Logical]) -> Schema:
    return whole(struct((field(name, each.schema, optional=False) for name, each in columns.items()), f"{prefix}.Key"))


def row_schema(prefix: str, columns: Mapping[str, Logical], key: Iterable[str]) -> Schema:
    """All but the key may be null: what else is NOT NULL nobody has told us."""
    own = set(key)
    fields = (field(name, each.schema, optional=name not in own) for name, each in columns.items())
    return struct(fields, f"{prefix}.Value")


def envelope_schema(prefix: str, row: Schema, source: Schema) -> Schema:
    fields = [
        field("before", row, optional=True),
        field("after", row, optional=True),
        field("source", source, optional=False),
        field("transaction", TRANSACTION, optional=True),
        field("op", {"type": "string"}, optional=False),
        *(field(name, {"type": "int64"}, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return whole(struct(fields, f"{prefix}.Envelope", 2))


def fields_of(types: Mapping[str, tuple[str, bool]]) -> list[Schema]:
    """Fields by their name: the type, and whether they may be null."""
    return [field(name, {"type": type_}, optional=optional) for name, (type_, optional) in types.items()]


TRANSACTION = struct(
    fields_of({"id": ("string", False), "total_order": ("int64", False), "data_collection_order": ("int64", False)}),
    "event.block",
    1,
)
SNAPSHOT_FIELD: dict[str, Any] = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": SNAPSHOT},
    "default": "false",
    "field": "snapshot",
}
