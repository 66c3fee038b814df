"""What groups of rows come to: a JSON fragment for each group.

Rows come sorted by their groups; group i is rows bounds[i] to bounds[i + 1] - 1 and has one at least. Sums of exact
numbers are exact, of any size. A null does not count; where there is nothing else the answer is null.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns import fragments
from tailrace.columns.text import to_text
from tailrace.config import documents as d
from tailrace.documents.fields import default_text, types_of, writer
from tailrace.documents.keys import ids as key_ids
from tailrace.documents.keys import key_texts
from tailrace.documents.kinds import EXACT, WHOLE, value_type_of
from tailrace.documents.ordering import Integers, Key, sortable, sorted_rows
from tailrace.errors import ValueRefused
from tailrace.model.schema import TableSchema
from tailrace.model.types import ColumnType, Kind, arrow_type

Numbers = npt.NDArray[np.object_] | Integers


def completed(field: d.Aggregates, written: pa.StringArray, schema: TableSchema) -> pa.StringArray:
    """With what no rows come to, or no values."""
    match field:
        case d.Count():
            return pc.fill_null(written, "0")
        case d.Ids():
            return pc.fill_null(written, "[]")
        case d.Sum() | d.Min() | d.Max() | d.Avg() if field.default is not None:
            default = default_text(field.default, value_type_of(field, schema).value)
            written = pc.fill_null(written, fragments.NULL)
            return pc.if_else(pc.equal(written, fragments.NULL), default, written)
        case _:
            return pc.fill_null(written, fragments.NULL)


def aggregated(field: d.Aggregates, rows: pa.RecordBatch, bounds: Integers, schema: TableSchema) -> pa.StringArray:
    if isinstance(field, d.Count):
        return pa.array(np.diff(bounds)).cast(pa.string())
    tag = value_type_of(field, schema).value
    if isinstance(field, d.Ids):
        return _ids(field, rows, bounds, schema, tag)
    type_ = types_of(schema)[field.column]
    array = rows.column(field.column)
    where = f"{schema.table}.{field.column}"
    counts = _counts(array, bounds)
    filled = counts > 0
    if not filled.any():
        return pa.repeat(pa.scalar(fragments.NULL), len(filled))
    found = _of_values(field, array.drop_null(), _bounds(counts[filled]), type_, tag, where)
    places = np.cumsum(filled) - 1
    return pc.fill_null(found.take(pa.array(places, mask=~filled)), fragments.NULL)


def _counts(array: pa.Array, bounds: Integers) -> Integers:
    """How many values of each group are not null."""
    present = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    return np.asarray(np.add.reduceat(present, bounds[:-1]))


def _bounds(counts: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(counts)])


def _of_values(
    field: d.Sum | d.Avg | d.Min | d.Max, values: pa.Array, bounds: Integers, type_: ColumnType, tag: str, where: str
) -> pa.StringArray:
    match field:
        case d.Sum() if type_.kind in WHOLE | EXACT:
            return _exact_sums(values, bounds, type_, tag, where)
        case d.Sum():
            return _doubles(_float_sums(values, bounds), where, type_)
        case d.Avg():
            return _doubles(_averages(values, bounds, type_, where), where, type_)
        case d.Min() | d.Max():
            return writer(tag, type_, where)(_outermost(values, bounds, type_, is_largest=isinstance(field, d.Max)))


def _exact_sums(values: pa.Array, bounds: Integers, type_: ColumnType, tag: str, where: str) -> pa.StringArray:
    integers, scale = _unscaled(values, type_, where)
    texts = _with_point(_sums(integers, bounds), scale)
    if type_.kind is Kind.NUMERIC:  # its scale is that of other rows, too
        texts = key_texts(texts, type_)
    return writer(tag, ColumnType(Kind.NUMERIC, type_.name), where)(texts)


def _sums(integers: Numbers, bounds: Integers) -> Numbers:
    """Exact: in 64 bits where no sum can be beyond them, else in Python's integers."""
    if integers.dtype != np.object_ and len(integers):
        largest = max(abs(int(integers.min())), abs(int(integers.max())))
        if largest * int(np.diff(bounds).max()) >= 1 << 63:
            integers = integers.astype(np.object_)
    return np.asarray(np.add.reduceat(integers, bounds[:-1]))


