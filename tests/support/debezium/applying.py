"""A consumer that knows Debezium and not us: it applies envelopes to tables as Debezium's JDBC sink does.

That is with `insert.mode=upsert`, `primary.key.mode=record_key`, `delete.enabled` and `truncate.enabled`: rows are
written by the fields of the message's key, a delete deletes by it, a tombstone is skipped. Values are converted by the
schema in the message (Connect's JSON converter), and a column with the placeholder of what was not sent is left alone.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import psycopg
from psycopg import sql

from support.kafka_reading import Message

PLACEHOLDER = "__debezium_unavailable_value"
EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


def _decimal(value: str, scale: int) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-scale, Context(prec=200))


LOGICAL: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "org.apache.kafka.connect.data.Decimal": lambda value, field: _decimal(value, int(field["parameters"]["scale"])),
    "io.debezium.data.VariableScaleDecimal": lambda value, field: _decimal(value["value"], value["scale"]),
    "io.debezium.time.Date": lambda value, field: EPOCH.date() + timedelta(days=value),
    "io.debezium.time.MicroTime": lambda value, field: (EPOCH + timedelta(microseconds=value)).time(),
    "io.debezium.time.MicroTimestamp": lambda value, field: EPOCH + timedelta(microseconds=value),
}


def converted(value: Any, field: dict[str, Any]) -> Any:
    """A value as a driver of databases takes it. What has no converter is as JSON has it: texts, numbers, times."""
    if value is None:
        return None
    if field.get("name") in LOGICAL:
        return LOGICAL[field["name"]](value, field)
    if field["type"] == "bytes":
        return base64.b64decode(value)
    if field["type"] == "array":
        return [converted(each, field["items"]) for each in value]
    return value


class Applier:
    """Applies messages to the tables of one database; what it has met of each kind is counted."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.met: Counter[str] = Counter()

    def apply(self, message: Message) -> None:
        if message.value is None:
            self.met["tombstone"] += 1
            return
        payload, table = message.value["payload"], sql.Identifier(message.value["payload"]["source"]["table"])
        self.met[payload["op"]] += 1
        match payload["op"]:
            case "t":
                self._connection.execute(sql.SQL("TRUNCATE {}").format(table))
            case "d":
                self._delete(table, _fields(message.key["payload"], message.key["schema"]))
            case _:
                [schema] = [each for each in message.value["schema"]["fields"] if each["field"] == "after"]
                self._write(table, _fields(payload["after"], schema), set(message.key["payload"]))

    def _delete(self, table: sql.Identifier, key: dict[str, Any]) -> None:
        where = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in key)
        self._connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, where), list(key.values()))

    def _write(self, table: sql.Identifier, row: dict[str, Any], key: set[str]) -> None:
        """An upsert; where something was not sent, the row is there already."""
        row, was_whole = {name: value for name, value in row.items() if value != PLACEHOLDER}, len(row)
        names, others = list(map(sql.Identifier, row)), [sql.Identifier(name) for name in row if name not in key]
        if len(row) < was_whole:
            self._update(table, row, key)
            return
        new = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}").format(
            table,
            sql.SQL(", ").join(names),
            sql.SQL(", ").join([sql.Placeholder()] * len(names)),
            sql.SQL(", ").join(map(sql.Identifier, sorted(key))),
            new,
        )
        self._connection.execute(statement, list(row.values()))

    def _update(self, table: sql.Identifier, row: dict[str, Any], key: set[str]) -> None:
        others = [name for name in row if name not in key]
        new = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in others)
        where = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in sorted(key))
        values = [row[name] for name in (*others, *sorted(key))]
        done = self._connection.execute(sql.SQL("UPDATE {} SET {} WHERE {}").format(table, new, where), values)
        assert done.rowcount == 1


def _fields(payload: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {field["field"]: converted(payload[field["field"]], field) for field in schema["fields"]}
