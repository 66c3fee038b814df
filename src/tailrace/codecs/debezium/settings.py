"""What a user may choose of the envelope, named as Debezium names it where it has a name."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PLACEHOLDER = "__debezium_unavailable_value"


class Decimals(StrEnum):
    """`decimal.handling.mode`."""

    PRECISE = "precise"
    STRING = "string"
    DOUBLE = "double"


class Binary(StrEnum):
    """`binary.handling.mode`."""

    BYTES = "bytes"
    BASE64 = "base64"
    BASE64_URL_SAFE = "base64-url-safe"
    HEX = "hex"


class Intervals(StrEnum):
    """`interval.handling.mode`. Numbers are approximate: a month has 30.4375 days."""

    NUMERIC = "numeric"
    STRING = "string"


class DebeziumSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` is Debezium's `topic.prefix`, `database` the one that is captured, `connector` the kind of the source.

    `schemas` puts the schema beside every payload, as Kafka Connect's JSON converter does unless told otherwise.
    """

    name: str
    database: str
    connector: str = "postgresql"
    version: str = ""  # of whoever writes; tailrace's own if it is empty
    schemas: bool = True
    tombstones: bool = True
    transactions: bool = False  # `provide.transaction.metadata`
    decimals: Decimals = Decimals.PRECISE
    binary: Binary = Binary.BYTES
    intervals: Intervals = Intervals.NUMERIC
    placeholder: str = PLACEHOLDER
