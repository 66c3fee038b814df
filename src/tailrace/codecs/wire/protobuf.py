"""Protocol Buffers' binary encoding ("Encoding", proto3), a column at a time.

A field that is null is not there; all others are, also zeros and empty strings: every field has presence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.debezium.logical import DECIMAL, Schema
from tailrace.codecs.wire.parts import (
    Content,
    Parts,
    fields,
    fixed,
    integers,
    join,
    lengths_of,
    present,
    refuse_nulls,
    varints,
)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    "boolean": _VARINT,
    "int16": _VARINT,
    "int32": _VARINT,
    "int64": _VARINT,
    "float": _FIXED32,
    "double": _FIXED64,
}
_NOTHING = pa.scalar(b"", pa.binary())
Numbers = Mapping[tuple[str, str], int]
"""Of the fields of a struct, by its name and theirs."""


class ProtobufWire:
    """`numbers` has those fields whose number is not their place."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def field(self, struct: Schema, field: Schema, array: pa.Array | Content) -> Parts:
        refuse_nulls(field, array.bytes if isinstance(array, Content) else array)
        tag = tag_of(number_of(self._numbers, struct, field), wire_type(field))
        if isinstance(array, Content):
            written = _prefixed(tag, array.bytes)
            return written if not array.bytes.null_count else [pc.fill_null(join(written, len(array.bytes)), _NOTHING)]
        if not array.null_count:
            return self._tagged(tag, field, array)
        return [pc.fill_null(present(array, lambda values: self._tagged(tag, field, values)), _NOTHING)]

    def _tagged(self, tag: bytes, schema: Schema, array: pa.Array) -> Parts:
        content = self.contents(schema, array)
        return _prefixed(tag, join(content, len(array))) if wire_type(schema) == _BYTES else [tag, *content]

    def contents(self, schema: Schema, array: pa.Array) -> Parts:
        match schema["type"]:
            case "boolean" | "int16" | "int32" | "int64":
                return [varints(integers(array).view(np.uint64))]
            case "float" | "double":
                return [fixed(array)]
            case "bytes" if schema.get("name") == DECIMAL:
                return _decimal(schema, array)
            case "string" | "bytes":
                return [array.cast(pa.binary())]
            case "struct":
                return fields(self, schema, dict(zip(array.type.names, array.flatten(), strict=True)))
            case "array":
                return self._items(schema["items"], array)
            case other:
                raise AssertionError(other)

    def _items(self, schema: Schema, array: pa.ListArray) -> Parts:
        """A message of items, each a message of its own: so an item may be null, and a list empty or null."""
        offsets, items = array.offsets.to_numpy(), array.flatten()
        struct: Schema = {"name": "", "fields": [schema | {"field": "value"}]}
        written = join(self.field(struct, struct["fields"][0], items), len(items))
        each = join(_prefixed(tag_of(1, _BYTES), written), len(items))
        lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), each)
        return [pc.binary_join(lists, _NOTHING)]


def number_of(numbers: Numbers, struct: Schema, field: Schema) -> int:
    found = numbers.get((struct["name"], field["field"]))
    return found or 1 + [each["field"] for each in struct["fields"]].index(field["field"])


def wire_type(schema: Schema) -> int:
    return _WIRE_TYPES.get(schema["type"], _BYTES)


def tag_of(number: int, type_: int) -> bytes:
    return _varint(number << 3 | type_)


def _varint(value: int) -> bytes:
    found: bytes = varints(np.array([value], np.uint64))[0].as_py()
    return found


def _prefixed(tag: bytes, content: pa.BinaryArray) -> Parts:
    """Behind its tag and its length; what is null stays null."""
    lengths = pc.fill_null(pc.binary_length(content), 0).to_numpy().astype(np.uint64)
    return [tag, varints(lengths), content]


def _decimal(schema: Schema, array: pa.BinaryArray) -> Parts:
    """The message `Decimal`: the digits as bytes, precision and scale."""
    parameters = schema["parameters"]
    precision, scale = int(parameters["connect.decimal.precision"]), int(parameters["scale"])
    tail = tag_of(2, _VARINT) + _varint(precision) + tag_of(3, _VARINT) + _varint(scale % 2**64)
    return [tag_of(1, _BYTES), varints(lengths_of(array)), array, tail]
