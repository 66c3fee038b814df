"""What a Kafka sink has of its own in the pipeline file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from tailrace import config
from tailrace.codecs.debezium.settings import PLACEHOLDER, Binary, Decimals, Intervals
from tailrace.codecs.registry.settings import RegistrySettings
from tailrace.codecs.settings import CodecSettings, Format, Shape
from tailrace.errors import ConfigError

MIB = 1024 * 1024
TOPIC = "{prefix}.{schema}.{table}"


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Security(StrEnum):
    """`security.protocol`."""

    PLAINTEXT = "plaintext"
    SSL = "ssl"
    SASL_PLAINTEXT = "sasl_plaintext"
    SASL_SSL = "sasl_ssl"


class Mechanism(StrEnum):
    """`sasl.mechanism`."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


OURS = frozenset(
    {
        "bootstrap.servers",
        "transactional.id",
        "enable.idempotence",
        "isolation.level",
        "group.id",
        "partitioner",
        "acks",
        "request.required.acks",
        "delivery.report.only.error",
        "allow.auto.create.topics",
        "transaction.timeout.ms",
    }
)
"""What nobody else may set: exactly once depends on it."""


class KafkaSettings(config.Settings, frozen=True):
    """A sink of messages: Kafka."""

    shape: Annotated[Shape, Meta(description="`debezium` envelopes, `flat` rows or `cloudevents`")] = Shape.DEBEZIUM
    format: Annotated[
        Format,
        Meta(
            description="`json`, `json-schemas` (each message with its schema), or with a registry `avro`,"
            " `jsonschema` or `protobuf`"
        ),
    ] = Format.JSON
    registry: Annotated[RegistrySettings | None, Meta(description="the schema registry")] = None
    decimals: Annotated[Decimals, Meta(description="decimal.handling.mode: precise, string or double")] = (
        Decimals.PRECISE
    )
    binary: Annotated[Binary, Meta(description="binary.handling.mode: bytes, base64, base64-url-safe or hex")] = (
        Binary.BYTES
    )
    intervals: Annotated[Intervals, Meta(description="interval.handling.mode: numeric or string")] = Intervals.NUMERIC
    placeholder: Annotated[
        str, Meta(min_length=1, description="what stands for a value that the source did not send")
    ] = PLACEHOLDER
    tombstones: Annotated[bool, Meta(description="whether a delete is followed by an empty message of its key")] = True
    transactions: Annotated[
        bool,
        Meta(
            description="provide.transaction.metadata: where transactions begin and end, in the topic"
            " {prefix}.transaction, and in each envelope its place in one"
        ),
    ] = False
    schema_changes: Annotated[
        bool, Meta(description="include.schema.changes: how tables look from now on, in the topic {prefix}")
    ] = False
    heartbeat_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400_000,
            description="heartbeat.interval.ms: how often to tell that the stream lives, in the topic"
            " __debezium-heartbeat.{prefix}; 0 is never",
        ),
    ] = 0
    prefix: Annotated[
        str,
        Meta(
            pattern="^[A-Za-z0-9._-]{0,100}$",
            description="what `{prefix}` is in names of topics, and Debezium's topic.prefix; default: the pipeline's"
            " name",
        ),
    ] = ""
    topic: Annotated[
        str,
        Meta(min_length=1, description="the topic of a table: a name with {prefix}, {schema} and {table} in it"),
    ] = TOPIC
    partitions: Annotated[int, Meta(ge=1, le=100_000, description="partitions of a topic that is made")] = 1
    replication: (
        Annotated[int, Meta(ge=1, le=100, description="replicas of a topic that is made; default: the broker's")] | None
    ) = None
    cleanup_policy: Annotated[
        str,
        Meta(pattern="^(delete|compact|compact,delete)$", description="cleanup.policy of a topic that is made"),
    ] = "delete"
    topic_settings: Annotated[
        dict[str, str | int | bool], Meta(description="other settings of a topic that is made, as Kafka names them")
    ] = {}
    keys: Annotated[
        dict[str, tuple[str, ...]],
        Meta(description="source table (schema.name): the columns of its messages' key; default: its primary key"),
    ] = {}
    state_topic: Annotated[
        str,
        Meta(pattern="^([A-Za-z0-9._-]{1,249})?$", description="the compacted topic with what the sink remembers"),
    ] = ""
    quarantine_topic: Annotated[
        str,
        Meta(
            pattern="^([A-Za-z0-9._-]{1,249})?$",
            description="the compacted topic of changes that are too large, with `on_error: quarantine`",
        ),
    ] = ""
    compression: Annotated[Compression, Meta(description="none, gzip, snappy, lz4 or zstd")] = Compression.LZ4
    linger_ms: Annotated[int, Meta(ge=0, le=900_000, description="how long a batch of messages waits for more")] = 5
    batch_bytes: Annotated[int, Meta(ge=1024, le=2_000_000_000, description="how large a batch of messages is")] = MIB
    message_max_bytes: Annotated[
        int, Meta(ge=1000, le=1_000_000_000, description="the largest message; the broker and the topic have their own")
    ] = 1_000_000
    transaction_timeout_seconds: Annotated[
        int,
        Meta(
            ge=10, le=86_400, description="when the broker breaks off a transaction; at most transaction.max.timeout.ms"
        ),
    ] = 900
    security: (
        Annotated[
            Security, Meta(description="plaintext, ssl, sasl_plaintext or sasl_ssl; default: by what the URL says")
        ]
        | None
    ) = None
    sasl_mechanism: Annotated[Mechanism, Meta(description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")] = Mechanism.PLAIN
    ca_file: Annotated[str, Meta(min_length=1, description="certificates that are trusted")] | None = None
    certificate_file: Annotated[str, Meta(min_length=1, description="our own certificate, for mTLS")] | None = None
    key_file: Annotated[str, Meta(min_length=1, description="the key of our own certificate")] | None = None
    key_password: Annotated[str, Meta(description="of `key_file`")] | None = None
    verify_certificate: Annotated[bool, Meta(description="whether a broker's certificate has to be trusted")] = True
    options: Annotated[
        dict[str, str | int | bool], Meta(description="other settings of the client, as librdkafka names them")
    ] = {}

    def __post_init__(self) -> None:
        self.codec()  # says what does not go together
        for name in self.options:
            if name in OURS:
                raise ConfigError(f"options.{name} is not to be set: exactly once depends on it")
        for name in ("{schema}", "{table}"):
            if name not in self.topic:
                raise ConfigError(
                    f"topic has no {name} in it: tables would share a topic", hint=f"write {TOPIC}, or the like"
                )

    @property
    def largest_message(self) -> int:
        """As the client takes it, whichever way the file says it."""
        return int(self.options.get("message.max.bytes", self.message_max_bytes))

    def codec(self) -> CodecSettings:
        return CodecSettings(
            shape=self.shape,
            format=self.format,
            registry=self.registry,
            tombstones=self.tombstones,
            transactions=self.transactions,
            decimals=self.decimals,
            binary=self.binary,
            intervals=self.intervals,
            placeholder=self.placeholder,
        )
