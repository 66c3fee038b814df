"""Events whose rows are all laid out as their first one: the same values NULL, and the others as long.

Such events need no walk: all of their rows are found, and held against the first, at once. Rows of fixed width are of
this kind, and often others: codes, hashes, numbers in texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tailrace.errors import DecodeError
from tailrace.sources.mysql.decode_maps import MapColumn
from tailrace.sources.mysql.events import Bytes, Integers, little_endian

Flags = npt.NDArray[np.bool_]
Each: TypeAlias = Integers | int
"""A number for each event, or the one that all have."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A column of a row: how far into it the value lies, and how long it is if its length is told before it."""

    place: Each
    length: Each | None
    prefix: int
    is_null: bool


@dataclass(frozen=True, slots=True)
class _Layout:
    """The first row of each event: where in it the bitmaps of NULL lie and what is in them, its columns, its size."""

    bitmaps: list[tuple[Each, Bytes]]
    images: list[list[_Slot]]
    size: Each


@dataclass(frozen=True, slots=True)
class Alike:
    """Some of the events, by their numbers: how many rows each has, and where each of these begins."""

    lanes: Integers
    counts: Integers
    rows: Integers
    _layout: _Layout

    def cells(self) -> list[list[tuple[Integers, Integers | None, Flags | None]]]:
        """Of each image's columns: where its values lie, how long they are, and which are NULL."""
        return [[self._cell(slot) for slot in image] for image in self._layout.images]

    def _cell(self, slot: _Slot) -> tuple[Integers, Integers | None, Flags | None]:
        count = len(self.rows)
        length = None
        if slot.length is not None:
            length = np.full(count, slot.length) if isinstance(slot.length, int) else self._spread(slot.length)
        null = np.ones(count, np.bool_) if slot.is_null else None
        return self.rows + self._spread(slot.place), length, null  # type: ignore[return-value]  # an int is a number

    def _spread(self, each: Each) -> Each:
        return each if isinstance(each, int) else np.repeat(each[self.lanes], self.counts)

    def is_as_the_first(self, buffer: Bytes) -> Flags:
        """Of each row. What lies before a place that is read was held against the first row already, or is read
        for nothing: inside of the event all the same."""
        found = np.ones(len(self.rows), np.bool_)
        for place, bits in self._layout.bitmaps:
            at = self.rows + self._spread(place)
            for byte, (value, mask) in enumerate(bits.T.tolist()):
                found &= (buffer[at + byte] & mask) == value
        for slot in (slot for image in self._layout.images for slot in image if slot.prefix and not slot.is_null):
            assert slot.length is not None
            lengths = little_endian(buffer, self.rows + self._spread(slot.place) - slot.prefix, slot.prefix)
            found &= lengths == self._spread(slot.length)
        return found

    def only(self, which: Flags) -> Alike:
        """Without the other events."""
        rows = self.rows[np.repeat(which, self.counts)]
        return Alike(self.lanes[which], self.counts[which], rows, self._layout)


def find(buffer: Bytes, at: Integers, end: Integers, images: Sequence[Sequence[MapColumn]]) -> Alike | None:
    """Those of the events in `at … end`, none of them empty, whose rows are alike; None if there are none.

    Also none if in the first row of one event other values are NULL than in that of another.
    """
    layout = _layout(buffer, at, images) if len(at) else None
    if layout is None:
        return None
    counts, rest = np.divmod(end - at, layout.size)
    lanes = np.flatnonzero((rest == 0) & (counts > 0))
    if not len(lanes):
        return None
    counts = counts[lanes]
    size = layout.size if isinstance(layout.size, int) else np.repeat(layout.size[lanes], counts)
    firsts = np.cumsum(counts) - counts
    rows = np.repeat(at[lanes], counts) + (np.arange(int(counts.sum())) - np.repeat(firsts, counts)) * size
    found = Alike(lanes, counts, rows, layout)
    is_alike = np.logical_and.reduceat(found.is_as_the_first(buffer), firsts)
    if is_alike.all():
        return found
    return found.only(is_alike) if is_alike.any() else None


def _layout(buffer: Bytes, at: Integers, images: Sequence[Sequence[MapColumn]]) -> _Layout | None:
    """None if rows differ in what is NULL."""
    place, bitmaps, found = at, [], []
    for image in images:
        bits = nulls(buffer, place, len(image))
        if (bits != bits[0]).any():
            return None
        bitmaps.append((_one(place - at), np.stack([bits[0], _masks(len(image))])))
        is_null = np.unpackbits(bits[0], bitorder="little")[: len(image)].astype(np.bool_).tolist()
        place = place + bits.shape[1]
        slots = []
        for column, absent in zip(image, is_null, strict=True):
            length = None
            if column.prefix:
                lengths = np.zeros(len(at), np.int64) if absent else little_endian(buffer, place, column.prefix)
                place, length = place + column.prefix, _one(lengths)
            slots.append(_Slot(_one(place - at), length, column.prefix, absent))
            place = place - column.prefix if absent else place + (column.width if length is None else length)
        found.append(slots)
    size = place - at
    if not size.all():
        raise DecodeError("a row event has rows of nothing")
    return _Layout(bitmaps, found, _one(size))


def _one(each: Integers) -> Each:
    return int(each[0]) if (each == each[0]).all() else each


def nulls(buffer: Bytes, at: Integers, count: int) -> Bytes:
    """The bitmaps, of which the bits behind the last column are noise."""
    width = (count + 7) // 8
    bits = np.ndarray((max(len(buffer) - width + 1, 0), width), np.uint8, buffer, 0, (1, 1))[at]
    if count % 8:
        bits[:, -1] &= (1 << count % 8) - 1
    return bits


def _masks(count: int) -> Bytes:
    """The bits of a bitmap that mean something."""
    masks = np.full((count + 7) // 8, 255, np.uint8)
    if count % 8:
        masks[-1] = (1 << count % 8) - 1
    return masks
