"""A schema of Kafka Connect as JSON Schema, with the properties that Confluent's JSON Schema converter gives it.

It describes the same JSON that is written without a registry: bytes are base64, and a number that JSON has no word for
is a string.
"""

from __future__ import annotations

from typing import Any

from tailrace.codecs.debezium.logical import Schema

_SIMPLE: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "int16": {"type": "integer"},
    "int32": {"type": "integer"},
    "int64": {"type": "integer"},
    "float": {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
    "double": {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
    "string": {"type": "string"},
    "bytes": {"type": "string"},
}
_UNTOLD = ("boolean", "string", "struct", "array")  # types that JSON has itself


def json_schema_of(schema: Schema) -> dict[str, Any]:
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | _type(schema)


def _type(schema: Schema) -> dict[str, Any]:
    kind = schema["type"]
    match kind:
        case "struct":
            found = _object(schema)
        case "array":
            found = {"type": "array", "items": _optional(schema["items"])}
        case simple:
            found = dict(_SIMPLE[simple])
    if kind not in _UNTOLD:
        found["connect.type"] = {"float": "float32", "double": "float64"}.get(kind, kind)
    for key, name in (("name", "title"), ("version", "connect.version"), ("parameters", "connect.parameters")):
        if key in schema:
            found[name] = schema[key]
    return found


def _object(schema: Schema) -> dict[str, Any]:
    properties = {
        field["field"]: _optional(field) | {"connect.index": place} for place, field in enumerate(schema["fields"])
    }
    required = [field["field"] for field in schema["fields"] if not field["optional"]]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _optional(schema: Schema) -> dict[str, Any]:
    own = _type(schema)
    if not schema["optional"]:
        return own
    found: dict[str, Any] = {"oneOf": [{"type": "null"}, own]}
    return found if schema.get("default") is None else found | {"default": schema["default"]}
