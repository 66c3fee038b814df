"""The canonical text form of values, for sinks that have no type of their own for them.

Guarantee: it depends on the value alone, and the value can be had back from it exactly.

| kind | text |
|---|---|
| boolean | `true`, `false` |
| integers | digits |
| floats | the shortest digits that read back as the same number: `0.1`, `-0`, `1e-7`, `1e+20`, `NaN`, `Infinity` |
| decimal | every digit of the scale, never an exponent: `12.50`; also `NaN` |
| bytes | `\\x` and hexadecimal digits, lower case |
| date | `2024-02-29`; also `0044-03-15 BC`, `12024-01-01`, `infinity`, `-infinity` |
| time | `23:59:59`, with a fraction `23:59:59.500000`; also `24:00:00` |
| timetz | the same with its offset: `12:00:00+05:30` (`+05:30:15` if there are seconds) |
| timestamp | `2024-02-29 23:59:59` or `2024-02-29 23:59:59.500000`, and the extremes of dates |
| timestamptz | the same in UTC, with `+00:00` |
| interval | ISO 8601 as PostgreSQL writes it: `P1Y2M-3DT4H5M6.789S`, zero is `PT0S`; also `infinity` |
| array | a JSON array. Integers, finite floats and booleans are JSON's own; NULL is `null`; all else is a string |
| of several dimensions | JSON arrays in JSON arrays: `[[1,2],[3,null]]` |
| that does not start at 1 | in an object, under its bounds: `{"[0:1]":[1,2]}`, `{"[1:1][0:1]":[[1,2]]}` |
| the others | they are text already |

A fraction of a second has six digits, or none when it is zero: SQLite's and Python's functions read both, and texts of
one column still sort by time (within the years 1 to 9999).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns import times
from tailrace.columns.characters import GROUPS, HEX, Array, in_rows, numbers, offsets_of
from tailrace.model import extremes, shapes
from tailrace.model.types import ColumnType, Kind


def to_text(array: pa.Array, type_: ColumnType) -> pa.StringArray:
    """The text of each value; null stays null."""
    if type_.element is None and type_.kind not in _WRITERS:
        return array
    if array.null_count:
        rows = np.nonzero(array.is_valid().to_numpy(zero_copy_only=False))[0]
        return in_rows([to_text(array.drop_null(), type_)], [rows], len(array), pa.string())
    return _WRITERS[type_.kind](array) if type_.element is None else _array(array, type_.element)


def _cast(array: pa.Array) -> pa.StringArray:
    return array.cast(pa.string())


def _float(array: pa.Array) -> pa.StringArray:
    text = array.cast(pa.string())
    if pc.all(pc.is_finite(array), min_count=0).as_py():
        return text
    infinite = pc.if_else(pc.greater(array, 0), "Infinity", "-Infinity")
    return pc.if_else(pc.is_nan(array), "NaN", pc.if_else(pc.is_inf(array), infinite, text))


def _bytes(array: pa.Array) -> pa.StringArray:
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    buffers = [None, offsets_of(2 * np.diff(offsets).astype(np.int64)), pa.py_buffer(HEX[data])]
    return pc.binary_join_element_wise("\\x", pa.Array.from_buffers(pa.string(), len(array), buffers), "")


def _decimal(array: pa.Decimal128Array) -> pa.StringArray:
    scale = array.type.scale
    is_nan = extremes.is_nan(array)
    if is_nan.any():
        return _with_nan(array, is_nan)
    words = extremes.decimal_words(array)
    negative = words[:, 1] < 0
    low = np.where(negative, -words[:, 0], words[:, 0]).view(np.uint64)
    high = np.where(negative, ~words[:, 1] + (words[:, 0] == 0), words[:, 1]).view(np.uint64)
    limbs = [high >> np.uint64(32), high & _LOW, low >> np.uint64(32), low & _LOW] if high.any() else [low]
    groups = -(-max(_digit_count(high, low), scale + 1) // 4)
    digits = GROUPS[_divide(limbs, groups)].view(np.uint8)
    point = 4 * groups - scale
    leading = np.argmax(digits[:, : point - 1] != ord("0"), axis=1) if point > 1 else np.zeros(len(array), np.int64)
    leading[(digits[:, : point - 1] == ord("0")).all(axis=1)] = point - 1
    return numbers(digits, point, point - leading, scale, negative)


def _with_nan(array: pa.Decimal128Array, is_nan: Array) -> pa.StringArray:
    rows = [np.flatnonzero(~is_nan), np.flatnonzero(is_nan)]
    written = _decimal(array.take(pa.array(rows[0]))) if len(rows[0]) else pa.array([], pa.string())
    return in_rows([written, pa.array(["NaN"] * len(rows[1]))], rows, len(array), pa.string())


_LOW = np.uint64(0xFFFFFFFF)


def _digit_count(high: Array, low: Array) -> int:
    """Digits of the largest number, or a few more."""
    most = int(high.max(initial=0))
    return len(str((most + 1) << 64)) if most else len(str(int(low.max(initial=0))))


def _divide(limbs: list[Array], groups: int) -> Array:
    """The number as base-10000 digits: a long division, the most significant limb first."""
    table = np.empty((len(limbs[0]), groups), np.uint16)
    for column in range(groups - 1, -1, -1):
        rest: Array = np.zeros(1, np.uint64)
        for i, limb in enumerate(limbs):
            whole = limb + (rest << np.uint64(32)) if i else limb
            limbs[i] = whole // np.uint64(10_000)
            rest = whole - limbs[i] * np.uint64(10_000)
        table[:, column] = rest
    return table


_BARE = {Kind.BOOLEAN, Kind.INT16, Kind.INT32, Kind.INT64, Kind.ARRAY}


def _array(array: pa.Array, element: ColumnType) -> pa.StringArray:
    if shapes.is_shaped(array.type):
        return _shaped(array, element)
    values = array.flatten()
    text = to_text(values, element)
    if element.kind in (Kind.FLOAT32, Kind.FLOAT64):
        text = pc.if_else(pc.is_finite(values), text, quoted(text))
    elif element.kind not in _BARE:
        text = quoted(text)
    offsets = array.offsets.to_numpy()
    elements = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), pc.fill_null(text, "null"))
    return pc.binary_join_element_wise("[", pc.binary_join(elements, ","), "]", "")


def _shaped(array: pa.StructArray, element: ColumnType) -> pa.StringArray:
    """The ordinary arrays all at once, the others one by one."""
    flat = _array(shapes.elements_of(array), element).to_pylist()
    return pa.array(
        [
            text if shape is None else nested(text, shape)
            for text, shape in zip(flat, shapes.shapes_of(array), strict=True)
        ],
        pa.string(),
    )


def nested(flat: str, shape: str) -> str:
    """The elements are cut apart as they stand, so that no digit of theirs changes."""
    bounds = shapes.bounds_of(shape)
    elements = _JSON_ELEMENT.findall(flat[1:-1])
    text = _joined(shapes.nested(elements, bounds))
    return text if shapes.starts_at_1(bounds) else f'{{"{shape}":{text}}}'


_JSON_ELEMENT = re.compile(r'"(?:[^"\\]|\\.)*"|[^,]+')


def _joined(elements: list[Any]) -> str:
    return "[" + ",".join(_joined(each) if isinstance(each, list) else each for each in elements) + "]"


def quoted(text: pa.StringArray, escapes: Mapping[int, str] | None = None) -> pa.StringArray:
    """As JSON strings; characters outside of ASCII stay as they are."""
    escapes = escapes or ESCAPES
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    present = np.bincount(data, minlength=256)[:128].nonzero()[0].tolist()
    for code in sorted(set(present) & set(escapes), key=lambda code: code != ord("\\")):
        text = pc.replace_substring(text, chr(code), escapes[code])
    return pc.binary_join_element_wise('"', text, '"', "")


ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord("\\"): "\\\\",
    ord('"'): '\\"',
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}

_WRITERS: dict[Kind, Callable[[pa.Array], pa.StringArray]] = {
    Kind.BOOLEAN: _cast,
    Kind.INT16: _cast,
    Kind.INT32: _cast,
    Kind.INT64: _cast,
    Kind.FLOAT32: _float,
    Kind.FLOAT64: _float,
    Kind.DECIMAL: _decimal,
    Kind.BYTES: _bytes,
    Kind.DATE: times.date,
    Kind.TIME: times.time,
    Kind.TIMETZ: times.timetz,
    Kind.TIMESTAMP: times.timestamp,
    Kind.TIMESTAMPTZ: times.timestamp,
    Kind.INTERVAL: times.interval,
}
"""By kind; the kinds that are not here are strings already."""
