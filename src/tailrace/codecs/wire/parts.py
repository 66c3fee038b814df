"""Bytes of many rows at once: constants and columns that stand one after the other in each row, and varints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.codecs.debezium.logical import Schema
from tailrace.columns.characters import Array, fixed_width, in_rows, spans
from tailrace.errors import ValueRefused

Part: TypeAlias = bytes | pa.BinaryArray
Parts: TypeAlias = list[Part]


class Wire(Protocol):
    """A binary format. Arrays are as `debezium.values.arrow_of` has the types of a schema."""

    def field(self, struct: Schema, field: Schema, array: pa.Array | Content) -> Parts:
        """A field of a struct."""

    def contents(self, schema: Schema, array: pa.Array) -> Parts:
        """Values that are not null, without what makes them a field of something."""


class Content:
    """A field whose bytes are there already; null where there is no value."""

    __slots__ = ("bytes",)

    def __init__(self, content: pa.BinaryArray) -> None:
        self.bytes = content


class Constant:
    """A field that is the same in all rows: an array of one value."""

    __slots__ = ("value",)

    def __init__(self, value: pa.Array) -> None:
        self.value = value


Field: TypeAlias = pa.Array | Content | Constant


def fields(wire: Wire, struct: Schema, arrays: Mapping[str, Field]) -> Parts:
    """The fields of a struct, in their order."""
    parts: Parts = []
    for field in struct["fields"]:
        array = arrays[field["field"]]
        if isinstance(array, Constant):
            written = join(wire.field(struct, field, array.value), 1)
            parts.append(bytes(written[0].as_py()))
        else:
            parts += wire.field(struct, field, array)
    return parts


def join(parts: Sequence[Part], count: int) -> pa.BinaryArray:
    """What stands in each of `count` rows one after the other."""
    together: list[pa.Scalar | pa.BinaryArray] = []
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
            continue
        if constant:
            together.append(pa.scalar(constant, pa.binary()))
        together.append(part)
        constant = b""
    tail = pa.scalar(constant, pa.binary())
    if not together:
        return pa.repeat(tail, count)
    scalars = [*together, tail] if constant else together
    try:
        return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))
    except pa.ArrowCapacityError as error:
        raise ValueRefused("more than 2 GiB of records in one batch", hint="use smaller batches") from error


def present(array: pa.Array, write: Callable[[pa.Array], Parts]) -> pa.BinaryArray:
    """What `write` makes of the values; null where there is none."""
    if array.null_count == len(array):
        return pa.nulls(len(array), pa.binary())
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return in_rows([join(write(array.drop_null()), len(rows))], [rows], len(array), pa.binary())


def varints(values: Array) -> pa.BinaryArray:
    """Unsigned integers of 64 bits, seven bits a byte, the lowest first."""
    largest = int(values.max()) if len(values) else 0
    width = max((largest.bit_length() + 6) // 7, 1)
    table = np.empty((len(values), width), np.uint8)
    for place in range(width):
        table[:, place] = (values >> np.uint64(7 * place)).astype(np.uint8) | np.uint8(0x80)
    lengths = np.ones(len(values), np.int64)
    for place in range(1, width):
        lengths += values >= np.uint64(1 << 7 * place)
    rows = np.arange(len(values))
    table[rows, lengths - 1] &= np.uint8(0x7F)
    return fixed_width(table, pa.binary()) if width == 1 else spans(table.reshape(-1), rows * width, lengths)


def zigzag(values: Array) -> Array:
    """Signed integers so that small ones of either sign are small."""
    signed = values.astype(np.int64, copy=False)
    found: Array = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    return found


def lengths_of(array: pa.Array) -> Array:
    found: Array = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.uint64)
    return found


def fixed(array: pa.Array) -> pa.BinaryArray:
    """Floating-point numbers, little-endian."""
    values = array.to_numpy(zero_copy_only=False)
    return fixed_width(values.view(np.uint8).reshape(len(values), values.dtype.itemsize), pa.binary())


def integers(array: pa.Array) -> Array:
    """Booleans as well."""
    found: Array = array.to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def refuse_nulls(schema: Schema, array: pa.Array) -> None:
    if array.null_count and not schema["optional"]:
        raise ValueRefused(f"{schema['field']} is null, and its schema says that it is not")
