"""Records in JSON whose JSON Schemas are in a registry: the same bytes as without one, behind the schema's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
from msgspec.json import encode

from tailrace.codecs.base import Encoded, Facts, Headers, Record
from tailrace.codecs.debezium.logical import Schema
from tailrace.codecs.registry.client import Registry, RegistrySchema
from tailrace.codecs.registry.subjects import header_of, subject_of
from tailrace.codecs.wire.json_schema import json_schema_of
from tailrace.codecs.wire.parts import join
from tailrace.errors import ValueRefused, about
from tailrace.model.changes import Changes
from tailrace.model.event import Event, EventOp
from tailrace.model.schema import TableSchema


class DescribedCodec(Protocol):
    """A codec of JSON that tells the schemas of Connect that its records have."""

    def encode(self, event: Event) -> list[Record]: ...
    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded: ...
    def schemas_of(self, schema: TableSchema) -> tuple[Schema | None, Schema]:
        """Of keys, where the table has one, and of values."""


Heads = tuple[bytes, bytes]


class RegisteredJsonCodec:
    content_type = "application/vnd.schemaregistry.v1+json"

    def __init__(self, inner: DescribedCodec, registry: Callable[[], Registry], topic: str) -> None:
        self._inner, self._registry, self._topic = inner, registry, topic
        self._tables: dict[TableSchema, Heads] = {}

    def table_of(self, schema: TableSchema) -> Heads:
        """What stands before keys and values of this version of the table."""
        found = self._tables.get(schema)
        if found is None:
            key, value = self._inner.schemas_of(schema)
            with about(schema.table):
                head = b"" if key is None else self._head(key, "key")
                found = self._tables[schema] = (head, self._head(value, "value"))
        return found

    def _head(self, own: Schema, part: str) -> bytes:
        registry = self._registry()
        subject = subject_of(registry.settings.subjects, self._topic, own["name"], part)
        return header_of(registry.id_of(subject, RegistrySchema("JSON", encode(json_schema_of(own)).decode())))

    def encode(self, event: Event) -> list[Record]:
        if event.op is EventOp.MESSAGE:
            raise ValueRefused("messages of applications can not be written as JSON with a registry")
        records = self._inner.encode(event)
        if not records or event.schema is None:
            return []
        key, value = self.table_of(event.schema)
        return [
            Record(each.key and key + each.key, each.value and value + each.value, _headers(key, each.headers))
            for each in records
        ]

    def encode_changes(self, changes: Changes, facts: Facts) -> Encoded:
        key, value = self.table_of(changes.schema)
        found = self._inner.encode_changes(changes, facts)
        headers = {record: _headers(key, own) for record, own in found.headers.items()}
        keys, values = _behind(key, found.keys), _behind(value, found.values)
        return Encoded(keys, values, found.change, headers)


def _behind(head: bytes, content: pa.BinaryArray) -> pa.BinaryArray:
    return join([head, content], len(content)) if head else content


def _headers(head: bytes, own: Headers) -> Headers:
    return tuple((name, head + key) for name, key in own)
