"""CloudEvents 1.0, structured mode in JSON, with the attributes that Debezium's converter has.

`data` is the row before and after, as in Debezium's envelope. `id` is unique within `source`, and the same whenever the
same change is encoded, but for the rows of a snapshot of a table without a key. Attributes without a value are left
out, and so is Debezium's `iodebeziumtxId`: names of attributes are in lower case.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pyarrow as pa
from msgspec import Raw
from msgspec.json import encode

from tailrace.codecs.base import Facts
from tailrace.codecs.debezium import schemas
from tailrace.codecs.debezium.base import KeyedCodec, moment_of, moments_of
from tailrace.codecs.debezium.logical import BINARY
from tailrace.codecs.debezium.moments import iso_text
from tailrace.codecs.debezium.origins import Moment
from tailrace.codecs.debezium.records import OP_LETTERS, RecordPlan
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings
from tailrace.codecs.debezium.tables import Table, wrapping
from tailrace.codecs.rows import ChangedRows, chosen
from tailrace.columns.fragments import join, strings
from tailrace.model.changes import Changes
from tailrace.model.event import Event
from tailrace.model.schema import TableSchema

Wrapping = tuple[bytes, bytes]


class CloudEventsCodec(KeyedCodec):
    content_type = "application/cloudevents+json"

    def __init__(
        self,
        settings: DebeziumSettings,
        now_ns: Callable[[], int] = time.time_ns,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        super().__init__(settings, now_ns)
        self.new_id = new_id
        self._package = f"io.debezium.connector.{settings.connector}"
        self._datas: dict[TableSchema, Wrapping] = {}

    def value_of(self, event: Event, table: Table, letter: str) -> bytes:
        moment = moment_of(event, self.now_ns() // 1000)
        head, tail = self._data_of(table)
        data = Raw(head + encode(table.write_states(event, letter)) + tail)
        return encode(self._attributes(moment) | self._own(event, moment, letter) | {"data": data})

    def message_value(self, event: Event) -> bytes:
        assert event.message is not None
        moment = moment_of(event, self.now_ns() // 1000)
        content = {"prefix": event.message.prefix, "content": BINARY[Binary.BYTES](event.message.content)}
        return encode(self._attributes(moment) | self._own(event, moment, "m") | {"data": {"message": content}})

    def values_of(
        self, changes: Changes, facts: Facts, table: Table, rows: ChangedRows, plan: RecordPlan
    ) -> pa.StringArray:
        moments, place = moments_of(changes, facts, self.now_ns() // 1000)
        of_record = pa.array(place[plan.change])
        heads = [encode(self._attributes(moment)).decode()[:-1] for moment in moments]
        attributes = pa.array(heads, pa.string()).take(of_record)
        own: list[str | pa.StringArray]
        if facts.reads is not None:
            own = [attributes, ',"id":', strings(self._read_ids(changes, facts, table)), ',"iodebeziumop":"r']
        else:
            ids = [encode(self._id(moment)).decode()[:-1] for moment in moments]
            own = [attributes, ',"id":', pa.array(ids, pa.string()).take(of_record), *self._orders(facts, plan)]
        head, tail = (part.decode() for part in self._data_of(table))
        before, after = (
            chosen(rows.before, plan.has_before, plan.change),
            chosen(rows.after, plan.has_after, plan.change),
        )
        return join([*own, f'","data":{head}{{"before":', before, ',"after":', after, f"}}{tail}}}"])

    def _orders(self, facts: Facts, plan: RecordPlan) -> list[str | pa.StringArray]:
        """The rest of the id, the operation, and the place in the transaction, of each record."""
        letters = OP_LETTERS.take(pa.array(plan.letter))
        numbers = pa.array(facts.numbers[plan.change]).cast(pa.string())
        own: list[str | pa.StringArray] = [";number:", numbers, ";op:", letters]
        own += ['","iodebeziumop":"', letters, '","iodebeziumtxtotalorder":"', numbers]
        if facts.table_numbers is not None:
            in_table = pa.array(facts.table_numbers[plan.change]).cast(pa.string())
            own += ['","iodebeziumtxdatacollectionorder":"', in_table]
        return own

    def _read_ids(self, changes: Changes, facts: Facts, table: Table) -> pa.StringArray:
        head = f"name:{self.settings.name};table:{changes.schema.table};read:"
        if not table.key:
            return pa.array([head + self.new_id() for _ in range(len(changes))], pa.string())
        position = encode(facts.positions[0]).decode()
        return join([f"{head}{position};key:", table.key_objects(changes.after)])

    def _attributes(self, moment: Moment) -> dict[str, str]:
        """All that changes of one transaction share."""
        settings, (place, at) = self.settings, self.origin.place(moment)
        found = {
            "source": f"/debezium/{settings.connector}/{settings.name}",
            "specversion": "1.0",
            "type": f"{self._package}.DataChangeEvent",
            "time": iso_text(moment.at_us, 3),
            "datacontenttype": "application/json",
            "iodebeziumversion": settings.version,
            "iodebeziumconnector": settings.connector,
            "iodebeziumname": settings.name,
            "iodebeziumtsms": str(moment.at_us // 1000),
            "iodebeziumsnapshot": moment.snapshot,
            "iodebeziumdb": settings.database,
            "iodebeziumtsus": str(moment.at_us),
            "iodebeziumtsns": str(moment.at_us * 1000),
            "iodebeziumschema": moment.schema,
            "iodebeziumtable": moment.table,
            f"iodebezium{place}": at if place != "position" else "",
            "iodebeziumtxid": self.origin.transaction_id(moment) if moment.transaction else "",
        }
        return {name: value for name, value in found.items() if value}

    def _own(self, event: Event, moment: Moment, letter: str) -> dict[str, str]:
        """What each change has of its own."""
        transaction = event.transaction
        if transaction is None:
            own = self.new_id() if event.key is None else encode(event.position).decode()
            row = "" if event.schema is None or event.key is None else self._key_text(event)
            return {"id": f"name:{self.settings.name};table:{event.table};read:{own}{row}", "iodebeziumop": letter}
        found = {"id": f"{self._id(moment)};number:{transaction.number};op:{letter}", "iodebeziumop": letter}
        found["iodebeziumtxtotalorder"] = str(transaction.number)
        if transaction.table_number:
            found["iodebeziumtxdatacollectionorder"] = str(transaction.table_number)
        return found

    def _key_text(self, event: Event) -> str:
        assert event.schema is not None
        assert event.key is not None
        table = self.table_of(event.schema)
        written = table.write_row(event.key)
        assert written is not None
        return ";key:" + encode({name: written[name] for name in table.key}).decode()

    def _id(self, moment: Moment) -> str:
        place = ":".join(self.origin.place(moment))
        return f"name:{self.settings.name};{place};txId:{moment.transaction}"

    def _data_of(self, table: Table) -> Wrapping:
        found = self._datas.get(table.schema)
        if found is None:
            fields = [schemas.field(name, table.row_schema, optional=True) for name in ("before", "after")]
            schema = schemas.whole(schemas.struct(fields, f"{self._package}.Data"))
            found = self._datas[table.schema] = wrapping(schema, self.settings)
        return found
