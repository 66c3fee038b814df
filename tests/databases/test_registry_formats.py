"""Formats with a real schema registry: what is registered, read back by others than us, and what it refuses."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from itertools import count
from typing import Any
from urllib.error import HTTPError

import fastavro
import jsonschema
import msgspec
import pyarrow as pa
import pytest

from support.registry import SchemaRegistry
from tailrace.codecs.base import Record
from tailrace.codecs.control import Alteration, ControlCodec
from tailrace.codecs.opening import check_codec, open_codec
from tailrace.codecs.registry.client import Registry, RegistrySchema
from tailrace.codecs.registry.settings import Register, RegistrySettings, Subjects
from tailrace.codecs.settings import CodecSettings, Format, Shape, StreamName
from tailrace.errors import SinkRejected, SinkUnavailable
from tailrace.model.changes import Op
from tailrace.model.schema import Column, TableSchema
from tailrace.model.types import ColumnType, Kind
from tailrace.testing.codec_contract import KEYED, changes_of, records_of
from tailrace.testing.codec_events import facts_of
from tailrace.testing.plugin import requires
from tailrace.testing.processes import free_port

pytestmark = pytest.mark.server
SHOP = StreamName("shop", "db", "postgresql")
_numbers = count(1)


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with requires(SchemaRegistry.start) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def inserted(settings: CodecSettings, topic: str, schema: TableSchema = KEYED) -> Record:
    changes = changes_of(schema, [Op.INSERT], [pa.array([7]), pa.array(["x"])][: len(schema.columns)])
    codec = pickle.loads(pickle.dumps(open_codec(settings, SHOP, topic)))
    return records_of(codec.encode_changes(changes, facts_of(changes)))[0]


def schema_of(server: SchemaRegistry, message: bytes | None) -> str:
    """What the registry has for a message."""
    assert message is not None
    assert message[0] == 0
    return str(server.ask("GET", f"/schemas/ids/{int.from_bytes(message[1:5], 'big')}")["schema"])


def avro(server: SchemaRegistry, message: bytes | None) -> Any:
    schema = fastavro.parse_schema(json.loads(schema_of(server, message)))
    return fastavro.schemaless_reader(BytesIO((message or b"")[5:]), schema)


@pytest.mark.parametrize("shape", [Shape.DEBEZIUM, Shape.FLAT])
def test_avro_is_read_with_what_the_registry_has(registry: SchemaRegistry, topic: str, shape: Shape) -> None:
    record = inserted(CodecSettings(shape, Format.AVRO, RegistrySettings(registry.url)), topic)
    assert avro(registry, record.key) == {"id": 7}
    value = avro(registry, record.value)
    row = value["after"] if shape is Shape.DEBEZIUM else value
    assert (row["id"], row["note"]) == (7, "x")
    assert {f"{topic}-key", f"{topic}-value"} <= set(registry.ask("GET", "/subjects"))


def test_json_is_valid_by_the_schema_that_the_registry_has(registry: SchemaRegistry, topic: str) -> None:
    record = inserted(CodecSettings(format=Format.JSON_SCHEMA, registry=RegistrySettings(registry.url)), topic)
    value = json.loads((record.value or b"")[5:])
    jsonschema.validate(value, json.loads(schema_of(registry, record.value)))
    assert value["after"] == {"id": 7, "note": "x"}


def test_the_registry_takes_protobuf(registry: SchemaRegistry, topic: str) -> None:
    record = inserted(CodecSettings(format=Format.PROTOBUF, registry=RegistrySettings(registry.url)), topic)
    assert "message Envelope" in schema_of(registry, record.value)
    assert (record.value or b"")[5] == 0


@pytest.mark.parametrize("format_", [Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF])
def test_what_is_told_beside_the_changes_is_registered_too(
    registry: SchemaRegistry, topic: str, format_: Format
) -> None:
    settings = CodecSettings(format=format_, registry=RegistrySettings(registry.url))
    codec = ControlCodec(settings, StreamName(topic, "db", "postgresql"))
    end = codec.end("731", "0/16B3748", 1_709_251_199_500_000, {"public.orders": 2})
    assert "event_count" in schema_of(registry, end.value)
    codec.heartbeat()
    codec.schema_change(KEYED, Alteration.ALTER, "0/16B3748", 0)
    assert {f"{topic}.transaction-key", f"{topic}-value"} <= set(registry.ask("GET", "/subjects"))
    if format_ is Format.AVRO:
        assert avro(registry, end.value)["data_collections"] == [{"data_collection": "public.orders", "event_count": 2}]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Subjects.TOPIC, "{topic}-value"),
        (Subjects.RECORD, "shop.public.orders.Envelope"),
        (Subjects.TOPIC_RECORD, "{topic}-shop.public.orders.Envelope"),
    ],
)
def test_subjects_are_named_by_their_strategy(
    registry: SchemaRegistry, topic: str, strategy: Subjects, expected: str
) -> None:
    inserted(CodecSettings(format=Format.AVRO, registry=RegistrySettings(registry.url, subjects=strategy)), topic)
    assert expected.format(topic=topic) in registry.ask("GET", "/subjects")


def test_an_incompatible_schema_stops_with_subject_and_fix(registry: SchemaRegistry, topic: str) -> None:
    settings = CodecSettings(format=Format.AVRO, registry=RegistrySettings(registry.url))
    inserted(settings, topic)
    registry.ask("PUT", f"/config/{topic}-value", {"compatibility": "FULL"})
    changed = (KEYED.columns[0], Column("note", ColumnType(Kind.BOOLEAN, "boolean"), 2))
    other = TableSchema(KEYED.schema, KEYED.name, changed, KEYED.key)
    changes = changes_of(other, [Op.INSERT], [pa.array([7]), pa.array([True])])
    with pytest.raises(SinkRejected, match=f"subject {topic}-value: it is not compatible") as refused:
        open_codec(settings, SHOP, topic).encode_changes(changes, facts_of(changes))
    assert refused.value.table == "public.orders"
    assert f"/config/{topic}-value" in str(refused.value.hint)


def test_an_added_column_is_compatible_both_ways(registry: SchemaRegistry, topic: str) -> None:
    """What a table's next version needs most."""
    settings = CodecSettings(format=Format.AVRO, registry=RegistrySettings(registry.url))
    one = TableSchema(KEYED.schema, KEYED.name, KEYED.columns[:1], KEYED.key)
    inserted(settings, topic, one)
    registry.ask("PUT", f"/config/{topic}-value", {"compatibility": "FULL"})
    assert avro(registry, inserted(settings, topic).value)["after"] == {"id": 7, "note": "x"}


