"""Avro's binary encoding ("Apache Avro Specification", Binary Encoding), a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.debezium.logical import Schema
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
    zigzag,
)
from tailrace.columns.characters import fixed_width

_NULL, _VALUE = b"\x00", b"\x02"  # branches of a union: the first one, the second one


class AvroWire:
    def field(self, struct: Schema, field: Schema, array: pa.Array | Content) -> Parts:
        return self._optional(field, array)

    def _optional(self, schema: Schema, array: pa.Array | Content) -> Parts:
        """An optional value is one of a union with null, whose first branch is that of the default."""
        refuse_nulls(schema, array.bytes if isinstance(array, Content) else array)
        null, value = (_VALUE, _NULL) if schema.get("default") is not None else (_NULL, _VALUE)
        own = value if schema["optional"] else b""
        if isinstance(array, Content):
            if not array.bytes.null_count:
                return [own, array.bytes]
            return [pc.fill_null(join([own, array.bytes], len(array.bytes)), pa.scalar(null, pa.binary()))]
        if not array.null_count:
            return [own, *self.contents(schema, array)]
        written = present(array, lambda values: [own, *self.contents(schema, values)])
        return [pc.fill_null(written, pa.scalar(null, pa.binary()))]

    def contents(self, schema: Schema, array: pa.Array) -> Parts:
        match schema["type"]:
            case "boolean":
                return [fixed_width(integers(array).astype(np.uint8).reshape(-1, 1), pa.binary())]
            case "int16" | "int32" | "int64":
                return [varints(zigzag(integers(array)))]
            case "float" | "double":
                return [fixed(array)]
            case "string" | "bytes":
                return [varints(zigzag(lengths_of(array))), array.cast(pa.binary())]
            case "struct":
                return fields(self, schema, dict(zip(array.type.names, array.flatten(), strict=True)))
            case "array":
                return self._items(schema["items"], array)
            case other:
                raise AssertionError(other)

    def _items(self, schema: Schema, array: pa.ListArray) -> Parts:
        """One block of all items, if there are any, and the empty block that ends it."""
        offsets = array.offsets.to_numpy()
        items = array.flatten()
        written = join(self._optional(schema, items), len(items))
        lists = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), written)
        counts = varints(zigzag(np.diff(offsets)))
        is_empty = pa.array(np.diff(offsets) == 0)
        blocks = join([counts, pc.binary_join(lists, pa.scalar(b"", pa.binary())), b"\x00"], len(array))
        return [pc.if_else(is_empty, pa.scalar(b"\x00", pa.binary()), blocks)]
