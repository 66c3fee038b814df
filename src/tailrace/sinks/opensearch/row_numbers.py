"""Rows as numbers of 63 bits: the node in the upper ones, a hash of the key in the others; by columns.

They are stored: what a row's number is never changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.columns.characters import data_of
from tailrace.documents.lists import Integers

NODE_BITS = 15
HASH_BITS = 63 - NODE_BITS
AT_ONCE = 1 << 16
_WHOLE = (1 << 64) - 1
_COLON = ord(":")

Words = npt.NDArray[np.uint64]


def numbers_of(terms: pa.StringArray) -> Integers:
    """Of rows that are named as `documents.keys.terms` has them: node, colon, key."""
    found = [_numbers(terms.slice(first, AT_ONCE)) for first in range(0, len(terms), AT_ONCE)]
    return np.concatenate([np.zeros(0, np.int64), *found])


def node_range(node: int) -> tuple[int, int]:
    """The least number that a row of this node can have, and the greatest."""
    return node << HASH_BITS, ((node + 1) << HASH_BITS) - 1


def _numbers(terms: pa.StringArray) -> Integers:
    data = np.frombuffer(data_of(terms), np.uint8)
    lengths = pc.binary_length(terms).to_numpy().astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    weights = np.array(list(_powers(int(lengths.max()))), np.uint64)
    sums = np.add.reduceat(_LETTERS[data] * weights[places], starts)
    nodes = _nodes(data, starts)
    return (nodes << HASH_BITS) | (_mixed(sums) >> np.uint64(64 - HASH_BITS)).astype(np.int64)


def _nodes(data: npt.NDArray[np.uint8], starts: Integers) -> Integers:
    """The digits before the first colon of each."""
    nodes, places = np.zeros(len(starts), np.int64), starts.copy()
    is_open = data[places] != _COLON
    while is_open.any():
        nodes[is_open] = nodes[is_open] * 10 + data[places[is_open]] - ord("0")
        places[is_open] += 1
        is_open[is_open] = data[places[is_open]] != _COLON
    return nodes


def _mixed(values: Words) -> Words:
    """Every bit of a value has a part in every bit of the result."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def _powers(count: int) -> Iterator[int]:
    value = 1
    for _ in range(count):
        yield value
        value = value * 0xD6E8FEB86659FD93 & _WHOLE


_LETTERS: Words = _mixed(np.arange(1, 257, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
"""What each byte counts for."""
