"""The section of a source or a sink: what all have, and beside it what the kind of its URL has of its own.

The file has both in one mapping. What is the kind's own is `config.Settings` that its class declares, found by the
scheme of the URL; above the connector nobody reads it. So it travels as it was written, checked, in `own`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from tailrace import registry
from tailrace.config.sections import Section, Settings, build, keys


class Connector(Section, frozen=True, kw_only=True):
    """Its own keys are checked when the file is read; if the connector is not installed here, when it is used."""

    group: ClassVar[str]
    own: Annotated[dict[str, Any], Meta(description="what the kind of the URL has of its own")] = {}


C = TypeVar("C", bound=Connector)


def common_keys(section: type[Connector]) -> dict[str, FieldInfo]:
    """What all sources have, or all sinks. `own` is no key of the file."""
    return {key: field for key, field in keys(section).items() if key != "own"}


def keys_of(section: type[Connector], mapping: Mapping[Any, Any]) -> dict[str, FieldInfo]:
    """What this mapping may hold, by its URL."""
    common, url = common_keys(section), mapping.get("url")
    if not isinstance(url, str):  # that is the first thing to mend: a key of any kind is no mistake yet
        return common | {key: field for kind in installed(section).values() for key, field in keys(kind).items()}
    kind = settings_type(section, url)
    if kind is None:
        return {key: FieldInfo(key, key, Any, default=None) for key in mapping if key != "own"} | common
    return common | keys(kind)


def build_connector(section: type[C], values: Mapping[str, Any]) -> C:
    """The section of values that are what `keys_of` says. Raises ConfigError if they do not go together."""
    own = {key: value for key, value in values.items() if key not in common_keys(section)}
    if (kind := settings_type(section, values["url"])) is not None:
        build(kind, own)
    return msgspec.structs.replace(build(section, values), own=msgspec.to_builtins(own))


def whose(section: type[Connector], key: str) -> str | None:
    """Where a key that is unknown here would be known, as a sentence."""
    schemes = [f"{scheme}://" for scheme, kind in installed(section).items() if key in keys(kind)]
    return f"`{key}` is a setting of {', '.join(schemes)} and of no other" if schemes else None


def settings_type(section: type[Connector], url: str) -> type[Settings] | None:
    """What the connector of a URL declares; None if it is not installed here."""
    found = registry.installed_class(section.group, url)
    if found is None:
        return None
    kind = found.settings_type
    if taken := keys(kind).keys() & common_keys(section).keys():
        raise TypeError(f"{kind.__name__} has {', '.join(sorted(taken))}, which every {section.__name__} has already")
    return kind


def installed(section: type[Connector]) -> dict[str, type[Settings]]:
    """What each connector that can be imported declares, by its scheme. The others may be nobody's concern."""
    found: dict[str, type[Settings] | None] = {}
    for scheme in registry.schemes(section.group):
        with suppress(Exception):
            found[scheme] = settings_type(section, f"{scheme}:")
    return {scheme: kind for scheme, kind in found.items() if kind is not None}
