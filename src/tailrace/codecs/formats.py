"""Formats whose schemas are in a registry: how a schema of Connect is told, and how values are written."""

from __future__ import annotations

from typing import Protocol

from msgspec.json import encode

from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.flat.rows import FACTS
from tailrace.codecs.registry.client import RegistrySchema
from tailrace.codecs.wire.avro import AvroWire
from tailrace.codecs.wire.avro_schema import avro_of, full_name
from tailrace.codecs.wire.parts import Wire
from tailrace.codecs.wire.proto_schema import column_numbers, proto_of
from tailrace.codecs.wire.protobuf import ProtobufWire
from tailrace.model.schema import TableSchema


class RegisteredFormat(Protocol):
    name: str
    content_type: str
    behind_id: bytes  # what stands between a schema's number and the value

    def wire(self, schema: TableSchema, prefix: str) -> Wire:
        """For a table whose structs have names that begin with `prefix`."""

    def describe(self, own: Schema, schema: TableSchema) -> tuple[str, RegistrySchema]:
        """The full name of what `own` describes, and what is registered for it."""


class AvroFormat:
    name, content_type, behind_id = "Avro", "application/vnd.confluent.avro", b""

    def wire(self, schema: TableSchema, prefix: str) -> Wire:
        return AvroWire()

    def describe(self, own: Schema, schema: TableSchema) -> tuple[str, RegistrySchema]:
        return full_name(own["name"]), RegistrySchema("AVRO", encode(avro_of(own)).decode())


class ProtobufFormat:
    """A message is the first of its file, which one zero says."""

    name, content_type, behind_id = "Protobuf", "application/x-protobuf", b"\x00"

    def wire(self, schema: TableSchema, prefix: str) -> Wire:
        return ProtobufWire(column_numbers(schema, prefix, tuple(FACTS)))

    def describe(self, own: Schema, schema: TableSchema) -> tuple[str, RegistrySchema]:
        numbers = column_numbers(schema, own["name"].rpartition(".")[0], tuple(FACTS))
        return full_name(own["name"]), RegistrySchema("PROTOBUF", proto_of(own, numbers))
