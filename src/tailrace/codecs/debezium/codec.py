"""Debezium's envelope in JSON: what its PostgreSQL connector and Connect's JSON converter write for the same change.

With `schemas` each value carries that of its table's version. docs/codecs.md lists what differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from msgspec import Raw
from msgspec.json import encode

from tailrace.codecs.base import Facts, Integers
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.base import KeyedCodec, moment_of, moments_of
from tailrace.codecs.debezium.logical import BINARY, Schema
from tailrace.codecs.debezium.origins import Moment
from tailrace.codecs.debezium.records import OP_LETTERS, RecordPlan
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.codecs.rows import ChangedRows, chosen
from tailrace.columns.fragments import join
from tailrace.columns.text import quoted
from tailrace.errors import ValueRefused
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp

UNCOUNTED = "nobody has counted the changes of a table in its transaction"


class DebeziumCodec(KeyedCodec):
    def __init__(self, settings: DebeziumSettings, now_ns: Callable[[], int] = time.time_ns) -> None:
        super().__init__(settings, now_ns)
        self._wrap_message = wrapping(_message_schema(settings.connector, self.origin.schema), settings)

    def value_of(self, event: Event, table: Table, letter: str) -> bytes:
        now = self.now_ns()
        moment = moment_of(event, now // 1000)
        payload = {
            **table.write_states(event, letter),
            "source": Raw(self.origin.block(moment).encode()),
            "transaction": self._transaction(event, moment),
            "op": letter,
            "ts_ms": now // 1_000_000,
            "ts_us": now // 1000,
            "ts_ns": now,
        }
        head, tail = table.wrap_value
        return head + encode(payload) + tail

    def _transaction(self, event: Event, moment: Moment) -> dict[str, Any] | None:
        """Only where the user asked for it, as with Debezium; a row of a snapshot is of no transaction."""
        if not self.settings.transactions or event.transaction is None:
            return None
        number = event.transaction.number
        order = number if event.op is EventOp.MESSAGE else event.transaction.table_number
        if not order:
            raise ValueRefused(UNCOUNTED, table=event.table)
        return {"id": self.origin.transaction_id(moment), "total_order": number, "data_collection_order": order}

    def message_value(self, event: Event) -> bytes:
        """What an application wrote into the log; its key is the prefix."""
        assert event.message is not None
        now = self.now_ns()
        moment = moment_of(event, now // 1000)
        content = BINARY[Binary.BYTES](event.message.content)
        payload = {
            "op": "m",
            "ts_ms": now // 1_000_000,
            "source": Raw(self.origin.block(moment).encode()),
            "transaction": self._transaction(event, moment),
            "message": {"prefix": event.message.prefix, "content": content},
        }
        head, tail = self._wrap_message
        return head + encode(payload) + tail

    def values_of(
        self, changes: Changes, facts: Facts, table: Table, rows: ChangedRows, plan: RecordPlan
    ) -> pa.StringArray:
        head, tail = (part.decode() for part in table.wrap_value)
        now = self.now_ns()
        return join(
            [
                f'{head}{{"before":',
                chosen(rows.before, plan.has_before, plan.change),
                ',"after":',
                chosen(rows.after, plan.has_after, plan.change),
                ',"source":',
                *self._origins(changes, facts, plan.change, now // 1000),
                ',"op":"',
                OP_LETTERS.take(pa.array(plan.letter)),
                f'","ts_ms":{now // 1_000_000},"ts_us":{now // 1000},"ts_ns":{now}}}{tail}',
            ]
        )

    def _origins(self, changes: Changes, facts: Facts, change: Integers, now_us: int) -> list[str | pa.StringArray]:
        """The source and the transaction of each record."""
        moments, place = moments_of(changes, facts, now_us)
        of_record = pa.array(place[change])
        blocks = self.origin.blocks(moments).take(of_record)
        if not self.settings.transactions or facts.reads is not None or facts.late:
            return [blocks, ',"transaction":null']
        if facts.table_numbers is None:
            raise ValueRefused(UNCOUNTED, table=changes.schema.table)
        ids = pa.array([self.origin.transaction_id(moment) for moment in moments], pa.string()).take(of_record)
        total, own = (pa.array(each[change]).cast(pa.string()) for each in (facts.numbers, facts.table_numbers))
        order = [',"total_order":', total, ',"data_collection_order":', own, "}"]
        return [blocks, ',"transaction":{"id":', quoted(ids), *order]


def _message_schema(connector: str, source: Schema) -> Schema:
    content = schemas.fields_of({"prefix": ("string", True), "content": ("bytes", True)})
    message = schemas.struct(content, f"io.debezium.connector.{connector}.Message", 1)
    fields = [
        *schemas.fields_of({"op": ("string", False), "ts_ms": ("int64", True)}),
        schemas.field("source", source, optional=False),
        schemas.field("transaction", schemas.TRANSACTION, optional=True),
        schemas.field("message", message, optional=False),
    ]
    return schemas.whole(schemas.struct(fields, f"io.debezium.connector.{connector}.MessageValue", 1))
