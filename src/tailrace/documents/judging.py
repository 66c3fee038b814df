"""What is said of a description: remarks, and those on the columns of one table."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from tailrace.config import documents as d
from tailrace.config.conditions import Filter
from tailrace.documents.fitting import field_misfit, filter_misfit
from tailrace.documents.outline import Place
from tailrace.model.details import TableDetails
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind, label_of


class Remark(msgspec.Struct, frozen=True):
    """`is_failing`: the document can not be built, or not be kept right. `is_index`: the fix is an index to make."""

    place: str
    message: str
    fix: str
    is_failing: bool = True
    is_index: bool = False


class Columns:
    """The columns of a table, and what is said of who uses them."""

    def __init__(self, schema: TableSchema, details: TableDetails | None) -> None:
        self.schema = schema
        self.details = details
        self.types = {column.name: column.type for column in schema.columns}

    def judged(self, column: str, place: Place, misfit: Callable[[ColumnType], str | None]) -> Iterator[Remark]:
        if column not in self.types:
            yield no_column(self.schema, column, place)
        elif (said := misfit(self.types[column])) is not None:
            yield Remark(at(place), f"{self.schema.table}.{column}: {said}", "choose another column, or another type")

    def filters(self, filters: tuple[Filter, ...], place: Place) -> Iterator[Remark]:
        for number, each in enumerate(filters):
            here = (*place[:-1], f"{place[-1]}[{number}]")
            yield from self.judged(each.column, here, partial(filter_misfit, each))

    def scalar(self, field: d.Scalars | d.Map, column: str, place: Place) -> Iterator[Remark]:
        yield from self.judged(column, place, partial(field_misfit, field))
        has_default = not isinstance(field, d.Map) and field.default is not None
        yield from self.required(field.required and not has_default, column, place)
        if isinstance(field, d.Enum) and field.variants and column in self.types:
            yield from self._variants(field, column, place)

    def required(self, is_required: bool, column: str, place: Place) -> Iterator[Remark]:
        if is_required and self.details is not None and column in self.types and column not in self.details.required:
            message = f"{self.schema.table}.{column} may be null, and the field is required"
            yield Remark(at(place), message, "write a `default`, leave `required` out, or forbid nulls", False)

    def _variants(self, field: d.Enum, column: str, place: Place) -> Iterator[Remark]:
        type_ = self.types[column]
        unknown = set(map(label_of, type_.labels)) - set(field.variants)
        if type_.kind is Kind.ENUM and unknown and not field.transforms:
            message = f"{self.schema.table}.{column} has values that are no variants: {', '.join(sorted(unknown))}"
            yield Remark(at(place), message, "add them to `variants`, where they belong in the order", False)


def no_column(schema: TableSchema, column: str, place: Place) -> Remark:
    close = difflib.get_close_matches(column, [each.name for each in schema.columns], n=1)
    fix = f"did you mean `{close[0]}`?" if close else f"it has {_some([each.name for each in schema.columns])}"
    return Remark(at(place), f"{schema.table} has no column {column} that is captured", fix)


def _some(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def listed(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"


def at(place: Place) -> str:
    return ".".join(place)
