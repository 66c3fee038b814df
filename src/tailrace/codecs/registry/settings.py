"""What a user says of a schema registry."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tailrace.errors import ConfigError


class Subjects(StrEnum):
    """What a schema is filed under: Confluent's TopicName-, RecordName- and TopicRecordNameStrategy."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic-record"


class Register(StrEnum):
    """`auto` registers each version of a table; `latest` registers nothing: what it needs has to be there."""

    AUTO = "auto"
    LATEST = "latest"


class RegistrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`url` up to where `/subjects` begins; `user` and `password`, or a bearer `token`; `ca` is a file of
    certificates, `certificate` and `key` those of the client. All pickle, and none is ever printed."""

    url: Annotated[str, Meta(description="where it is, up to where /subjects begins")]
    user: Annotated[str, Meta(description="who we are there")] = ""
    password: Annotated[str, Meta(description="of `user`")] = ""
    token: Annotated[str, Meta(description="a bearer token, in place of a user")] = ""
    subjects: Annotated[Subjects, Meta(description="what a schema is filed under: topic, record or topic-record")] = (
        Subjects.TOPIC
    )
    register: Annotated[
        Register, Meta(description="`auto` registers schemas, with `latest` what is needed has to be there")
    ] = Register.AUTO
    ca: Annotated[str, Meta(description="a file of certificates that are trusted")] = ""
    certificate: Annotated[str, Meta(description="our own certificate, for mTLS")] = ""
    key: Annotated[str, Meta(description="the key of our own certificate")] = ""
    timeout_seconds: Annotated[float, Meta(description="how long an answer is waited for")] = 30.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("registry.url has to begin with http:// or https://")
        if self.token and self.user:
            raise ConfigError("registry has a user and a token", hint="one of them is enough: delete the other")
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("registry.certificate and registry.key go together")

    def __repr__(self) -> str:
        return f"RegistrySettings(url={self.url!r}, subjects={self.subjects}, register={self.register})"
