"""The texts of keys: what a document is found by, and what it remembers of the rows that it was built from.

Equal values have equal texts, also of columns whose types differ in width or scale: `5`, `5.0` and `5.00` are `5`. All
that joins rows and names documents compares these texts. Text itself compares by its bytes, whatever its collation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.text import to_text
from tailrace.documents.ordering import is_padded
from tailrace.model.types import ColumnType, Kind

ID_BYTES = 512
"""What OpenSearch takes as an id at the most."""
TERM_BYTES = 200


def key_texts(array: pa.Array, type_: ColumnType) -> pa.StringArray:
    """The text of each value as a part of a key; null stays null."""
    text = to_text(array, type_)
    match type_.kind:
        case Kind.DECIMAL | Kind.NUMERIC:
            return _trimmed(text)
        case Kind.FLOAT32 | Kind.FLOAT64:
            return pc.replace_substring_regex(text, "^-0$", "0")
        case Kind.TEXT if is_padded(type_):
            return pc.utf8_rtrim(text, " ")
    return text


def _trimmed(text: pa.StringArray) -> pa.StringArray:
    """Numbers without the zeros behind their last digit."""
    if not pc.any(pc.match_substring(text, "."), min_count=0).as_py():
        return text
    return pc.replace_substring_regex(text, r"^(-?\d+(?:\.\d*[1-9])?)\.?0*$", r"\1")


def joined(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """The texts of a key as one; null where one of them is. No two keys have the same."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*map(_escaped, columns), ":")


def _escaped(text: pa.StringArray) -> pa.StringArray:
    for character in ("\\", ":"):
        if pc.any(pc.match_substring(text, character), min_count=0).as_py():
            text = pc.replace_substring(text, character, "\\" + character)
    return text


def ids(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """The ids of the documents that have these keys. A text that can not be one, too long or empty, is hashed."""
    return _hashed(joined(columns), 1, ID_BYTES)


def terms(node: int, columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """What a document remembers of rows of a node that have these keys."""
    return pc.binary_join_element_wise(f"{node}:", _hashed(joined(columns), 0, TERM_BYTES), "")


def _hashed(text: pa.StringArray, shortest: int, longest: int) -> pa.StringArray:
    if _is_within(text, shortest, longest):
        return text
    length = pc.binary_length(text)
    is_odd = pc.fill_null(pc.or_(pc.less(length, shortest), pc.greater(length, longest)), False)
    hashes = [sha256(each.encode()).hexdigest() for each in text.filter(is_odd).to_pylist()]
    return pc.replace_with_mask(text, is_odd, pa.array(hashes, pa.string()))


def _is_within(text: pa.StringArray, shortest: int, longest: int) -> bool:
    """Whether all have a usual length; quickly, for nearly always they have."""
    if not len(text):
        return True
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset : text.offset + len(text) + 1]
    lengths = np.diff(offsets)
    return bool(lengths.max() <= longest and lengths.min() >= shortest)


def listed(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """The texts of each key as a list."""
    width, count = len(columns), len(columns[0])
    order = np.arange(width * count).reshape(width, count).T.ravel()
    offsets = pa.array(np.arange(0, width * count + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(list(columns)).take(pa.array(order)))


def unlisted(keys: pa.ListArray, names: Sequence[str]) -> pa.RecordBatch:
    """The way back: a column for each part of the keys, none of which is null."""
    texts = keys.flatten()
    parts = [texts.take(pa.array(np.arange(place, len(texts), len(names)))) for place in range(len(names))]
    return pa.RecordBatch.from_arrays(parts, names=list(names))


def parsed(ids: pa.StringArray, names: Sequence[str]) -> pa.RecordBatch:
    """The keys of a few documents, of their ids. A key that was too long for an id can not be told from it."""
    if len(names) == 1:
        return pa.RecordBatch.from_arrays([ids], names=list(names))
    parts = [[re.sub(r"\\(.)", r"\1", part) for part in _split(each)] for each in ids.to_pylist()]
    columns = [pa.array([each[place] for each in parts], pa.string()) for place in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _split(text: str) -> list[str]:
    """At the colons that are not escaped."""
    return re.findall(r"((?:[^\\:]|\\.)*):", f"{text}:")


def distinct(values: pa.RecordBatch) -> pa.RecordBatch:
    """Each key once, in the order of their first rows; without those that have a null."""
    texts = joined(values.columns)
    encoded = pc.dictionary_encode(texts)
    codes = pc.fill_null(encoded.indices, -1).to_numpy()
    first = np.full(len(encoded.dictionary), len(codes), np.int64)
    present = np.flatnonzero(codes >= 0)
    first[codes[present][::-1]] = present[::-1]  # a repeated index keeps the last value
    return values if len(first) == len(codes) else values.take(pa.array(first))
