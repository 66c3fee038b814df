"""Single payloads with a schema of Connect, in the format that a user chose: what is written now and then."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.debezium.values import array_of
from tailrace.codecs.registry.client import RegistrySchema, open_registry
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.registry.subjects import header_of, subject_of
from tailrace.codecs.settings import CodecSettings, Format
from tailrace.codecs.wire.avro import AvroWire
from tailrace.codecs.wire.avro_schema import avro_of, full_name
from tailrace.codecs.wire.json_schema import json_schema_of
from tailrace.codecs.wire.parts import Wire, join
from tailrace.codecs.wire.proto_schema import proto_of
from tailrace.codecs.wire.protobuf import ProtobufWire


class Payloads:
    def __init__(self, settings: CodecSettings) -> None:
        self._format, self._registry = settings.format, settings.registry

    def write(self, topic: str, part: str, schema: Schema, payload: dict[str, Any]) -> bytes:
        """`part` is key or value."""
        if self._registry is not None:
            return self._registered(self._registry, topic, part, schema, payload)
        return encode({"schema": schema, "payload": payload} if self._format is Format.JSON_SCHEMAS else payload)

    def _registered(
        self, own: RegistrySettings, topic: str, part: str, schema: Schema, payload: dict[str, Any]
    ) -> bytes:
        text, content = self._written(schema, payload)
        subject = subject_of(own.subjects, topic, full_name(schema["name"]), part)
        return header_of(open_registry(own).id_of(subject, text)) + content

    def _written(self, schema: Schema, payload: dict[str, Any]) -> tuple[RegistrySchema, bytes]:
        match self._format:
            case Format.AVRO:
                text = RegistrySchema("AVRO", encode(avro_of(schema)).decode())
                return text, _bytes(AvroWire(), schema, payload)
            case Format.PROTOBUF:
                text = RegistrySchema("PROTOBUF", proto_of(schema, {}))
                return text, b"\x00" + _bytes(ProtobufWire({}), schema, payload)
            case _:
                return RegistrySchema("JSON", encode(json_schema_of(schema)).decode()), encode(payload)


def _bytes(wire: Wire, schema: Schema, payload: dict[str, Any]) -> bytes:
    found: bytes = join(wire.contents(schema, array_of([payload], schema)), 1)[0].as_py()
    return found
