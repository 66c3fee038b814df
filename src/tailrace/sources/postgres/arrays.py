"""PostgreSQL arrays to Arrow lists: the structure here, the elements by the decoder of their type.

An Arrow list is one dimension that starts at 1. Other arrays are refused, for a list would lose their shape.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tailrace.model.characters import Array
from tailrace.model.types import arrow_type
from tailrace.sources.postgres.cells import Cells, Integers, from_list, in_order

Decode = Callable[[Cells], pa.Array]

_HEADER = 12  # array_send: dimensions, whether there are NULLs, the elements' OID; then size and lower bound of each
_FIRST_ELEMENT = 20
_FEW = 16  # rows; below this a loop over elements is faster than a step of numpy for each


def decode_array(cells: Cells, decode: Decode) -> pa.ListArray:
    """The binary form."""
    count = _counts(cells)
    place, length = _walk(cells, count)
    return _list(cells, count, cells.buffer, place, length, decode)


def _counts(cells: Cells) -> Integers:
    """How many elements each array has."""
    if (cells.length < _HEADER).any():
        raise cells.malformed("an array is shorter than its header")
    dimensions = cells.window(">i4").astype(np.int64)
    empty = dimensions == 0
    if (dimensions < 0).any() or (cells.length[empty] != _HEADER).any():
        raise cells.malformed("an array's header is damaged")
    if (dimensions > 1).any():
        raise _shape(cells)
    if (cells.length[~empty] < _FIRST_ELEMENT).any():
        raise cells.malformed("an array is shorter than its header")
    bounds = cells.window("V20").view(">i4").reshape(-1, 5)
    count: Integers = bounds[:, 3] * (dimensions == 1).astype(np.int64)
    if ((bounds[:, 4] != 1) & ~empty).any():
        raise _shape(cells)
    if (count < 0).any() or (_FIRST_ELEMENT + 4 * count > np.maximum(cells.length, _FIRST_ELEMENT)).any():
        raise cells.malformed("an array has fewer elements than it says")
    return count


def _shape(cells: Cells) -> Exception:
    return cells.refused("an array has more than one dimension or does not start at 1, which a list can not express")


def _walk(cells: Cells, count: Integers) -> tuple[Integers, Integers]:
    """Place and length (-1: NULL) of every element, row after row: element j of all rows in one step."""
    first = np.cumsum(count) - count
    place = np.zeros(int(count.sum()), np.int64)
    length = np.zeros(len(place), np.int64)
    order = np.argsort(-count, kind="stable")
    cursor, end, target = (cells.place + _FIRST_ELEMENT)[order], (cells.place + cells.length)[order], first[order]
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


def parse_array(cells: Cells, decode: Decode) -> pa.ListArray:
    """The text form (array_out): `{1,NULL,"a \\"b\\""}`."""
    element = cells.type_.element
    assert element is not None
    delimiter = b";" if element.name == "box" else b","
    token = _TOKENS[delimiter]
    elements: list[bytes | None] = []
    count = np.zeros(len(cells), np.int64)
    for row in range(len(cells)):
        before = len(elements)
        elements += _split(cells[row], delimiter, token, cells)
        count[row] = len(elements) - before
    present = from_list([value or b"" for value in elements], element, cells.where)
    is_null = np.fromiter((value is None for value in elements), bool, len(elements))
    return _list(cells, count, present.buffer, present.place, np.where(is_null, -1, present.length), decode)


_TOKENS = {
    delimiter: re.compile(
        rb'(?:"((?:[^"\\]|\\.)*)"|([^"\\{}' + delimiter + rb"]+))(?:" + delimiter + rb"|\Z)", re.DOTALL
    )
    for delimiter in (b",", b";")
}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def _split(value: bytes, delimiter: bytes, token: re.Pattern[bytes], cells: Cells) -> list[bytes | None]:
    if value.startswith((b"[", b"{{")):
        raise _shape(cells)
    if not (value.startswith(b"{") and value.endswith(b"}")):
        raise cells.malformed("an array's text is not in braces")
    inside = value[1:-1]
    if not inside:
        return []
    if b'"' not in inside and b"\\" not in inside and b"{" not in inside:
        return [None if element == b"NULL" else element for element in inside.split(delimiter)]
    return _split_quoted(inside, token, delimiter, cells)


def _split_quoted(inside: bytes, token: re.Pattern[bytes], delimiter: bytes, cells: Cells) -> list[bytes | None]:
    elements: list[bytes | None] = []
    at = 0
    while at < len(inside):
        match = token.match(inside, at)
        if match is None:
            raise cells.malformed("an array's text is damaged")
        quoted, plain = match.groups()
        elements.append(_ESCAPED.sub(rb"\1", quoted) if plain is None else None if plain == b"NULL" else plain)
        at = match.end()
    if inside.endswith(delimiter) and match is not None and match.group().endswith(delimiter):
        raise cells.malformed("an array's text is damaged")
    return elements
