"""The schemas of what Debezium tells beside the changes: transactions, heartbeats and schema changes."""

from __future__ import annotations

from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.schemas import field, fields_of, struct, whole

_COMMON = "io.debezium.connector.common"
_TEXT, _TEXT_OR_NOT = ("string", False), ("string", True)
_FLAG_OR_NOT, _SMALL_OR_NOT = ("boolean", True), ("int32", True)


def _list(items: Schema, *, optional: bool) -> Schema:
    return {"type": "array", "items": items | {"optional": optional}}


TRANSACTION_KEY = whole(struct(fields_of({"id": _TEXT}), f"{_COMMON}.TransactionMetadataKey", 1))
_COLLECTION = struct(fields_of({"data_collection": _TEXT, "event_count": ("int64", False)}), "event.collection", 1)
TRANSACTION_VALUE = whole(
    struct(
        [
            *fields_of({"status": _TEXT, "id": _TEXT, "event_count": ("int64", True)}),
            field("data_collections", _list(_COLLECTION, optional=True), optional=True),
            *fields_of({"ts_ms": ("int64", False)}),
        ],
        f"{_COMMON}.TransactionMetadataValue",
        1,
    )
)
HEARTBEAT_KEY = whole(struct(fields_of({"serverName": _TEXT}), f"{_COMMON}.ServerNameKey", 1))
HEARTBEAT_VALUE = whole(struct(fields_of({"ts_ms": ("int64", False)}), f"{_COMMON}.Heartbeat", 1))

_COLUMN = struct(
    [
        *fields_of(
            {
                "name": _TEXT,
                "jdbcType": ("int32", False),
                "nativeType": _SMALL_OR_NOT,
                "typeName": _TEXT,
                "typeExpression": _TEXT_OR_NOT,
                "charsetName": _TEXT_OR_NOT,
                "length": _SMALL_OR_NOT,
                "scale": _SMALL_OR_NOT,
                "position": ("int32", False),
                "optional": _FLAG_OR_NOT,
                "autoIncremented": _FLAG_OR_NOT,
                "generated": _FLAG_OR_NOT,
                "comment": _TEXT_OR_NOT,
                "defaultValueExpression": _TEXT_OR_NOT,
            }
        ),
        field("enumValues", _list({"type": "string"}, optional=False), optional=True),
    ],
    "io.debezium.connector.schema.Column",
    1,
)
_TABLE = struct(
    [
        *fields_of({"defaultCharsetName": _TEXT_OR_NOT}),
        field("primaryKeyColumnNames", _list({"type": "string"}, optional=False), optional=True),
        field("columns", _list(_COLUMN, optional=False), optional=False),
        *fields_of({"comment": _TEXT_OR_NOT}),
    ],
    "io.debezium.connector.schema.Table",
    1,
)
_CHANGE = struct(
    [*fields_of({"type": _TEXT, "id": _TEXT}), field("table", _TABLE, optional=True)],
    "io.debezium.connector.schema.Change",
    1,
)


def schema_change_key(connector: str) -> Schema:
    return whole(struct(fields_of({"databaseName": _TEXT}), f"io.debezium.connector.{connector}.SchemaChangeKey", 1))


def schema_change_value(connector: str, source: Schema) -> Schema:
    fields = [
        field("source", source, optional=False),
        *fields_of({"ts_ms": ("int64", False), "databaseName": _TEXT_OR_NOT}),
        *fields_of({"schemaName": _TEXT_OR_NOT, "ddl": _TEXT_OR_NOT}),
        field("tableChanges", _list(_CHANGE, optional=False), optional=False),
    ]
    return whole(struct(fields, f"io.debezium.connector.{connector}.SchemaChangeValue", 1))
