"""Events into bytes, one at a time: what is written, and that JSON reads back."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tailrace.codecs.cloudevents import CloudEventsCodec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.origins import Moment, origin_of
from tailrace.codecs.debezium.settings import DebeziumSettings, Decimals
from tailrace.codecs.json_events import JsonCodec
from tailrace.errors import DecodeError, ValueRefused
from tailrace.model.changes import Op
from tailrace.model.event import Event, EventOp, SourceMessage, Transaction
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.testing.codec_contract import KEYED, TOLD, changes_of, sample
from tailrace.testing.codec_events import events_of, facts_of
from tailrace.testing.sample_values import SAMPLES

AT = datetime(2024, 2, 29, 23, 59, 59, 500_000, UTC)
NOW_NS = 1_709_251_200_123_456_789
SHOP = DebeziumSettings("shop", "db", version="0.1.0", schemas=False)


def event(op: EventOp, *, before: Any = None, after: Any = None, **more: Any) -> Event:
    row = after or before
    facts = {"position": "0/16B3748", "transaction": Transaction("731", 1, 1), "commit_time": AT, "schema": KEYED}
    return Event(op, "public.orders", row and {"id": row["id"]}, before, after, **facts | more)


def debezium(settings: DebeziumSettings = SHOP) -> DebeziumCodec:
    return DebeziumCodec(settings, lambda: NOW_NS)


# --- JSON


def test_a_line_of_json_says_what_the_event_says() -> None:
    (record,) = JsonCodec().encode(event(EventOp.UPDATE, after={"id": 1}, unchanged=("note",)))
    assert record.key == b'{"id":1}'
    assert record.value == (
        b'{"op":"update","table":"public.orders","key":{"id":1},"before":null,"after":{"id":1},"position":"0/16B3748",'
        b'"transaction":{"id":"731","number":1,"table_number":1},"commit_time":"2024-02-29 23:59:59.500000+00:00",'
        b'"unchanged":["note"]}'
    )


EVENTS = {
    "read": event(EventOp.READ, after={"id": 1, "note": None}, transaction=None, commit_time=None, snapshot="1:last"),
    "insert": event(EventOp.INSERT, after={"id": 2**63 - 1, "note": 'a"\\\n'}),
    "delete": event(EventOp.DELETE, before={"id": -1}),
    "truncate": event(EventOp.TRUNCATE),
    "schema": event(EventOp.SCHEMA),
    "message": Event(
        EventOp.MESSAGE, "", None, None, None, "0/1", None, None, message=SourceMessage("p", b"\0\xff", False)
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_of_every_kind_reads_back_from_json(name: str) -> None:
    (record,) = JsonCodec().encode(EVENTS[name])
    assert record.value is not None
    assert b"\n" not in record.value
    assert JsonCodec.decode(record.value, EVENTS[name].schema) == EVENTS[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_values_of_every_type_read_back_from_json(name: str) -> None:
    changes = sample(name)
    for each in events_of(changes, facts_of(changes)):
        (record,) = JsonCodec().encode(each)
        assert record.value is not None
        found = JsonCodec.decode(record.value, changes.schema)
        assert found.after is not None
        assert each.after is not None
        assert repr(found.after["v"]) == repr(each.after["v"]).replace(
            "zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc"
        )


@pytest.mark.parametrize("line", [b"", b"{", b'{"op":"insert"}', b"[1]", b'{"op":"upsert"}'])
def test_a_line_that_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(DecodeError, match=f"a line of {len(line)} bytes is no event"):
        JsonCodec.decode(line, KEYED)


def test_an_unknown_column_is_refused() -> None:
    (record,) = JsonCodec().encode(event(EventOp.INSERT, after={"id": 1, "note": "x"}))
    other = TableSchema("public", "orders", KEYED.columns[:1], KEYED.key)
    assert record.value is not None
    with pytest.raises(DecodeError, match="is no event: KeyError"):
        JsonCodec.decode(record.value, other)


# --- Debezium: test_debezium_envelope compares what a real server's changes become


def payload(value: bytes | None) -> Any:
    assert value is not None
    return json.loads(value)


def test_the_envelope_of_an_insert() -> None:
    (record,) = debezium().encode(event(EventOp.INSERT, after={"id": 1, "note": "x"}))
    assert record.key == b'{"id":1}'
    assert payload(record.value) == {
        "before": None,
        "after": {"id": 1, "note": "x"},
        "source": {
            "version": "0.1.0",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": 1709251199500,
            "snapshot": "false",
            "db": "db",
            "sequence": '["23803720","23803720"]',
            "ts_us": 1709251199500000,
            "ts_ns": 1709251199500000000,
            "schema": "public",
            "table": "orders",
            "txId": 731,
            "lsn": 23803720,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        },
        "transaction": None,
        "op": "c",
        "ts_ms": 1709251200123,
        "ts_us": 1709251200123456,
        "ts_ns": NOW_NS,
    }


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("connector", "position", "id_", "own", "transaction"),
    [
        ("mysql", f"{UUID}:1-7", f"{UUID}:7", (0, f"{UUID}:7", "", 0), f"{UUID}:7"),
        ("mariadb", "0-1-100,1-7-3", "1-7-3", (7, "1-7-3", "", 0), "1-7-3"),
        ("mysql", "binlog.000042:1337", "binlog.000042:1337", (0, None, "binlog.000042", 1337), None),
        ("mysql", f"{UUID}:1-7", "", (0, f"{UUID}:1-7", "", 0), ""),
    ],
)
def test_the_source_of_a_change_of_mysql(
    connector: str, position: str, id_: str, own: tuple[Any, ...], transaction: str | None
) -> None:
    origin = origin_of(DebeziumSettings("shop", "", connector=connector, version="0.1.0"))
    moment = Moment("inventory", "orders", "false", 1_709_251_199_500_000, position, id_)
    block = json.loads(origin.block(moment))
    assert block == {
        "version": "0.1.0",
        "connector": connector,
        "name": "shop",
        "ts_ms": 1709251199500,
        "snapshot": "false",
        "db": "inventory",
        "sequence": None,
        "ts_us": 1709251199500000,
        "ts_ns": 1709251199500000000,
        "table": "orders",
        **dict(zip(("server_id", "gtid", "file", "pos"), own, strict=True)),
        "row": 0,
        "thread": None,
        "query": None,
    }
    assert [each["field"] for each in origin.schema["fields"]] == list(block)
    assert origin.schema["name"] == f"io.debezium.connector.{connector}.Source"
    expected = "file=binlog.000042,pos=1337" if transaction is None else transaction
    assert origin.transaction_id(moment) == expected
    assert origin.blocks([moment]).to_pylist() == [origin.block(moment)]


def test_a_delete_is_followed_by_a_tombstone_unless_it_is_switched_off() -> None:
    deleted = event(EventOp.DELETE, before={"id": 1})
    record, tombstone = debezium().encode(deleted)
    assert (tombstone.key, tombstone.value) == (record.key, None)
    assert payload(record.value)["before"] == {"id": 1, "note": None}
    assert len(debezium(DebeziumSettings("shop", "db", tombstones=False)).encode(deleted)) == 1


def test_a_changed_key_is_a_delete_a_tombstone_and_a_create() -> None:
    moved = event(EventOp.UPDATE, before={"id": 1}, after={"id": 2, "note": "x"})
    records = debezium().encode(moved)
    assert [r.key for r in records] == [b'{"id":1}', b'{"id":1}', b'{"id":2}']
    assert [r.value and payload(r.value)["op"] for r in records] == ["d", None, "c"]
    new, old = (("__debezium.newkey", b'{"id":2}'),), (("__debezium.oldkey", b'{"id":1}'),)
    assert [r.headers for r in records] == [new, new, old]


def test_an_update_that_keeps_its_key_is_one_record() -> None:
    (record,) = debezium().encode(event(EventOp.UPDATE, before={"id": 1, "note": "a"}, after={"id": 1, "note": "b"}))
    assert payload(record.value)["before"] == {"id": 1, "note": "a"}


def test_the_order_within_a_transaction_is_told_where_it_is_asked_for() -> None:
    settings = DebeziumSettings("shop", "db", schemas=False, transactions=True)
    inserted = event(EventOp.INSERT, after={"id": 1}, transaction=Transaction("731", 5, 2))
    (record,) = debezium(settings).encode(inserted)
    assert payload(record.value)["transaction"] == {
        "id": "731:23803720",
        "total_order": 5,
        "data_collection_order": 2,
    }
    with pytest.raises(ValueRefused, match="nobody has counted"):
        debezium(settings).encode(event(EventOp.INSERT, after={"id": 1}, transaction=Transaction("731", 5)))


@pytest.mark.parametrize(
    ("snapshot", "word"),
    [
        ("", "true"),
        ("1:", "true"),
        ("1:first", "first_in_data_collection"),
        ("last", "last_in_data_collection"),
        ("2:last", "incremental"),
    ],
)
def test_a_row_of_a_snapshot_says_where_in_it_it_stands(snapshot: str, word: str) -> None:
    read = event(EventOp.READ, after={"id": 1}, transaction=None, commit_time=None, snapshot=snapshot)
    (record,) = debezium().encode(read)
    source = payload(record.value)["source"]
    assert (source["snapshot"], source["ts_us"], source["txId"]) == (word, NOW_NS // 1000, None)


def test_a_truncate_has_no_key_and_no_row() -> None:
    (record,) = debezium().encode(event(EventOp.TRUNCATE))
    assert record.key is None
    assert payload(record.value)["op"] == "t"


def test_a_schema_change_has_no_record() -> None:
    assert debezium().encode(event(EventOp.SCHEMA)) == []


def test_a_message_of_the_application_has_its_prefix_as_key() -> None:
    (record,) = debezium().encode(EVENTS["message"])
    assert record.key == b'{"prefix":"p"}'
    found = payload(record.value)
    assert found["message"] == {"prefix": "p", "content": "AP8="}
    assert (found["op"], found["source"]["table"]) == ("m", "")


NUMBERS = TableSchema("public", "n", (KEYED.columns[0], Column("v", ColumnType(Kind.NUMERIC, "numeric"), 2)), ("id",))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_connect_has_no_place_for_is_refused_with_its_column(value: str) -> None:
    inserted = event(EventOp.INSERT, after={"id": 1, "v": value}, schema=NUMBERS)
    with pytest.raises(ValueRefused, match=r"column public.n.v \(numeric\): NaN and the infinities") as refused:
        debezium().encode(inserted)
    assert refused.value.table == "public.n"
    assert refused.value.hint == "use decimals: string"
    strings = DebeziumSettings("shop", "db", schemas=False, decimals=Decimals.STRING)
    (record,) = debezium(strings).encode(inserted)
    assert payload(record.value)["after"]["v"] in ("NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY")


def test_a_value_that_was_not_sent_is_refused_where_no_placeholder_is_possible() -> None:
    updated = event(EventOp.UPDATE, after={"id": 1}, unchanged=("v",), schema=NUMBERS)
    with pytest.raises(ValueRefused, match=r"column public.n.v was not sent"):
        debezium().encode(updated)


def test_a_matrix_is_refused_where_debezium_would_send_nulls() -> None:
    matrix = ColumnType(Kind.ARRAY, "integer[]", element=ColumnType(Kind.INT32, "integer"))
    schema = TableSchema("public", "m", (KEYED.columns[0], Column("v", matrix, 2)), ("id",))
    with pytest.raises(ValueRefused, match="several dimensions"):
        debezium().encode(event(EventOp.INSERT, after={"id": 1, "v": [[1], [2]]}, schema=schema))


def test_floats_of_32_bits_have_no_more_digits_than_they_need() -> None:
    single = TableSchema("public", "f", (KEYED.columns[0], Column("v", ColumnType(Kind.FLOAT32), 2)), ("id",))
    value = 0.10000000149011612
    (record,) = debezium().encode(event(EventOp.INSERT, after={"id": 1, "v": value}, schema=single))
    assert payload(record.value)["after"]["v"] == 0.1
    (line,) = JsonCodec().encode(event(EventOp.INSERT, after={"id": 1, "v": value}, schema=single))
    assert line.value is not None
    read = JsonCodec.decode(line.value, single).after
    assert read is not None
    assert math.isclose(read["v"], value, rel_tol=0)


def test_decimals_keep_their_digits() -> None:
    schema = TableSchema("public", "d", (KEYED.columns[0], Column("v", SAMPLES["decimal"].type, 2)), ("id",))
    (line,) = JsonCodec().encode(event(EventOp.INSERT, after={"id": 1, "v": Decimal("12.50")}, schema=schema))
    assert payload(line.value)["after"]["v"] == "12.50"


# --- CloudEvents


def test_a_cloud_event_has_the_attributes_of_debeziums_converter() -> None:
    codec = CloudEventsCodec(SHOP, lambda: NOW_NS)
    (record,) = codec.encode(event(EventOp.INSERT, after={"id": 1, "note": "x"}))
    assert record.key == b'{"id":1}'
    assert payload(record.value) == {
        "id": "name:shop;lsn:23803720;txId:731;number:1;op:c",
        "source": "/debezium/postgresql/shop",
        "specversion": "1.0",
        "type": "io.debezium.connector.postgresql.DataChangeEvent",
        "time": "2024-02-29T23:59:59.500Z",
        "datacontenttype": "application/json",
        "iodebeziumop": "c",
        "iodebeziumversion": "0.1.0",
        "iodebeziumconnector": "postgresql",
        "iodebeziumname": "shop",
        "iodebeziumtsms": "1709251199500",
        "iodebeziumsnapshot": "false",
        "iodebeziumdb": "db",
        "iodebeziumtsus": "1709251199500000",
        "iodebeziumtsns": "1709251199500000000",
        "iodebeziumschema": "public",
        "iodebeziumtable": "orders",
        "iodebeziumlsn": "23803720",
        "iodebeziumtxid": "731:23803720",
        "iodebeziumtxtotalorder": "1",
        "iodebeziumtxdatacollectionorder": "1",
        "data": {"before": None, "after": {"id": 1, "note": "x"}},
    }


def test_cloud_events_of_one_stream_have_ids_of_their_own() -> None:
    """A changed key is two; rows of a snapshot have their key, or something new where there is none."""
    codec = CloudEventsCodec(SHOP, lambda: NOW_NS)
    moved = event(EventOp.UPDATE, before={"id": 1}, after={"id": 2, "note": "x"})
    reads = [event(EventOp.READ, after={"id": n}, transaction=None, commit_time=None) for n in (1, 2)]
    keyless = TableSchema("public", "log", KEYED.columns)
    same = Event(EventOp.READ, "public.log", None, None, {"id": 1}, "0/1", None, None, schema=keyless)
    records = [record for each in (moved, *reads, same, same) for record in codec.encode(each)]
    ids = [payload(record.value)["id"] for record in records if record.value is not None]
    assert len(ids) == len(set(ids)) == 6
    assert codec.encode(reads[0]) == codec.encode(reads[0])


def test_names_of_cloud_event_attributes_are_lower_case() -> None:
    for each in EVENTS.values():
        for record in CloudEventsCodec(SHOP, lambda: NOW_NS).encode(each):
            if record.value is not None:
                assert all(re.fullmatch("[a-z0-9]+", name) for name in payload(record.value))


def test_a_transaction_without_a_time_has_that_of_writing() -> None:
    told = TOLD.set_column(1, "_commit_time", pa.array([None, 0], TOLD.schema.field("_commit_time").type))
    changes = replace(changes_of(KEYED, [Op.INSERT] * 2, [pa.array([1, 2]), pa.array(["a", "b"])]), transactions=told)
    found = debezium().encode_changes(changes, facts_of(changes)).values.to_pylist()
    assert [payload(value)["source"]["ts_us"] for value in found] == [NOW_NS // 1000, 0]
    assert [payload(value)["source"]["ts_ns"] for value in found] == [NOW_NS // 1000 * 1000, 0]
