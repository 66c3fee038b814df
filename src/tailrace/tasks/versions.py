"""Changes of any version of a table, brought to the columns that a DataFrame has.

By name: a column that a version lacks is null, one that the DataFrame lacks is left out. A value that the wanted type
can not hold is refused: lossless or loud.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.errors import ValueRefused

_DAY_US = 86_400_000_000


def as_version(batch: pa.RecordBatch, wanted: pa.Schema, table: str) -> pa.RecordBatch:
    """The batch with the columns `wanted`, which are those that Spark expects."""
    if batch.schema.equals(wanted):
        return batch
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [_as_field(present.get(field.name), field, batch.num_rows, f"{table}.{field.name}") for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _as_field(array: pa.Array | None, field: pa.Field, count: int, where: str) -> pa.Array:
    if array is None:
        return pa.nulls(count, field.type)
    if array.type == field.type:
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(field.type):
        return _as_struct(array, field, where)
    _refuse_24_hours(array, where)
    try:
        return array.cast(field.type)
    except pa.ArrowInvalid:
        raise ValueRefused(f"column {where}: a value of an earlier {array.type} is no {field.type}") from None


def _as_struct(array: pa.StructArray, field: pa.Field, where: str) -> pa.StructArray:
    present = {inner.name: child for inner, child in zip(array.type, array.flatten(), strict=True)}
    children = [_as_field(present.get(inner.name), inner, len(array), f"{where}.{inner.name}") for inner in field.type]
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=array.is_null())


def _refuse_24_hours(array: pa.Array, where: str) -> None:
    """PostgreSQL has a time of 24:00:00; Spark's TIME ends before it."""
    if pa.types.is_list(array.type):
        _refuse_24_hours(array.flatten(), where)
    elif pa.types.is_time64(array.type):
        values = array.drop_null().view(pa.int64()).to_numpy()
        if int(np.max(values, initial=0)) >= _DAY_US:
            raise ValueRefused(f"column {where}: 24:00:00 is a time that Spark's TIME can not hold")
