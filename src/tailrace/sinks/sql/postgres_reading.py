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

from tailrace.model.text import to_text
from tailrace.model.types import ColumnType, Kind

_MOMENTS = {Kind.TIME, Kind.TIMETZ, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
_FLOATS: dict[Kind, Any] = {Kind.FLOAT32: np.float32, Kind.FLOAT64: np.float64}
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', re.DOTALL)


def expected_values(array: pa.Array, type_: ColumnType) -> Sequence[Any]:
    """What `read_values` must give for these values."""
    if type_.element is not None:
        elements = expected_values(array.flatten(), type_.element)
        bounds = array.offsets.to_numpy() - (array.offsets[0].as_py() if len(array) else 0)
        lists = [tuple(elements[first:last]) for first, last in itertools.pairwise(bounds)]
        valid = array.is_valid().to_pylist()
        return [value if is_valid else None for value, is_valid in zip(lists, valid, strict=True)]
    return _comparable(_spelled(to_text(array, type_), type_).to_pylist(), type_)


def read_values(values: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
    """The texts that the server printed, as values that can be compared and hashed."""
    element = type_.element
    if element is not None:
        return [None if text is None else tuple(_comparable(_elements(text), element)) for text in values]
    return _comparable(values, type_)


def _comparable(texts: Sequence[Any], type_: ColumnType) -> Sequence[Any]:
    """Floats by their bits: `0.1` and `-0.0`; every NaN is the same."""
    number = _FLOATS.get(type_.kind)
    if number is None:
        return texts
    return [None if text is None else repr(float(number(text))) for text in texts]


def _elements(text: str) -> list[str | None]:
    """The elements of an array of one dimension, as array_out prints it."""
    found: list[str | None] = []
    for match in _ELEMENT.finditer(text, 1):
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
