"""What Debezium tells beside the changes, each in a topic of its own.

`{prefix}.transaction` has where transactions begin and end; `__debezium-heartbeat.{prefix}` that the stream lives;
`{prefix}` how tables look from now on. Of schema changes Debezium's PostgreSQL connector tells nothing; ours have the
shape of its MySQL connector, without the statement, which the log does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import metadata
from typing import Any

import msgspec

from tailrace.codecs.base import Record
from tailrace.codecs.debezium import control_schemas as schemas
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.origins import Moment, origin_of
from tailrace.codecs.payloads import Payloads
from tailrace.codecs.settings import CodecSettings, StreamName
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import Kind, label_of


class Alteration(StrEnum):
    CREATE = "CREATE"
    ALTER = "ALTER"
    DROP = "DROP"


class ControlCodec:
    """Records for the topics `transaction_topic`, `heartbeat_topic` and `schema_topic`."""

    def __init__(self, settings: CodecSettings, stream: StreamName, now_ns: Callable[[], int] = time.time_ns) -> None:
        own = msgspec.structs.replace(settings.of(stream), version=metadata.version("tailrace"))
        self._stream, self._now_ns, self._payloads = stream, now_ns, Payloads(settings)
        self._origin = origin_of(own)
        self.transaction_topic = f"{stream.prefix}.transaction"
        self.heartbeat_topic = f"__debezium-heartbeat.{stream.prefix}"
        self.schema_topic = stream.prefix

    def begin(self, id_: str, position: str, at_us: int) -> Record:
        """`id_` and `position` as `Facts` have them: what the source calls the transaction, and where it ends."""
        return self._transaction("BEGIN", id_, position, at_us, None)

    def end(self, id_: str, position: str, at_us: int, counts: Mapping[str, int]) -> Record:
        """`counts` are the transaction's changes of each table, by `schema.name`."""
        return self._transaction("END", id_, position, at_us, counts)

    def _transaction(
        self, status: str, id_: str, position: str, at_us: int, counts: Mapping[str, int] | None
    ) -> Record:
        own = self._origin.transaction_id(Moment("", "", "false", at_us, position, id_))
        collections = None
        if counts is not None:
            collections = [{"data_collection": table, "event_count": count} for table, count in counts.items()]
        value = {
            "status": status,
            "id": own,
            "event_count": None if counts is None else sum(counts.values()),
            "data_collections": collections,
            "ts_ms": at_us // 1000,
        }
        key, topic = {"id": own}, self.transaction_topic
        return self._record(topic, schemas.TRANSACTION_KEY, key, schemas.TRANSACTION_VALUE, value)

    def heartbeat(self) -> Record:
        key, value = {"serverName": self._stream.prefix}, {"ts_ms": self._now_ns() // 1_000_000}
        return self._record(self.heartbeat_topic, schemas.HEARTBEAT_KEY, key, schemas.HEARTBEAT_VALUE, value)

    def schema_change(
        self, schema: TableSchema, alteration: Alteration, position: str, at_us: int, transaction: str = ""
    ) -> Record:
        """How a table looks from `position` on."""
        moment = Moment(schema.schema, schema.name, "false", at_us, position, transaction)
        connector, database = self._stream.connector, self._stream.database
        change: dict[str, Any] = {"type": str(alteration), "id": f'"{schema.schema}"."{schema.name}"', "table": None}
        if alteration is not Alteration.DROP:
            change["table"] = _table(schema)
        value = {
            "source": msgspec.json.decode(self._origin.block(moment)),
            "ts_ms": self._now_ns() // 1_000_000,
            "databaseName": database,
            "schemaName": schema.schema,
            "ddl": None,
            "tableChanges": [change],
        }
        key_schema = schemas.schema_change_key(connector)
        value_schema = schemas.schema_change_value(connector, self._origin.schema)
        return self._record(self.schema_topic, key_schema, {"databaseName": database}, value_schema, value)

    def _record(self, topic: str, key_schema: Schema, key: Any, value_schema: Schema, value: Any) -> Record:
        write = self._payloads.write
        return Record(write(topic, "key", key_schema, key), write(topic, "value", value_schema, value))


def columns_told(schema: TableSchema) -> dict[str, Any]:
    """All that a schema change tells of a table's version: two that are equal here need not be told apart."""
    return _table(schema)


def _table(schema: TableSchema) -> dict[str, Any]:
    columns = [_column(column, place, schema) for place, column in enumerate(schema.columns, 1)]
    key = list(schema.key)
    return {"defaultCharsetName": None, "primaryKeyColumnNames": key, "columns": columns, "comment": None}


def _column(column: Column, place: int, schema: TableSchema) -> dict[str, Any]:
    """What nobody told us is null."""
    type_ = column.type
    name = type_.name or str(type_.kind)
    nothing = ("nativeType", "charsetName", "autoIncremented", "generated", "comment", "defaultValueExpression")
    found: dict[str, Any] = dict.fromkeys(nothing)
    return found | {
        "name": column.name,
        "jdbcType": _JDBC[type_.kind],
        "typeName": name.partition("(")[0],
        "typeExpression": name,
        "length": type_.precision,
        "scale": type_.scale,
        "position": place,
        "optional": column.name not in schema.key,
        "enumValues": [label_of(label) for label in type_.labels] or None,
    }


_JDBC = {  # java.sql.Types
    Kind.BOOLEAN: 16,
    Kind.INT16: 5,
    Kind.INT32: 4,
    Kind.INT64: -5,
    Kind.FLOAT32: 7,
    Kind.FLOAT64: 8,
    Kind.DECIMAL: 2,
    Kind.NUMERIC: 2,
    Kind.TEXT: 12,
    Kind.BYTES: -2,
    Kind.UUID: 1111,
    Kind.DATE: 91,
    Kind.TIME: 92,
    Kind.TIMETZ: 2013,
    Kind.TIMESTAMP: 93,
    Kind.TIMESTAMPTZ: 2014,
    Kind.INTERVAL: 1111,
    Kind.JSON: 1111,
    Kind.ENUM: 12,
    Kind.ARRAY: 2003,
    Kind.OTHER: 1111,
}
