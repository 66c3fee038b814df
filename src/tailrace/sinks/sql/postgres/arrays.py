"""Arrays as PostgreSQL's literals: `{"a","b",NULL}`, every element in quotes; their shapes come first, if any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.characters import in_rows
from tailrace.columns.text import to_text
from tailrace.model import shapes
from tailrace.model.types import ColumnType


def delimiter_of(type_: ColumnType) -> str:
    """What stands between the elements of an array. Of the built-in types one is different."""
    return ";" if type_.element is not None and type_.element.name == "box" else ","


def array_literals(array: pa.Array, type_: ColumnType) -> pa.StringArray:
    """The literal of each array; null stays null."""
    delimiter = delimiter_of(type_)
    lists = _quoted(shapes.elements_of(array), type_)
    joined = pc.binary_join_element_wise("{", pc.binary_join(lists, delimiter), "}", "")
    plain = pc.if_else(array.is_valid(), joined, pa.scalar(None, pa.string()))
    return _with_shapes(plain, lists, shapes.shapes_of(array), delimiter) if shapes.is_shaped(array.type) else plain


def _quoted(array: pa.ListArray, type_: ColumnType) -> pa.ListArray:
    """The elements as they stand in a literal; of a null nothing."""
    assert type_.element is not None
    lengths = pc.list_value_length(array).fill_null(0).to_numpy()
    text = to_text(array.flatten(), type_.element)
    for character in ("\\", '"'):
        text = pc.replace_substring(text, character, "\\" + character)
    text = pc.fill_null(pc.binary_join_element_wise('"', text, '"', ""), "NULL")
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), text)


def _with_shapes(plain: pa.StringArray, lists: pa.ListArray, found: list[str | None], delimiter: str) -> pa.StringArray:
    odd = [row for row, shape in enumerate(found) if shape is not None]
    usual = np.setdiff1d(np.arange(len(found)), odd)
    texts = [_literal(lists[row].as_py(), str(found[row]), delimiter) for row in odd]
    parts = [plain.take(pa.array(usual)), pa.array(texts, pa.string())]
    return in_rows(parts, [usual, np.array(odd, np.int64)], len(found), pa.string())


def _literal(elements: list[str], shape: str, delimiter: str) -> str:
    return f"{shape}={_braces(shapes.nested(elements, shapes.bounds_of(shape)), delimiter)}"


def _braces(elements: list[Any], delimiter: str) -> str:
    inside = (_braces(each, delimiter) if isinstance(each, list) else each for each in elements)
    return "{" + delimiter.join(inside) + "}"
