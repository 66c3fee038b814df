"""Avro, JSON Schema and Protobuf keep the contract of codecs; others than we read them back."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from decimal import Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import jsonschema
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc

from tailrace.codecs.base import Codec
from tailrace.codecs.debezium.codec import DebeziumCodec
from tailrace.codecs.debezium.settings import Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.flat.codec import FlatCodec
from tailrace.codecs.formats import AvroFormat, ProtobufFormat
from tailrace.codecs.registered import RegisteredCodec
from tailrace.codecs.registered_json import RegisteredJsonCodec
from tailrace.codecs.registry.client import RegistrySchema
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.wire.envelopes import EnvelopeShape
from tailrace.codecs.wire.flat import FlatShape
from tailrace.errors import ValueRefused
from tailrace.testing.codec_contract import CodecContract, records_of, sample
from tailrace.testing.codec_events import facts_of
from tailrace.testing.sample_values import SAMPLES

NOW = 1_709_251_200_123_456_789
SETTINGS = {
    "default": DebeziumSettings("shop", "db"),
    "plain": DebeziumSettings("shop", "db", tombstones=False, transactions=True),
    "strings": DebeziumSettings("s", "db", decimals=Decimals.STRING, intervals=Intervals.STRING, binary=Binary.HEX),
    "doubles": DebeziumSettings("s", "db", decimals=Decimals.DOUBLE, binary=Binary.BASE64_URL_SAFE),
    "another source": DebeziumSettings("s", 'd"b', connector="outbox"),
}


class Remembered:
    """Schemas by number, without a server."""

    settings = RegistrySettings("http://nowhere")

    def __init__(self) -> None:
        self.schemas: list[RegistrySchema] = []

    def id_of(self, subject: str, schema: RegistrySchema) -> int:
        if schema not in self.schemas:
            self.schemas.append(schema)
        return self.schemas.index(schema)

    def of(self, message: bytes) -> RegistrySchema:
        assert message[0] == 0
        return self.schemas[int.from_bytes(message[1:5], "big")]


def shape_of(name: str) -> EnvelopeShape | FlatShape:
    kind, _, settings = name.partition(": ")
    if kind == "flat":
        return FlatShape(SETTINGS[settings])
    shape = EnvelopeShape(SETTINGS[settings])
    shape._codec.now_ns = lambda: NOW
    return shape


SHAPES = ["debezium: default", "debezium: plain", "debezium: another source", "flat: default"]


def read_avro(registry: Remembered, message: bytes) -> Any:
    rest = io.BytesIO(message[5:])
    schema = json.loads(registry.of(message).text)
    found = fastavro.schemaless_reader(rest, fastavro.parse_schema(schema), return_record_name=False)
    assert not rest.read()
    return found


class TestAvro(CodecContract):
    @pytest.fixture(params=SHAPES)
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        self.registry = Remembered()
        return RegisteredCodec(shape_of(request.param), AvroFormat(), lambda: self.registry, "t")

    def read(self, value: bytes) -> Any:
        found = read_avro(self.registry, value)
        if "_offset" in found:
            found["_offset"] = None
        return repr(found)  # a NaN is a NaN


class TestJsonSchema(CodecContract):
    @pytest.fixture(params=["debezium", "flat"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        self.registry = Remembered()
        plain = DebeziumSettings("shop", "db", schemas=False, transactions=True)
        flat, envelope = FlatCodec(plain, typed=True), DebeziumCodec(plain, lambda: NOW)
        return RegisteredJsonCodec(flat if request.param == "flat" else envelope, lambda: self.registry, "t")

    def read(self, value: bytes) -> Any:
        found, schema = json.loads(value[5:]), json.loads(self.registry.of(value).text)
        jsonschema.validate(found, schema, jsonschema.Draft7Validator)
        if "_offset" in found:
            found["_offset"] = None
        return repr(found)


class TestProtobuf(CodecContract):
    @pytest.fixture(params=["debezium: plain", "flat: default"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        self.registry = Remembered()
        return RegisteredCodec(shape_of(request.param), ProtobufFormat(), lambda: self.registry, "t")

    def read(self, value: bytes) -> Any:
        found = read_protobuf(self.registry, value)
        found.pop("_offset", None)
        return repr(found)


def read_protobuf(registry: Remembered, message: bytes) -> dict[str, Any]:
    assert message[5] == 0
    found = message_class(registry.of(message).text)()
    found.ParseFromString(message[6:])
    return plain_of(found)


def plain_of(message: Any) -> dict[str, Any]:
    """The fields that are there, in the order of their names."""
    told = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            told[field.name] = value
        elif isinstance(value, Message):
            told[field.name] = plain_of(value)
        else:
            told[field.name] = [plain_of(each) for each in value]
    return dict(sorted(told.items()))


@cache
def message_class(text: str) -> Any:
    """As protoc, who has not heard of us, understands the file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "t.proto").write_text(text)
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={folder}/t.bin", "t.proto"]) == 0, text
        (file,) = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "t.bin").read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = f"{file.package}.{file.message_type[0].name}" if file.package else file.message_type[0].name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


