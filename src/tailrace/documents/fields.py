"""The fields of a document as JSON, all rows of a table at once: a fragment for each value of a column.

What OpenSearch would refuse, or take for something else, is refused here with the name of its column: NaN and the
infinities in numbers, and in dates all years but 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.columns import fragments, times
from tailrace.columns.fragments import NULL, Fragment
from tailrace.columns.text import nested, to_text
from tailrace.config import documents as d
from tailrace.config.conditions import Scalar
from tailrace.documents.kinds import EXACT, FIELDS, WHOLE, element_of
from tailrace.errors import ValueRefused
from tailrace.model import extremes, shapes
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind

Below = Callable[[str, d.Joins | d.Aggregates], pa.StringArray]
"""The fragments of a field that is made of rows of other tables, by its place in the description."""

_TEXTS = frozenset({"text", "identifier", "keyword", "enum", "uuid"})
_WHOLE = frozenset({"short", "integer", "long"})
_NUMBERS = frozenset({"float", "double", "decimal"}) | _WHOLE
_DOUBLE_DIGITS = 15
"""Every number of so many digits is read back from a double as it was."""


def objects(
    fields: Mapping[str, d.Field], rows: pa.RecordBatch, schema: TableSchema, place: str, below: Below
) -> pa.StringArray:
    """An object for each row. `below` writes the fields that are made of other tables."""
    written = {
        name: _field(name, field, rows, schema, f"{place}.fields.{name}", below) for name, field in fields.items()
    }
    return fragments.objects(written, rows.num_rows)


def _field(
    name: str, field: d.Field, rows: pa.RecordBatch, schema: TableSchema, place: str, below: Below
) -> pa.StringArray:
    match field:
        case d.Object():
            return objects(field.fields, rows, schema, place, below)
        case d.Constant():
            return pa.repeat(pa.scalar(encode(field.value).decode()), rows.num_rows)
        case d.Geo():
            return required(_geo(field, rows, schema), field.required, place)
        case d.Map():
            column = field.column or name
            return required(_written(rows, schema, column, raw_json), field.required, place)
        case d.BelongsTo() | d.HasOne() | d.HasMany() | d.ManyToMany():
            return below(place, field)
        case d.Count() | d.Sum() | d.Min() | d.Max() | d.Avg() | d.Ids():
            return below(place, field)
        case _:
            return _scalar(name, field, rows, schema, place)


def _scalar(name: str, field: d.Scalars, rows: pa.RecordBatch, schema: TableSchema, place: str) -> pa.StringArray:
    column = field.column or name
    type_ = types_of(schema)[column]
    element = element_of(type_)
    tag = tag_of(field, element)
    transforms = field.transforms if isinstance(field, d.TextField) else ()
    write = writer(tag, element, f"{schema.table}.{column}", transforms)
    found = _written(rows, schema, column, write)
    if field.default is not None:
        found = pc.if_else(rows.column(column).is_valid(), found, default_text(field.default, tag))
    return required(found, field.required, place)


def types_of(schema: TableSchema) -> dict[str, ColumnType]:
    return {column.name: column.type for column in schema.columns}


def tag_of(field: d.Scalars, element: ColumnType) -> str:
    """How values are written: as the field says, or as the column asks for."""
    named = FIELDS[element.kind] if isinstance(field, d.Custom) else type(field)
    return str(named.__struct_config__.tag)


def _written(rows: pa.RecordBatch, schema: TableSchema, column: str, write: Fragment) -> pa.StringArray:
    array, type_ = rows.column(column), types_of(schema)[column]
    return fragments.written(array, partial(_lists, element=write) if type_.element is not None else write)


def required(written: pa.StringArray, is_required: bool, place: str) -> pa.StringArray:
    if is_required and pc.any(pc.equal(written, NULL), min_count=0).as_py():
        raise ValueRefused(
            f"{place} is required, and null in a document", hint="write a `default`, or leave `required` out"
        )
    return written


def default_text(default: Scalar, tag: str) -> str:
    """The JSON of a default, which the file may have as text."""
    if tag in _NUMBERS:
        return format(Decimal(str(default)), "f")
    if tag == "boolean":
        return str(default).lower()
    return encode(str(default) if tag in _TEXTS else default).decode()


def writer(tag: str, type_: ColumnType, where: str, transforms: tuple[d.TextTransform, ...] = ()) -> Fragment:
    """Writes values of `type_` as a field of that name has them."""
    if tag in _TEXTS:
        return lambda array: fragments.strings(_transformed(to_text(array, type_), transforms))
    if tag in _NUMBERS:
        return partial(_numbers, tag=tag, type_=type_, where=where)
    match tag:
        case "boolean":
            return fragments.numbers
        case "date" | "timestamp":
            return partial(_moments, type_=type_, where=where)
        case "binary":
            return lambda array: fragments.literal(fragments.base64(array))
        case _:
            return raw_json


def _transformed(text: pa.StringArray, transforms: tuple[d.TextTransform, ...]) -> pa.StringArray:
    for transform in transforms:
        match transform:
            case d.TextTransform.LOWERCASE:
                text = pc.utf8_lower(text)
            case d.TextTransform.TRIM:
                text = pc.utf8_trim_whitespace(text)
    return text


def raw_json(array: pa.StringArray) -> pa.StringArray:
    """JSON as it is, on one line: what is replaced stands between tokens, for in a string it is escaped."""
    for character in "\n\r":
        if pc.any(pc.match_substring(array, character), min_count=0).as_py():
            array = pc.replace_substring(array, character, " ")
    return array


def _numbers(array: pa.Array, *, tag: str, type_: ColumnType, where: str) -> pa.StringArray:
    if type_.kind in WHOLE:
        return fragments.numbers(array)
    if type_.kind not in EXACT:
        if not np.isfinite(array.to_numpy()).all():
            raise _refused(where, type_, "NaN and the infinities are no numbers of JSON")
        return fragments.floats(array)
    texts = to_text(array, type_)
    if _has_letters(array, texts, type_):
        raise _refused(where, type_, "NaN and the infinities are no numbers of JSON")
    if tag in _WHOLE and pc.any(pc.match_substring_regex(texts, r"\.0*[1-9]"), min_count=0).as_py():
        raise _refused(where, type_, f"a number with a fraction is no {tag}")
    return _with_all_digits(texts) if tag == "decimal" else texts


def _with_all_digits(texts: pa.StringArray) -> pa.StringArray:
    """Numbers, or strings where a number would lose digits: OpenSearch keeps fractions of a document as doubles."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= _DOUBLE_DIGITS:
        return texts
    digits = pc.replace_substring(pc.replace_substring_regex(texts, r"^-?0*\.?0*", ""), ".", "")
    is_long = pc.and_(pc.greater(pc.binary_length(digits), _DOUBLE_DIGITS), pc.match_substring(texts, "."))
    return pc.if_else(is_long, fragments.literal(texts), texts)


