"""PostgreSQL arrays to Arrow lists: the structure here, the elements by the decoder of their type.

A list is one dimension that starts at 1. Where a column has other arrays, their shapes go along (`model.shapes`).
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.columns.characters import Array, in_rows
from tailrace.model import shapes
from tailrace.model.types import ColumnType, arrow_type
from tailrace.sources.postgres.values.cells import Cells, Integers, from_list, in_order

Decode = Callable[[Cells], pa.Array]

_HEADER = 12  # array_send: dimensions, whether there are NULLs, the elements' OID
_BOUND = 8  # then size and lower bound of each dimension
_FIRST_ELEMENT = _HEADER + _BOUND
_MOST_DIMENSIONS = 6
_FEW = 16  # rows; below this a loop over elements is faster than a step of numpy for each


def decode_array(cells: Cells, decode: Decode) -> pa.Array:
    """The binary form."""
    dimensions = _dimensions(cells)
    head = np.maximum(_HEADER + _BOUND * dimensions, _FIRST_ELEMENT)
    bounds = cells.window("V20").view(">i4").reshape(-1, 5)
    count: Integers = bounds[:, 3] * (dimensions == 1).astype(np.int64)
    odd = np.flatnonzero((dimensions > 1) | ((bounds[:, 4] != 1) & (dimensions == 1)))
    texts = [_binary_shape(cells, int(row), int(dimensions[row]), count) for row in odd]
    if (count < 0).any() or (head + 4 * count > np.maximum(cells.length, head)).any():
        raise cells.malformed("an array has fewer elements than it says")
    place, length = _walk(cells, count, head)
    return _with_shapes(_list(cells, count, cells.buffer, place, length, decode), odd, texts)


def _dimensions(cells: Cells) -> Integers:
    """How many each array has; none if it is empty. Its header is there in full."""
    if (cells.length < _HEADER).any():
        raise cells.malformed("an array is shorter than its header")
    dimensions: Integers = cells.window(">i4").astype(np.int64)
    is_possible = (dimensions >= 0) & (dimensions <= _MOST_DIMENSIONS)
    if not is_possible.all() or (cells.length[dimensions == 0] != _HEADER).any():
        raise cells.malformed("an array's header is damaged")
    if (cells.length < _HEADER + _BOUND * dimensions).any():
        raise cells.malformed("an array is shorter than its header")
    return dimensions


def _binary_shape(cells: Cells, row: int, dimensions: int, count: Integers) -> str | None:
    """The shape of one array, whose elements are counted on the way."""
    fields = struct.unpack_from(f">{2 * dimensions}i", cells[row], _HEADER)
    sizes, firsts = fields[0::2], fields[1::2]
    if min(sizes) < 1 or math.prod(sizes) > len(cells.buffer):
        raise cells.malformed("an array's header is damaged")
    count[row] = math.prod(sizes)
    return shapes.written([(first, first + size - 1) for size, first in zip(sizes, firsts, strict=True)])


def _with_shapes(lists: pa.ListArray, odd: Array, texts: Sequence[str | None]) -> pa.Array:
    if not len(odd):
        return lists
    return shapes.shaped(lists, in_rows([pa.array(texts, pa.string())], [odd], len(lists), pa.string()))


def _walk(cells: Cells, count: Integers, head: Integers) -> tuple[Integers, Integers]:
    """Place and length (-1: NULL) of every element, row after row: element j of all rows in one step.

    The elements of an array begin behind its `head`.
    """
    first = np.cumsum(count) - count
    place = np.zeros(int(count.sum()), np.int64)
    length = np.zeros(len(place), np.int64)
    order = np.argsort(-count, kind="stable")
    cursor, end, target = (cells.place + head)[order], (cells.place + cells.length)[order], first[order]
    sizes = count[order]
    for j in range(int(sizes.max(initial=0))):
        live = int(np.searchsorted(-sizes, -j))  # rows with more than j elements; they come first
        if live < _FEW:
            _walk_rows(cells, cursor[:live], end[:live], target[:live] + j, sizes[:live] - j, place, length)
            cursor[:live] = end[:live]
            break
        at = cursor[:live]
        if (at + 4 > end[:live]).any():
            raise cells.malformed("an element reaches past the end of its array")
        size = Cells(cells.buffer, at, np.full(live, 4), cells.type_, cells.where).window(">i4").astype(np.int64)
        place[target[:live] + j] = at + 4
        length[target[:live] + j] = size
        cursor[:live] = at + 4 + np.maximum(size, 0)
    if (cursor[sizes > 0] != end[sizes > 0]).any() or int(length.min(initial=0)) < -1:
        raise cells.malformed("an array's elements do not fill it")
    return place, length


def _walk_rows(
    cells: Cells, cursor: Array, end: Array, target: Array, count: Array, place: Array, length: Array
) -> None:
    """The same for the few longest arrays, one element after the other."""
    for row in range(len(cursor)):
        start, stop, at = int(cursor[row]), int(end[row]), 0
        value = cells.buffer[start:stop].tobytes()
        places, lengths = [], []
        for _ in range(int(count[row])):
            if at + 4 > len(value):
                raise cells.malformed("an element reaches past the end of its array")
            (size,) = struct.unpack_from(">i", value, at)
            places.append(start + at + 4)
            lengths.append(size)
            at += 4 + max(size, 0)
        if at != len(value):
            raise cells.malformed("an array's elements do not fill it")
        place[target[row] : target[row] + len(places)] = places
        length[target[row] : target[row] + len(places)] = lengths


def _list(
    cells: Cells, count: Integers, buffer: Array, place: Integers, length: Integers, decode: Decode
) -> pa.ListArray:
    element = cells.type_.element
    assert element is not None
    rows = np.nonzero(length >= 0)[0]
    present = Cells(buffer, place[rows], length[rows], element, cells.where)
    values = in_order([decode(present)], [rows], len(place), element)
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    return pa.Array.from_buffers(arrow_type(cells.type_), len(count), [None, pa.py_buffer(offsets)], children=[values])


def parse_array(cells: Cells, decode: Decode) -> pa.Array:
    """The text form (array_out): `{1,NULL,"a \\"b\\""}`, `{{1},{2}}`, `[0:1]={1,2}`."""
    element = cells.type_.element
    assert element is not None
    delimiter = b";" if element.name == "box" else b","
    elements: list[bytes | None] = []
    count = np.zeros(len(cells), np.int64)
    odd: list[int] = []
    texts: list[str | None] = []
    for row in range(len(cells)):
        value, before = cells[row], len(elements)
        if value.startswith((b"[", b"{{")):
            found, shape = _split_shaped(value, delimiter, cells)
            elements += found
            odd.append(row)
            texts.append(shape)
        else:
            elements += _split(value, delimiter, cells)
        count[row] = len(elements) - before
    present = from_list([value or b"" for value in elements], element, cells.where)
    is_null = np.fromiter((value is None for value in elements), bool, len(elements))
    lists = _list(cells, count, present.buffer, present.place, np.where(is_null, -1, present.length), decode)
    return _with_shapes(lists, np.array(odd, np.int64), texts)


_TOKENS = {
    delimiter: re.compile(
        rb'(?:"((?:[^"\\]|\\.)*)"|([^"\\{}' + delimiter + rb"]+))(?:" + delimiter + rb"|\Z)", re.DOTALL
    )
    for delimiter in (b",", b";")
}
_PIECES = {
    delimiter: re.compile(rb'([{}])|"((?:[^"\\]|\\.)*)"|([^"\\{}' + delimiter + rb"]+)|" + delimiter, re.DOTALL)
    for delimiter in (b",", b";")
}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def _split_shaped(value: bytes, delimiter: bytes, cells: Cells) -> tuple[list[bytes | None], str | None]:
    """The elements of an array that is not ordinary, and its shape."""
    written = _WRITTEN_BOUNDS.match(value)
    elements, counts = _walk_braces(value[written.end() :] if written else value, delimiter, cells)
    sizes = [inner // outer for outer, inner in pairwise(counts)]
    bounds = shapes.bounds_of(written[0].decode()) if written else [(1, size) for size in sizes]
    if [last - first + 1 for first, last in bounds] != sizes or math.prod(sizes) != len(elements):
        raise cells.malformed("an array's text is damaged")
    return elements, shapes.written(bounds)


_WRITTEN_BOUNDS = re.compile(rb"(?:\[-?\d+:-?\d+\])+=")


def _walk_braces(body: bytes, delimiter: bytes, cells: Cells) -> tuple[list[bytes | None], list[int]]:
    """The elements, and how many groups in braces there are on each level, the elements being the last of them."""
    counts = [0] * (len(body) - len(body.lstrip(b"{")) + 1)
    elements: list[bytes | None] = []
    level = at = delimiters = 0
    for match in _PIECES[delimiter].finditer(body):
        brace, quoted, plain = match.groups()
        is_element = quoted is not None or plain is not None
        is_misplaced = is_element != (level == len(counts) - 1) and brace != b"}" and match[0] != delimiter
        if match.start() != at or is_misplaced or level < 0:
            raise cells.malformed("an array's text is damaged")
        at = match.end()
        counts[level] += is_element or brace == b"{"
        level += (brace == b"{") - (brace == b"}")
        delimiters += match[0] == delimiter
        if is_element:
            elements.append(_element(quoted, plain))
    if at != len(body) or level or not all(counts) or delimiters != counts[-1] - 1:
        raise cells.malformed("an array's text is damaged")
    return elements, counts


def _element(quoted: bytes | None, plain: bytes | None) -> bytes | None:
    if quoted is not None:
        return _ESCAPED.sub(rb"\1", quoted)
    return None if plain == b"NULL" else plain


def _split(value: bytes, delimiter: bytes, cells: Cells) -> list[bytes | None]:
    if not (value.startswith(b"{") and value.endswith(b"}")):
        raise cells.malformed("an array's text is not in braces")
    inside = value[1:-1]
    if not inside:
        return []
    if b'"' not in inside and b"\\" not in inside and b"{" not in inside:
        return [None if element == b"NULL" else element for element in inside.split(delimiter)]
    return _split_quoted(inside, delimiter, cells)


def _split_quoted(inside: bytes, delimiter: bytes, cells: Cells) -> list[bytes | None]:
    token = _TOKENS[delimiter]
    elements: list[bytes | None] = []
    at = 0
    while at < len(inside):
        match = token.match(inside, at)
        if match is None:
            raise cells.malformed("an array's text is damaged")
        quoted, plain = match.groups()
        elements.append(_element(quoted, plain))
        at = match.end()
    if inside.endswith(delimiter) and match is not None and match.group().endswith(delimiter):
        raise cells.malformed("an array's text is damaged")
    return elements


def array_literal(text: str, element: ColumnType) -> str:
    """PostgreSQL's literal of an array in canonical text (JSON, see `model.text`); what is none already stays."""
    try:
        found = json.loads(text, parse_float=str, parse_int=str)
    except ValueError:
        return text
    shape = ""
    if isinstance(found, dict) and found:
        [(shape, found)] = found.items()
    delimiter = ";" if element.name == "box" else ","
    return (f"{shape}=" if shape else "") + _braces(found or [], delimiter)


def _braces(elements: list[Any], delimiter: str) -> str:
    return "{" + delimiter.join(_written(each, delimiter) for each in elements) + "}"


def _written(element: Any, delimiter: str) -> str:
    match element:
        case None:
            return "NULL"
        case list():
            return _braces(element, delimiter)
        case bool():
            return "true" if element else "false"
        case _:
            return '"' + str(element).replace("\\", "\\\\").replace('"', '\\"') + '"'