@pytest.mark.parametrize("format_", [Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF])
def test_nothing_is_registered_where_that_is_not_wanted(registry: SchemaRegistry, topic: str, format_: Format) -> None:
    auto = RegistrySettings(registry.url)
    latest = msgspec.structs.replace(auto, register=Register.LATEST)
    with pytest.raises(SinkRejected, match=f"no schema for subject {topic}-key"):
        inserted(CodecSettings(format=format_, registry=latest), topic)
    expected = inserted(CodecSettings(format=format_, registry=auto), topic)
    found = inserted(CodecSettings(format=format_, registry=latest), topic)
    assert (found.key, (found.value or b"")[:5]) == (expected.key, (expected.value or b"")[:5])


def test_the_latest_schema_may_have_remarks(registry: SchemaRegistry, topic: str) -> None:
    latest = RegistrySettings(registry.url, register=Register.LATEST)
    own = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    remarked = RegistrySchema("AVRO", json.dumps(own | {"doc": "by hand"}))
    number = Registry(RegistrySettings(registry.url)).id_of(f"{topic}-key", remarked)
    assert Registry(latest).id_of(f"{topic}-key", RegistrySchema("AVRO", json.dumps(own))) == number
    other = own | {"fields": [{"name": "id", "type": "string"}]}
    with pytest.raises(SinkRejected, match=f"latest schema of subject {topic}-key"):
        Registry(latest).id_of(f"{topic}-key", RegistrySchema("AVRO", json.dumps(other)))


def test_a_registry_that_is_not_there_is_waited_for() -> None:
    nobody = RegistrySettings(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnavailable, match="does not answer") as error:
        check_codec(CodecSettings(format=Format.AVRO, registry=nobody))
    assert error.value.retry


def test_a_page_that_is_no_registry_is_told(registry: SchemaRegistry) -> None:
    elsewhere = RegistrySettings(registry.url.replace("ccompat/v7", "nowhere"))
    with pytest.raises(SinkRejected, match="HTTP 404"):
        check_codec(CodecSettings(format=Format.AVRO, registry=elsewhere))


# --- who we are: a door before the real registry, for Apicurio's own needs an identity provider


@pytest.fixture
def door(registry: SchemaRegistry) -> Iterator[Callable[[str], str]]:
    """The address of the registry for those who say the right words."""
    servers: list[ThreadingHTTPServer] = []

    def open_door(words: str) -> str:
        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = 401, b"{}"
                if self.headers["Authorization"] == words:
                    try:
                        status, body = 200, json.dumps(registry.ask("GET", self.path)).encode()
                    except HTTPError as error:
                        status = error.code
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Door))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield open_door
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_user_and_a_token_are_sent(door: Callable[[str], str]) -> None:
    basic = door("Basic " + base64.b64encode(b"ann:s3cret").decode())
    Registry(RegistrySettings(basic, user="ann", password="s3cret")).ping()
    Registry(RegistrySettings(door("Bearer t0ken"), token="t0ken")).ping()
    with pytest.raises(SinkRejected, match="HTTP 401") as refused:
        Registry(RegistrySettings(basic, user="ann", password="wrong-one")).ping()
    assert "wrong-one" not in f"{refused.value} {refused.value.hint}"
