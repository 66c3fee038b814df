"""The JSON Schema of the pipeline file, for editors: the structs of `config.pipeline`, with what connectors add."""

from __future__ import annotations

from typing import Any

import msgspec

from tailrace.config.connectors import Connector, installed
from tailrace.config.pipeline import Pipeline, Sink, Source
from tailrace.config.sections import Section, Settings, keys
from tailrace.config.shorthand import with_shorthand
from tailrace.config.sizes import is_size

REFERENCE = "#/$defs/{name}"

Schema = dict[str, Any]


def json_schema() -> Schema:
    """A source or a sink may hold the keys of the kind that its URL names. One that lacks its driver here adds none."""
    kinds = {section: _kinds(section) for section in (Source, Sink)}
    named: list[type[Section]] = [Pipeline, *kinds, *(kind for each in kinds.values() for kind in each)]
    found, definitions = msgspec.json.schema_components(named, ref_template=REFERENCE)
    names = {each: reference["$ref"].rpartition("/")[2] for each, reference in zip(named, found, strict=True)}
    for section, schemes in kinds.items():
        common = definitions[names[section]]
        del common["properties"]["own"]
        owns = [(definitions.pop(names[kind]), each) for kind, each in schemes.items()]
        definitions |= _variants(names[section], common, owns) if owns else {}
    for definition in definitions.values():
        properties = definition.get("properties", {})
        properties |= {key: _size_or_text(value) for key, value in properties.items() if is_size(key)}
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "tailrace pipeline", **found[0], "$defs": with_shorthand(definitions)}


def _kinds(section: type[Connector]) -> dict[type[Settings], list[str]]:
    """The kinds of sources or sinks that have keys of their own, with their schemes."""
    schemes: dict[type[Settings], list[str]] = {}
    for scheme, kind in installed(section).items():
        if keys(kind):
            schemes.setdefault(kind, []).append(scheme)
    return schemes


def _variants(name: str, common: Schema, owns: list[tuple[Schema, list[str]]]) -> dict[str, Schema]:
    """A definition for each kind that has keys of its own, one for all others, and under `name` the choice."""
    variants = {
        f"{schemes[0].capitalize()}{name}": _variant(common, own, f"^(?:{'|'.join(schemes)}):") for own, schemes in owns
    }
    known = "|".join(scheme for _, schemes in owns for scheme in schemes)
    variants[f"Other{name}"] = _variant(common, {}, rf"^(?!(?:{known}):)[a-z][a-z0-9+.-]*:")
    return {**variants, name: {"anyOf": [{"$ref": REFERENCE.format(name=each)} for each in variants]}}


def _variant(common: Schema, own: Schema, url: str) -> Schema:
    properties = {**common["properties"], **own.get("properties", {})}
    properties["url"] = {**properties["url"], "pattern": url}
    required = [*common["required"], *own.get("required", [])]
    return {**common, **own, "title": common["title"], "properties": properties, "required": required}


def _size_or_text(schema: Schema) -> Schema:
    number = {key: schema[key] for key in ("type", "minimum") if key in schema}
    return {**{key: value for key, value in schema.items() if key not in number}, "anyOf": [number, {"type": "string"}]}
