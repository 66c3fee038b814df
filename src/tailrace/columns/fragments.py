"""Columns as JSON, all rows at once: a fragment a value, and fragments joined into objects.

A `Fragment` writes the values of an array that has no nulls; `written` takes any array, and writes `null` for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.json import encode

from tailrace.columns.characters import HEX, Array, data_of, in_rows, offsets_of
from tailrace.columns.text import ESCAPES, nested, quoted
from tailrace.errors import ValueRefused
from tailrace.model import shapes

Fragment = Callable[[pa.Array], pa.StringArray]
NULL = "null"


def written(array: pa.Array, write: Fragment) -> pa.StringArray:
    if not array.null_count:
        return write(array)
    if array.null_count == len(array):
        return pa.repeat(pa.scalar(NULL), len(array))
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return pc.fill_null(in_rows([write(array.drop_null())], [rows], len(array), pa.string()), NULL)


def numbers(array: pa.Array) -> pa.StringArray:
    return array.cast(pa.string())


def floats(array: pa.Array) -> pa.StringArray:
    """The shortest digits that read back, always with a point or an exponent; NaN and the infinities are strings."""
    text = array.cast(pa.string())
    values = array.to_numpy()
    if (values == np.trunc(values)).any():
        text = pc.replace_substring_regex(text, r"^(-?\d+)$", r"\1.0")
    if np.isfinite(values).all():
        return text
    infinite = pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.is_inf(array), infinite, text))


def strings(array: pa.Array) -> pa.StringArray:
    return quoted(array, _ESCAPES)


_ESCAPES = ESCAPES | {ord("\b"): "\\b", ord("\f"): "\\f"}
"""As msgspec has them, so that equal keys are equal bytes whichever way they were written."""


def literal(text: pa.StringArray) -> pa.StringArray:
    """As strings, of text that needs no escaping."""
    return pc.binary_join_element_wise('"', text, '"', "")


def lists(array: pa.ListArray, element: Fragment) -> pa.StringArray:
    """Arrays of one dimension."""
    offsets = array.offsets.to_numpy()
    elements = pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), written(array.flatten(), element))
    return pc.binary_join_element_wise("[", pc.binary_join(elements, ","), "]", "")


def arrays(array: pa.Array, element: Fragment) -> pa.StringArray:
    """Arrays of any shape, as `columns.text` writes them."""
    if not shapes.is_shaped(array.type):
        return lists(array, element)
    flat = lists(shapes.elements_of(array), element).to_pylist()
    texts = [t if s is None else nested(t, s) for t, s in zip(flat, shapes.shapes_of(array), strict=True)]
    return pa.array(texts, pa.string())


def objects(columns: Mapping[str, pa.StringArray], count: int) -> pa.StringArray:
    """A JSON object a row, of the fragments of its columns."""
    parts: list[str | pa.StringArray] = []
    for name, fragments in columns.items():
        parts += [f"{',' if parts else '{'}{encode(name).decode()}:", fragments]
    return join([*parts, "}"]) if parts else pa.repeat(pa.scalar("{}"), count)


def join(parts: Sequence[str | pa.StringArray]) -> pa.StringArray:
    """What stands in each row one after the other; a text is the same in all rows."""
    try:
        return pc.binary_join_element_wise(*parts, "")
    except pa.ArrowCapacityError as error:
        raise ValueRefused("more than 2 GiB of records in one batch", hint="use smaller batches") from error


# --- base64, of all rows at once

_ALPHABETS = {
    is_url_safe: np.frombuffer(
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + (b"-_" if is_url_safe else b"+/"), np.uint8
    )
    for is_url_safe in (False, True)
}
_PAIRS = {  # the two characters of twelve bits
    is_url_safe: np.stack([letters.repeat(64), np.tile(letters, 64)], axis=1).reshape(-1).view(np.uint16)
    for is_url_safe, letters in _ALPHABETS.items()
}


def base64(array: pa.BinaryArray, *, is_url_safe: bool = False) -> pa.StringArray:
    """As RFC 4648 has it, with padding; without the quotes of JSON."""
    data = np.frombuffer(data_of(array), np.uint8)
    lengths = _lengths(array)
    groups = (lengths + 2) // 3
    ends = np.cumsum(groups)
    padded = np.zeros(3 * int(ends[-1]) if len(ends) else 0, np.uint8)
    shift = 3 * (ends - groups) - (np.cumsum(lengths) - lengths)
    padded[np.arange(len(data)) + np.repeat(shift, lengths)] = data
    triples = padded.reshape(-1, 3).astype(np.uint32)
    bits = (triples[:, 0] << 16) | (triples[:, 1] << 8) | triples[:, 2]
    pairs = np.empty((len(bits), 2), np.uint16)
    pairs[:, 0], pairs[:, 1] = _PAIRS[is_url_safe][bits >> 12], _PAIRS[is_url_safe][bits & 4095]
    characters = pairs.view(np.uint8).reshape(-1)
    rest = lengths % 3
    characters[4 * ends[rest == 1] - 2] = ord("=")
    characters[4 * ends[rest != 0] - 1] = ord("=")
    return pa.Array.from_buffers(pa.string(), len(array), [None, offsets_of(4 * groups), pa.py_buffer(characters)])


def hexadecimal(array: pa.BinaryArray) -> pa.StringArray:
    data = np.frombuffer(data_of(array), np.uint8)
    buffers = [None, offsets_of(2 * _lengths(array)), pa.py_buffer(HEX[data])]
    return pa.Array.from_buffers(pa.string(), len(array), buffers)


def _lengths(array: pa.BinaryArray) -> Array:
    found: Array = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
