"""What is told beside the changes, in Debezium's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.codecs.control import Alteration, ControlCodec
from tailrace.codecs.settings import CodecSettings, Format, StreamName
from tailrace.testing.codec_contract import KEYED

NOW_NS = 1_709_251_200_123_456_789
AT_US = 1_709_251_199_500_000


def control(format_: Format = Format.JSON) -> ControlCodec:
    return ControlCodec(CodecSettings(format=format_), StreamName("shop", "db", "postgresql"), lambda: NOW_NS)


def read(value: bytes | None) -> Any:
    return json.loads(value or b"")


def test_the_topics_are_named_as_debezium_names_them() -> None:
    codec = control()
    assert codec.transaction_topic == "shop.transaction"
    assert codec.heartbeat_topic == "__debezium-heartbeat.shop"
    assert codec.schema_topic == "shop"


def test_a_transaction_begins_and_ends() -> None:
    begin = control().begin("731", "0/16B3748", AT_US)
    end = control().end("731", "0/16B3748", AT_US, {"public.orders": 2, "public.lines": 5})
    assert read(begin.key) == read(end.key) == {"id": "731:23803720"}
    assert read(begin.value) == {
        "status": "BEGIN",
        "id": "731:23803720",
        "event_count": None,
        "data_collections": None,
        "ts_ms": 1709251199500,
    }
    assert read(end.value) == {
        "status": "END",
        "id": "731:23803720",
        "event_count": 7,
        "data_collections": [
            {"data_collection": "public.orders", "event_count": 2},
            {"data_collection": "public.lines", "event_count": 5},
        ],
        "ts_ms": 1709251199500,
    }


def test_a_heartbeat_says_when() -> None:
    record = control().heartbeat()
    assert (read(record.key), read(record.value)) == ({"serverName": "shop"}, {"ts_ms": NOW_NS // 1_000_000})


def test_a_schema_change_says_how_the_table_looks() -> None:
    record = control().schema_change(KEYED, Alteration.ALTER, "0/16B3748", AT_US, "731")
    assert read(record.key) == {"databaseName": "db"}
    value = read(record.value)
    (change,) = value["tableChanges"]
    assert (change["type"], change["id"]) == ("ALTER", '"public"."orders"')
    assert change["table"]["primaryKeyColumnNames"] == ["id"]
    assert [(c["name"], c["jdbcType"], c["typeName"]) for c in change["table"]["columns"]] == [
        ("id", -5, "bigint"),
        ("note", 12, "text"),
    ]
    assert (value["source"]["lsn"], value["schemaName"], value["ddl"]) == (23803720, "public", None)


def test_a_dropped_table_has_no_columns() -> None:
    record = control().schema_change(KEYED, Alteration.DROP, "0/16B3748", AT_US)
    assert read(record.value)["tableChanges"][0]["table"] is None


@pytest.mark.parametrize("what", ["begin", "heartbeat", "schema"])
def test_a_schema_describes_every_field(what: str) -> None:
    codec = control(Format.JSON_SCHEMAS)
    record = {
        "begin": lambda: codec.begin("731", "0/16B3748", AT_US),
        "heartbeat": codec.heartbeat,
        "schema": lambda: codec.schema_change(KEYED, Alteration.CREATE, "0/16B3748", AT_US),
    }[what]()
    for part in (record.key, record.value):
        whole = read(part)
        assert_described(whole["payload"], whole["schema"])


def assert_described(value: Any, schema: dict[str, Any]) -> None:
    if value is None:
        assert schema["optional"]
    elif schema["type"] == "struct":
        assert sorted(value) == sorted(field["field"] for field in schema["fields"])
        for field in schema["fields"]:
            assert_described(value[field["field"]], field)
    elif schema["type"] == "array":
        for each in value:
            assert_described(each, schema["items"])
