"""Whether bytes mean the same in two schemas: those that differ in remarks and properties only."""

from __future__ import annotations

import json
import re
from typing import Any

_AVRO = (
    "type",
    "name",
    "namespace",
    "fields",
    "items",
    "values",
    "symbols",
    "size",
    "logicalType",
    "scale",
    "precision",
)
_REMARKS = ("title", "description", "$schema", "$id")


def is_alike(kind: str, one: str, other: str) -> bool:
    if kind == "PROTOBUF":
        return _words(one) == _words(other)
    reduce = _avro if kind == "AVRO" else _json
    try:
        return bool(reduce(json.loads(one)) == reduce(json.loads(other)))
    except ValueError:
        return False


def _avro(schema: Any) -> Any:
    """Its parsing canonical form, in essence, with logical types."""
    if isinstance(schema, list):
        return [_avro(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _avro(schema[key]) for key in _AVRO if key in schema}
    return kept["type"] if kept.keys() == {"type"} else kept


def _json(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_json(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _json(v) for k, v in schema.items() if k not in _REMARKS and not k.startswith("connect.")}


def _words(text: str) -> list[str]:
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.findall(r'"[^"]*"|[\w.]+|\S', bare)
