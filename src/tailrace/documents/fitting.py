"""Whether a field, a filter, an order or a link fits the types of its columns. Each says why not, in words."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from uuid import UUID

from tailrace.config import documents as d
from tailrace.config.conditions import Filter, Op, Scalar
from tailrace.documents.kinds import EXACT, WHOLE, element_of
from tailrace.model.types import ColumnType, Kind, label_of

FLOATS = frozenset({Kind.FLOAT32, Kind.FLOAT64})
NUMBERS = WHOLE | EXACT | FLOATS
WORDS = frozenset({Kind.TEXT, Kind.ENUM})
TIMES = frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
NOT_COMPARED = frozenset({Kind.JSON, Kind.ARRAY})
STRINGS = WORDS | {Kind.UUID, Kind.TIME, Kind.TIMETZ, Kind.INTERVAL, Kind.OTHER}
ALL = frozenset(Kind) - {Kind.ARRAY}

TAKES: dict[type[d.Scalars | d.Map], frozenset[Kind]] = {
    d.Text: STRINGS,
    d.Identifier: STRINGS,
    d.Keyword: STRINGS | WHOLE | EXACT | TIMES | {Kind.BOOLEAN},
    d.Enum: WORDS,
    d.Uuid: frozenset({Kind.UUID, Kind.TEXT}),
    d.Boolean: frozenset({Kind.BOOLEAN}),
    d.Short: frozenset({Kind.INT16}),
    d.Integer: frozenset({Kind.INT16, Kind.INT32}),
    d.Long: WHOLE,
    d.Float: frozenset({Kind.INT16, Kind.FLOAT32}),
    d.Double: NUMBERS,
    d.Decimal: WHOLE | EXACT,
    d.Date: TIMES,
    d.Timestamp: TIMES,
    d.Binary: frozenset({Kind.BYTES}),
    d.Json: frozenset({Kind.JSON}),
    d.Custom: ALL,
    d.Map: frozenset({Kind.JSON}),
}
"""The kinds of columns, or of their elements, that a field can be made of without losing anything."""
BY_NAME = {str(each.__struct_config__.tag): each for each in TAKES}


def named(type_: ColumnType) -> str:
    """A type as its source calls it."""
    return type_.name or type_.kind.value


def field_misfit(field: d.Scalars | d.Map, type_: ColumnType) -> str | None:
    element = element_of(type_)
    what = str(field.__struct_config__.tag)
    if element.kind not in TAKES[type(field)]:
        return f"a column of type {named(type_)} does not fit a field of type {what}"
    if isinstance(field, d.TextField) and field.transforms and element.kind not in STRINGS:
        return f"`transforms` are for text, and the column is {named(type_)}"
    default = None if isinstance(field, d.Map) else field.default
    if default is not None and not _is_value(default, element):
        return f"`default` is no value of type {named(element)}"
    return None


def filter_misfit(filter_: Filter, type_: ColumnType) -> str | None:
    if filter_.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return None
    if type_.kind in NOT_COMPARED:
        return f"a column of type {named(type_)} can only be compared by `is_null` and `is_not_null`"
    if filter_.op in (Op.LIKE, Op.ILIKE):
        return None if type_.kind in STRINGS else f"`{filter_.op}` is for text, and the column is {named(type_)}"
    if type_.kind is Kind.BOOLEAN and filter_.op in (Op.LT, Op.LTE, Op.GT, Op.GTE, Op.BETWEEN):
        return f"`{filter_.op}` is not for true and false"
    if not all(_is_value(each, type_) for each in filter_.operands):
        return f"the value of `{filter_.op}` is no value of type {named(type_)}"
    return None


def order_misfit(type_: ColumnType) -> str | None:
    return f"a column of type {named(type_)} has no order" if type_.kind in NOT_COMPARED else None


def sum_misfit(type_: ColumnType) -> str | None:
    return None if type_.kind in NUMBERS else f"a column of type {named(type_)} has no sum"


def point_misfit(type_: ColumnType) -> str | None:
    is_point = type_.kind in (Kind.TEXT, Kind.JSON, Kind.OTHER)
    return None if is_point else f"a column of type {named(type_)} is no point"


def aggregate_misfit(field: d.Sum | d.Min | d.Max | d.Avg | d.Ids, type_: ColumnType) -> str | None:
    """Of the column that it is of."""
    if isinstance(field, d.Sum | d.Avg) and (misfit := sum_misfit(type_)) is not None:
        return misfit
    if (misfit := order_misfit(type_)) is not None:
        return misfit
    if not isinstance(field, d.Avg) and field.value_type is not None and not _holds(field.value_type, field, type_):
        return f"what it comes to does not fit `value_type: {field.value_type}`"
    default = None if isinstance(field, d.Ids) else field.default
    is_sum = isinstance(field, d.Sum | d.Avg)
    if default is not None and not _is_value(default, ColumnType(Kind.NUMERIC) if is_sum else type_):
        return f"`default` is no value of type {named(type_)}"
    return None


def _holds(value_type: d.ValueType, field: d.Sum | d.Min | d.Max | d.Ids, type_: ColumnType) -> bool:
    """A sum may have more digits than its column."""
    if not isinstance(field, d.Sum):
        return type_.kind in TAKES[BY_NAME[value_type]]
    match value_type:
        case d.ValueType.LONG:
            return type_.kind in WHOLE
        case d.ValueType.DECIMAL:
            return type_.kind in WHOLE | EXACT
        case _:
            return value_type is d.ValueType.DOUBLE


def link_misfit(upper: ColumnType, lower: ColumnType) -> str | None:
    """Rows are linked by the texts of their values: types whose equal values have equal texts are compared."""
    is_one_kind = upper.kind is lower.kind and upper.kind not in NOT_COMPARED
    if is_one_kind or {upper.kind, lower.kind} <= WHOLE | EXACT or {upper.kind, lower.kind} <= WORDS:
        return None
    return f"columns of the types {named(upper)} and {named(lower)} can not be compared"


def _is_value(value: Scalar, type_: ColumnType) -> bool:
    """Whether what the file has can be a value of this type; text may be the text of any."""
    match type_.kind:
        case Kind.BOOLEAN:
            return isinstance(value, bool) or str(value).lower() in ("true", "false")
        case kind if kind in WHOLE:
            return not isinstance(value, bool) and _reads(int, value)
        case kind if kind in NUMBERS:
            return not isinstance(value, bool) and _reads(Decimal, value)
        case Kind.DATE | Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return isinstance(value, str) and (
                _reads(datetime.fromisoformat, value) or _reads(date.fromisoformat, value)
            )
        case Kind.TIME:
            return isinstance(value, str) and _reads(time.fromisoformat, value)
        case Kind.UUID:
            return isinstance(value, str) and _reads(UUID, value)
        case Kind.ENUM:
            return not type_.labels or value in [label_of(label) for label in type_.labels]
        case _:
            return True


def _reads(read: object, value: Scalar) -> bool:
    try:
        read(str(value))  # type: ignore[operator]  # a function of a text
    except (ValueError, InvalidOperation):
        return False
    return True