def _has_letters(array: pa.Array, texts: pa.StringArray, type_: ColumnType) -> bool:
    """Whether one of the numbers is none: NaN, or an infinity."""
    if type_.kind is Kind.DECIMAL:
        return bool(extremes.is_nan(array).any())
    return bool(pc.any(pc.match_substring_regex(texts, "[a-zA-Z]"), min_count=0).as_py())


def _moments(array: pa.Array, *, type_: ColumnType, where: str) -> pa.StringArray:
    """`2024-02-29`, `2024-02-29T23:59:59.500000`, and behind one with a zone `Z`."""

    def refuse(_: int) -> str:
        raise _refused(where, type_, "a year before 1 or after 9999, or infinity, is no date of OpenSearch")

    if type_.kind is Kind.DATE:
        return fragments.literal(times.iso_date(array, refuse))
    text = times.iso_utc(array, 6, refuse)
    return fragments.literal(text if type_.kind is Kind.TIMESTAMPTZ else pc.utf8_slice_codeunits(text, 0, 26))


def _lists(array: pa.Array, *, element: Fragment) -> pa.StringArray:
    """Arrays of one dimension, and of several as lists of lists; where they start does not count."""
    lists = shapes.elements_of(array)
    texts = fragments.lists(lists, element)
    if not shapes.is_shaped(array.type):
        return texts
    pairs = zip(texts.to_pylist(), shapes.shapes_of(array), strict=True)
    return pa.array([text if shape is None else nested(text, _at_1(shape)) for text, shape in pairs], pa.string())


def _at_1(shape: str) -> str:
    return "".join(f"[1:{last - first + 1}]" for first, last in shapes.bounds_of(shape))


def _geo(field: d.Geo, rows: pa.RecordBatch, schema: TableSchema) -> pa.StringArray:
    if field.column is None:
        assert field.lat is not None
        assert field.lon is not None
        lat, lon = (_coordinate(rows, schema, column) for column in (field.lat, field.lon))
        is_whole = pc.and_(rows.column(field.lat).is_valid(), rows.column(field.lon).is_valid())
        return pc.if_else(is_whole, fragments.join(['{"lat":', lat, ',"lon":', lon, "}"]), NULL)
    type_ = types_of(schema)[field.column]
    if type_.kind is Kind.OTHER and type_.name == "point":
        return _written(
            rows, schema, field.column, partial(_points, type_=type_, where=f"{schema.table}.{field.column}")
        )
    return _written(rows, schema, field.column, raw_json if type_.kind is Kind.JSON else fragments.strings)


def _coordinate(rows: pa.RecordBatch, schema: TableSchema, column: str) -> pa.StringArray:
    return _written(rows, schema, column, writer("double", types_of(schema)[column], f"{schema.table}.{column}"))


_POINT = r"^\(([-+0-9.eE]+),([-+0-9.eE]+)\)$"


def _points(array: pa.StringArray, *, type_: ColumnType, where: str) -> pa.StringArray:
    if not pc.all(pc.match_substring_regex(array, _POINT), min_count=0).as_py():
        raise _refused(where, type_, "a coordinate is NaN or infinite")
    return pc.replace_substring_regex(array, _POINT, r'{"lat":\2,"lon":\1}')


def _refused(where: str, type_: ColumnType, why: str) -> ValueRefused:
    return ValueRefused(
        f"column {where} ({type_.name}): {why}", hint="leave the column or the row out, or make it a keyword"
    )
