"""Avro's binary encoding, read one value at a time: for a person who looks at a few messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from tailrace.errors import DecodeError

_EXACT = Context(prec=200_000)


def read_avro(schema: Any, data: bytes) -> Any:
    """The value; raises DecodeError for bytes that are none of this schema."""
    reader = _Reader(data)
    reader.define(schema, "")
    try:
        found = reader.value(schema, "")
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise DecodeError(f"a message of {len(data)} bytes is not of its schema: {type(error).__name__}") from error
    if reader.at != len(data):
        raise DecodeError(f"a message of {len(data)} bytes is longer than its schema says")
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self._types: dict[str, Any] = {}

    def define(self, schema: Any, space: str) -> None:
        """Know all records by their names: the value where one is defined may not be there."""
        if isinstance(schema, list):
            for each in schema:
                self.define(each, space)
        elif isinstance(schema, dict):
            if schema["type"] == "record":
                space = schema.get("namespace", space)
                self._types[f"{space}.{schema['name']}" if space else schema["name"]] = schema, space
            for inner in (*(field["type"] for field in schema.get("fields", ())), schema.get("items")):
                self.define(inner, space)

    def value(self, schema: Any, space: str) -> Any:
        if isinstance(schema, list):
            return self.value(schema[self._long()], space)
        if isinstance(schema, str):
            return self._named(schema, space)
        match schema["type"]:
            case "record":
                return self._fields(schema, schema.get("namespace", space))
            case "array":
                return self._array(schema["items"], space)
            case simple:
                return _logical(schema, self.value(simple, space))

    def _named(self, name: str, space: str) -> Any:
        if name in _SIMPLE:
            return _SIMPLE[name](self)
        full = name if "." in name or not space else f"{space}.{name}"
        own, inner = self._types[full]
        return self._fields(own, inner)

    def _fields(self, schema: Any, space: str) -> dict[str, Any]:
        return {field["name"]: self.value(field["type"], space) for field in schema["fields"]}

    def _array(self, items: Any, space: str) -> list[Any]:
        found: list[Any] = []
        while count := self._long():
            if count < 0:  # the size of the block follows
                count, _ = -count, self._long()
            found += [self.value(items, space) for _ in range(count)]
        return found

    def _long(self) -> int:
        result = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise ValueError(count)
        self.at += count
        return self._data[self.at - count : self.at]


_SIMPLE: dict[str, Callable[[_Reader], Any]] = {
    "null": lambda _: None,
    "boolean": lambda reader: reader.take(1) != b"\x00",
    "int": _Reader._long,
    "long": _Reader._long,
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": lambda reader: reader.take(reader._long()),
    "string": lambda reader: reader.take(reader._long()).decode(),
}


def _logical(schema: Any, value: Any) -> Any:
    if schema.get("logicalType") == "decimal" and isinstance(value, bytes):
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-schema["scale"], _EXACT)
    return value
