"""The mappings of the pipeline file as structs: what all of them have, and what a connector declares for its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import FieldInfo

from tailrace.config.urls import redact_setting

S = TypeVar("S", bound=msgspec.Struct)


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A mapping of the file. Its repr never shows a secret."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, redact_setting(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class Settings(Section, frozen=True):
    """What a kind of source or sink has of its own in its section of the file. Each subclasses it for itself.

    As in `config.pipeline`: types and `Meta` say what is allowed, a description is the hint of an error, and what ends
    in `_bytes` may be written as `64 MiB`. Names that all sources or all sinks have are taken. What can only be told of
    several keys together, `__post_init__` says with a ConfigError.
    """


def keys(section: type[msgspec.Struct]) -> dict[str, FieldInfo]:
    """What a section of the file may hold."""
    return {field.encode_name: field for field in msgspec.structs.fields(section)}


def build(section: type[S], values: Mapping[str, Any]) -> S:
    """The section that has these values under these keys."""
    return section(**{field.name: values[key] for key, field in keys(section).items() if key in values})
