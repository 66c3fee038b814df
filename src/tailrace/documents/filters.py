"""Filters over the rows of a table: every operator, a column at a time, with the logic of SQL.

A null passes nothing but `is_null`. Numbers are compared as numbers, whatever their scale; times by their instant, one
without a zone being UTC; text by its code points; an enum in the order of its source.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.config.conditions import Filter, Op, Scalar, SoftDelete
from tailrace.documents.ordering import decimals, sortable
from tailrace.model import extremes
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind

_DAY_US = 86_400_000_000
_LAST = np.iinfo(np.int64).max
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def passing(
    rows: pa.RecordBatch, schema: TableSchema, filters: Sequence[Filter], soft_delete: SoftDelete | None = None
) -> pa.RecordBatch:
    """The rows that meet all filters, and are not deleted."""
    types = {column.name: column.type for column in schema.columns}
    masks = [_holds(each, rows.column(each.column), types[each.column]) for each in filters]
    if soft_delete is not None:
        masks.append(pc.invert(_deleted(soft_delete, rows, types)))
    return rows.filter(functools.reduce(pc.and_, masks)) if masks and rows.num_rows else rows


def _deleted(soft_delete: SoftDelete, rows: pa.RecordBatch, types: dict[str, ColumnType]) -> pa.BooleanArray:
    if soft_delete.column is None:
        held = [_holds(each, rows.column(each.column), types[each.column]) for each in soft_delete.when]
        return functools.reduce(pc.and_, held)
    column = rows.column(soft_delete.column)
    return pc.fill_null(column, False) if types[soft_delete.column].kind is Kind.BOOLEAN else column.is_valid()


def _holds(filter_: Filter, array: pa.Array, type_: ColumnType) -> pa.BooleanArray:
    """True where the condition is; false where it is false or unknown."""
    match filter_.op:
        case Op.IS_NULL:
            return array.is_null()
        case Op.IS_NOT_NULL:
            return array.is_valid()
        case Op.LIKE | Op.ILIKE:
            pattern = like_pattern(str(filter_.value), ignore_case=filter_.op is Op.ILIKE)
            found = pc.match_substring_regex(to_text(array, type_), pattern)
        case _:
            found = _compared(filter_.op, *_comparable(array, type_, filter_.operands))
    return pc.fill_null(found, False)


def like_pattern(like: str, *, ignore_case: bool = False) -> str:
    """SQL's pattern as a regular expression of RE2."""
    written, is_literal = [], False
    for character in like:
        if is_literal or character not in "%_\\":
            written.append("\\" + character if character in r"\.+*?()|[]{}^$" else character)
            is_literal = False
        elif character == "\\":
            is_literal = True
        else:
            written.append(".*" if character == "%" else ".")
    if is_literal:
        written.append(r"\\")
    return f"(?s{'i' if ignore_case else ''})^{''.join(written)}$"


def _compared(op: Op, column: pa.Array, operands: pa.Array) -> pa.BooleanArray:
    match op:
        case Op.IN:
            return pc.and_(pc.is_in(column, operands), column.is_valid())
        case Op.NOT_IN:
            return pc.and_(pc.invert(pc.is_in(column, operands)), column.is_valid())
        case Op.BETWEEN:
            return pc.and_(pc.greater_equal(column, operands[0]), pc.less_equal(column, operands[1]))
        case _:
            return _SIMPLE[op](column, operands[0])


_SIMPLE = {
    Op.EQ: pc.equal,
    Op.NEQ: pc.not_equal,
    Op.LT: pc.less,
    Op.LTE: pc.less_equal,
    Op.GT: pc.greater,
    Op.GTE: pc.greater_equal,
}


def _comparable(array: pa.Array, type_: ColumnType, operands: Sequence[Scalar]) -> tuple[pa.Array, pa.Array]:
    """A column and what it is compared with, as arrays of one type whose order is that of the values."""
    match type_.kind:
        case Kind.BOOLEAN:
            return array, pa.array([str(each).lower() == "true" for each in operands])
        case Kind.INT16 | Kind.INT32 | Kind.INT64 | Kind.DECIMAL | Kind.NUMERIC:
            return _numbers(array, type_, operands)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _moments(array, type_), pa.array([_microseconds(str(each)) for each in operands], pa.int64())
        case _:
            return _together(array, type_, _values(type_, operands))


def _together(array: pa.Array, type_: ColumnType, operands: pa.Array) -> tuple[pa.Array, pa.Array]:
    if operands.type != array.type:  # of a kind that is compared by its text
        array, type_ = to_text(array, type_), ColumnType(Kind.TEXT)
    places = sortable(pa.concat_arrays([array, operands]), type_)
    return places.slice(0, len(array)), places.slice(len(array))


def _values(type_: ColumnType, operands: Sequence[Scalar]) -> pa.Array:
    match type_.kind:
        case Kind.FLOAT32:
            return pa.array(np.array([float(each) for each in operands], np.float32))
        case Kind.FLOAT64:
            return pa.array([float(each) for each in operands], pa.float64())
        case Kind.TIME:
            return pa.array([time.fromisoformat(str(each)) for each in operands], pa.time64("us"))
        case Kind.UUID:
            return pa.array([str(UUID(str(each))) for each in operands], pa.string())
        case _:
            return pa.array([_text(each) for each in operands], pa.string())


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _numbers(array: pa.Array, type_: ColumnType, operands: Sequence[Scalar]) -> tuple[pa.Array, pa.Array]:
    """As decimals of one scale; where some have none, by their places among each other."""
    texts = pa.array([format(Decimal(str(each)), "f") for each in operands], pa.string())
    if type_.kind in (Kind.INT16, Kind.INT32, Kind.INT64) and all(_fits(each) for each in texts.to_pylist()):
        return array.cast(pa.int64()), texts.cast(pa.int64())
    together = pa.concat_arrays([to_text(array, type_), texts])
    exact = decimals(together)
    places = exact if exact is not None else sortable(together, ColumnType(Kind.NUMERIC))
    return places.slice(0, len(array)), places.slice(len(array))


def _fits(text: str) -> bool:
    return text.lstrip("-").isdigit() and -(2**63) <= int(text) < 2**63


def _moments(array: pa.Array, type_: ColumnType) -> pa.Array:
    """Microseconds since 1970; what is beyond 64 bits of them is at their ends, where no operand is."""
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if type_.kind is Kind.DATE:
        limit = _LAST // _DAY_US
        days = pc.fill_null(array.view(pa.int32()), 0).to_numpy().astype(np.int64)
        return pa.array(np.clip(days, -limit, limit) * _DAY_US, mask=nulls)
    values = pc.fill_null(array.view(pa.int64()), 0).to_numpy()
    return pa.array(np.where(extremes.is_late(values), _LAST, values), mask=nulls)


def _microseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
