"""Arrays of several dimensions, or that do not start at 1: what an Arrow list can not say beside it.

An array column is a plain list column as long as all of its arrays have one dimension that starts at 1. One that has
others is a struct: the `elements` of each array in one list, row after row of it, and its `shape` as PostgreSQL writes
it, such as `[1:2][0:4]`; the shape of an ordinary array is null. So equal arrays are equal structs. Whoever puts rows
together takes `concat` instead of Arrow's own, for either form may come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import pyarrow as pa

Bounds = Sequence[tuple[int, int]]
"""The first and the last index of each dimension."""

_ELEMENTS, _SHAPE = "elements", "shape"
_BOUNDS = re.compile(r"\[(-?\d+):(-?\d+)\]")


def is_shaped(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_)) and [field.name for field in type_] == [_ELEMENTS, _SHAPE]


def shaped_type(lists: pa.DataType) -> pa.DataType:
    return pa.struct([(_ELEMENTS, lists), (_SHAPE, pa.string())])


def shaped(lists: pa.ListArray, shapes: pa.StringArray) -> pa.StructArray:
    """Lists of elements and the shapes that they have; null where the list is."""
    fields = list(shaped_type(lists.type))
    return pa.StructArray.from_arrays(
        [lists, shapes], fields=fields, mask=lists.is_null() if lists.null_count else None
    )


def elements_of(array: pa.Array) -> pa.ListArray:
    """The elements of each array, whatever its shape; null stays null."""
    return array.flatten()[0] if is_shaped(array.type) else array


def shapes_of(array: pa.Array) -> list[str | None]:
    """The shape of each array that is not ordinary. For the rare columns that have one."""
    found: list[str | None] = array.flatten()[1].to_pylist()
    return found


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """Pieces of one column as one array; if one of them has shapes, all have."""
    if len(arrays) == 1:
        return arrays[0]
    if any(is_shaped(array.type) for array in arrays):
        arrays = [array if is_shaped(array.type) else _with_no_shapes(array) for array in arrays]
    return pa.concat_arrays(arrays)


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Runs of rows of the same columns, as one."""
    if len(batches) == 1:
        return batches[0]
    columns = [concat([batch.column(index) for batch in batches]) for index in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, names=batches[0].schema.names)


def _with_no_shapes(lists: pa.ListArray) -> pa.StructArray:
    return shaped(lists, pa.nulls(len(lists), pa.string()))


def written(bounds: Bounds) -> str | None:
    """The shape as text; None for an ordinary array."""
    if not bounds or (len(bounds) == 1 and bounds[0][0] == 1):
        return None
    return "".join(f"[{first}:{last}]" for first, last in bounds)


def bounds_of(shape: str) -> Bounds:
    return [(int(first), int(last)) for first, last in _BOUNDS.findall(shape)]


def starts_at_1(bounds: Bounds) -> bool:
    return all(first == 1 for first, _ in bounds)


def nested(elements: Sequence[Any], bounds: Bounds) -> list[Any]:
    """The elements as lists of lists."""
    (first, last), *inner = bounds
    if not inner:
        return list(elements)
    size = prod(high - low + 1 for low, high in inner)
    return [nested(elements[at : at + size], inner) for at in _steps(last - first + 1, size)]


def _steps(count: int, size: int) -> Iterator[int]:
    return iter(range(0, count * size, size))
