"""Lists of numbers, one for each row: what documents remember, while they are put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lists:
    """List i is values[offsets[i] : offsets[i + 1]]."""

    offsets: Integers
    values: Integers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        return np.diff(self.offsets)

    def take(self, rows: Integers) -> Lists:
        """The lists of these rows; -1 stands for an empty one."""
        starts = self.offsets[:-1][rows] if len(self) else np.zeros(len(rows), np.int64)
        lengths = np.where(rows < 0, 0, self.lengths[rows]) if len(self) else np.zeros(len(rows), np.int64)
        return _filled(lengths, [(starts, lengths, self.values)])

    def grouped(self, bounds: Integers) -> Lists:
        """One list for each run of rows, of all that the rows have: run i is rows bounds[i] to bounds[i + 1] - 1."""
        return Lists(self.offsets[bounds], self.values)

    def distinct(self) -> Lists:
        """Each number once a list, in order."""
        if not len(self.values):
            return self
        owners = np.repeat(np.arange(len(self)), self.lengths)
        span = int(self.values.max()) + 1
        owner, value = np.divmod(sorted_once(owners * span + self.values), span)
        return Lists(np.searchsorted(owner, np.arange(len(self) + 1)), value)


def sorted_once(values: Integers) -> Integers:
    """As numpy's `unique`, which hashes and is several times slower on numbers that are nearly in order."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return np.asarray(ordered[is_first])


def singles(values: Integers) -> Lists:
    return Lists(np.arange(len(values) + 1), values)


def none(count: int) -> Lists:
    return Lists(np.zeros(count + 1, np.int64), np.zeros(0, np.int64))


def side_by_side(parts: Sequence[Lists]) -> Lists:
    """Each row's lists, one behind the other; all have as many rows."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.sum([part.lengths for part in parts], axis=0)
    return _filled(lengths, [(part.offsets[:-1], part.lengths, part.values) for part in parts])


def _filled(lengths: Integers, pieces: Sequence[tuple[Integers, Integers, Integers]]) -> Lists:
    """Lists of these lengths, each made of a piece from every source: where it starts, how long it is, in what."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.int64)
    at = offsets[:-1].copy()
    for starts, sizes, source in pieces:
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        values[np.repeat(at, sizes) + within] = source[np.repeat(starts, sizes) + within]
        at += sizes
    return Lists(offsets, values)
