"""Connectors that somebody else might write, as far as the pipeline file goes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from tailrace import config
from tailrace.errors import ConfigError


class Login(config.Settings, frozen=True):
    user: str
    password: str = ""


class BrookSettings(config.Settings, frozen=True):
    """A source with something of everything."""

    server_id: Annotated[int, Meta(ge=1, le=99, description="a number that no other replica has")]
    buffer_bytes: Annotated[int, Meta(ge=1024, description="how much is read at once")] = 1 << 20
    mode: Annotated[Literal["gtid", "file", "both"], Meta(description="what places are made of")] = "gtid"
    logins: Annotated[dict[str, Login], Meta(description="by host")] = {}
    hosts: Annotated[tuple[str, ...], Meta(description="where it may be")] = ()
    admin: Login | None = None

    def __post_init__(self) -> None:
        if self.mode == "file" and self.hosts:
            raise ConfigError("`mode: file` has a place on one host only", hint="remove `hosts`")


class BrookSource:
    settings_type = BrookSettings


class LakeSettings(config.Settings, frozen=True):
    format: Annotated[str, Meta(description="`json` or `avro`")]
    api_key: str = ""


class LakeSink:
    settings_type = LakeSettings


class GreedySettings(config.Settings, frozen=True):
    max_rows: int = 1


class GreedySink:
    settings_type = GreedySettings