# --- values: what JSON with its schema beside it says, which the recorded records of Debezium hold


def said_in_json(value: Any, schema: dict[str, Any]) -> Any:
    """What Connect's JSON says, as a reader of Avro has it."""
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {field["field"]: said_in_json(value[field["field"]], field) for field in schema["fields"]}
        case "array":
            return [said_in_json(each, schema["items"]) for each in value]
        case "bytes" if schema.get("name", "").endswith("Decimal") and int(schema["parameters"]["scale"]) >= 0:
            number = int.from_bytes(base64.b64decode(value), "big", signed=True)
            return Decimal(number).scaleb(-int(schema["parameters"]["scale"]), Context(prec=200))
        case "bytes":
            return base64.b64decode(value)
        case "float":
            return float(np.float32(value))
        case "double":
            return float(value)
    return value


def in_protobuf(value: Any, schema: dict[str, Any]) -> Any:
    """What Connect's JSON says, as a reader of Protobuf has it: what is null is not there."""
    match schema["type"]:
        case "struct":
            fields = {field["field"]: field for field in schema["fields"] if value[field["field"]] is not None}
            return {name: in_protobuf(value[name], fields[name]) for name in sorted(fields)}
        case "array":
            items = [{} if each is None else {"value": in_protobuf(each, schema["items"])} for each in value]
            return {"items": items} if items else {}
        case "bytes" if schema.get("name") == "org.apache.kafka.connect.data.Decimal":
            told = schema["parameters"]
            precision, scale = int(told["connect.decimal.precision"]), int(told["scale"])
            return {"precision": precision, "scale": scale, "value": base64.b64decode(value)}
    return said_in_json(value, schema)


READERS = {
    "avro": (AvroFormat(), read_avro, said_in_json),
    "protobuf": (ProtobufFormat(), read_protobuf, in_protobuf),
}


@pytest.mark.parametrize("format_", READERS)
@pytest.mark.parametrize("settings", ["default", "strings", "doubles"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_format_says_what_json_with_its_schema_says(name: str, settings: str, format_: str) -> None:
    own, read, said = READERS[format_]
    changes, registry = sample(name), Remembered()
    codec = RegisteredCodec(shape_of(f"debezium: {settings}"), own, lambda: registry, "t")
    plain = DebeziumCodec(SETTINGS[settings], lambda: NOW)
    for row in range(len(changes)):
        one = changes.slice(row, row + 1)
        try:
            (record,) = records_of(plain.encode_changes(one, facts_of(one)))
        except ValueRefused:
            continue
        (found,) = records_of(codec.encode_changes(one, facts_of(one)))
        for json_, bytes_ in ((record.key, found.key), (record.value, found.value)):
            whole = json.loads(json_ or b"")
            expected = said(whole["payload"], whole["schema"])
            assert repr(read(registry, bytes_ or b"")) == repr(expected)
