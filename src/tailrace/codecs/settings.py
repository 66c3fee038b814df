"""What a user chooses of the records that a stream sink writes: their shape, and the format of the bytes."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tailrace.codecs.debezium.settings import PLACEHOLDER, Binary, DebeziumSettings, Decimals, Intervals
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.errors import ConfigError


class Shape(StrEnum):
    DEBEZIUM = "debezium"
    FLAT = "flat"
    CLOUDEVENTS = "cloudevents"


class Format(StrEnum):
    """`json-schemas` puts a schema beside every payload, as Kafka Connect's JSON converter does."""

    JSON = "json"
    JSON_SCHEMAS = "json-schemas"
    AVRO = "avro"
    JSON_SCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


REGISTERED = frozenset({Format.AVRO, Format.JSON_SCHEMA, Format.PROTOBUF})
"""Formats whose schemas are in a registry."""


class StreamName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where changes come from: Debezium's `topic.prefix`, the captured database, and the source's kind."""

    prefix: str
    database: str
    connector: str


class CodecSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shape: Shape = Shape.DEBEZIUM
    format: Format = Format.JSON
    registry: RegistrySettings | None = None
    tombstones: bool = True
    transactions: bool = False
    decimals: Decimals = Decimals.PRECISE
    binary: Binary = Binary.BYTES
    intervals: Intervals = Intervals.NUMERIC
    placeholder: str = PLACEHOLDER

    def __post_init__(self) -> None:
        if self.format in REGISTERED and self.registry is None:
            raise ConfigError(f"format: {self.format} needs a schema registry", hint="add registry: {url: http://…}")
        if self.format not in REGISTERED and self.registry is not None:
            raise ConfigError(f"registry is of no use with format: {self.format}", hint=f"choose one of {_NAMES}")
        if self.shape is Shape.CLOUDEVENTS and self.format in REGISTERED:
            raise ConfigError(
                f"shape: cloudevents is written as JSON, and not as {self.format}",
                hint="use format: json or json-schemas, or shape: debezium",
            )

    def of(self, stream: StreamName) -> DebeziumSettings:
        return DebeziumSettings(
            name=stream.prefix,
            database=stream.database,
            connector=stream.connector,
            schemas=self.format is Format.JSON_SCHEMAS,
            tombstones=self.tombstones,
            transactions=self.transactions,
            decimals=self.decimals,
            binary=self.binary,
            intervals=self.intervals,
            placeholder=self.placeholder,
        )


_NAMES = ", ".join(sorted(REGISTERED))
