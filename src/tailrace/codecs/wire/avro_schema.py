"""A schema of Kafka Connect as Avro, with the names and properties that Confluent's Avro converter gives it."""

from __future__ import annotations

import re
from typing import Any

from tailrace.codecs.debezium.logical import DECIMAL, Schema
from tailrace.errors import SinkRejected

_SIMPLE = {
    "boolean": "boolean",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "bytes",
}


def avro_of(schema: Schema) -> Any:
    """The whole schema. A named type is defined where it is first met, and named from there on."""
    return _type(schema, set())


def valid_name(name: str) -> str:
    """What may not be in a name of Avro is an underscore, as Debezium's adjustment `avro` has it."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{found}" if found[:1].isdigit() else found


def full_name(name: str) -> str:
    return ".".join(valid_name(part) for part in name.split("."))


def _type(schema: Schema, defined: set[str]) -> Any:
    match schema["type"]:
        case "struct":
            return _record(schema, defined)
        case "array":
            found: dict[str, Any] = {"type": "array", "items": _optional(schema["items"], defined)}
            return found | _named(schema)
        case simple:
            return _primitive(simple, schema)


def _primitive(simple: str, schema: Schema) -> Any:
    own: dict[str, Any] = {"connect.type": "int16"} if simple == "int16" else {}
    if schema.get("name") == DECIMAL:
        parameters = schema["parameters"]
        precision = int(parameters["connect.decimal.precision"])
        own |= {"scale": int(parameters["scale"]), "precision": precision}
    own |= _named(schema)
    if schema.get("name") == DECIMAL and 0 <= own["scale"] <= own["precision"]:
        own["logicalType"] = "decimal"
    if schema.get("default") is not None:
        own["connect.default"] = schema["default"]
    return {"type": _SIMPLE[simple]} | own if own else _SIMPLE[simple]


def _named(schema: Schema) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "version" in schema:
        found["connect.version"] = schema["version"]
    if "parameters" in schema:
        found["connect.parameters"] = schema["parameters"]
    if "name" in schema:
        found["connect.name"] = schema["name"]
    return found


def _record(schema: Schema, defined: set[str]) -> Any:
    name = full_name(schema["name"])
    if name in defined:
        return name
    defined.add(name)
    names = [valid_name(field["field"]) for field in schema["fields"]]
    if clash := sorted({each for each in names if names.count(each) > 1}):
        raise SinkRejected(
            f"two columns of {schema['name']} have the same name in Avro: {clash[0]}",
            hint="rename one of them, or use format: json",
        )
    space, _, own = name.rpartition(".")
    found: dict[str, Any] = {"type": "record", "name": own}
    if space:
        found["namespace"] = space
    found["fields"] = [_field(each, written, defined) for each, written in zip(schema["fields"], names, strict=True)]
    return found | _named(schema)


def _field(schema: Schema, name: str, defined: set[str]) -> dict[str, Any]:
    found = {"name": name, "type": _optional(schema, defined)}
    if schema["optional"]:
        found["default"] = schema.get("default")
    return found


def _optional(schema: Schema, defined: set[str]) -> Any:
    own = _type(schema, defined)
    if not schema["optional"]:
        return own
    return ["null", own] if schema.get("default") is None else [own, "null"]
