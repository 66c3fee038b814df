"""Comparing what a PostgreSQL sink holds with the source's rows, by a way that the encoder has no part in.

The sink's side is what the server's output functions print; the source's side is our canonical text (`model.text`),
turned into PostgreSQL's spelling. Floats are compared as numbers, for their shortest digits may be chosen differently.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.model import shapes
from tailrace.model.types import ColumnType, Kind
from tailrace.sinks.sql.dialect import Reading
from tailrace.sinks.sql.postgres.arrays import delimiter_of

_MOMENTS = {Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
_FLOATS: dict[Kind, Any] = {Kind.FLOAT32: np.float32, Kind.FLOAT64: np.float64}
_ELEMENT = {
    delimiter: re.compile(r'"((?:[^"\\]|\\.)*)"|([^{}' + delimiter + "]+)", re.DOTALL) for delimiter in (",", ";")
}
_BOUNDS = re.compile(r"(?:\[-?\d+:-?\d+\])+(?==)")


class PostgresReading(Reading):
    def read_values(self, values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
        return read_values(values, type_)

    def expected_values(self, array: pa.Array, type_: ColumnType) -> Sequence[Any]:
        return expected_values(array, type_)

    def key_text(self, value: str, type_: ColumnType) -> str:
        return f"{value}::text"

    def key_is(self, name: str, type_: ColumnType) -> str:
        """The text is read as the column's own type, so that the key's index serves."""
        return f"{name} = %s"


def expected_values(array: pa.Array, type_: ColumnType) -> Sequence[Any]:
    """What `read_values` must give for these values."""
    if type_.element is not None:
        lists = _expected_lists(shapes.elements_of(array), type_.element)
        found = shapes.shapes_of(array) if shapes.is_shaped(array.type) else itertools.repeat(None, len(array))
        return [each if shape is None else (shape, each) for each, shape in zip(lists, found, strict=True)]
    return _comparable(_spelled(to_text(array, type_), type_).to_pylist(), type_)


def read_values(values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
    """The texts that the server printed, as values that can be compared and hashed."""
    if type_.element is not None:
        return [None if text is None else _read_array(text, type_) for text in values]
    return _comparable(values, type_)


def _read_array(text: str, type_: ColumnType) -> tuple[Any, ...]:
    """The elements of an array as array_out prints it; with its shape before them if it is not ordinary."""
    assert type_.element is not None
    written = _BOUNDS.match(text)
    body = text[written.end() + 1 :] if written else text
    elements = tuple(_comparable(_elements(body, delimiter_of(type_)), type_.element))
    if not written and not body.startswith("{{"):
        return elements
    return (written[0] if written else _shape_of(body, len(elements)), elements)


def _shape_of(body: str, count: int) -> str:
    """The shape of nested braces; quoted ones do not count."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", body, flags=re.DOTALL)
    depth = len(body) - len(body.lstrip("{"))
    groups, level = [0] * depth, 0
    for brace in re.findall(r"[{}]", bare):
        level -= brace == "}"
        if brace == "{":
            groups[level] += 1
            level += 1
    sizes = [inner // outer for outer, inner in itertools.pairwise([*groups, count])]
    return "".join(f"[1:{size}]" for size in sizes)


def _expected_lists(array: pa.ListArray, element: ColumnType) -> Sequence[Any]:
    elements = expected_values(array.flatten(), element)
    lengths = [-1 if length is None else length for length in pc.list_value_length(array).to_pylist()]
    ends = list(itertools.accumulate(max(length, 0) for length in lengths))
    return [
        None if length < 0 else tuple(elements[end - length : end]) for length, end in zip(lengths, ends, strict=True)
    ]


def _comparable(texts: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
    """Floats by their bits: `0.1` and `-0.0`; every NaN is the same."""
    number = _FLOATS.get(type_.kind)
    if number is None:
        return texts
    return [None if text is None else repr(float(number(text))) for text in texts]


def _elements(body: str, delimiter: str) -> list[str | None]:
    found: list[str | None] = []
    for match in _ELEMENT[delimiter].finditer(body, 1):
        if match[2] is not None:
            found.append(None if match[2] == "NULL" else match[2])
        else:
            found.append(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL))
    return found


def _spelled(text: pa.StringArray, type_: ColumnType) -> pa.StringArray:
    """A fraction without its last zeros, and a zone without minutes that are zero."""
    if type_.kind in _MOMENTS:
        text = pc.replace_substring_regex(text, r"(\.\d*?)0+([^\d]|$)", r"\1\2")
    if type_.kind is Kind.TIMESTAMPTZ:
        text = pc.replace_substring(text, "+00:00", "+00")
    if type_.kind is Kind.TIMETZ:
        text = pc.replace_substring_regex(text, r"([-+]\d\d):00$", r"\1")
    if type_.kind is Kind.BOOLEAN:
        text = pc.utf8_slice_codeunits(text, 0, 1)
    return text
