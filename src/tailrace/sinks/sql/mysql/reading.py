"""Comparing what a MySQL or MariaDB sink holds with the source's rows: the server's text against our canonical text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model import shapes
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Reading
from tailrace.sinks.sql.mysql import binaries, native
from tailrace.sinks.sql.mysql.flavor import Flavor
from tailrace.sinks.sql.mysql.types import decimal_of

_AS_IS = {Kind.BYTES, Kind.TEXT, Kind.ENUM, Kind.UUID, Kind.JSON, Kind.OTHER, Kind.ARRAY, Kind.TIMETZ, Kind.INTERVAL}
_MOMENTS = (Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
_WIDE = Context(prec=2000)


_INTEGERS = (Kind.INT16, Kind.INT32, Kind.INT64)


class MySqlReading(Reading):
    def __init__(self, flavor: Flavor) -> None:
        self._flavor = flavor

    def selected(self, name: str, type_: ColumnType) -> str:
        """Texts and bytes as they are, others as the text of their value. A float would be shown with six digits."""
        base = native.base_of(native.kept(type_, self._flavor) or "")
        if base in ("bit", "year"):
            return f"CAST({name} + 0 AS CHAR)"
        if base == "vector":
            return f"HEX({name})"
        if type_.kind in _AS_IS and base not in ("time", "uuid", "inet4", "inet6"):
            return name
        if type_.kind in _MOMENTS:
            return f"CAST(CAST({name} AS DATETIME(6)) AS CHAR)"
        return f"CAST(CAST({name} AS DOUBLE) AS CHAR)" if type_.kind is Kind.FLOAT32 else f"CAST({name} AS CHAR)"

    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        if native.is_geometry(type_):
            return [None if value is None else binaries.wkb(value) for value in values]
        if native.is_vector(type_, self._flavor):
            return [None if value is None else bytes.fromhex(value) for value in values]
        match type_.kind:
            case Kind.FLOAT32:  # the nearest one: MySQL shows 16 digits of a double that was a float
                return [None if text is None else repr(float(np.float32(text))) for text in values]
            case Kind.FLOAT64:
                return [None if text is None else repr(float(text)) for text in values]
            case _:
                return values

    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        if native.is_vector(type_, self._flavor):
            lists = shapes.elements_of(array).to_pylist()
            return [None if each is None else struct.pack(f"<{len(each)}f", *each) for each in lists]
        match type_.kind:
            case Kind.BYTES:
                return list(array.to_pylist())
            case Kind.BOOLEAN:
                return [None if value is None else str(int(value)) for value in array.to_pylist()]
            case Kind.FLOAT32 | Kind.FLOAT64:
                floats = array if self._flavor.has_negative_zero else pc.add(array, 0.0)  # -0.0 + 0.0 is 0.0
                return [None if value is None else repr(float(value)) for value in floats.to_pylist()]
            case Kind.NUMERIC | Kind.DECIMAL:
                return _padded(to_text(array, type_), type_)
            case Kind.TIME | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
                return list(_with_fraction(to_text(array, type_)).to_pylist())
            case _:
                return list(to_text(array, type_).to_pylist())

    def key_text(self, value: str, type_: ColumnType) -> str:
        if type_.kind is Kind.BYTES:
            return f"CONCAT('\\\\x', LOWER(HEX({value})))"
        if type_.kind is Kind.TIMESTAMPTZ:
            return f"CONCAT(CAST({value} AS CHAR), '+00')"
        return self.selected(value, type_)

    def key_is(self, name: str, type_: ColumnType) -> str:
        """By the key's index for the usual types of keys."""
        if type_.kind in _INTEGERS:
            return f"{name} = CAST(%s AS SIGNED)"
        return f"{name} = %s" if type_.kind in (Kind.TEXT, Kind.UUID) else f"{self.key_text(name, type_)} = %s"


def _padded(texts: pa.StringArray, type_: ColumnType) -> Sequence[Any]:
    """The numbers with as many digits behind the point as their column has."""
    scale = (decimal_of(type_) or (0, 0))[1]
    if type_.scale == scale:
        return list(texts.to_pylist())
    return [None if text is None else _rescaled(text, scale) for text in texts.to_pylist()]


def _rescaled(text: str, scale: int) -> str:
    number = Decimal(text)
    return f"{number.quantize(Decimal(1).scaleb(-scale), context=_WIDE):f}" if number.is_finite() else text


def _with_fraction(text: pa.StringArray) -> pa.StringArray:
    bare = pc.replace_substring(text, "+00:00", "")
    has_none = pc.invert(pc.match_substring(bare, "."))
    return pc.if_else(has_none, pc.binary_join_element_wise(bare, ".000000", ""), bare)