def _unscaled(values: pa.Array, type_: ColumnType, where: str) -> tuple[Numbers, int]:
    """Exact numbers as integers, and how many of their digits are behind the point."""
    if type_.kind in WHOLE:
        return values.to_numpy().astype(np.int64), 0
    texts = to_text(values, type_)
    if pc.any(pc.match_substring_regex(texts, "[a-zA-Z]")).as_py():
        raise ValueRefused(
            f"column {where} ({type_.name}): NaN and the infinities have no sum in JSON", hint="filter such rows out"
        )
    point = pc.find_substring(texts, ".")
    behind = pc.if_else(pc.less(point, 0), 0, pc.subtract(pc.subtract(pc.binary_length(texts), point), 1))
    scale = int(pc.max(behind).as_py())
    zeros = pc.binary_repeat(pa.repeat(pa.scalar("0"), len(texts)), pc.subtract(scale, behind))
    digits = pc.binary_join_element_wise(pc.replace_substring(texts, ".", ""), zeros, "")
    if pc.max(pc.binary_length(digits)).as_py() <= _QUICK_DIGITS:
        return digits.cast(pa.int64()).to_numpy(), scale
    return np.array([int(each) for each in digits.to_pylist()], np.object_), scale


_QUICK_DIGITS = 18


def _with_point(integers: Numbers, scale: int) -> pa.StringArray:
    """The numbers that these are, `scale` digits of which are behind the point."""
    if integers.dtype == np.object_:
        return pa.array([_one_with_point(int(each), scale) for each in integers.tolist()], pa.string())
    if not scale:
        return pa.array(integers).cast(pa.string())
    words = np.stack([integers, integers >> 63], axis=1)
    type_ = ColumnType(Kind.DECIMAL, "", 38, scale)
    return to_text(pa.Array.from_buffers(arrow_type(type_), len(words), [None, pa.py_buffer(words)]), type_)


def _one_with_point(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = f"{digits[: len(digits) - scale]}.{digits[len(digits) - scale :]}" if scale else digits
    return f"-{text}" if number < 0 else text


def _float_sums(values: pa.Array, bounds: Integers) -> npt.NDArray[np.float64]:
    return np.asarray(np.add.reduceat(values.to_numpy().astype(np.float64), bounds[:-1]))


def _averages(values: pa.Array, bounds: Integers, type_: ColumnType, where: str) -> npt.NDArray[np.float64]:
    counts = np.diff(bounds)
    if type_.kind not in WHOLE | EXACT:
        return np.asarray(_float_sums(values, bounds) / counts)
    integers, scale = _unscaled(values, type_, where)
    sums, divisors = _sums(integers, bounds), counts.astype(np.object_) * 10**scale
    is_quick = (np.abs(sums) < _EXACT) & (divisors < _EXACT)
    if is_quick.all():
        return np.asarray(sums.astype(np.float64) / divisors.astype(np.float64))
    pairs = zip(sums.tolist(), divisors.tolist(), strict=True)
    return np.array([float(Fraction(int(total), divisor)) for total, divisor in pairs])


_EXACT = 1 << 53
"""Below this every integer is a double, and so a quotient of two is rounded once, as that of fractions is."""


def _doubles(numbers: npt.NDArray[np.float64], where: str, type_: ColumnType) -> pa.StringArray:
    return writer("double", ColumnType(Kind.FLOAT64, type_.name), where)(pa.array(numbers))


def _outermost(values: pa.Array, bounds: Integers, type_: ColumnType, *, is_largest: bool) -> pa.Array:
    """The smallest value of each group, or the largest."""
    groups = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = sorted_rows([Key(pa.array(groups)), Key(sortable(values, type_))])
    return values.take(pa.array(order[bounds[1:] - 1 if is_largest else bounds[:-1]]))


def _ids(field: d.Ids, rows: pa.RecordBatch, bounds: Integers, schema: TableSchema, tag: str) -> pa.StringArray:
    """The keys, or the values of a column, in their order."""
    types = types_of(schema)
    names = (field.column,) if field.column is not None else schema.key
    groups = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    keys = [Key(sortable(rows.column(name), types[name])) for name in names]
    order = pa.array(sorted_rows([Key(pa.array(groups)), *keys]))
    columns = [rows.column(name).take(order) for name in names]
    if len(names) == 1:
        bounds = _bounds(_counts(columns[0], bounds))
        texts = _one_id(columns[0].drop_null(), tag, types[names[0]], f"{schema.table}.{names[0]}")
    else:
        texts = fragments.strings(key_ids([key_texts(c, types[n]) for n, c in zip(names, columns, strict=True)]))
    lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), texts)
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")


def _one_id(values: pa.Array, tag: str, type_: ColumnType, where: str) -> pa.StringArray:
    if tag == d.ValueType.KEYWORD:
        return fragments.strings(key_texts(values, type_))
    return writer(tag, type_, where)(values)
