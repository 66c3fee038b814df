"""Neutral column types, and the Arrow type that carries each.

Guarantee: a value of a type either fits its Arrow form exactly (`extremes.py` and `shapes.py` say how some of them do),
or decoding it raises. What no Arrow type can hold
travels as text with the name of its source type, so that a sink which has that type gets it back unchanged.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec
import pyarrow as pa


class Kind(StrEnum):
    BOOLEAN = "boolean"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL = "decimal"  # precision and scale known, at most 38 digits, or NaN
    NUMERIC = "numeric"  # any other exact number: its digits as text, also NaN and Infinity
    TEXT = "text"
    BYTES = "bytes"
    UUID = "uuid"  # canonical lower-case text
    DATE = "date"
    TIME = "time"
    TIMETZ = "timetz"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    JSON = "json"
    ENUM = "enum"
    ARRAY = "array"  # of any shape, see `model.shapes`
    OTHER = "other"  # the source's own text form


class ColumnType(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One immutable type. `name` is what the source calls it (`character varying(20)`, `public.mood`)."""

    kind: Kind
    name: str = ""
    precision: int | None = None
    scale: int | None = None
    element: ColumnType | None = None  # of an ARRAY
    labels: tuple[str, ...] = ()  # of an ENUM, or of what an OTHER is made of, in words of the source; more may come
    attributes: tuple[str, ...] = ()  # of what an OTHER is made of: with others its values have another text


CANONICAL = "canonical"
"""An attribute of a type whose server gives every value one text, and makes the same value of that text again."""


def label_of(label: str) -> str:
    """A label without the number and the transaction that a source may have put before it."""
    match = re.fullmatch(r"\d+:\d+:(.*)", label, re.DOTALL)
    return label if match is None else match[1]


TIMETZ = pa.struct([pa.field("microseconds", pa.int64(), False), pa.field("offset_seconds", pa.int32(), False)])
"""Wall-clock microseconds since midnight, and seconds east of UTC."""

INTERVAL = pa.struct(
    [
        pa.field("months", pa.int32(), False),
        pa.field("days", pa.int32(), False),
        pa.field("microseconds", pa.int64(), False),
    ]
)

_ARROW: dict[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT16: pa.int16(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.FLOAT32: pa.float32(),
    Kind.FLOAT64: pa.float64(),
    Kind.NUMERIC: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.UUID: pa.string(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMETZ: TIMETZ,
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Kind.INTERVAL: INTERVAL,
    Kind.JSON: pa.string(),
    Kind.ENUM: pa.string(),
    Kind.OTHER: pa.string(),
}


def arrow_type(type_: ColumnType) -> pa.DataType:
    """The Arrow type that carries values of `type_`; arrays of all shapes are carried by `shapes.shaped_type` of it."""
    if type_.kind is Kind.DECIMAL:
        return pa.decimal128(type_.precision or 38, type_.scale or 0)
    if type_.kind is Kind.ARRAY:
        assert type_.element is not None
        return pa.list_(arrow_type(type_.element))
    return _ARROW[type_.kind]
