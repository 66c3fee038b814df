"""Which rows a document takes, and in which order: filters, soft delete, `order_by`.

No filter is SQL: a document means the same whatever database its tables are in, and is checked before it runs.
"""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tailrace.config.sections import Section
from tailrace.errors import ConfigError

ColumnName = Annotated[str, Meta(min_length=1, description="the name of a column")]
Scalar = str | int | float | bool
"""A value as the file writes it. Dates and times are text; the column that it meets says what it means."""


class Described(Section, frozen=True, omit_defaults=True):
    """A part of a description. It encodes without its defaults, so a key that the language gains changes no digest."""


class Op(StrEnum):
    IS_NULL = "is_null"
    IS_NOT_NULL = "is_not_null"
    EQ = "eq"
    NEQ = "neq"
    LT = "lt"
    LTE = "lte"
    GT = "gt"
    GTE = "gte"
    LIKE = "like"
    ILIKE = "ilike"
    IN = "in"
    NOT_IN = "not_in"
    BETWEEN = "between"


class Filter(Described, frozen=True):
    """A condition on a column. As in SQL, a null passes nothing but `is_null`, not even `neq` and `not_in`.

    `like` knows `%`, `_` and the backslash that takes their meaning away. `between` takes both of its ends.
    """

    column: ColumnName
    op: Annotated[Op, Meta(description="how the column's value is compared")]
    value: Annotated[
        Any,
        Meta(
            description="what it is compared with: a list for `in` and `not_in`, [low, high] for `between`",
            extra_json_schema={"type": ["string", "number", "boolean", "array"]},
        ),
    ] = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", as_written(self.value))
        if (fix := _misfit(self.op, self.value)) is not None:
            raise ConfigError(f"the value of `{self.op}` is not what it can compare with", hint=fix)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """None for `is_null`, two for `between`, one or more for `in`, else one."""
        if self.value is None:
            return ()
        return tuple(self.value) if isinstance(self.value, list) else (self.value,)


def _misfit(op: Op, value: Any) -> str | None:
    """What has to be written instead, if this is not it."""
    match op:
        case Op.IS_NULL | Op.IS_NOT_NULL:
            return None if value is None else f"`{op}` has no `value`"
        case Op.IN | Op.NOT_IN:
            return None if _is_list(value) else f"`{op}` has a list: value: [a, b]"
        case Op.BETWEEN:
            return None if _is_list(value) and len(value) == 2 else "`between` has two: value: [low, high]"
        case Op.LIKE | Op.ILIKE:
            return None if isinstance(value, str) else f"`{op}` has a text with % and _ in it"
        case _:
            fix = "; for null there are `is_null` and `is_not_null`" if value is None else ""
            return None if isinstance(value, Scalar) else f"`{op}` has one value{fix}"


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Scalar) for each in value)


def as_written(value: Any) -> Any:
    """The value with dates, which YAML reads as such, as text again."""
    match value:
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case list() | tuple():
            return [as_written(each) for each in value]
        case dict():
            return {key: as_written(each) for key, each in value.items()}
        case _:
            return value


class SoftDelete(Described, frozen=True):
    """Rows that count as deleted: `column` is true, or not null where it is no boolean; or all of `when` hold."""

    column: ColumnName | None = None
    when: Annotated[tuple[Filter, ...], Meta(description="filters that hold, all of them, for a deleted row")] = ()

    def __post_init__(self) -> None:
        if (self.column is None) == (not self.when):
            raise ConfigError(
                "one of `column` and `when` says which rows are deleted",
                hint="write soft_delete: deleted_at, or soft_delete: {when: [{column: state, op: eq, value: gone}]}",
            )


class Direction(StrEnum):
    ASC = "asc"
    DESC = "desc"


class Nulls(StrEnum):
    FIRST = "first"
    LAST = "last"


class OrderBy(Described, frozen=True):
    """Text is ordered by its code points, an enum as its source has it. Ties are in the order of the key."""

    column: ColumnName
    direction: Annotated[Direction, Meta(description="upwards, or downwards")] = Direction.ASC
    nulls: Annotated[Nulls, Meta(description="where rows without a value stand, in either direction")] = Nulls.LAST
