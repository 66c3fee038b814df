"""How clients of a broker are configured, and what their failures mean for the pipeline.

What passes by itself is SinkUnavailable; what somebody has to allow, make or enlarge is SinkRejected, and says so.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import ConfigError, SinkError, SinkRejected, SinkTaken, SinkUnavailable
from tailrace.sinks.kafka.settings import KafkaSettings, Security

DEFAULT_PORT = 9092
SECONDS = 30.0
"""How long an answer is waited for."""

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "topic",  # only for making one, which a right on that topic allows, too
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
}
"""What the missing right is about, as `kafka-acls` calls it."""
UNTRUSTED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}
TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
REFUSED = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower transaction_timeout_seconds, or raise transaction.max.timeout.ms"
    " of the brokers",
    KafkaError.INVALID_REPLICATION_FACTOR: "set `replication` to no more than there are brokers",
    KafkaError.INVALID_PARTITIONS: "set `partitions`",
    KafkaError.INVALID_CONFIG: "correct `topic_settings`",
    KafkaError.POLICY_VIOLATION: "correct `partitions`, `replication` and `topic_settings`",
    KafkaError.TOPIC_EXCEPTION: "give the table another topic in `tables`",
}


class Address(msgspec.Struct, frozen=True):
    """Where the brokers are, and who we are there."""

    servers: str
    user: str
    password: str

    @classmethod
    def parse(cls, url: str, name: str) -> Address:
        rest = url.partition("://")[2].rstrip("/")
        user, _, hosts = rest.rpartition("@")
        places = [host if _has_port(host) else f"{host}:{DEFAULT_PORT}" for host in hosts.split(",")]
        if not all(hosts.split(",")) or any(mark in hosts for mark in "/?#"):
            raise ConfigError(f"sinks.{name}.url is not the address of brokers", hint="kafka://broker1:9092,broker2")
        login, _, password = user.partition(":")
        return cls(",".join(places), unquote(login), unquote(password))


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].partition(":")[2].isdigit()


def common(address: Address, settings: KafkaSettings) -> dict[str, Any]:
    """What every client of the sink has."""
    security = settings.security or (Security.SASL_PLAINTEXT if address.user else Security.PLAINTEXT)
    found: dict[str, Any] = {
        "bootstrap.servers": address.servers,
        "security.protocol": security.value,
        "log_level": 0,  # what fails is ours to tell
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
        "client.id": "tailrace",
    }
    if security in (Security.SASL_PLAINTEXT, Security.SASL_SSL):
        found |= {
            "sasl.mechanism": settings.sasl_mechanism.value,
            "sasl.username": address.user,
            "sasl.password": address.password,
        }
    if security in (Security.SSL, Security.SASL_SSL):
        found |= _trust(settings)
    return found | settings.options


def _trust(settings: KafkaSettings) -> dict[str, Any]:
    files = {
        "ssl.ca.location": settings.ca_file,
        "ssl.certificate.location": settings.certificate_file,
        "ssl.key.location": settings.key_file,
        "ssl.key.password": settings.key_password,
    }
    known: dict[str, Any] = {key: value for key, value in files.items() if value is not None}
    return known | {"enable.ssl.certificate.verification": settings.verify_certificate}


class Right(msgspec.Struct, frozen=True):
    """What a broker has to allow: an operation on a topic, a group or a transactional id."""

    operation: str
    name: str
    kind: str = "topic"

    @property
    def on(self) -> str:
        return f"{self.operation} on {self.kind.replace('-', ' ')} {self.name}"

    @property
    def command(self) -> str:
        """What gives it."""
        return f"kafka-acls --add --allow-principal User:... --operation {self.operation} --{self.kind} {self.name}"

    def missing(self, sink: str, doing: str, table: str | None = None) -> SinkRejected:
        message = f"sink {sink}: the broker does not allow {doing}: our user lacks {self.on}"
        return SinkRejected(message, hint=self.command, table=table)


def explained(
    error: Exception, sink: str, doing: str, table: str | None = None, right: Right | None = None
) -> SinkError:
    """What a failure means. A client's own words name topics and brokers, never a value.

    `right` is what `doing` needs on a topic; on a group or a transactional id it is that on the state topic's name.
    """
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if not isinstance(found, KafkaError):
        return SinkUnavailable(f"sink {sink} failed while {doing}: {error}")
    code = found.code()
    if code in FENCED:
        return SinkTaken(f"another run writes to sink {sink} now; this one must not any more")
    if code in FORBIDDEN and right is not None:
        return msgspec.structs.replace(right, kind=FORBIDDEN[code]).missing(sink, doing, table)
    if code in FORBIDDEN:
        return SinkRejected(f"sink {sink}: the broker does not allow {doing}: {found.str()}", table=table)
    if code in UNTRUSTED:
        return SinkRejected(f"sink {sink}: the broker does not know us while {doing}: {found.str()}")
    if code in REFUSED:
        return SinkRejected(f"sink {sink}: the broker refused {doing}: {found.str()}", hint=REFUSED[code], table=table)
    if code in TOO_LARGE:
        return SinkRejected(
            f"a message is larger than the broker takes while {doing}",
            hint="raise message_max_bytes here, and message.max.bytes of the broker or max.message.bytes of the topic",
            table=table,
        )
    return SinkUnavailable(f"sink {sink} did not answer while {doing}: {found.str()}")


def gone(topic: str, table: str | None, sink: str) -> SinkRejected:
    """A topic that was there is not, or is another one of the same name; without a `table` it is the state topic."""
    if table is None:
        return SinkRejected(f"topic {topic} is gone, and with it what sink {sink} remembers")
    return SinkRejected(
        f"topic {topic} is gone, and with it what it had of {table}",
        hint="the table is copied again into a new topic",
        table=table,
    )


def shared(topic: str, table: str, owner: str) -> SinkRejected:
    """Two tables do not share a topic unless the file says so."""
    return SinkRejected(
        f"{table} would have the topic {topic}, which is that of {owner}",
        hint="give one of them another topic in `tables`",
        table=table,
    )
